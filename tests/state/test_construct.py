"""Constructing with the generated constructor: arguments, defaults, numbers."""

import dataclasses
import inspect
from dataclasses import KW_ONLY
from typing import Annotated, Any, ClassVar, NewType, Optional

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import DeclarationError, FieldError, NumberError

jaxtyping = pytest.importorskip(
    "jaxtyping", reason="jaxtyping annotations need the interop extra"
)


Float, Float32, Int, Bool, UInt8 = (
    jaxtyping.Float,
    jaxtyping.Float32,
    jaxtyping.Int,
    jaxtyping.Bool,
    jaxtyping.UInt8,
)


Alias = NewType("Alias", jax.Array)


class Pair(ps.State):
    x: jax.Array
    y: float = 1.0


# --- arguments ------------------------------------------------------------------------


def test_fields_are_given_by_position_or_keyword():
    assert Pair(1.0, 2.0) == Pair(x=1.0, y=2.0) == Pair(1.0, y=2.0)


def test_an_unknown_field_names_the_nearest_one():
    with pytest.raises(
        FieldError, match=r"^Pair has no field 'xx'; did you mean 'x'\?$"
    ):
        Pair(xx=1, y=2)
    with pytest.raises(
        FieldError, match=r"^Pair has no field 'q'; its fields are x, y\.$"
    ):
        Pair(1, q=2)


def test_a_missing_field_is_named_with_the_call_to_write():
    class Three(ps.State):
        a: jax.Array
        b: int
        c: object
        d: int = 0

    text = (
        r"^Three needs a value for fields a, c: write Three\(a=\.\.\., b=\.\.\., "
        r"c=\.\.\.\), or give a a default\.$"
    )

    with pytest.raises(FieldError, match=text):
        Three(b=1)
    with pytest.raises(FieldError, match=r"^Three needs a value for field c: write"):
        Three(1, 2)


def test_a_field_given_twice_is_pythons_own_error():
    with pytest.raises(
        TypeError, match=r"^.*Pair\.__init__\(\) got multiple values for a"
    ):
        Pair(1, x=2)


def test_a_field_that_init_does_not_take_says_so():
    class Light(ps.State):
        k: int
        u: int = ps.field(init=False, default=0)

    text = (
        r"^Light does not take 'u', which is declared with init=False: set it in __post"
    )

    with pytest.raises(FieldError, match=text):
        Light(k=1, u=2)


def test_the_signature_is_the_one_of_a_dataclass():
    class S(ps.State):
        a: int
        b: list = ps.field(default_factory=list)
        _: KW_ONLY
        c: int = 3

    assert "(a: int, b: list = <factory>, *, c: int = 3) -> None" == str(
        inspect.signature(S)
    )
    assert ("a", "b") == S.__match_args__


def test_a_field_may_be_called_self():
    class S(ps.State):
        self: int
        cls: int = 2

    assert 1 == S(1).self
    assert 3 == S(self=3).self


def test_keyword_only_fields_come_last_and_may_lack_defaults():
    class Base(ps.State, kw_only=True):
        a: int = 0

    class Child(Base):
        b: int

    assert (1, 2) == (Child(1, a=2).b, Child(1, a=2).a)


def test_a_field_without_default_after_one_with_a_default_is_refused():
    text = r"^Bad\.b has no default but follows a, which has one, so positions would be"

    with pytest.raises(DeclarationError, match=text):

        class Bad(ps.State):
            a: int = 0
            b: int


# --- defaults -------------------------------------------------------------------------


def test_a_factory_makes_a_default_per_instance():
    class S(ps.State):
        parts: list = ps.field(default_factory=list)

    assert [] == S().parts
    assert S().parts is not S().parts


def test_every_instance_has_a_copy_of_an_array_default():
    template = np.zeros(2)

    class S(ps.State):
        a: jax.Array = jnp.ones(2)
        b: np.ndarray = template
        c: jax.Array = ps.field(default=jnp.ones(3))
        d: np.ndarray = dataclasses.field(default_factory=lambda: np.ones(1))

    template[:] = 7
    first, second = S(), S()
    first.b[:] = 5

    assert first.a is not second.a
    assert [1, 1] == second.a.tolist()
    assert [0, 0] == second.b.tolist()
    assert [1, 1, 1] == first.c.tolist()


@pytest.mark.parametrize("default", [[], {}, set()], ids=str)
def test_a_mutable_default_is_refused(default):
    with pytest.raises(
        DeclarationError, match=r"^Bad: mutable default .* default_factory"
    ):
        type("Bad", (ps.State,), {"__annotations__": {"x": list}, "x": default})


def test_class_attributes_are_those_of_a_dataclass():
    class S(ps.State):
        a: int = 5
        b: list = ps.field(default_factory=list)
        n: ClassVar[int] = 7

    assert 5 == S.a
    assert 7 == S.n
    assert [] == jax.tree.leaves(S(a=None, b=None))


# --- Python numbers in array fields ---------------------------------------------------


@pytest.mark.parametrize(
    "annotation",
    [
        jax.Array,
        jax.Array | None,
        Optional[jax.Array],  # noqa: UP045  # the older spelling is what is tested
        Annotated[jax.Array, "metres"],
        Float[jax.Array, ""],
        Float[jax.Array, "..."] | None,
        Float[jax.Array | np.ndarray, ""],
        jax.Array | np.ndarray,
        Alias,
        "jax.Array",
        "jax.Array | None",
        "Array",
        "OnlyForCheckers.Array",
    ],
    ids=str,
)
def test_a_number_in_an_array_field_gets_a_strong_dtype(annotation):
    cls = type("S", (ps.State,), {"__annotations__": {"x": annotation}})

    x = cls(x=1.5).x

    assert isinstance(x, jax.Array)
    assert (jnp.float32, False, ()) == (x.dtype, x.weak_type, x.shape)


@pytest.mark.parametrize(
    "annotation",
    [
        float,
        int,
        Any,
        object,
        jax.typing.ArrayLike,
        jax.Array | float,
        np.ndarray,
        "float",
    ],
    ids=str,
)
def test_a_number_elsewhere_stays_what_it_is(annotation):
    cls = type("S", (ps.State,), {"__annotations__": {"x": annotation}})

    assert float is type(cls(x=1.5).x)


@pytest.mark.parametrize(
    ("annotation", "number", "dtype"),
    [
        (jax.Array, True, jnp.bool_),
        (jax.Array, 1, jnp.int32),
        (jax.Array, 1.0, jnp.float32),
        (jax.Array, 1j, jnp.complex64),
        (Float[jax.Array, ""], 0, jnp.float32),
        (Int[jax.Array, ""], True, jnp.int32),
        (UInt8[jax.Array, ""], 3, jnp.uint8),
        (jaxtyping.UInt[jax.Array, ""], 3, jnp.uint32),
        (Float32[jax.Array, ""], 3, jnp.float32),
        (jaxtyping.BFloat16[jax.Array, ""], 3, jnp.bfloat16),
        (jaxtyping.Complex[jax.Array, ""], 3, jnp.complex64),
        (Float32[jax.Array, ""] | Int[jax.Array, ""], 3, jnp.int32),
    ],
    ids=str,
)
def test_the_annotation_decides_the_dtype_of_a_number(annotation, number, dtype):
    cls = type("S", (ps.State,), {"__annotations__": {"x": annotation}})

    assert dtype == cls(x=number).x.dtype


def test_the_dtype_of_a_field_decides_first():
    class S(ps.State):
        x: jax.Array = ps.field(dtype=jnp.bfloat16)
        n: Any = ps.field(dtype=jnp.uint8, default=0)

    assert jnp.bfloat16 == S(x=1).x.dtype
    assert jnp.uint8 == S(x=1).n.dtype
    assert jnp.int32 == S(x=jnp.int32(1)).x.dtype


@pytest.mark.parametrize(
    ("annotation", "number", "text"),
    [
        (
            Int[jax.Array, ""],
            0.5,
            r"^S\.x holds an integer dtype and 0\.5 does not fit",
        ),
        (
            UInt8[jax.Array, ""],
            -1,
            r"^S\.x holds uint8 and -1 does not fit: pass an array",
        ),
        (UInt8[jax.Array, ""], 256, r"^S\.x holds uint8 and 256 does not fit"),
        (jax.Array, 2**40, r"^S\.x holds int32 and 1099511627776 does not fit"),
        (jaxtyping.Key[jax.Array, ""], 0, r"^S\.x holds prng_key and 0 does not fit"),
    ],
    ids=str,
)
def test_a_number_that_does_not_fit_is_refused(annotation, number, text):
    cls = type("S", (ps.State,), {"__annotations__": {"x": annotation}})

    with pytest.raises(NumberError, match=text):
        cls(x=number)


def test_a_python_counter_survives_scan_and_is_traced_once():
    class Fire(ps.State):
        pos: jax.Array
        n_pos: jax.Array = 0

    traces = []

    @jax.jit
    def step(fire):
        traces.append(1)
        return fire.replace(n_pos=fire.n_pos + 1)

    fire = Fire(pos=jnp.zeros((5, 3)))
    fire = step(step(fire))
    fire, _ = jax.lax.scan(
        lambda f, _: (f.replace(n_pos=f.n_pos + 1), None), fire, None, 3
    )

    assert (5, jnp.int32) == (int(fire.n_pos), fire.n_pos.dtype)
    assert 1 == len(traces)


def test_a_number_stays_weak_nowhere_after_replace_and_hand_written_init():
    class S(ps.State):
        x: jax.Array

        def __init__(self):
            self.x = 1

    assert not S().x.weak_type
    assert not S().replace(x=2).x.weak_type
