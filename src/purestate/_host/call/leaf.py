"""What one array of a host call looks like, on the way in and on the way back."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purestate._compat import untyped_jax

_NUMBERS = (np.ndarray, np.generic, bool, int, float, complex)
_limits: Any = jnp.iinfo  # untyped; numpy's own knows no int4
_FEW = 1024  # elements
_KINDS = "biufc"  # from narrow to wide, as far as "same_kind" is concerned


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Shape and dtype of an array without batch axes.

    Attributes:
        shape: of the numbers; of a typed key, with the axis of its key data last.
        dtype: of the numbers.
        key: the dtype of the typed key that the numbers are, or None.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    key: Any = None

    @functools.cached_property
    def inexact(self) -> bool:
        """Whether the array can have a derivative."""
        return is_inexact(self.dtype)

    @functools.cached_property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @functools.cached_property
    def wide(self) -> np.dtype[Any]:
        """The dtype in double precision, for `upcast`."""
        if not self.inexact:
            return self.dtype
        is_complex = jnp.issubdtype(self.dtype, np.complexfloating)
        return np.dtype(np.complex128 if is_complex else np.float64)

    def __str__(self) -> str:
        return type_text(self)


def type_text(like: Any) -> str:
    """Return shape and dtype of an array or a leaf: `float32[2,3]`."""
    return f"{like.dtype.name}[{','.join(map(str, like.shape))}]"


def is_inexact(dtype: Any) -> bool:
    """Return whether numbers of this type have derivatives."""
    return bool(jnp.issubdtype(dtype, np.inexact))


def struct(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a `jax.ShapeDtypeStruct`."""
    return untyped_jax.ShapeDtypeStruct(shape, dtype)


def as_operand(value: Any) -> tuple[Leaf, Any] | None:
    """Return what an argument looks like, and the argument in numbers.

    None if it cannot be one; `refusal` says why.
    """
    if isinstance(value, jax.Array):
        if (leaf := _plain_leaf(value.shape, value.dtype)) is None:
            numbers = jax.random.key_data(value)
            return Leaf(numbers.shape, np.dtype(numbers.dtype), value.dtype), numbers
        return leaf, value
    if (array := _numbers(value)) is None:
        return None
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    if dtype != array.dtype:
        if too_large(array, dtype) is not None:
            return None
        array = array.astype(dtype)
    return _plain_leaf(array.shape, dtype), array  # type: ignore[return-value]


def type_in_jax(value: Any) -> Leaf | None:
    """Return what an array looks like in jax, whatever its numbers are; or None."""
    if isinstance(value, jax.Array):
        return as_operand(value)[0]  # type: ignore[index]  # all of them are operands
    if (array := _numbers(value)) is None:
        return None
    return Leaf(array.shape, np.dtype(jax.dtypes.canonicalize_dtype(array.dtype)))


def refusal(value: Any) -> tuple[str, str]:
    """Return what a value is that `as_operand` does not take, and why it does not."""
    if isinstance(value, np.ma.MaskedArray):
        return "a masked array", (
            "and jax has no masks: give its numbers with .filled(number), and its mask "
            "as an array of its own"
        )
    if isinstance(value, int):
        array, wanted = np.asarray(value, object), np.dtype(int)
    elif (found := _numbers(value)) is not None:
        array, wanted = found, found.dtype
    else:
        return f"a {type(value).__name__}", "which is no array"
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(wanted))
    return str(too_large(array, dtype)), f"which {dtype.name} cannot hold"


def too_large(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> int | None:
    """Return an integer in the array that a dtype of integers cannot hold, or None.

    A cast would wrap it around without a word.
    """
    if array.dtype.kind not in "iuO" or not jnp.issubdtype(dtype, np.integer):
        return None
    if array.dtype.kind == dtype.kind and array.size <= _FEW:
        # There and back again takes a third of a look for the least and the greatest.
        back = array.astype(dtype).astype(array.dtype)
        if back.tobytes() == array.tobytes():
            return None
    if not array.size or np.can_cast(array.dtype, dtype):
        return None
    limits = _limits(dtype)
    least, most = int(array.min()), int(array.max())
    if least < limits.min:
        return least
    return most if most > limits.max else None


def _numbers(value: Any) -> np.ndarray[Any, Any] | None:
    if type(value) is np.ndarray:  # the short way
        array = value
    elif isinstance(value, np.ma.MaskedArray) or not isinstance(value, _NUMBERS):
        return None
    else:
        array = np.asarray(value)
    if array.dtype.kind in "OSUVMm" and not is_inexact(array.dtype):
        return None
    return array


@functools.lru_cache(maxsize=1024)
def _plain_leaf(shape: tuple[int, ...], dtype: Any) -> Leaf | None:
    """Return what an array of jax looks like; None if it is one of typed keys."""
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return None
    return Leaf(shape, np.dtype(dtype))


@functools.lru_cache(maxsize=64)
def key_facts(dtype: Any) -> tuple[int, Any]:
    """Return how many numbers a typed key of this dtype has, and its implementation."""
    found: list[Any] = []

    def look(key: Any) -> Any:
        found.append(jax.random.key_impl(key))
        return jax.random.key_data(key)

    key_data = jax.eval_shape(look, struct((), dtype))
    return int(key_data.shape[-1]), found[-1]


@functools.cache
def epsilon(dtype: np.dtype[Any]) -> float:
    """Return the distance from 1 to the next number.

    Not by `finfo`, which warns in threads where XLA has set small numbers to zero.
    """
    halves = {np.dtype(np.complex64): np.float32, np.dtype(np.complex128): np.float64}
    kind: Any = halves.get(dtype, dtype)
    found = 1.0
    while np.asarray(1 + found / 2).astype(kind) != 1:
        found /= 2
    return found


def generators(key_data: np.ndarray[Any, Any]) -> Any:
    """Return a generator for a key, an array of them for an array of keys."""
    if key_data.ndim == 1:
        return np.random.default_rng([int(number) for number in key_data])
    found = np.empty(key_data.shape[:-1], object)
    for index in np.ndindex(*found.shape):
        found[index] = generators(key_data[index])
    return found


def may_cast(given: Any, wanted: np.dtype[Any], casting: str, is_number: bool) -> bool:
    """Return whether a result of one dtype may become another.

    numpy's rules, with bfloat16 and its like as floats.
    """
    if given == wanted or casting == "unsafe":
        return True
    if casting in ("no", "equiv"):
        return False
    if casting == "safe":
        return bool(np.can_cast(given, wanted, "safe"))
    if given.kind == "i" and wanted.kind == "u":
        return is_number  # a Python int is neither
    return _width(given) <= _width(wanted)


def _width(dtype: Any) -> int:
    if dtype.kind in _KINDS:
        return _KINDS.index(dtype.kind)
    if jnp.issubdtype(dtype, np.integer):
        return _KINDS.index("u")  # int4 and its like
    return _KINDS.index("f") if is_inexact(dtype) else len(_KINDS)
