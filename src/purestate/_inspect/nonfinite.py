"""Which leaves hold NaN or infinity: one program over all of them, then the details.

A loop over the leaves would start a program for each and wait for it.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purestate._compat import is_tracer, untyped_jax
from purestate._inspect.donations import explaining_deleted
from purestate._inspect.key_paths import path_text
from purestate._schema.marks import SHOWN
from purestate._schema.text import root_name


@dataclass(frozen=True)
class NonFinite:
    """A leaf that holds a number which is not finite.

    Attributes:
        path: the place, such as `Train.head['kernel']`.
        nans: how many of its numbers are NaN.
        infs: how many are infinite.
        size: how many there are.
        first: the index of the first that is not finite, in row-major order.
    """

    path: str
    nans: int
    infs: int
    size: int
    first: tuple[int, ...]

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        if not self.first:
            return f"{place}{'NaN' if self.nans else 'inf'}"
        counts = ((self.nans, "NaN"), (self.infs, "inf"))
        found = " and ".join(f"{count} {what}" for count, what in counts if count)
        index = ", ".join(map(str, self.first))
        return f"{place}{found} of {self.size}, the first at [{index}]"


@explaining_deleted()
def find_nonfinite(state: Any) -> list[NonFinite]:
    """Return the leaves of a State that hold NaN or infinity; none when all is well.

    Looks at floating-point and complex arrays of every precision, and at Python
    numbers. What is split over devices stays where it is, also over several processes,
    each of which gets the same answer.

    Args:
        state: a State, packed or not, or any pytree, outside of jit.

    Raises:
        TypeError: `state` is a class, or a leaf is a tracer, has a type and no numbers,
            or is an array of numpy that holds objects or records.

    >>> import jax.numpy as jnp, purestate as ps
    >>> params = {"w": jnp.array([[1.0, 2.0], [jnp.inf, jnp.nan]]), "b": jnp.zeros(2)}
    >>> [print(found) for found in ps.find_nonfinite(params)]
    ['w']: 1 NaN and 1 inf of 4, the first at [1, 0]
    [None]
    >>> assert not ps.find_nonfinite(params["b"])
    """
    if isinstance(state, type):
        raise _refused(state.__name__, "class: give an instance.")
    # Each array is looked at where it is, whatever the mesh is that code runs under;
    # `ensure_compile_time_eval` is for constants in a function that is traced.
    with _no_mesh(), jax.ensure_compile_time_eval():
        leaves = _leaves(state)
        found = [(path, leaf) for path, leaf in leaves if _may_be_bad(path, leaf)]
        bad = _bad([leaf for _, leaf in found])
        return [
            _details(path, leaf)
            for (path, leaf), is_bad in zip(found, bad, strict=True)
            if is_bad
        ]


@contextlib.contextmanager
def _no_mesh() -> Iterator[None]:
    """Leave `jax.set_mesh`, which refuses arrays on other devices than the mesh's."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ValueError):  # within jit it cannot be left
            empty = jax.sharding.Mesh(np.empty((), object), ())
            stack.enter_context(jax.set_mesh(empty))
        yield


def _leaves(tree: Any, root: str | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the leaves with their paths; those of a packed State as in the State."""
    if _is_packed(tree):
        if any(map(is_tracer, jax.tree.leaves(tree))):
            raise _refused(root or "a packed State", "tracer: call it outside of jit.")
        tree = tree.unpack()
    root = root_name(tree) if root is None else root
    for path, leaf in untyped_jax.tree.leaves_with_path(tree, is_leaf=_is_packed):
        place = path_text(path, root)
        if _is_packed(leaf):
            yield from _leaves(leaf, place)
        else:
            yield place, leaf


def _is_packed(value: Any) -> bool:
    return hasattr(type(value), SHOWN) and hasattr(type(value), "unpack")


def _may_be_bad(path: str, leaf: Any) -> bool:
    """Return whether a leaf is to be looked at: whether its type has a NaN.

    Raises:
        TypeError: it is to be, and has no numbers.
    """
    if isinstance(leaf, float | complex):
        return True
    if isinstance(leaf, type):  # such as numpy.float32, which has a `dtype`
        return False
    if hasattr(type(leaf), SHOWN):  # it stands for a State, and cannot be unpacked
        name = type(leaf).__name__
        why = "whose numbers were not read: ps.load(path, like) reads them."
        raise _refused(path, f"{name}, {why}")
    dtype = getattr(leaf, "dtype", None)
    if isinstance(dtype, np.dtype) and _hides_numbers(dtype):
        raise _refused(path, f"numpy array of {dtype}: give arrays of numbers.")
    if dtype is None or not jnp.issubdtype(dtype, np.inexact):
        return False
    if is_tracer(leaf):
        raise _refused(path, "tracer: call it outside of jit.")
    if not hasattr(leaf, "__array__"):
        name = type(leaf).__name__
        raise _refused(path, f"{name}, which has a type and no numbers.")
    return True


def _hides_numbers(dtype: np.dtype[Any]) -> bool:
    """Return whether there can be NaN that `isfinite` does not see."""
    parts = [part[0].base for part in (dtype.fields or {}).values()]
    is_seen = any(jnp.issubdtype(part, np.inexact) for part in parts)
    return dtype.hasobject or is_seen or any(map(_hides_numbers, parts))


def _refused(path: str, why: str) -> TypeError:
    return TypeError(
        f"ps.find_nonfinite looks at numbers, and {path or 'this'} is a {why}"
    )


def _bad(leaves: Sequence[Any]) -> list[bool]:
    """Return for each leaf whether some of it is not finite."""
    found = [False] * len(leaves)
    together: dict[Any, list[int]] = {}  # by the devices that they are on
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, jax.Array):
            together.setdefault(_devices(leaf.sharding), []).append(i)
        else:  # jax would make float32 of a float64, and infinity of a large number
            found[i] = not np.isfinite(np.asarray(leaf)).all()
    started = [_any_bad([leaves[i] for i in at]) for at in together.values()]
    for at, flags in zip(together.values(), started, strict=True):
        for i, flag in zip(at, np.asarray(flags).tolist(), strict=True):
            found[i] = flag
    return found


def _devices(sharding: Any) -> tuple[Any, ...]:
    """Return what arrays of one program have in common: the devices, in their order."""
    if isinstance(sharding, jax.sharding.NamedSharding):
        devices: Any = sharding.mesh.devices
        return tuple(devices.flat)
    return tuple(sorted(sharding.device_set, key=lambda device: device.id))


@jax.jit
def _any_bad(leaves: list[Any]) -> Any:
    # The largest magnitude would compile faster, but over several devices XLA takes it
    # without the NaN.
    return jnp.stack([~jnp.isfinite(_wide(leaf)).all() for leaf in leaves])


def _wide(leaf: Any) -> Any:
    """Return numbers of a byte or less in a format that every device computes with."""
    return leaf.astype(jnp.float32) if leaf.dtype.itemsize == 1 else leaf


def _details(path: str, leaf: Any) -> NonFinite:
    if isinstance(leaf, jax.Array):
        nans, infs, *first = map(int, _counts(leaf))
        return NonFinite(path, nans, infs, leaf.size, tuple(first))
    numbers = np.asarray(leaf)
    is_nan = np.isnan(numbers)
    is_bad = ~np.isfinite(numbers)
    index = np.unravel_index(np.argmax(is_bad), numbers.shape)
    nans = int(is_nan.sum())
    infs = int(is_bad.sum()) - nans
    return NonFinite(path, nans, infs, numbers.size, tuple(map(int, index)))


@jax.jit
def _counts(leaf: Any) -> list[Any]:
    """Return how many are NaN, how many infinite, and the index of the first.

    Axis by axis, since to number all elements in a row would gather an array that is
    split over devices.
    """
    numbers = _wide(leaf)
    is_bad = ~jnp.isfinite(numbers)
    nans = jnp.isnan(numbers).sum(dtype=jnp.uint32)
    first, left = [], is_bad
    for axis, size in enumerate(leaf.shape):
        index = jax.lax.broadcasted_iota(jnp.int32, leaf.shape, axis)
        lowest = jnp.where(left, index, size).min()
        left &= index == lowest
        first.append(lowest)
    return [nans, is_bad.sum(dtype=jnp.uint32) - nans, *first]
