"""Host functions under `vmap`: each way to call them for a batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import HostVmapError
from tests.hosts import scalar, ways

pytestmark = pytest.mark.usefixtures("lowering")
MODES = ["loop", "threads", "vectorized", "batched"]


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_is_the_stack_of_single_calls(mode):
    fn = ps.host_function(
        lambda x, y: np.sin(x) * y[..., None], vmap=mode, out=lambda x, y: x
    )
    x, y = jnp.arange(24.0).reshape(3, 4, 2), jnp.arange(3.0)

    nested = jax.vmap(jax.vmap(fn, (0, None)), (0, 0))

    expected = np.sin(np.asarray(x)) * np.arange(3)[:, None, None]
    for call in ways(nested):
        assert np.allclose(expected, call(x, y), atol=1e-6)
    assert np.allclose(
        2 * np.sin(x[:, 1]).T,
        jax.jit(jax.vmap(fn, (0, None), 1))(x[:, 1], 2.0),
        atol=1e-6,
    )


def test_a_batched_function_gets_one_axis_in_front_of_every_argument():
    shapes = []

    @ps.host_function(out=scalar(), vmap="batched")
    def add(x, y, z):
        shapes.append((x.shape, y.shape, z.shape))
        return x + y + z

    f = jax.vmap(jax.vmap(add, (None, 0, None)), (0, None, None))
    x, y = jnp.arange(4.0), jnp.arange(5.0)
    for call in ways(f):
        r = call(x, y, 1.0)

        assert np.allclose(x[:, None] + y + 1, r)
    assert [((20,), (20,), (20,))] * 2 == shapes


def test_a_vectorized_function_gets_axes_of_size_one_where_an_argument_has_none():
    shapes = []

    @ps.host_function(out=scalar(), vmap="vectorized")
    def add(x, y, z):
        shapes.append((x.shape, y.shape, z.shape))
        return x + y

    f = jax.vmap(jax.vmap(add, (None, 0, None)), (0, None, None))

    assert (4, 5) == jax.jit(f)(jnp.arange(4.0), jnp.arange(5.0), 1.0).shape
    assert [((4, 1), (1, 5), (1, 1))] == shapes


@pytest.mark.parametrize("mode", MODES)
def test_any_axis_can_be_the_batch(mode):
    double = ps.host_function(lambda a: a * 2, vmap=mode)
    x = jnp.arange(24.0).reshape(2, 3, 4)

    h = jax.vmap(double, in_axes=1, out_axes=1)

    assert (jax.jit(h)(x) == x * 2).all()
    assert (h(x) == x * 2).all()


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_batch_calls_nothing(mode):
    calls = []
    fn = ps.host_function(lambda x: calls.append(x) or x, vmap=mode, out=lambda x: x)

    assert (0, 2) == jax.jit(jax.vmap(fn))(jnp.ones((0, 2))).shape
    assert [] == calls


def test_a_loop_is_one_callback_for_the_whole_batch():
    calls = []
    fn = ps.host_function(lambda x: calls.append(1) or x, out=lambda x: x)

    jax.block_until_ready(jax.jit(jax.vmap(fn))(jnp.arange(7.0)))
    assert 7 == len(calls)


def test_batch_fn_is_called_once_for_a_batch():
    calls = []

    def whole(x):
        calls.append(x.shape)
        return x + 1

    fn = ps.host_function(lambda x: x + 1, out=lambda x: x, batch_fn=whole)

    assert [1, 2] == jax.jit(jax.vmap(fn))(jnp.arange(2.0)).tolist()
    assert 1.0 == fn(0.0)
    assert [(2,)] == calls


def test_a_function_may_refuse_to_be_batched():
    fn = ps.host_function(lambda x: x, vmap="error", name="fn")

    with pytest.raises(
        HostVmapError,
        match=r'fn \(.*\) was declared with vmap="error"\. To allow vmap, choose "loop"',
    ):
        jax.jit(jax.vmap(fn))(jnp.ones(3))
    assert (
        2.0
        == jax.jit(jax.vmap(lambda x, y: fn(x) * y, (None, 0)))(1.0, jnp.full(1, 2.0))[
            0
        ]
    )


def test_a_norm_over_the_whole_batch_is_found():
    unit = ps.host_function(lambda x: x / np.linalg.norm(x), vmap="vectorized")
    right = ps.host_function(
        lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True), vmap="vectorized"
    )

    right.check_vmap(jnp.ones((4, 3)))
    with pytest.raises(
        HostVmapError, match=r"mixes the items of a batch: row 0 of its result is"
    ):
        unit.check_vmap(jnp.ones((4, 3)))


def test_the_default_mode_does_not_mix_items():
    unit = ps.host_function(lambda x: x / np.linalg.norm(x))

    assert np.allclose(3**-0.5, jax.jit(jax.vmap(unit))(jnp.ones((4, 3))))


def test_threads_share_a_batch():
    import threading

    names = set()
    barrier = threading.Barrier(2, timeout=60)

    @ps.host_function(vmap="threads", threads=2, out=lambda x: x)
    def fn(x):
        barrier.wait()
        names.add(threading.current_thread().name)
        return x

    assert [0, 1] == jax.jit(jax.vmap(fn))(jnp.arange(2.0)).tolist()
    assert 2 == len(names)
