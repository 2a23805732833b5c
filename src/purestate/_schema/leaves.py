"""What a leaf is: an array, a typed key."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def is_array(value: object) -> bool:
    """Return whether a value is an array of jax or numpy."""
    return isinstance(value, jax.Array | np.ndarray)


def is_key(value: Any) -> bool:
    """Return whether a value, an array or a spec, is a typed PRNG key."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or isinstance(dtype, np.dtype):  # most: ten times faster
        return False
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))
