"""Numbers of all kinds in array fields, and trees of flags, which keep theirs."""

import enum

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import NumberError


class Step(enum.IntEnum):
    FIRST = 0
    MID = 1
    LATE = 300


class Percent(float):
    pass


class Holds(ps.State):
    kind: jax.Array = ps.field(default=Step.FIRST, dtype=jnp.int8)
    plain: jax.Array = 0
    rate: jax.Array = 0.5


NUMBERS = {
    "IntEnum": (Step.MID, "int32"),
    "bool": (True, "bool"),
    "numpy bool": (np.True_, "bool"),
    "numpy int64": (np.int64(7), "int32"),
    "numpy uint8": (np.uint8(7), "int32"),
    "numpy float64": (np.float64(0.25), "float32"),
    "numpy float16": (np.float16(0.25), "float32"),
    "bfloat16": (np.asarray(0.25, jnp.bfloat16)[()], "float32"),
    "subclass of float": (Percent(0.25), "float32"),
    "numpy complex": (np.complex64(1j), "complex64"),
}


@pytest.mark.parametrize(("number", "dtype"), NUMBERS.values(), ids=NUMBERS)
def test_a_number_of_any_class_becomes_a_strong_array(number, dtype):
    ways = {
        "construct": Holds(plain=number),
        "replace": Holds(plain=jnp.zeros(3, bool)).replace(plain=number),
        "at": Holds(plain=jnp.zeros(3, bool)).at(lambda s: s.plain).set(number),
    }
    with Holds(plain=jnp.zeros(3, bool)).draft() as ways["draft"]:
        ways["draft"].plain = number

    for made in ways.values():
        assert isinstance(made.plain, jax.Array)
        assert (dtype, False) == (made.plain.dtype.name, made.plain.weak_type)
        assert number == made.plain


def test_a_number_of_any_class_gets_the_dtype_of_its_field():
    holds = Holds().replace(kind=Step.MID)

    assert jnp.int8 == holds.kind.dtype
    assert 1 == holds.kind


@pytest.mark.parametrize("number", [Step.LATE, np.int64(300), np.float64(0.5)])
def test_a_number_of_any_class_that_does_not_fit_is_refused(number):
    with pytest.raises(
        NumberError, match=r"^Holds\.kind holds int8 and .* does not fit"
    ):
        Holds(kind=number)
    with pytest.raises(
        NumberError, match=r"^Holds\.kind holds int8 and .* does not fit"
    ):
        Holds().replace(kind=number)


def test_numbers_of_all_kinds_share_one_trace():
    traces = []

    @jax.jit
    def use(holds):
        traces.append(1)
        return holds.plain

    for number in (Step.MID, 1, np.int64(1), jnp.int32(1)):
        use(Holds(plain=number))

    assert [1] == traces


def test_a_scalar_type_of_jax_as_annotation_asks_for_an_array_of_it():
    class Counts(ps.State):
        count: jnp.int32 = 0
        small: jnp.float16 = 0

    counts = Counts()

    assert (jnp.int32, jnp.float16) == (counts.count.dtype, counts.small.dtype)
    with pytest.raises(
        NumberError, match=r"^Counts\.count holds int32 and 0\.5 does n"
    ):
        Counts(count=0.5)


# --- flags ----------------------------------------------------------------------------


class Pair(ps.State):
    a: jax.Array
    b: jax.Array
    scale: jax.Array = ps.field(default=1.0, converter=jnp.asarray)


def flags(value):
    return jax.tree.map(lambda _: value, Pair(jnp.ones(3), jnp.zeros(3)))


def test_a_tree_of_axes_keeps_the_axes_that_replace_is_given():
    axes = flags(None).replace(a=0)

    assert (int, None, None) == (type(axes.a), axes.b, axes.scale)
    mapped = jax.vmap(lambda pair: pair.a + pair.b.sum(), in_axes=(axes,))
    assert (3,) == mapped(Pair(jnp.ones(3), jnp.zeros(3))).shape


@pytest.mark.parametrize(
    "change",
    [
        lambda mask: mask.replace(a=True, scale=1),
        lambda mask: mask.at(lambda m: (m.a, m.scale)).set((True, 1)),
    ],
    ids=["replace", "at"],
)
def test_a_mask_keeps_its_bools_also_in_fields_that_are_not_named(change):
    mask = change(flags(False))

    assert (True, False, 1) == (mask.a, mask.b, mask.scale)
    assert (bool, bool, int) == (type(mask.a), type(mask.b), type(mask.scale))


def test_a_draft_of_a_tree_of_flags_keeps_what_it_is_assigned():
    with flags(False).draft() as mask:
        mask.a = True

    assert mask.a is True
    assert mask.b is False


def test_beside_an_array_a_number_becomes_one_also_where_there_was_none():
    class Maybe(ps.State):
        x: jax.Array
        y: jax.Array | None = None

    assert isinstance(Maybe(x=0).replace(y=1).y, jax.Array)
    assert isinstance(Maybe(x=0).at(lambda s: s.y).set(1).y, jax.Array)
