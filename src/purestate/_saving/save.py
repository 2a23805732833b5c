"""`ps.save` and `ps.to_dict`: from a State to a file, or to arrays by name."""

import functools
import json
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purestate._saving import file
from purestate._saving.describe import DEEPEST, describe, stored_type
from purestate._saving.values import number_name
from purestate._schema.leaves import is_key
from purestate.errors import SaveError

_NARROW = ("int2", "int4", "uint2", "uint4", "float4_e2m1fn")  # less than a byte each
_LONGEST = 14_000  # bits, which are 4,215 digits: Python writes and reads 4,300


def save(path: "str | os.PathLike[str]", state: Any, *, extra: Any = None) -> None:
    """Write a State to a file, which `ps.load` reads.

    The file is whole or not there: it is written beside `path` and renamed when it is
    on the disk. It is a safetensors file, which other programs open. A State of several
    processes is written by the first of them; the others return at once.

    Args:
        path: of the file; one that exists is replaced.
        state: a State, packed or not, or a container of States, arrays and numbers.
        extra: any JSON value to be kept beside it; `ps.load(path).extra` returns it.

    Raises:
        SaveError: something that a file cannot hold. All such places are listed, and
            nothing was written.
        OSError: the file cannot be written; the old one is as it was.

    >>> import os, tempfile, jax.numpy as jnp, purestate as ps
    >>> class Point(ps.State):
    ...     x: ps.Array
    >>> path = os.path.join(tempfile.mkdtemp(), "point.safetensors")
    >>> ps.save(path, Point(x=1.5))
    >>> float(ps.load(path, Point).x)
    1.5
    """
    prepare(path, state, extra)()


def prepare(
    path: "str | os.PathLike[str]", state: Any, extra: Any, *, copy: bool = False
) -> Callable[[], None]:
    """Return what writes a State to a file.

    Args:
        path: as for `save`.
        state: as for `save`.
        extra: as for `save`.
        copy: whether arrays are copied now, so that they may be donated meanwhile.

    Raises:
        SaveError: something that a file cannot hold.
    """
    target = file.local_path(path, SaveError.address)
    _check_extra(extra, "extra")
    found = describe(state)
    if jax.process_count() > 1:
        elsewhere = [name for name, x in found.arrays.items() if not _is_here(x)]
        if elsewhere:
            raise SaveError.elsewhere(type(state).__name__, elsewhere)
        if jax.process_index() != 0:
            return lambda: None
    manifest = found.manifest() if extra is None else found.manifest(extra=extra)
    made = _copies(found.arrays) if copy else found.arrays
    arrays = [_outgoing(name, array) for name, array in made.items()]
    text = json.dumps(manifest, separators=(",", ":"))
    texts = {"format": "pt", "purestate": text}
    return functools.partial(file.write, target, arrays, texts)


def _copies(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return copies, each where its array is; those of jax are not waited for."""
    ours = {name: x for name, x in arrays.items() if not isinstance(x, np.ndarray)}
    places = {name: x.sharding for name, x in ours.items()}
    copied: dict[str, Any] = jax.device_put(ours, places, may_alias=False)
    return copied | {name: x.copy() for name, x in arrays.items() if name not in ours}


def to_dict(state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays of a State by name, and a manifest that describes the rest.

    For programs that store arrays by themselves, as orbax does; `ps.from_dict` makes
    the State again. Nothing is copied or moved.

    Args:
        state: a State, packed or not, or a container of States, arrays and numbers.

    Returns:
        The arrays that are not empty, keys as their data; and the manifest, which is
        JSON.

    Raises:
        SaveError: something that neither of them can hold.

    >>> import jax.numpy as jnp, purestate as ps
    >>> class Point(ps.State):
    ...     x: ps.Array
    >>> arrays, manifest = ps.to_dict(Point(x=1.5))
    >>> arrays
    {'x': Array(1.5, dtype=float32)}
    >>> ps.from_dict(manifest, Point, arrays)
    Point(x=f32[])
    """
    found = describe(state)
    arrays = {
        name: jax.random.key_data(array) if is_key(array) else array
        for name, array in found.arrays.items()
        if array.size
    }
    return arrays, found.manifest()


def _is_here(array: Any) -> bool:
    return (
        isinstance(array, np.ndarray)
        or array.is_fully_addressable
        or array.is_fully_replicated
    )


def _check_extra(value: Any, place: str, depth: int = 0) -> None:
    """Refuse what JSON would give back as something else, or not at all."""
    if value is None or type(value) in (bool, float, str):
        return
    if depth > DEEPEST:
        raise SaveError.too_deep("extra", DEEPEST)
    if type(value) is int:
        if value.bit_length() > _LONGEST:
            raise SaveError.long(place)
    elif type(value) is list:
        for i, part in enumerate(value):
            _check_extra(part, f"{place}[{i}]", depth + 1)
    elif type(value) is dict:
        for key, part in value.items():
            if type(key) is not str:
                raise SaveError.extra(f"the key {key!r} of {place}", type(key).__name__)
            _check_extra(part, f"{place}[{key!r}]", depth + 1)
    else:
        raise SaveError.extra(place, type(value).__name__)


def _outgoing(name: str, array: Any) -> file.Outgoing:
    shape, dtype = stored_type(array)
    return file.Outgoing(name, dtype, shape, functools.partial(_numbers, array))


def _numbers(array: Any) -> np.ndarray[Any, Any]:
    """Return the numbers of an array that leave no copy behind in it."""
    if isinstance(array, np.ndarray):
        return array
    if is_key(array):
        array = jax.random.key_data(array)
    if _is_on_cpu(array.sharding):
        return _on_host(array)
    if array.is_fully_replicated:
        return _on_host(array.addressable_data(0))
    made = np.empty(array.shape, array.dtype)
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            made[shard.index] = _on_host(shard.data)
    return made


def _on_host(array: Any) -> np.ndarray[Any, Any]:
    # A jax array keeps what numpy had to copy from it, for as long as it lives: only a
    # view of memory of the CPU is not kept.
    if _is_on_cpu(array.sharding) and number_name(array.dtype) not in _NARROW:
        return np.asarray(array)
    return np.asarray(jnp.copy(array))


@functools.lru_cache(maxsize=64)
def _is_on_cpu(sharding: Any) -> bool:
    """Return whether an array lies on one device, whose memory numpy can view."""
    return [device.platform for device in sharding.device_set] == ["cpu"]
