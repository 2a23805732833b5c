"""`ps.stack` makes a batch of States, `ps.unstack` takes it apart."""

import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import StackError
from tests.transforms.test_vmap import Checked


class Point(ps.State):
    x: object
    parts: object = None
    tag: str = ps.static(default="a")


class Other(Point):
    pass


def test_stacked_states_have_a_new_first_axis():
    batch = ps.stack([Point(x=jnp.full(3, i), parts={"k": i * 1.0}) for i in range(2)])

    assert Point is type(batch)
    assert [[0, 0, 0], [1, 1, 1]] == batch.x.tolist()
    assert [0, 1] == batch.parts["k"].tolist()
    assert "a" == batch.tag


def test_the_new_axis_can_stand_elsewhere():
    assert (3, 2) == ps.stack([Point(x=jnp.ones(3))] * 2, axis=1).x.shape
    assert (3, 2) == ps.stack([Point(x=jnp.ones(3))] * 2, axis=-1).x.shape


def test_any_iterable_of_states_can_be_stacked():
    assert (2,) == ps.stack(Point(x=jnp.float32(i)) for i in range(2)).x.shape


def test_one_state_makes_a_batch_of_one():
    assert (1, 3) == ps.stack([Point(x=jnp.ones(3))]).x.shape


def test_keys_and_numpy_arrays_can_be_stacked():
    keys = ps.stack([Point(x=jax.random.key(i)) for i in range(3)])
    numbers = ps.stack([Point(x=np.ones(2)), Point(x=jnp.ones(2))])

    assert (3,) == keys.x.shape
    assert jax.dtypes.issubdtype(keys.x.dtype, jax.dtypes.prng_key)
    assert (2, 2) == numbers.x.shape


def test_dtypes_are_promoted_as_by_jax():
    assert (
        jnp.float32
        == ps.stack([Point(x=jnp.int32(1)), Point(x=jnp.float32(1))]).x.dtype
    )


def test_plain_trees_can_be_stacked():
    assert {"a": [1, 2]} == jax.tree.map(
        lambda v: v.tolist(), ps.stack([{"a": jnp.int32(1)}, {"a": jnp.int32(2)}])
    )


def test_stacking_constructs_nothing():
    batch = ps.stack([Checked(x=jnp.ones((2, 2)))] * 3)

    assert (3, 2, 2) == batch.x.shape
    assert (3,) == batch.total.shape


STACKS = {
    "class": (Other(x=1.0), r"Point: class Point -> Other"),
    "static value": (Point(x=1.0, tag="b"), r"Point\.tag: static value 'a' -> 'b'"),
    "static type": (Point(x=1.0, tag=True), r"Point\.tag: static value 'a' -> True"),
    "shape": (Point(x=jnp.ones(3)), r"Point\.x: class float -> f32\[3\]"),
    "None": (Point(x=None), r"Point\.x: class float -> NoneType"),
    "container": (Point(x=1.0, parts=[1.0]), r"Point\.parts: class NoneType -> list"),
    "no state": (3, r"Point: class Point -> int"),
}


@pytest.mark.parametrize(("other", "text"), STACKS.values(), ids=STACKS)
def test_states_that_differ_cannot_be_stacked(other, text):
    whole = (
        r"^stack\(\) cannot put State 2 with State 0, they differ in\n"
        + text
        + r"\nStates in a batch share everything but their numbers\.$"
    )

    with pytest.raises(StackError, match=whole):
        ps.stack([Point(x=1.0), Point(x=2.0), other])


def test_every_difference_is_listed():
    a = Point(x=jnp.ones(3), parts={"k": jnp.ones(2)})
    b = Point(x=jnp.ones(4), parts={"k": jnp.ones(1)}, tag="b")

    text = (
        r"\nPoint\.tag: static value 'a' -> 'b'\nPoint\.x: shape \(3,\) -> \(4,\)\n"
        r"Point\.parts\['k'\]: shape \(2,\) -> \(1,\)\n"
    )
    with pytest.raises(StackError, match=text):
        ps.stack([a, b])


def test_no_states_cannot_be_stacked():
    text = r"^stack\(\) needs at least one State and got none\.$"

    with pytest.raises(StackError, match=text):
        ps.stack([])


def test_a_value_that_is_no_number_is_named():
    with pytest.raises(TypeError, match=r"Point\.x"):
        ps.stack([Point(x="a"), Point(x="a")])


def test_unstacking_undoes_stacking():
    states = [Point(x=jnp.full(3, float(i)), parts=[jnp.int32(i)]) for i in range(3)]

    assert states == ps.unstack(ps.stack(states))
    assert states == ps.unstack(ps.stack(states, axis=-1), axis=-1)


def test_keys_can_be_unstacked():
    keys = [Point(x=jax.random.key(i)) for i in range(3)]

    assert keys == ps.unstack(ps.stack(keys))


def test_batches_are_stacked_and_unstacked_while_tracing():
    @jax.jit
    def mean(batch):
        states = ps.unstack(batch)
        return ps.stack(states[:2]).x.mean(0)

    assert [0.5] == mean(Point(x=jnp.arange(3.0)[:, None])).tolist()


def test_an_empty_batch_has_no_states():
    assert [] == ps.unstack(Point(x=jnp.ones((0, 3))))


UNSTACKS = {
    "scalar": (
        Point(x=jnp.ones(3), parts=[1.0]),
        0,
        r"^unstack\(\) needs axis 0 in every leaf, and Point\.parts\[0\] has shape \(\)\.$",
    ),
    "axis": (
        Point(x=jnp.ones(3)),
        1,
        r"^unstack\(\) needs axis 1 in every leaf, and Point\.x has shape \(3,\)\.$",
    ),
    "sizes": (
        Point(x=jnp.ones(3), parts=jnp.ones(2)),
        0,
        r"^unstack\(\) needs leaves of one size .* 0: Point\.x has 3, Point\.parts has 2\.$",
    ),
    "no leaves": (
        Point(x=None),
        0,
        r"^unstack\(\) needs leaves of one size along axis 0: there are none\.$",
    ),
    "no state": (
        {"a": jnp.ones(3), "b": jnp.ones(2)},
        0,
        r"^unstack\(\) needs leaves of one size along axis 0: \['a'\] has 3, \['b'\] has",
    ),
}


@pytest.mark.parametrize(("batch", "axis", "text"), UNSTACKS.values(), ids=UNSTACKS)
def test_what_is_no_batch_cannot_be_unstacked(batch, axis, text):
    with pytest.raises(StackError, match=text):
        ps.unstack(batch, axis)


def test_stack_errors_are_value_errors():
    with pytest.raises(ValueError, match=r"^stack"):
        ps.stack([])


class Pair(typing.NamedTuple):
    first: object
    second: object


def test_states_inside_other_containers_are_named_from_the_container():
    a, b = Pair(Point(x=jnp.ones(2)), 1.0), Pair(Point(x=jnp.ones(3)), 1.0)

    with pytest.raises(StackError, match=r"\.first\.x: shape \(2,\) -> \(3,\)"):
        ps.stack([a, b])
