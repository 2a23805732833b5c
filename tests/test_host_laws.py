"""Gradients of host functions against jax's, over shapes, dtypes and batch axes."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hosts import SOURCES, agree, host, reference, total, x64

shapes = st.lists(st.integers(0, 3), max_size=2).map(tuple)


@settings(max_examples=settings.default.max_examples // 2)
@given(
    x_shape=shapes,
    y_shape=shapes,
    source=st.sampled_from(SOURCES),
    batch=st.sampled_from([(), (0,), (1,), (0, None), (None, 0)]),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 9),
)
def check_gradients(x_shape, y_shape, source, batch, dtype, seed):
    rng = np.random.default_rng(seed)
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
    x, y = (jnp.asarray(rng.uniform(-1, 1, s), dtype) for s in shape)

    expected = jax.grad(total(ref), (0, 1))(x, y)
    found = jax.jit(jax.grad(total(f), (0, 1)))(x, y)

    tolerance = {"float32": 1e-4, "float64": 1e-4 if source == "fd-forward" else 1e-6}[
        dtype
    ]
    agree(expected, found, tolerance)
    assert [dtype, dtype] == [g.dtype for g in found]
    tangents = jax.tree.map(jnp.sin, (x, y))
    agree(
        jax.jvp(ref, (x, y), tangents),
        jax.jit(lambda: jax.jvp(f, (x, y), tangents))(),
        tolerance,
    )


def test_gradients_agree_for_all_shapes_dtypes_and_batch_axes(lowering):
    with x64():
        check_gradients()
