"""Walks through what fields hold: States, dataclasses, dicts, lists, tuples, arrays.

These are the containers that `at` and drafts go through, whether jax knows them as
pytrees or not. `purestate.testing` has walks of its own, to test these.
"""

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import numpy as np

from purestate._instance.pytree import new_instance
from purestate._schema.layout import layout_of
from purestate._schema.marks import held_by, is_state, is_state_class

# Types of values that hold nothing to walk through; jax's own class of arrays is
# learnt as one is met.
WHOLE: set[type] = {bool, int, float, complex, str, bytes, type(None)}


def items(value: Any) -> dict[Any, Any]:
    """Return what a State, a container or a dataclass holds, by name, key or index."""
    kind = type(value)
    if is_state_class(kind):
        held = held_by(value)
        return {name: held[name] for name in layout_of(kind).data if name in held}
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list | tuple | deque):
        return dict(
            zip(getattr(kind, "_fields", range(len(value))), value, strict=True)
        )
    if dataclasses.is_dataclass(kind):
        names = [spec.name for spec in dataclasses.fields(value)]
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    return {}


def parts(value: Any) -> Collection[Any]:
    """Return what a State, a container or a dataclass holds directly."""
    return items(value).values()


def with_items(value: Any, new: Mapping[Any, Any]) -> Any:
    """Return a copy of a container with some items changed; no code of a user runs.

    Args:
        value: what has `items`, but no State.
        new: by name, key or index.
    """
    kind: Any = type(value)
    if isinstance(value, tuple):
        if hasattr(kind, "_fields"):
            named: Any = value
            return named._replace(**new)
        return kind(new.get(i, part) for i, part in enumerate(value))
    made: Any = copy.copy(value)
    if isinstance(value, dict | list | deque):
        for key, part in new.items():
            made[key] = part
    else:
        for name, part in new.items():
            object.__setattr__(made, name, part)
    return made


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of a container, each part changed; of anything else, itself."""
    if isinstance(value, np.ndarray):
        return value.copy("K")
    if isinstance(value, set | bytearray):
        return copy.copy(value)
    if isinstance(value, jax.Array):
        WHOLE.add(type(value))
        return value
    new = {key: change(part) for key, part in items(value).items()}
    if is_state(value):
        return new_instance(type(value), held_by(value) | new)
    if new or isinstance(value, dict | list | deque):  # an empty one is copied too
        return with_items(value, new)
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
        if any(held_by(new)[n] is not held_by(old)[n] for n in static):
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
