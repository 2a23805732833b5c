"""Open drafts, as far as other operations meet them.

A draft that is still open can be copied, updated, passed to jax. What comes out must
not change with the draft later, so its open parts are settled first: copied as they are
at that moment. An instance under construction counts as open too.
"""

import copy
import dataclasses
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from purestate._instance.pytree import new_instance, sealed_aux
from purestate._schema.layout import AUX, is_state, is_state_class, layout_of

_SIMPLE = (set, bytearray)


def is_open(value: Any) -> bool:
    """Return whether a value is a State that can still be assigned to."""
    return is_state(value) and AUX not in value.__dict__


def settled(value: Any) -> Any:
    """Return a value with every open State in it as it is now, and frozen.

    A value without any comes back as it is.

    Raises:
        UnfinishedStateError: a field has no value yet.
    """
    if is_open(value):
        aux, layout = sealed_aux(value), layout_of(type(value))
        held = {name: settled(value.__dict__[name]) for name in layout.names}
        return new_instance(layout.cls, held | {AUX: aux})
    return rebuilt(value, settled) if _holds_open(value) else value


def _holds_open(value: Any) -> bool:
    return is_open(value) or any(map(_holds_open, parts(value)))


def parts(value: Any) -> list[Any]:
    """Return what a State, a container or a dataclass holds directly."""
    kind = type(value)
    if is_state_class(kind):
        return [value.__dict__[n] for n in layout_of(kind).data if n in value.__dict__]
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple | deque):
        return list(value)
    if dataclasses.is_dataclass(kind):
        names = [spec.name for spec in dataclasses.fields(value)]
        return [getattr(value, name) for name in names if hasattr(value, name)]
    return []


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of a container, each part changed; of anything else, itself."""
    kind: Any = type(value)
    made: Any
    if is_state_class(kind):
        layout = layout_of(kind)
        held = {name: change(value.__dict__[name]) for name in layout.data}
        return new_instance(kind, value.__dict__ | held)
    if isinstance(value, np.ndarray):
        return value.copy("K")
    if isinstance(value, dict):
        made = copy.copy(value)
        for key, part in value.items():
            made[key] = change(part)
        return made
    if isinstance(value, list | deque):
        made = copy.copy(value)
        for i, part in enumerate(value):
            made[i] = change(part)
        return made
    if isinstance(value, tuple):
        changed = map(change, value)
        return kind._make(changed) if hasattr(kind, "_make") else kind(changed)
    if isinstance(value, _SIMPLE):
        return copy.copy(value)
    if dataclasses.is_dataclass(kind):
        made = copy.copy(value)
        for spec in dataclasses.fields(value):
            if hasattr(value, spec.name):
                part = change(getattr(value, spec.name))
                object.__setattr__(made, spec.name, part)
        return made
    return value


def copied_containers(value: Any) -> Any:
    """Return a State or a container with its containers copied, in depth."""
    return rebuilt(value, copied_containers)


def is_same(new: Any, old: Any) -> bool:
    """Return whether a copy still holds what it was copied from."""
    if new is old:
        return True
    kind = type(new)
    if kind is not type(old):
        return False
    if isinstance(new, np.ndarray):
        facts = [(array.dtype, array.shape, array.tobytes()) for array in (new, old)]
        return bool(facts[0] == facts[1])
    if is_state_class(kind):
        static = layout_of(kind).static
        if any(new.__dict__[n] is not old.__dict__[n] for n in static):
            return False
    elif isinstance(new, dict):
        if list(new) != list(old):
            return False
    elif isinstance(new, set | bytearray):
        return bool(new == old)
    elif not isinstance(new, list | tuple | deque) and not dataclasses.is_dataclass(
        new
    ):
        return False
    first, second = parts(new), parts(old)
    return len(first) == len(second) and all(map(is_same, first, second))
