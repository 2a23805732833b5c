"""Spaces of an environment, as specs of arrays and as what the environment takes.

Nothing of gymnasium is imported: a space is what has its attributes, and a class of the
name `Dict`, `Tuple` or `Discrete`.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from purestate._host.call.leaf import Leaf, as_operand, struct, too_large
from purestate._inspect.key_paths import path_text
from purestate.errors import HostEnvError
from purestate.errors._text import short


def spec_of(env: str, space: Any, what: str) -> Any:
    """Return a pytree of specs, one per array of a space.

    Raises:
        HostEnvError: the size of what is in the space is not fixed.
    """
    parts = _parts(space)
    if isinstance(parts, dict):
        return {key: spec_of(env, part, what) for key, part in parts.items()}
    if parts is not None:
        return tuple(spec_of(env, part, what) for part in parts)
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if shape is None or dtype is None or np.dtype(dtype).kind not in "biuf":
        raise HostEnvError(
            env,
            f"has {short(space)} in its {what}, whose members are no arrays of one "
            f"shape. Wrap the environment so that it is a Box, Discrete, MultiBinary "
            f"or MultiDiscrete, or a Dict or Tuple of them.",
        )
    return struct(tuple(shape), np.dtype(dtype))


def as_observation(space: Any, value: Any) -> Any:
    """Return what an environment observed, in the containers that `spec_of` has."""
    parts = _parts(space)
    if isinstance(parts, dict):
        return {key: as_observation(part, value[key]) for key, part in parts.items()}
    if parts is not None:
        return tuple(map(as_observation, parts, value))
    return np.asanyarray(value)  # with its mask, which is refused


def as_action(env: str, space: Any, value: Any) -> Any:
    """Return an action as the environment takes it, its own to write to.

    Raises:
        HostEnvError: integers that the space's dtype cannot hold.
    """
    parts = _parts(space)
    if isinstance(parts, dict):
        return {key: as_action(env, part, value[key]) for key, part in parts.items()}
    if parts is not None:
        return tuple(as_action(env, *pair) for pair in zip(parts, value, strict=True))
    if _is(space, "Discrete"):
        return space.dtype.type(value)  # a number: environments look it up in tables
    if (number := too_large(value, space.dtype)) is not None:
        raise HostEnvError(
            env, f"got {number} in an action, which {space.dtype.name} cannot hold."
        )
    return np.array(value, space.dtype)


def require_action(env: str, space: Any, action: Any) -> None:
    """Raise an error if an action, maybe traced, is of another type than its space."""
    spec = spec_of(env, space, "action_space")
    expected = jax.tree_util.tree_leaves_with_path(spec)
    given, found_tree = jax.tree.flatten(action)
    tree: Any = jax.tree.structure(spec)
    if found_tree != tree:
        raise HostEnvError(
            env,
            f"takes actions of another structure:\n  expected: {tree}\n"
            f"  received: {found_tree}",
        )
    for (path, wanted), value in zip(expected, given, strict=True):
        operand = as_operand(value)
        leaf = Leaf(wanted.shape, np.dtype(wanted.dtype))
        if operand is None or not _fits(operand[0], leaf):
            found = type(value).__name__ if operand is None else operand[0]
            raise HostEnvError(
                env, f"got {found} as {path_text(path, 'action')}, which is {leaf}."
            )


def _fits(found: Leaf, wanted: Leaf) -> bool:
    kinds = {"b": "b", "i": "biu", "u": "biu", "f": "biuf"}
    kind = "f" if found.dtype.kind == "V" and found.inexact else found.dtype.kind
    return found.shape == wanted.shape and kind in kinds[wanted.dtype.kind]


def _parts(space: Any) -> Any:
    """Return the spaces inside of a Dict, a Tuple; None if it is neither."""
    if _is(space, "Dict") and isinstance(space.spaces, Mapping):
        return dict(space.spaces)
    if _is(space, "Tuple"):
        return tuple(space.spaces)
    return None


def _is(space: Any, name: str) -> bool:
    return any(cls.__name__ == name for cls in type(space).__mro__)
