"""Classes and values that are unusual, each of which once went wrong."""

import dataclasses
import enum
import functools
from dataclasses import InitVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import (
    CheckError,
    DeclarationError,
    FieldError,
    FrozenStateError,
    NumberError,
    UnsetFieldError,
)
from tests.helpers import through_cloudpickle


class Scale(ps.State):
    x: jax.Array
    by: object = ps.static(default=None)


# --- fields ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["type", "KeyError", "TypeError", "BaseException", "locals", "cls", "object"],
)
@pytest.mark.parametrize("static", [True, False])
def test_a_field_may_have_the_name_of_a_builtin(name, static):
    body = {"__annotations__": {"x": jax.Array, name: str}}
    if static:
        body[name] = ps.static()
    cls = type("S", (ps.State,), body)

    s = cls(**{"x": 1, name: "a"})

    assert "a" == getattr(s.replace(x=2), name)
    with pytest.raises(FieldError, match="needs a value for field x"):
        cls(**{name: "a"})


def test_an_init_false_field_has_its_default_in_post_init():
    class S(ps.State):
        parts: list = ps.field(init=False, default_factory=list)
        count: jax.Array = ps.field(init=False, default=2)

        def __post_init__(self):
            self.parts.append(int(self.count))

    assert [2] == S().parts
    assert isinstance(S().count, jax.Array)
    assert [2] == S().replace().parts


def test_a_field_that_nothing_sets_says_so():
    class S(ps.State):
        x: jax.Array = ps.field(init=False)

    text = (
        r"^S declares x with init=False, and nothing sets it: give it a default, set it"
    )

    with pytest.raises(UnsetFieldError, match=text) as caught:
        S()
    assert not hasattr(caught.value, "__notes__")


def test_a_name_that_is_both_a_field_and_a_method_is_refused():
    with pytest.raises(
        DeclarationError, match=r"^S\.x is declared as a field and defined as a m"
    ):

        class S(ps.State):
            x: jax.Array

            def x(self): ...


def test_a_name_that_is_both_a_field_and_a_property_is_refused():
    with pytest.raises(
        DeclarationError, match=r"^S\.x is declared as a field and defined as a p"
    ):

        class S(ps.State):
            x: jax.Array

            @property
            def x(self): ...


def test_names_that_python_would_rewrite_are_refused():
    with pytest.raises(DeclarationError, match="choose an identifier"):
        type("S", (ps.State,), {"__annotations__": {"ﬁeld": int}})


def test_options_of_a_specifier_are_checked_where_they_are_written():
    with pytest.raises(TypeError, match=r"^converter= takes a function, and got 3\."):
        ps.field(converter=3)
    with pytest.raises(TypeError, match="nonsense"):
        ps.field(dtype="nonsense")


@pytest.mark.parametrize(
    ("annotation", "becomes"),
    [
        ("Unknown.Array", jax.Array),
        ("Optional[Array]", jax.Array),
        ("Array | None", jax.Array),
        ('Float[Array, "n"]', jax.Array),
        ("Array | float", float),
        ("list[Array]", float),
        ("Tuple[Array, 'x']", float),
    ],
)
def test_an_annotation_for_checkers_only_is_taken_at_its_word(annotation, becomes):
    cls = type("S", (ps.State,), {"__annotations__": {"x": annotation}})

    assert isinstance(cls(x=1.0).x, becomes)


@pytest.mark.parametrize(
    ("dtype", "number", "text"),
    [
        (jnp.int4, 30, r"^S\.x holds int4 and 30 does not fit"),
        (jnp.uint4, -1, r"^S\.x holds uint4 and -1 does not fit"),
        (jnp.int32, 10**5000, r"^S\.x holds int32 and <int> does not fit"),
    ],
    ids=["int4", "uint4", "huge"],
)
def test_a_number_out_of_range_is_refused(dtype, number, text):
    cls = type(
        "S", (ps.State,), {"__annotations__": {"x": object}, "x": ps.field(dtype=dtype)}
    )

    with pytest.raises(NumberError, match=text):
        cls(x=number)


def test_a_number_that_only_64_bits_hold_points_to_x64():
    class S(ps.State):
        x: jax.Array = ps.field(dtype=np.int64)

    text = (
        r"holds int64 \(which is int32 unless jax_enable_x64 is on\) and 1099511627776"
    )

    with pytest.raises(NumberError, match=text):
        S(x=2**40)


def test_donating_one_instance_leaves_the_defaults_of_others_alone():
    class Part(ps.State):
        w: jax.Array = jnp.ones(2)

    class S(ps.State):
        table: jax.Array = jnp.zeros(3)
        part: Part = Part()
        pair: tuple = (jnp.ones(1), np.ones(1))

        @ps.jit(donate=True)
        def step(self):
            return self.replace(table=self.table + 1)

    for _ in range(3):
        assert [1, 1, 1] == S().step().table.tolist()


def test_a_hand_written_init_computes_derived_fields_too():
    class Running(ps.State):
        var: jax.Array
        std: jax.Array = ps.field(init=False, default=0.0)

        def __init__(self, var):
            self.var = var

        def __post_init__(self):
            self.std = jnp.sqrt(self.var)

    class Ratio(Running):
        ratio: jax.Array = ps.field(init=False)

        def __post_init__(self):
            super().__post_init__()
            self.ratio = self.std / 2

    assert 2.0 == float(Running(4.0).std) == float(Running(4.0).replace(var=4.0).std)
    assert 1.0 == float(Ratio(4.0).ratio)


@pytest.mark.parametrize("option", ["static", "pytree_node"])
def test_the_spelling_of_other_libraries_is_answered(option):
    with pytest.raises(
        DeclarationError, match=r"^ps\.field\(\) has no option .*ps\.static"
    ):
        ps.field(**{option: True})


def test_a_specifier_without_parentheses_is_refused():
    with pytest.raises(
        DeclarationError, match=r"^S\.n = ps\.static lacks its parentheses"
    ):
        type("S", (ps.State,), {"__annotations__": {"n": int}, "n": ps.static})


# --- mixins and bases -----------------------------------------------------------------


@pytest.mark.parametrize("frozen", [False, True])
def test_a_dataclass_mixin_does_not_take_over_states_methods(frozen):
    @dataclasses.dataclass(frozen=frozen)
    class Mixin:
        m: int = 1

    class C(Mixin, ps.State):
        x: jax.Array = 2

    class D(Mixin, ps.State):
        x: jax.Array = 2

        def __init__(self):
            self.m = 3

    assert C(x=1) != C(x=2)
    assert "C(m=1, x=i32[])" == repr(C())
    assert 3 == D().m
    with pytest.raises(FrozenStateError, match=r"^cannot assign C\.x"):
        C().x = 3
    with pytest.raises(ps.errors.UnhashableStateError):
        hash(C())


@pytest.mark.parametrize("base", [Exception, dict, tuple])
def test_builtin_bases_are_refused(base):
    text = (
        rf"^Odd cannot be a State and a {base.__name__}: instances are made in another"
    )

    with pytest.raises(DeclarationError, match=text):
        type("Odd", (ps.State, base), {})


def test_enums_are_refused():
    with pytest.raises(DeclarationError, match=r"^Odd cannot be a State and a Enum"):

        class Odd(ps.State, enum.Enum): ...


@pytest.mark.parametrize(
    "check", [None, classmethod(lambda cls: None)], ids=["None", "classmethod"]
)
def test_a_check_that_is_no_method_is_refused(check):
    with pytest.raises(
        DeclarationError, match=r"^Odd\.__check__ must be a method, `def __"
    ):
        type("Odd", (ps.State,), {"__check__": check})


# --- checks, replace, cached properties -----------------------------------------------


def test_a_check_computes_with_jnp_also_while_jax_traces():
    class Positive(ps.State):
        x: jax.Array
        g: int = ps.static(default=1)

        def __check__(self):
            assert jnp.all(self.x > 0)

    positive = Positive(x=jnp.ones(2))

    assert [2, 2] == jax.jit(lambda y: positive.replace(g=2).x * y)(2.0).tolist()
    with pytest.raises(AssertionError):
        jax.jit(lambda y: positive.replace(x=np.zeros(2)).x * y)(2.0)


def test_a_check_that_returns_an_array_names_its_class():
    class S(ps.State):
        x: jax.Array

        def __check__(self):
            return self.x > 0

    assert 1 == int(S(x=1).x)
    with pytest.raises(CheckError, match=r"^S\.__check__ returned False"):
        S(x=0)
    with pytest.raises(
        ValueError, match=r"raised by S\.__check__ for S\(x=f32\[2\]\)\."
    ):
        S(x=jnp.ones(2))


def test_dataclasses_replace_is_as_strict_and_runs_hooks_no_more_often():
    class Strict(ps.State, strict=True):
        x: jax.Array

    class Doubling(ps.State):
        x: int
        by: InitVar[int] = 3
        seen: int = ps.field(converter=int, default=0)

        def __post_init__(self, by):
            self.x = self.x * by

    with pytest.raises(ps.errors.StrictFieldError):
        dataclasses.replace(Strict(x=jnp.ones(2)), x=jnp.ones(3))
    assert (
        1 == Doubling(x=1).replace(x=1).x == dataclasses.replace(Doubling(x=1), x=1).x
    )


def test_an_initvar_is_no_field_of_a_class_with_its_own_init():
    class S(ps.State):
        x: int
        k: InitVar[int] = 0

        def __init__(self):
            self.x = 1

    with pytest.raises(
        FieldError, match=r"^S\.k is a ClassVar or an InitVar, which in"
    ):
        S().replace(k=3)


def test_a_property_cached_during_construction_is_not_kept():
    class S(ps.State):
        x: int

        @functools.cached_property
        def y(self):
            return self.x * 2

        def __post_init__(self):
            self.x = self.x + self.y

    assert (3, 6) == (S(x=1).x, S(x=1).y)


def test_a_cached_closure_keeps_no_tracer():
    class S(ps.State):
        x: jax.Array

        @functools.cached_property
        def times(self):
            w = self.x * 2
            return lambda z: z * w

        @functools.cached_property
        def table(self):
            return {1: self.x, "a": self.x}

    s = S(x=jnp.ones(()))

    assert 4.0 == float(jax.jit(lambda z: s.times(z) * s.table[1])(2.0))
    assert 4.0 == float(s.times(2.0))
    assert s.table is s.table


# --- repr and diff --------------------------------------------------------------------


def test_a_deep_tree_has_a_short_repr():
    class Node(ps.State):
        a: object
        b: object = None

    node = Node(a=1)
    for _ in range(12):
        node = Node(a=node, b=node)

    assert len(repr(node)) < 40_000


def test_numpy_scalars_show_their_value():
    assert "1.5" in repr(Scale(x=1, by=np.float32(1.5)))
    assert "set of 100" in repr(Scale(x=set(range(100))))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (jax.random.key(0), jax.random.key(0, impl="rbg")),
        (jax.random.key(0), jnp.ones(2)),
        (jax.ShapeDtypeStruct((2,), jnp.float32), jnp.ones(2)),
        (np.array(["a"]), np.array(["b"])),
        (np.float32, np.float64),
        (object(), object()),
    ],
    ids=["impl", "key and array", "struct", "text", "types", "objects"],
)
def test_odd_leaves_can_be_compared(a, b):
    assert isinstance(str(ps.diff(Scale(x=a), Scale(x=b), values=True)), str)


# --- cloudpickle ----------------------------------------------------------------------


def test_a_class_without_instances_travels_by_cloudpickle():
    through_cloudpickle(
        """
        import jax, purestate as ps

        class A(ps.State):
            x: jax.Array

        class B(ps.State):
            s: int = ps.static(default=1)

        class C(A):
            y: jax.Array = 0

        class D(A):
            def __init__(self, n):
                self.x = n

        made = A, B, C, D
        """,
        """
        import jax, jax.numpy as jnp, purestate as ps

        A, B, C, D = made

        class E(B):
            z: jax.Array = 3

        class F(A):
            pass

        assert isinstance(A(1).x, jax.Array) and isinstance(D(1).x, jax.Array)
        assert "A(x=f32[1])" == repr(A(jnp.ones(1))), repr(A(jnp.ones(1)))
        assert "B(s=1)" == repr(B()) and "B(s=2)" == repr(B().replace(s=2))
        assert "C(x=f32[1], y=i32[])" == repr(C(jnp.ones(1)))
        assert "E(s=1, z=i32[])" == repr(E()) and "F(x=i32[])" == repr(F(1))
        for state in A(1), B(), C(1), D(1), E(), F(1):
            assert state == jax.tree.map(lambda leaf: leaf, state)
        """,
    )


def test_an_empty_subclass_costs_nothing_once_it_is_used():
    Empty = type("Empty", (Scale,), {})

    jax.tree.leaves(Empty(x=1))

    assert not Empty.__purestate_layout__.bare
    assert Empty(x=1) == Empty(x=1)
