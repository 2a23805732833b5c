"""Where the leaves of a packed State lie, and how they get in and out of buffers.

A buffer holds leaves of one dtype end to end. Its last axis is that of the numbers:
axes in front of it are batch axes, and the leaves then have them too.
"""

import functools
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purestate._compat import is_tracer, placed_on, untyped_jax
from purestate._inspect.key_paths import path_text
from purestate.errors import PackError


@dataclass(frozen=True)
class Slot:
    """Where one leaf of the State is.

    Attributes:
        part: which leaf of the `Packed`.
        start: where it begins in that buffer.
        size: how many numbers it has there; -1 if it is that leaf itself.
        shape: its shape.
        impl: the implementation of a typed key, whose numbers are its key data.
        inner: the shape of one key's data.
    """

    part: int
    start: int = 0
    size: int = -1
    shape: tuple[int, ...] = ()
    impl: Any = None
    inner: tuple[int, ...] = ()


@dataclass(frozen=True)
class Group:
    """One buffer: its dtype, whether that is weak, its length and its mesh."""

    dtype: Any
    is_weak: bool
    size: int
    sharding: Any = None


class Spec:
    """How the leaves of one kind of State are packed: auxiliary data, interned.

    Attributes:
        treedef: the structure of the State.
        slots: a slot for each of its leaves.
        groups: the buffers, which are the first leaves of the `Packed`.
        skeleton: the State with its slots in place of its leaves.
    """

    def __init__(self, treedef: Any, slots: Any, groups: tuple[Group, ...]) -> None:
        self.treedef, self.slots, self.groups = treedef, slots, groups
        self.skeleton: Any = jax.tree.unflatten(treedef, slots)

    def __repr__(self) -> str:  # jax quotes it in errors about mismatched trees
        return f"{type(self.skeleton).__name__}, {len(self.slots)} leaves"

    @functools.cached_property
    def keys(self) -> tuple[Any, ...]:
        """The key of each leaf of the `Packed`, for paths."""
        paths = jax.tree.leaves_with_path(self.skeleton)
        kept = {
            slot.part: _Kept(path_text(path)) for path, slot in paths if slot.size < 0
        }
        buffers = enumerate(group.dtype.name for group in self.groups)
        names = {i: jax.tree_util.GetAttrKey(name) for i, name in buffers}
        found: dict[int, Any] = kept | names
        return tuple(found[i] for i in sorted(found))

    def __reduce__(self) -> tuple[Any, ...]:
        groups = tuple(replace(group, sharding=None) for group in self.groups)
        return _spec_from, (self.skeleton, groups)


_named: Any = jax.tree_util.GetAttrKey


class _Kept(_named):  # type: ignore[misc]
    """The key of a leaf that is not in a buffer: its path in the State.

    Of a class of jax's own, since who saves trees by their keys knows no others.
    """

    def __str__(self) -> str:
        return self.name if self.name.startswith("[") else f".{self.name}"


_specs: "weakref.WeakValueDictionary[Any, Spec]" = weakref.WeakValueDictionary()
_lock = threading.Lock()


def spec_of(treedef: Any, slots: Sequence[Slot], groups: Sequence[Group]) -> Spec:
    """Return the one `Spec` for these facts."""
    key = treedef, tuple(slots), tuple(groups)
    with _lock:
        found = _specs.get(key)
        if found is None:
            found = _specs[key] = Spec(*key)
    return found


def _spec_from(skeleton: Any, groups: tuple[Group, ...]) -> Spec:
    slots, treedef = jax.tree.flatten(skeleton)
    return spec_of(treedef, slots, groups)


def taken_apart(spec: Spec, slots: Sequence[Slot], leaves: Sequence[Any]) -> list[Any]:
    """Return the leaves of the State in these slots.

    Raises:
        PackError: a buffer of another length, as under a vmap over the packed State.
    """
    by_part: dict[int, list[Slot]] = {}
    for slot in slots:
        if slot.size >= 0:
            by_part.setdefault(slot.part, []).append(slot)
    made: dict[Slot, Any] = {}
    for part, inside in by_part.items():
        buffer, size = leaves[part], spec.groups[part].size
        shape = getattr(buffer, "shape", None)
        if buffer is None:  # in a gradient
            made |= dict.fromkeys(inside)
        elif not shape or shape[-1] != size:
            raise PackError.resized(type(spec.skeleton), size, shape)
        else:
            made |= zip(inside, _slicing(buffer)(tuple(inside), buffer), strict=True)
    return [leaves[slot.part] if slot.size < 0 else made[slot] for slot in slots]


def _slicing(buffer: Any) -> Any:
    """Return the function that slices: in a trace, outside of one, or for a type."""
    if is_tracer(buffer):
        return _slices
    if isinstance(buffer, jax.ShapeDtypeStruct):
        return lambda slots, like: jax.eval_shape(lambda x: _slices(slots, x), like)
    return _compiled_slices


def _slices(slots: Sequence[Slot], buffer: Any) -> list[Any]:
    found, lead = [], buffer.shape[:-1]
    for slot, start in zip(slots, starts(slots), strict=True):
        where = (*(np.uint32(0) for _ in lead), start)
        leaf = jax.lax.dynamic_slice(buffer, where, (*lead, slot.size))
        shape = (*lead, *slot.shape, *slot.inner)
        leaf = leaf if leaf.shape == shape else leaf.reshape(shape)
        if slot.impl is not None:
            leaf = jax.random.wrap_key_data(leaf, impl=slot.impl)
        found.append(leaf)
    return found


_compiled_slices: Any = jax.jit(_slices, static_argnums=0)


def starts(slots: Sequence[Slot]) -> list[Any]:
    """Return where leaves begin, as numbers that XLA does not see through.

    With plain numbers XLA compiles each slice to code of its own; 64 of them take ten
    times as long to compile as 64 arguments. With these, equal code is shared.
    """
    numbers = [np.uint32(slot.start) for slot in slots]
    hidden: list[Any] = untyped_jax.lax.optimization_barrier(numbers)
    return hidden


def join(spec: Spec, leaves: Sequence[Any]) -> list[Any]:
    """Return the buffers that hold those of the State's leaves that lie in one."""
    made = []
    for part, group in enumerate(spec.groups):
        pairs = zip(spec.slots, leaves, strict=True)
        inside = tuple(pair for pair in pairs if pair[0].part == part)
        slots, rows = zip(*inside, strict=True)
        joined = _joined if any(map(is_tracer, rows)) else _compiled_join
        made.append(joined(slots, group.sharding, rows))
    return made


def _joined(slots: Sequence[Slot], sharding: Any, leaves: Sequence[Any]) -> Any:
    rows = [row(slot, leaf, ()) for slot, leaf in zip(slots, leaves, strict=True)]
    return placed_on(jax.lax.concatenate(rows, 0), sharding)


_compiled_join: Any = jax.jit(_joined, static_argnums=(0, 1))


def row(slot: Slot, leaf: Any, lead: tuple[int, ...]) -> Any:
    """Return the numbers of a leaf as they lie in a buffer, behind its batch axes."""
    if slot.impl is not None:
        leaf = jax.random.key_data(leaf)
    return jax.lax.reshape(jnp.asarray(leaf), (*lead, slot.size))
