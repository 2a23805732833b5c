"""What a class body may say: hooks, converters, checks, and what is refused."""

from dataclasses import InitVar
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import (
    CheckError,
    DeclarationError,
    ReservedNameError,
    UnannotatedArrayError,
)

# --- __post_init__, InitVar, converters, checks ---------------------------------------


def test_rebuilding_never_runs_hooks_and_takes_any_leaf():
    class Boxes(ps.State):
        arr: jax.Array

        def __post_init__(self):
            assert self.arr.ndim > 1

    boxes = Boxes(arr=jnp.ones((2, 2, 4)))
    structure = jax.tree.structure(boxes)

    assert (2,) == jax.vmap(lambda q: q.arr.sum())(boxes).shape
    for leaf in (object(), None, "name", 0):
        assert leaf is structure.unflatten([leaf]).arr
    jax.jit(lambda q: q).lower(boxes)
    with pytest.raises(AssertionError):
        Boxes(arr=jnp.ones(3))


def test_a_static_value_derived_from_an_array_survives_jit():
    class D(ps.State):
        a: jax.Array
        total: int = ps.static(init=False, default=0)

        def __post_init__(self):
            self.total = int(self.a.sum())

    assert (6,) == jax.jit(lambda q: jnp.zeros(q.total))(D(a=jnp.arange(4))).shape


def test_an_initvar_reaches_post_init_and_is_not_stored():
    class S(ps.State):
        x: jax.Array
        scale: InitVar[float] = 2.0

        def __post_init__(self, scale):
            self.x = self.x * scale

    assert 6.0 == float(S(x=3.0).x)
    assert 1.5 == float(S(x=3.0, scale=0.5).x)
    assert "scale" not in vars(S(x=3.0))


def test_a_converter_runs_once_per_construction_and_for_changed_fields():
    calls = []

    def double(value):
        calls.append(value)
        return value * 2

    class A(ps.State):
        x: int = ps.field(converter=double)
        y: int = ps.field(converter=double, default=10)

    class B(A):
        def __init__(self, x):
            super().__init__(x=x)

    assert (2, 20) == (A(x=1).x, A(x=1).y)
    calls.clear()
    assert (2, 20) == (B(1).x, B(1).y)
    assert [1, 10, 1, 10] == calls
    calls.clear()
    assert (6, 20) == (A(x=1).replace(x=3).x, A(x=1).replace(x=3).y)
    assert 2 == calls.count(3)


def test_an_error_in_a_converter_names_the_field():
    class S(ps.State):
        n: int = ps.field(converter=int)

    with pytest.raises(ValueError, match="invalid literal") as caught:
        S(n="many")

    assert "raised by the converter of S.n, which was given 'many'." in (
        caught.value.__notes__
    )


class Positive(ps.State):
    x: jax.Array
    ran: ClassVar[list] = []

    def __check__(self):
        self.ran.append("base")
        if not (self.x > 0).all():
            raise ValueError("x must be positive")


class Short(Positive):
    def __check__(self):
        self.ran.append("child")
        return self.x.size < 4


def test_checks_run_base_first_after_construction_and_replace():
    Positive.ran.clear()

    Short(x=jnp.ones(3)).replace(x=jnp.ones(2))

    assert ["base", "child", "base", "child"] == Positive.ran


def test_a_failing_check_keeps_its_type_and_says_whose_it_is():
    text = (
        r"^x must be positive\nraised by Positive\.__check__ for Short\(x=f32\[2\]\)\.$"
    )

    with pytest.raises(ValueError, match=text):
        Short(x=-jnp.ones(2))
    with pytest.raises(ValueError, match=text):
        Short(x=jnp.ones(2)).replace(x=-jnp.ones(2))


def test_a_check_that_returns_false_is_a_check_error():
    text = (
        r"^Short\.__check__ returned False for this Short: its invariant does not hold\. "
        r"Raise an error with your own text in __check__ to say which one\."
    )

    with pytest.raises(CheckError, match=text):
        Short(x=jnp.ones(4))


def test_checks_are_skipped_while_a_leaf_has_no_value():
    Positive.ran.clear()
    s = jax.tree.structure(Short(x=jnp.ones(1)))
    Positive.ran.clear()

    jax.jit(lambda x: Short(x=x))(-1.0)
    jax.eval_shape(lambda x: Short(x=x), 1.0)
    Short(x=jax.ShapeDtypeStruct((2,), jnp.float32))
    s.unflatten([-jnp.ones(9)])

    assert [] == Positive.ran


# --- class bodies that are refused ----------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [np.zeros(2), jnp.zeros(2), [jnp.zeros(2)], {"a": np.zeros(2)}, (np.zeros(1), 2)],
    ids=["numpy", "jax", "list", "dict", "tuple"],
)
def test_an_array_without_annotation_is_refused(value):
    text = (
        r"^Bad\.w is an array without an annotation: every instance would share it, and "
        r"jit would compile its values into the program as constants\. Declare a field, "
        r"`w: jax\.Array = \.\.\.`, or, for a true constant, move it out of the class\.$"
    )

    with pytest.raises(UnannotatedArrayError, match=text):
        type("Bad", (ps.State,), {"w": value})


@pytest.mark.parametrize("name", ["replace", "at", "draft"])
def test_a_field_named_like_a_method_of_state_is_refused(name):
    text = (
        rf"^Bad cannot have a field '{name}': State has a method of that name, which the "
        rf"field would hide\. Choose another, such as `{name}_`\.$"
    )

    with pytest.raises(ReservedNameError, match=text):
        type("Bad", (ps.State,), {"__annotations__": {name: int}})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("__hidden__", r"cannot have a field named '__hidden__': choose an identifier"),
        ("_ps_cls", r"cannot have a field named '_ps_cls': choose an identifier"),
        (
            "class",
            r"cannot have a field named 'class', which is a keyword of Python: use",
        ),
        ("a b", r"cannot have a field named 'a b': choose an identifier"),
    ],
)
def test_a_name_that_cannot_be_a_field_is_refused(name, text):
    with pytest.raises(DeclarationError, match=text):
        type("Bad", (ps.State,), {"__annotations__": {name: int}})


def test_a_specifier_without_annotation_is_refused():
    text = (
        r"^Bad\.x has a field specifier but no annotation: write `x: SomeType = \.\.\.`"
    )

    with pytest.raises(DeclarationError, match=text):
        type("Bad", (ps.State,), {"x": ps.static(default=1)})


def test_slots_are_refused():
    with pytest.raises(
        DeclarationError, match=r"^Bad declares __slots__, which State doe"
    ):

        class Bad(ps.State):
            __slots__ = ("x",)


def test_a_tracer_as_default_is_refused():
    def make(x):
        class Bad(ps.State):
            w: jax.Array = x

    with pytest.raises(
        DeclarationError, match=r"^the default of Bad\.w is a tracer: the"
    ):
        jax.jit(make)(1.0)


def test_unknown_options_of_a_specifier_are_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'defualt'"):
        ps.field(defualt=1)
    with pytest.raises(ValueError, match="both default and default_factory"):
        ps.static(default=1, default_factory=int)
