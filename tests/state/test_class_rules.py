"""Classes that `dataclasses` accepts, or explains, and what a State does with them."""

import dataclasses
import doctest
import inspect
import typing

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from purestate.errors import DeclarationError, DraftError, FieldError, FrozenStateError


class Gen(ps.State):
    x: jax.Array


# --- defaults that come from a base ---------------------------------------------------


class Rates(ps.State):
    rate: float = 0.1
    w: jax.Array = jnp.ones(2)
    names: list = ps.field(default_factory=lambda: ["a"])
    n: int = ps.static(default=3)


def test_a_bare_annotation_keeps_the_default_of_the_base():
    class Narrow(Rates):
        rate: jax.Array
        w: jax.Array
        names: list

    narrow = Narrow()

    assert 0.1 == pytest.approx(float(narrow.rate))
    assert isinstance(narrow.rate, jax.Array)
    assert ([1.0, 1.0], ["a"], 3) == (narrow.w.tolist(), narrow.names, narrow.n)


def test_a_bare_annotation_takes_the_attribute_of_a_plain_mixin():
    class Mixin:
        rate = 0.5

    class Uses(Mixin, ps.State):
        rate: float

    assert 0.5 == Uses().rate


def test_a_bare_annotation_over_a_method_or_a_property_has_no_default():
    class Mixin:
        def rate(self):
            return 1

    class Uses(Mixin, ps.State):
        rate: float

    with pytest.raises(FieldError, match=r"^Uses needs a value for field rate"):
        Uses()


# --- constructors of others -----------------------------------------------------------


class Logged:
    log: typing.ClassVar[list] = []

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.log.append(type(self).__name__)


def test_the_init_of_a_plain_mixin_before_a_state_runs():
    class Own(ps.State):
        x: jax.Array

        def __init__(self, x):
            self.x = x

    class LoggedGen(Logged, Gen):
        pass

    class LoggedOwn(Logged, Own):
        pass

    Logged.log.clear()
    made = [LoggedGen(1), LoggedOwn(1), LoggedGen(x=2)]

    assert ["LoggedGen", "LoggedOwn", "LoggedGen"] == Logged.log
    assert [1, 1, 2] == [int(state.x) for state in made]
    assert 5 == made[0].replace(x=5).x
    with pytest.raises(FrozenStateError):
        made[0].x = 2


def test_an_init_that_sets_the_field_of_another_base_works():
    class Sets(ps.State):
        def __init__(self, x):
            self.x = x

    class Both(Sets, Gen):
        pass

    assert 1 == Both(1).x


def test_state_itself_cannot_be_made():
    with pytest.raises(
        TypeError, match=r"^State is a base class without fields: write a "
    ):
        ps.State()


def test_a_class_without_fields_can_be_made():
    class Empty(ps.State):
        pass

    assert [] == jax.tree.leaves(Empty())


# --- what stands in the body ----------------------------------------------------------


class Positive:
    def __set_name__(self, owner, name):
        self.name = f"_{name}"

    def __get__(self, instance, owner=None):
        return 1.0

    def __set__(self, instance, value):
        raise ValueError("not positive")


def test_a_descriptor_as_default_is_refused_with_the_way_out():
    with pytest.raises(
        DeclarationError,
        match=r"^Checked\.rate = <.*Positive.* is a descriptor .* ps\.field\(converter=",
    ):

        class Checked(ps.State):
            rate: float = Positive()


def test_set_name_runs_once_and_with_the_class_itself():
    calls = []

    class Tells:
        def __set_name__(self, owner, name):
            calls.append((owner, name))

    class Told(ps.State):
        tool: typing.ClassVar[object] = Tells()
        held: object = Tells()

    assert [(Told, "tool"), (Told, "held")] == calls


def test_a_class_var_with_a_specifier_reads_as_its_default():
    class Limited(ps.State):
        limit: typing.ClassVar[int] = ps.field(default=10)
        x: jax.Array = 0

    assert 10 == Limited.limit == Limited().limit
    assert ["x"] == [field.name for field in dataclasses.fields(Limited)]


def test_a_class_var_in_a_call_or_an_update_is_told():
    class Limited(ps.State):
        limit: typing.ClassVar[int] = 10
        x: jax.Array = 0

    for call in (
        lambda: Limited(limit=3),
        lambda: Limited().replace(limit=3),
        lambda: dataclasses.replace(Limited(), limit=3),
    ):
        with pytest.raises(
            FieldError, match=r"^Limited\.limit is a ClassVar or an InitV"
        ):
            call()


def test_the_frozen_decorator_on_top_is_told_that_a_state_is_frozen():
    with pytest.raises(
        DeclarationError,
        match=r"^@dataclass\(frozen=True\) on a State: a State is frozen already",
    ):

        @dataclasses.dataclass(frozen=True)
        class Decorated(ps.State):
            x: jax.Array


def test_the_class_keyword_frozen_may_say_what_is_so():
    class Said(ps.State, frozen=True):
        x: jax.Array

    with pytest.raises(FrozenStateError):
        Said(1).x = 2
    with pytest.raises(
        DeclarationError, match=r"^Unsaid has frozen=False, and every St"
    ):

        class Unsaid(ps.State, frozen=False):
            x: jax.Array


def test_an_unknown_class_keyword_names_those_that_there_are():
    with pytest.raises(
        DeclarationError,
        match=r"^class Odd\(State, order=\.\.\.\): no base takes the keyword 'order'\. "
        r"State takes kw_only, strict, frozen, version, was\.$",
    ):

        class Odd(ps.State, order=True):
            x: jax.Array


def test_a_class_has_no_examples_and_no_text_but_its_own():
    class Quiet(ps.State):
        x: jax.Array
        n: int = ps.static(default=1)

        @ps.jit
        def step(self):
            return self

    class Loud(Quiet):
        """What it is for."""

    found = doctest.DocTestFinder().find(Quiet, "Quiet")

    assert [] == [test.name for test in found if test.examples]
    assert "Quiet(x, n)" == inspect.getdoc(Quiet)
    assert "What it is for." == inspect.getdoc(Loud)
    assert inspect.getdoc(Quiet.replace).startswith("Return a copy with some fields ch")


# --- errors that others catch ---------------------------------------------------------


def test_a_frozen_state_error_is_that_of_dataclasses():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Gen(x=1).x = 2


def test_positional_arguments_are_counted_as_python_does():
    class Two(ps.State):
        x: jax.Array
        y: jax.Array = 0
        z: jax.Array = ps.field(default=0, kw_only=True)

    with pytest.raises(
        TypeError,
        match=r"Gen\.__init__\(\) takes 2 positional arguments but 3 were given$",
    ):
        Gen(1, 2)
    with pytest.raises(
        TypeError,
        match=r"Two\.__init__\(\) takes from 2 to 3 positional arguments but 4 were given",
    ):
        Two(1, 2, 3)


@pytest.mark.parametrize("made", [lambda x, k: With(x, k), lambda x, k: Without(x, k)])
def test_dataclasses_replace_takes_an_init_var_that_nothing_uses(made):
    assert 3 == dataclasses.replace(made(1, 2), x=3, k=4).x


class Without(ps.State):
    x: jax.Array
    k: dataclasses.InitVar[int]


class With(Without):
    n: jax.Array = ps.field(default=0, init=False)


# --- drafts and Refs ------------------------------------------------------------------


class Node(ps.State):
    kids: tuple = ()


def test_a_draft_that_is_assigned_into_itself_is_told():
    with (
        pytest.raises(
            DraftError, match=r"^Node\.kids\[0\]\.kids\[0\] is the Node that it"
        ),
        Node((Node(),)).draft() as new,
    ):
        new.kids[0].kids = (new,)


def test_two_states_with_one_ref_are_equal_and_with_two_are_not():
    class Mutable(ps.State):
        r: object

    one = Mutable(jax.new_ref(jnp.zeros(2)))
    other = Mutable(jax.new_ref(jnp.zeros(2)))

    assert one == one
    assert one != other
    assert "Mutable.r: value a Ref -> another Ref" == str(
        ps.diff(one, other, values=True)
    )
