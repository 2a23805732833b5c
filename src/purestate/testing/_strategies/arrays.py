"""Arrays and keys, drawn by hypothesis, with the awkward values in small doses.

Values come from a table: hypothesis draws small integers, which shrink to zero and
stand for multiples of 1/16; a few stand for NaN, infinities, extremes and the like. So
the numbers are exact in bfloat16 too, and every dtype of JAX works the same way.
"""

from collections.abc import Sequence
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np

SHAPES: tuple[tuple[int, ...], ...] = ((), (2,), (2, 3), (0,), (1,))
DTYPES = (
    "float32",
    "int32",
    "bool",
    "bfloat16",
    "float16",
    "uint8",
    "int8",
    "complex64",
    "float64",
    "int64",
)
# Untyped in some versions of jax.
_iinfo: Any = jnp.iinfo
_finfo: Any = jnp.finfo
_DOSE = 3  # rows of the table for each awkward value
_STEPS = 64  # the table reaches from -4 to 4 in steps of 1/16


def arrays(
    shape: Any = None, dtype: Any = None, *, specials: bool = True
) -> st.SearchStrategy[Any]:
    """Return a strategy for arrays of JAX.

    Args:
        shape: a tuple, or a strategy for one. None: one of a small pool, with a scalar
            and an empty axis among them, so that little is compiled.
        dtype: a dtype, or a strategy for one. None: floating-point, complex, integer
            and bool ones, those of 64 bit only where JAX has them enabled.
        specials: whether to mix in NaN, infinities, -0.0, subnormals and extremes.

    Returns:
        Arrays without weak types; they shrink towards zeros.

    >>> import hypothesis, purestate.testing as pst
    >>> @hypothesis.given(pst.arrays((2, 3), "bfloat16"))
    ... def test(x):
    ...     assert (2, 3) == x.shape
    >>> test()
    """
    shapes = _as_strategy(SHAPES if shape is None else shape, many=shape is None)
    dtypes = _as_strategy(enabled(DTYPES) if dtype is None else dtype, dtype is None)

    @st.composite
    def drawn(draw: Any) -> Any:
        return draw_array(draw, draw(shapes), draw(dtypes), specials)

    return drawn()


def keys(shape: tuple[int, ...] = ()) -> st.SearchStrategy[Any]:
    """Return a strategy for typed PRNG keys, as `jax.random.key` makes them.

    Args:
        shape: that of the array of keys; `()` for a single key.

    >>> import hypothesis, jax, purestate.testing as pst
    >>> @hypothesis.given(pst.keys())
    ... def test(key):
    ...     assert () == jax.random.normal(key).shape
    >>> test()
    """
    seeds = st.integers(0, 2**32 - 1)
    if shape == ():
        return seeds.map(jax.random.key)
    return seeds.map(lambda seed: jax.random.split(jax.random.key(seed), shape))


def enabled(dtypes: Sequence[str]) -> list[str]:
    """Return the dtypes that JAX does not replace by narrower ones."""
    return [name for name in dtypes if _canonical(name).name == name]


def draw_array(
    draw: Any, shape: tuple[int, ...], dtype: Any, specials: bool = False
) -> Any:
    """Draw one array of JAX; as `arrays` does, without making a strategy for it."""
    return jax.device_put(draw_numpy(draw, shape, dtype, specials))


def draw_numpy(
    draw: Any, shape: tuple[int, ...], dtype: Any, specials: bool = False
) -> np.ndarray[Any, Any]:
    """Draw one array of numpy."""
    dtype = _canonical(dtype)
    awkward = _awkward(dtype) if specials else np.empty(0, dtype)
    parts = (2, *shape) if jnp.issubdtype(dtype, jnp.complexfloating) else shape
    numbers = st.integers(-_STEPS, _STEPS + _DOSE * len(awkward))
    codes = draw(hnp.arrays(np.int16, tuple(parts), elements=numbers))
    return _decoded(codes, dtype, awkward)


def _decoded(codes: Any, dtype: Any, awkward: Any) -> np.ndarray[Any, Any]:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        real = np.finfo(dtype).dtype
        both = _decoded(codes, real, awkward)
        found = np.empty(both.shape[1:], dtype)
        found.real, found.imag = both
        return found
    if dtype == np.bool_:
        return np.asarray(codes % 2 != 0)
    if jnp.issubdtype(dtype, jnp.integer):
        small = np.abs(codes) % 8 if _iinfo(dtype).min == 0 else codes // 16
    else:
        small = codes / 16
    found = np.asarray(small).astype(dtype)
    chosen = codes > _STEPS
    if chosen.any():
        found[chosen] = awkward[(codes[chosen] - _STEPS - 1) % len(awkward)]
    return found


def _awkward(dtype: Any) -> np.ndarray[Any, Any]:
    """Return what is rare in practice and breaks code that did not think of it."""
    if dtype == np.bool_:
        return np.empty(0, dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        limits = _iinfo(dtype)
        return np.array([limits.max, limits.min], dtype)
    real: Any = np.finfo(dtype).dtype if dtype.kind == "c" else dtype
    facts = _finfo(real)
    numbers = [-0.0, np.nan, np.inf, -np.inf, facts.smallest_subnormal]
    return np.array([*numbers, facts.tiny, facts.max, facts.min], real)


def _canonical(dtype: Any) -> np.dtype[Any]:
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def _as_strategy(given: Any, many: bool) -> st.SearchStrategy[Any]:
    if isinstance(given, st.SearchStrategy):
        return given
    return st.sampled_from(list(given)) if many else st.just(given)
