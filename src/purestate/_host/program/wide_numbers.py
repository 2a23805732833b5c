"""64-bit numbers as pairs of 32-bit words, on their way through jax's callbacks.

`jax.enable_x64` holds for one thread, and XLA's own threads would cut 64-bit numbers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purestate._host.call.leaf import struct

_Call = Callable[..., Sequence[np.ndarray[Any, Any]]]


def has_wide(types: list[Any]) -> bool:
    """Return whether one of the types has 64-bit numbers."""
    return any(_is_wide(np.dtype(t.dtype)) for t in types)


def _is_wide(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iufc" and dtype.itemsize >= 8 and dtype != np.complex64


def _word_shape(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    return (*shape, dtype.itemsize // 4)


def in_words_type(result: Any) -> Any:
    """Return the type of a result whose 64-bit numbers are in words."""
    dtype = np.dtype(result.dtype)
    if not _is_wide(dtype):
        return result
    return struct(_word_shape(result.shape, dtype), np.uint32)


def to_words(value: Any) -> Any:
    """Return `value`, traced, with its 64-bit numbers in words."""
    dtype = np.dtype(value.dtype)
    if not _is_wide(dtype):
        return value
    if dtype.kind == "c":
        value = jnp.stack([value.real, value.imag], axis=-1)
        words = jax.lax.bitcast_convert_type(value, np.uint32)
        return words.reshape((*words.shape[:-2], 4))
    return jax.lax.bitcast_convert_type(value, np.uint32)


def from_words(words: Any, dtype: Any) -> Any:
    """Return what `to_words` made words of."""
    dtype = np.dtype(dtype)
    if not _is_wide(dtype):
        return words
    if dtype.kind == "c":
        pairs = words.reshape((*words.shape[:-1], 2, 2))
        parts = jax.lax.bitcast_convert_type(pairs, np.float64)
        return jax.lax.complex(parts[..., 0], parts[..., 1])
    return jax.lax.bitcast_convert_type(words, dtype)


def in_words(call: _Call, avals: list[Any]) -> _Call:
    """Return `call`, taking and giving words for 64-bit numbers."""
    dtypes = [np.dtype(aval.dtype) for aval in avals]

    def packed(*arrays: Any) -> list[np.ndarray[Any, Any]]:
        given = []
        for array, dtype in zip(arrays, dtypes, strict=True):
            if _is_wide(dtype):
                pairs = np.ascontiguousarray(array)
                given.append(pairs.view(dtype).reshape(pairs.shape[:-1]))
            else:
                given.append(array)
        made = []
        for value in call(*given):
            if _is_wide(value.dtype):
                whole = np.ascontiguousarray(value).reshape((*value.shape, 1))
                made.append(whole.view(np.uint32))
            else:
                made.append(value)
        return made

    return packed
