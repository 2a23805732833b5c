"""MuJoCo's double precision through programs that compute in float32.

The numbers go out twice: as `values`, float32, which jax can read, change and
differentiate, and as `words`, the bits of the double, in pairs of uint32 since jax has
no 64-bit integers then. On the way back the bits count for every element whose value is
still what they round to. With the values alone, 200 steps in a scan end 1e-6 away from
MuJoCo's; with the words they end on the same bits. Numbers beyond float32 round
to infinity: callers keep numpy from warning about it, once for all that they do.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
TINY = float(np.finfo(np.float32).tiny)


def split(state: Array, dtype: Any) -> tuple[Array, Array | None]:
    """Return a state of shape `(..., n)` as values and words.

    Args:
        state: float64.
        dtype: of the values; there are no words if it is float64.
    """
    if dtype == np.float64:
        return state, None
    whole = np.ascontiguousarray(state)
    words = whole.view(np.uint32).reshape(*whole.shape, 2)
    return whole.astype(dtype), words


def merge(values: Array, words: Array | None) -> Array:
    """Return the state in double precision that values and words stand for."""
    if words is None:
        return np.asarray(values, np.float64)
    bits = words.view(np.float64).reshape(values.shape)
    changed = np.flatnonzero(bits.astype(values.dtype) != values)
    if not changed.size:
        return bits
    found = bits.copy()
    old, new = found.reshape(-1), values.reshape(-1)
    # XLA's threads set numbers below 1.2e-38 to zero and others do not, so these would
    # count as changed.
    tiny = (np.abs(old[changed]) < TINY) & (np.abs(new[changed]) < TINY)
    changed = changed[~tiny]
    old[changed] = new[changed]
    return found
