"""Arrays that were read, put where they belong: in their dtype, on their devices."""

import dataclasses
import math
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding, SingleDeviceSharding

from purestate._compat import untyped_jax, weakly_typed
from purestate._saving.describe import registered_parts
from purestate._saving.file import unaligned
from purestate._saving.saved import Leaf, wrapped
from purestate._schema.marks import held_by, is_state

_BATCH = 1 << 25  # bytes that are handed to the devices at once
_PART = 1 << 20  # numbers that are compared at once
_weak = jax.jit(weakly_typed)


@dataclasses.dataclass(eq=False)
class Want:
    """An array that is wanted.

    Attributes:
        source: the leaf in the file; or an array, where a migration made one.
        kind: "jax", "numpy" or "key".
        dtype: that it shall have; None for a key.
        weak: whether its type shall be weak.
        sharding: where it shall lie; None for the default device, uncommitted.
        path: of its place in the tree, for messages.
        array: it, once it was fetched.
    """

    source: Any
    kind: str
    dtype: Any
    weak: bool
    sharding: Any
    path: str
    array: Any = None


def part_of(sharding: Any, step: Any, path: str) -> Any:
    """Return the shardings for a part: of a tree of them, or the one for all.

    Args:
        sharding: a sharding, a tree of them, None.
        step: the field, key, index or key path of the part.
        path: of the whole.

    Raises:
        TypeError: the tree has no such part.
    """
    if sharding is None or isinstance(sharding, jax.sharding.Sharding):
        return sharding
    try:
        if is_state(sharding):
            return held_by(sharding)[step]
        if isinstance(sharding, dict | list) or type(sharding) is tuple:
            return sharding[step]
        if hasattr(sharding, "_fields"):
            return getattr(sharding, step)
        return (registered_parts(sharding) or {})[step][1]
    except (KeyError, IndexError, AttributeError, TypeError):
        raise wrong_sharding(sharding, path) from None


def wrong_sharding(sharding: Any, path: str) -> TypeError:
    """Return the error for something that is not a sharding for a part."""
    return TypeError(
        f"sharding= has an object of type {type(sharding).__name__} for "
        f"{path or 'the tree'}: give a jax.sharding.Sharding, None, or a tree of them, "
        f"as ps.prefix makes one."
    )


def misplaced(shape: Iterable[int], sharding: Any) -> str:
    """Return why an array of this shape cannot lie as a sharding says, or nothing."""
    if sharding is None:
        return ""
    if isinstance(getattr(sharding, "mesh", None), AbstractMesh):
        return "its sharding is of an abstract mesh, without devices (give sharding=)"
    check = getattr(sharding, "check_compatible_aval", sharding.shard_shape)
    try:
        check(tuple(shape))
        sharding.shard_shape(tuple(shape))
    except Exception as error:  # noqa: BLE001  # whatever a sharding raises
        reason = str(error).partition("\n")[0]
        return f"shape {tuple(shape)} does not fit its sharding ({reason})"
    return ""


def survives(before: Any, after: Any) -> bool:
    """Return whether a cast kept all numbers: none is another one but for rounding."""
    if before.dtype == object or after.dtype == object:  # ints of Python
        return bool(before == after) or jnp.issubdtype(after.dtype, np.inexact)
    if isinstance(before, jax.Array) or isinstance(after, jax.Array):
        return bool(_all_kept(before, after, jnp))
    before, after = before.reshape(-1), after.reshape(-1)
    with np.errstate(all="ignore"):
        return all(  # in parts, since each takes memory
            _all_kept(before[i : i + _PART], after[i : i + _PART], np)
            for i in range(0, before.size, _PART)
        )


def _all_kept(before: Any, after: Any, numpy: Any) -> Any:
    if not jnp.issubdtype(after.dtype, np.inexact):
        there = (after.astype(before.dtype) == before).all()
        return there & ((before.real < 0) == (after < 0)).all()
    kept = True
    if jnp.issubdtype(before.dtype, np.complexfloating):
        is_complex = jnp.issubdtype(after.dtype, np.complexfloating)
        kept = is_complex or (before.imag == 0).all()
    was_finite = True
    if jnp.issubdtype(before.dtype, np.inexact):
        was_finite = numpy.isfinite(_wide(before))
    return kept & (numpy.isfinite(_wide(after)) | ~numpy.asarray(was_finite)).all()


def _wide(numbers: Any) -> Any:
    """Return numbers in a dtype that numpy knows: it has no isfinite for all others."""
    return numbers.astype(np.float32) if numbers.dtype.itemsize < 4 else numbers


def fetch(wants: Iterable[Want]) -> list[str]:
    """Read what is wanted, and put it in place.

    Returns:
        The paths of those with numbers that their dtype does not have.
    """
    lost: list[str] = []
    by_source: dict[int, list[Want]] = {}
    for want in wants:
        source = getattr(want.source, "source", None)  # None: an array
        by_source.setdefault(id(source), []).append(want)
    batch: list[tuple[Want, Any]] = []
    size = 0
    for group in by_source.values():
        for want, numbers in _numbers(group):
            if want.dtype is not None and numbers.dtype != want.dtype:
                numbers = _cast(numbers, want, lost)
            if want.kind == "numpy":
                want.array = _for_numpy(numbers)
                continue
            batch.append((want, numbers))
            size += numbers.nbytes
            del numbers
            if size >= _BATCH:
                _put(batch)
                batch, size = [], 0
    _put(batch)
    return lost


def _cast(numbers: Any, want: Want, lost: list[str]) -> Any:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        made = numbers.astype(want.dtype)
    if not survives(numbers, made):
        lost.append(want.path)
    return made


def _numbers(group: list[Want]) -> Iterator[tuple[Want, Any]]:
    if not isinstance(group[0].source, Leaf):
        for want in group:
            yield want, want.source
        return
    by_name: dict[str, list[Want]] = {}
    for want in group:
        by_name.setdefault(want.source.name, []).append(want)
    firsts = [wants[0] for wants in by_name.values()]
    leaves, shardings = [w.source for w in firsts], [_of_numbers(w) for w in firsts]
    for leaf, numbers in leaves[0].source.read(leaves, shardings):
        for want in by_name[leaf.name]:
            yield want, numbers


def _of_numbers(want: Want) -> Any:
    """Return the sharding for the numbers of a leaf: those of a key have one axis more.

    It is the last, of which a NamedSharding of the others says nothing.
    """
    if want.kind == "numpy":
        return None
    is_known = isinstance(want.sharding, NamedSharding | SingleDeviceSharding)
    return want.sharding if is_known or want.kind != "key" else None


def _for_numpy(numbers: Any) -> np.ndarray[Any, Any]:
    """Return an array that can be written to, and holds no more memory than its own."""
    made = np.asarray(numbers)
    base: Any = made if made.base is None else made.base
    is_whole = getattr(base, "nbytes", math.inf) <= made.nbytes + 128
    return made if is_whole and made.flags.writeable else made.copy()


def _put(batch: list[tuple[Want, Any]]) -> None:
    """Hand arrays to the devices: as many at once as can be."""
    loose, placed = [], []
    for want, numbers in batch:
        sharding = _of_numbers(want)
        if sharding is None:
            loose.append((want, _uncommitted(numbers)))
        elif sharding.is_fully_addressable:
            placed.append((want, _copyable(numbers), sharding))
        else:
            want.array = _finished(want, _spread(numbers, sharding))
    made = jax.device_put([numbers for _, numbers in loose])
    for (want, _), array in zip(loose, made, strict=True):
        want.array = _finished(want, array)
        if want.sharding is not None:
            want.array = jax.device_put(want.array, want.sharding)
    made = jax.device_put([x for _, x, _ in placed], [where for _, _, where in placed])
    for (want, _, _), array in zip(placed, made, strict=True):
        want.array = _finished(want, array)


def _uncommitted(numbers: Any) -> Any:
    """Return numbers that jax takes to any device: a committed array compiles anew."""
    if isinstance(numbers, jax.Array) and numbers.committed:
        numbers = np.asarray(numbers)
    return _copyable(numbers)


def _spread(numbers: Any, sharding: Any) -> Any:
    """Return an array of several processes, each of which read the whole of it."""
    if isinstance(numbers, jax.Array):
        return untyped_jax.device_put(numbers, sharding)
    return jax.make_array_from_callback(
        numbers.shape, sharding, lambda index: _copyable(numbers[index])
    )


def _finished(want: Want, array: Any) -> Any:
    if want.kind == "key" and isinstance(want.source, Leaf):
        return wrapped(array, str(want.source.impl))
    return _weak(array) if want.weak else array


def _copyable(numbers: Any) -> Any:
    """Return numbers that jax will copy: see `unaligned`."""
    if not isinstance(numbers, np.ndarray) or numbers.ctypes.data % 64:
        return numbers
    made = unaligned(numbers.nbytes).view(numbers.dtype).reshape(numbers.shape)
    made[...] = numbers
    return made
