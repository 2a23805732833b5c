"""Derivatives through a packed State: its buffers instead of its leaves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from tests.helpers import python


class Net(ps.State):
    w: jax.Array
    b: jax.Array
    scale: jax.Array
    count: jax.Array
    seen: jax.Array


def net(dtype=jnp.float32):
    w = jnp.linspace(0.1, 0.6, 6, dtype=dtype).reshape(2, 3)
    b, scale = jnp.full(2, 0.3, dtype), jnp.asarray(0.7, dtype)
    return Net(w=w, b=b, scale=scale, count=jnp.int32(1), seen=jnp.int32(2))


@ps.jit
def loss(net, x=1.0):
    return jnp.sum(jnp.abs(jnp.sin(net.w @ jnp.ones(3) * x + net.b)) * net.scale**2)


def buffer_of(packed):
    """Return the floats of a packed Net, and a function of them."""
    leaves, treedef = jax.tree.flatten(packed)

    def value(buffer):
        return loss(jax.tree.unflatten(treedef, [buffer, *leaves[1:]]))

    return leaves[0], value


def vector_of(state):
    """Return the same floats in a row, and the same function, without any packing."""
    parts = state.w, state.b, state.scale

    def value(vector):
        w, b, scale = jnp.split(vector, [6, 8])
        new = state.replace(w=w.reshape(2, 3), b=b, scale=scale.reshape(()))
        return loss(new)

    return jnp.concatenate([jnp.ravel(part) for part in parts]), value


def along(f):
    return lambda x: jax.jvp(f, (x,), (jnp.cos(jnp.arange(x.size, dtype=x.dtype)),))


def summed_in_a_scan(f):
    def total(x):
        body = lambda carry, k: (carry + f(k * x), None)  # noqa: E731
        return jax.lax.scan(body, jnp.zeros((), x.dtype), jnp.arange(3, dtype=x.dtype))[
            0
        ]

    return jax.grad(total)


@pytest.mark.parametrize("compiled", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "derived",
    [
        jax.grad,
        jax.jacfwd,
        jax.jacrev,
        jax.hessian,
        along,
        lambda f: along(jax.grad(f)),
        lambda f: jax.grad(lambda x: jnp.sum(jax.grad(f)(x) ** 2)),
        lambda f: jax.grad(jax.checkpoint(f)),
        lambda f: lambda x: jax.vmap(jax.grad(f))(jnp.stack([x, 2 * x])),
        lambda f: lambda x: jax.vmap(along(f), 1)(jnp.stack([x, 2 * x], 1)),
        lambda f: jax.grad(lambda x: jnp.sum(jax.vmap(f)(jnp.stack([x, 2 * x])))),
        summed_in_a_scan,
    ],
    ids=[
        "grad",
        "jacfwd",
        "jacrev",
        "hessian",
        "jvp",
        "jvp of grad",
        "grad of grad",
        "remat",
        "vmap of grad",
        "vmap of jvp",
        "grad of vmap",
        "scan",
    ],
)
def test_a_derivative_is_that_of_the_leaves(derived, compiled):
    buffer, packed = buffer_of(ps.pack(net()))
    vector, plain = vector_of(net())

    expected, found = derived(plain)(vector), compiled(derived(packed))(buffer)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 2e-5), expected, found)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_a_gradient_has_the_dtype_of_the_leaves(dtype):
    slopes = jax.grad(loss, allow_int=True)(ps.pack(net(dtype)))

    assert dtype == jax.tree.leaves(slopes)[0].dtype


def test_a_complex_buffer_has_a_gradient():
    class Waves(ps.State):
        a: jax.Array
        b: jax.Array

    def power(waves):
        return jnp.sum(jnp.abs(waves.a * waves.b) ** 2)

    waves = Waves(a=jnp.full(2, 1 + 2j), b=jnp.full(2, 3 - 1j))

    assert jax.grad(power)(waves) == jax.grad(ps.jit(power))(ps.pack(waves)).unpack()


def test_whole_numbers_have_no_gradient():
    packed = ps.pack(net())

    slopes = jax.grad(loss, allow_int=True)(packed)

    dtypes = [leaf.dtype for leaf in jax.tree.leaves(slopes)]
    assert [jnp.float32, jax.dtypes.float0] == dtypes


def test_a_field_alone_has_a_gradient_with_zeros_around_it():
    packed = ps.pack(net())
    buffer, rest = jax.tree.leaves(packed)
    treedef = jax.tree.structure(packed)

    def of_b(buffer):
        return jnp.sum(jax.tree.unflatten(treedef, [buffer, rest]).b ** 2)

    expected = [0.0] * 6 + [0.6, 0.6] + [0.0]
    np.testing.assert_allclose(expected, jax.grad(of_b)(buffer), 1e-6)
    np.testing.assert_allclose(expected, jax.jit(jax.grad(of_b))(buffer), 1e-6)


def test_an_optimizer_works_on_the_buffers():
    @jax.jit
    def step(net):
        slopes = jax.grad(loss, allow_int=True)(net)
        return jax.tree.map(
            lambda p, g: p if g.dtype == jax.dtypes.float0 else p - 0.1 * g, net, slopes
        )

    expected = net()
    by_leaf = jax.grad(loss, allow_int=True)(expected)
    found = step(ps.pack(net())).unpack()

    np.testing.assert_allclose(expected.w - 0.1 * by_leaf.w, found.w, 1e-5)
    np.testing.assert_allclose(expected.b - 0.1 * by_leaf.b, found.b, 1e-5)
    assert (1, 2) == (found.count, found.seen)


def test_the_tangents_of_many_leaves_share_their_code():
    """XLA compiles slices at plain numbers one by one; see `slots.starts`."""
    buffer, value = buffer_of(ps.pack(net()))

    found = jax.jit(along(value)).lower(buffer).as_text()

    assert 2 * 3 == found.count("stablehlo.dynamic_slice")
    assert 0 == found.count("stablehlo.slice")


IN_SHARD_MAP = """
import jax, jax.numpy as jnp, numpy as np, purestate as ps
from jax.sharding import AxisType, PartitionSpec as P

class Pair(ps.State):
    a: jax.Array
    b: jax.Array

@ps.jit
def loss(pair, x):
    return jnp.sum(jnp.sin(pair.a) * x) + jnp.sum(pair.b ** 3)

pair = Pair(a=jnp.arange(1.0, 3), b=jnp.arange(3.0))
packed, x = ps.pack(pair), jnp.arange(4.0)
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(kind,))

    def both(given, x):
        slopes = jax.grad(loss)(given, x)
        moved = jax.jvp(lambda g: loss(g, x), (given,), (given,))[1]
        return slopes, jax.lax.psum(moved, "x")

    def split(given, x):
        return jax.shard_map(both, mesh=mesh, in_specs=(P(), P("x")),
                             out_specs=(P(), P()))(given, x)

    for run in (split, jax.jit(split)):
        with jax.set_mesh(mesh):
            slopes, moved = run(packed, jax.device_put(x, jax.NamedSharding(mesh, P("x"))))
            expected, total = run(pair, jax.device_put(x, jax.NamedSharding(mesh, P("x"))))
        got = slopes.unpack()
        np.testing.assert_allclose(expected.a, got.a, 1e-5)
        np.testing.assert_allclose(expected.b, got.b, 1e-5)
        np.testing.assert_allclose(total, moved, 1e-5)
"""


def test_derivatives_inside_of_shard_map_are_those_of_the_leaves():
    done = python(IN_SHARD_MAP, devices=2)

    assert 0 == done.returncode, done.stderr
