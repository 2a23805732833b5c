"""Laws of host functions, and their gradients against those of jax."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings

import purestate.testing as pst
from purestate.errors import LawError
from tests.hosts import SOURCES, host, reference, total, x64

shapes = st.lists(st.integers(0, 3), max_size=2).map(tuple)
small = pst.arrays(st.sampled_from([(), (2,), (0,), (2, 3)]), "float32", specials=False)


@pytest.mark.parametrize("source", SOURCES)
def test_a_host_function_obeys_the_laws(source):
    fn = host(source, upcast=True)

    report = pst.check_host(fn, args={"x": small, "y": small}, examples=10)

    # Two draws may happen to have different shapes each time.
    assert {"backends_agree"} == set(report.skipped) - {"vmap"}


@pytest.mark.parametrize("mode", ["threads", "vectorized", "batched"])
def test_all_ways_to_map_obey_the_laws(mode, lowering):
    fn = host("fd", upcast=True, vmap=mode)
    args = {"x": pst.arrays((2,), "float32", specials=False), "y": jnp.float32(1.5)}

    if mode == "threads":
        pst.check_host(fn, args=args, laws=["vmap", "jit"], examples=5)
    else:  # the model sums over the whole array
        with pytest.raises(LawError, match="breaks the law 'vmap'"):
            pst.check_host(fn, args=args, laws=["vmap", "jit"], examples=5)


@settings(max_examples=settings.default.max_examples // 2)
@given(
    x_shape=shapes,
    y_shape=shapes,
    source=st.sampled_from(SOURCES),
    batch=st.sampled_from([(), (0,), (1,), (0, None), (None, 0)]),
    dtype=st.sampled_from(["float32", "float64"]),
    data=st.data(),
)
def check_gradients(x_shape, y_shape, source, batch, dtype, data):
    fn = host(source, upcast=True)
    f, ref = fn, reference
    shape = [x_shape, y_shape]
    if batch:
        axes = (
            [batch[0], batch[-1]]
            if len(batch) == 2
            else [min(batch[0], len(s)) for s in shape]
        )
        for i, axis in enumerate(axes):
            if axis is not None:
                shape[i] = (*shape[i][:axis], 2, *shape[i][axis:])
        f, ref = jax.vmap(fn, axes), jax.vmap(reference, axes)
    x, y = (data.draw(pst.arrays(s, dtype, specials=False)) / 4 for s in shape)

    def both_ways(fn):
        """Return the gradient of `fn`, and its value and tangent."""

        def derivatives(x, y):
            tangents = jax.tree.map(jnp.sin, (x, y))
            return jax.grad(total(fn), (0, 1))(x, y), jax.jvp(fn, (x, y), tangents)

        return jax.jit(derivatives)

    tolerance = {"float32": 1e-4, "float64": 1e-4 if source == "fd-forward" else 1e-6}
    close = {"rtol": tolerance[dtype], "atol": tolerance[dtype]}
    pst.assert_close(both_ways(ref)(x, y), both_ways(f)(x, y), **close)


def test_gradients_agree_for_all_shapes_dtypes_and_batch_axes(lowering):
    with x64():
        check_gradients()
