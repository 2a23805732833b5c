"""What a packed State is to those who hold one: its attributes, repr and equality.

A `Packed` is a pytree whose leaves are the buffers and the leaves that were too large
for one. Where each leaf of the State lies is its auxiliary data, interned, so that a
jitted call compares it by identity.
"""

import functools
import inspect
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax

from purestate._compat import is_tracer, untyped_jax
from purestate._inspect.key_paths import children
from purestate._inspect.repr import pformat
from purestate._instance.equality import same_leaf
from purestate._pack.slots import Slot, Spec, taken_apart
from purestate._schema.layout import layout_of
from purestate._schema.marks import Holder, held_by, is_state, is_state_class
from purestate.errors import (
    FrozenStateError,
    PackedAttributeError,
    TracedEqualityError,
    UnhashableStateError,
)

JITTED = "__purestate_jitted__"  # on a function that ps.jit returned: what it calls


class Packed(Holder):
    """A State whose small leaves lie in one buffer per dtype; made by `ps.pack`.

    A function under `ps.jit` receives the State itself. Outside, `unpack()` returns it,
    and attributes read its fields, or bind its methods that are under `ps.jit`.
    """

    _ps_leaves: tuple[Any, ...]
    _ps_spec: Spec

    def unpack(self) -> Any:
        """Return the State; leaves that are not packed are shared, not copied."""
        spec = self._ps_spec
        return jax.tree.unflatten(
            spec.treedef, taken_apart(spec, spec.slots, self._ps_leaves)
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_ps_") or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)  # a protocol that is asked for, or a copy
        skeleton = self._ps_spec.skeleton
        cls = type(skeleton)
        known = layout_of(cls).names if is_state_class(cls) else ()
        if name in known:
            slots, treedef = jax.tree.flatten(getattr(skeleton, name))
            if not all(isinstance(slot, Slot) for slot in slots):
                return getattr(skeleton, name)  # static
            parts = taken_apart(self._ps_spec, tuple(slots), self._ps_leaves)
            return jax.tree.unflatten(treedef, parts)
        found = inspect.getattr_static(cls, name, None) if known else None
        if found is None:
            raise PackedAttributeError.unknown(cls, name, known)
        if isinstance(found, property):
            fget: Any = found.fget
            return fget(self) if is_jitted(fget) else getattr(self.unpack(), name)
        function: Any = found
        if is_jitted(found):
            return types.MethodType(function, self)
        if isinstance(found, staticmethod | classmethod) or not callable(found):
            is_data = isinstance(found, functools.cached_property)
            return getattr(self.unpack() if is_data else cls, name)
        raise PackedAttributeError.plain(cls, name)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenStateError.packed(type(self._ps_spec.skeleton), "assign", name)

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenStateError.packed(type(self._ps_spec.skeleton), "delete", name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *dir(type(self._ps_spec.skeleton))]

    def __eq__(self, other: object) -> bool:
        if type(other) is not Packed:
            return NotImplemented
        if any(map(is_tracer, (*self._ps_leaves, *other._ps_leaves))):
            raise TracedEqualityError(Packed, "a leaf")
        a, b = self.unpack(), other.unpack()
        if is_state(a):
            return bool(a == b)
        first, second = untyped_jax.tree.flatten(a), untyped_jax.tree.flatten(b)
        pairs = zip(first[0], second[0], strict=False)
        return first[1] == second[1] and all(same_leaf(*pair) for pair in pairs)

    def __hash__(self) -> NoReturn:
        raise UnhashableStateError(Packed)

    def __repr__(self) -> str:
        try:
            return f"Packed({pformat(self._ps_shown())})"
        except Exception:  # noqa: BLE001  # half built, or placeholders as leaves
            return "<Packed>"

    def __purestate_shown__(self) -> tuple[str, dict[str, Any]]:
        shown = self._ps_shown()
        return f"Packed({type(shown).__name__})", children(shown)[0]

    def _ps_shown(self) -> Any:
        """Return the State with what stands for its leaves: shapes and dtypes."""
        spec, leaves = self._ps_spec, self._ps_leaves
        shown = [_shown(spec, slot, leaves) for slot in spec.slots]
        return jax.tree.unflatten(spec.treedef, shown)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unflatten, (self._ps_spec, self._ps_leaves)


def is_jitted(function: object) -> bool:
    """Return whether `ps.jit` returned it.

    `functools.wraps` copies attributes to a function with other code.
    """
    program = getattr(function, JITTED, None)
    return program is not None and program.code is getattr(function, "__code__", None)


def is_state_or_packed(value: object) -> bool:
    """Return whether a value is a State, packed or not."""
    return is_state(value) or type(value) is Packed


@dataclass(frozen=True)
class _Shown:
    shape: tuple[int, ...]
    dtype: Any
    is_deleted: Any
    sharding: Any


def _shown(spec: Spec, slot: Slot, leaves: Sequence[Any]) -> Any:
    """Return what stands for a leaf in the repr: only its shape and dtype are known."""
    leaf = leaves[slot.part]
    if slot.size < 0 or not hasattr(leaf, "shape"):
        return leaf
    dtype = spec.groups[slot.part].dtype
    if slot.impl is not None:
        wrap = functools.partial(jax.random.wrap_key_data, impl=slot.impl)
        numbers = untyped_jax.ShapeDtypeStruct(slot.inner, dtype)
        dtype = jax.eval_shape(wrap, numbers).dtype
    gone = getattr(leaf, "is_deleted", bool)
    shape = (*leaf.shape[:-1], *slot.shape)
    return _Shown(shape, dtype, gone, getattr(leaf, "sharding", None))


_new: Any = object.__new__


def _flatten(packed: Any) -> tuple[tuple[Any, ...], Spec]:
    held = held_by(packed)
    return held["_ps_leaves"], held["_ps_spec"]


def _flatten_with_keys(packed: Any) -> tuple[Any, Spec]:
    leaves, spec = _flatten(packed)
    return tuple(zip(spec.keys, leaves, strict=True)), spec


def _unflatten(spec: Spec, leaves: Any) -> Packed:
    packed: Packed = _new(Packed)
    held = held_by(packed)
    held["_ps_leaves"], held["_ps_spec"] = tuple(leaves), spec
    return packed


jax.tree_util.register_pytree_with_keys(
    Packed, _flatten_with_keys, _unflatten, _flatten
)
