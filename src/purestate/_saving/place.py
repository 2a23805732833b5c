"""What was read, put where it belongs: on devices, in its dtype, weak, as a key."""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from purestate._compat import untyped_jax, weakly_typed
from purestate._saving.file import unaligned
from purestate._saving.fit import Want
from purestate._saving.saved import Leaf, wrapped

_BATCH = 1 << 26  # bytes that are handed to the devices at once
_weak = jax.jit(weakly_typed)


def fetch(wants: Iterable[Want]) -> None:
    """Read what is wanted, and put it in place."""
    by_source: dict[int, list[Want]] = {}
    for want in wants:
        leaf = want.source
        by_source.setdefault(id(getattr(leaf, "source", None)), []).append(want)
    batch: list[tuple[Want, Any]] = []
    size = 0
    for group in by_source.values():
        for want, numbers in _numbers(group):
            if want.kind == "numpy":
                want.array = _for_numpy(numbers, want.dtype)
                continue
            if want.dtype is not None and numbers.dtype != want.dtype:
                numbers = numbers.astype(want.dtype)
            batch.append((want, numbers))
            size += numbers.nbytes
            if size >= _BATCH:
                _put(batch)
                batch, size = [], 0
    _put(batch)


def _numbers(group: list[Want]) -> Iterable[tuple[Want, Any]]:
    if not isinstance(group[0].source, Leaf):
        for want in group:
            yield want, want.source
        return
    by_name: dict[str, list[Want]] = {}
    for want in group:
        by_name.setdefault(want.source.name, []).append(want)
    firsts = [wants[0] for wants in by_name.values()]
    source = firsts[0].source.source
    found = source.read([w.source for w in firsts], [_for_stored(w) for w in firsts])
    for leaf, numbers in found:
        for want in by_name[leaf.name]:
            yield want, numbers


def _for_stored(want: Want) -> Any:
    """Return the sharding for the numbers of a leaf, which have more axes for a key."""
    if want.kind == "key" and not getattr(want.sharding, "is_fully_replicated", False):
        return None
    return want.sharding


def _for_numpy(numbers: Any, dtype: Any) -> np.ndarray[Any, Any]:
    made = np.asarray(numbers)
    if made.dtype != dtype:
        return made.astype(dtype)
    whole = made.base is None or made.base.nbytes <= made.nbytes + 128
    return made if made.flags.writeable and whole else made.copy()


def _put(batch: list[tuple[Want, Any]]) -> None:
    loose = [(w, x) for w, x in batch if w.sharding is None]
    if loose:
        made = jax.device_put([_safe(x) for _, x in loose])
        for (want, _), array in zip(loose, made, strict=True):
            want.array = _finished(want, array)
    placed = [(w, x) for w, x in batch if w.sharding is not None]
    local = [(w, x) for w, x in placed if w.sharding.is_fully_addressable]
    direct = [(w, x) for w, x in local if w.kind != "key"]
    if direct:
        made = jax.device_put(
            [_safe(x) for _, x in direct], [w.sharding for w, _ in direct]
        )
        for (want, _), array in zip(direct, made, strict=True):
            want.array = _finished(want, array)
    for want, numbers in placed:
        if want.kind == "key":
            key = _finished(want, jax.device_put(_safe(numbers)))
            want.array = jax.device_put(key, want.sharding)
        elif not want.sharding.is_fully_addressable:
            array = _spread(numbers, want.sharding)
            want.array = _finished(want, array)


def _spread(numbers: Any, sharding: Any) -> Any:
    """Return an array of several processes, each of which read the whole of it."""
    if isinstance(numbers, jax.Array):
        return untyped_jax.device_put(numbers, sharding)
    return jax.make_array_from_callback(
        numbers.shape, sharding, lambda index: _safe(numbers[index])
    )


def _finished(want: Want, array: Any) -> Any:
    if want.kind == "key":
        if isinstance(want.source, Leaf):
            return wrapped(array, str(want.source.impl))
        return array
    return _weak(array) if want.weak else array


def _safe(numbers: Any) -> Any:
    """Return numbers that jax will copy: see `unaligned`."""
    if not isinstance(numbers, np.ndarray) or numbers.ctypes.data % 64:
        return numbers
    made = unaligned(numbers.nbytes).view(numbers.dtype).reshape(numbers.shape)
    made[...] = numbers
    return made
