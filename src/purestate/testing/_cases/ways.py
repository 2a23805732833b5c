"""Ways through a tree of States, dataclasses and containers, one step after the other.

A step is `(".", name)` or `("[", key)`. The plain code for what `at` and `draft` do.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from purestate._schema.marks import is_state
from purestate.testing._strategies.construct import is_started

Way = tuple[tuple[str, Any], ...]


def steps(node: Any) -> list[tuple[str, Any]]:
    """Return the steps that lead on from a node, with the static fields of a State."""
    if dataclasses.is_dataclass(node):
        return [(".", field.name) for field in dataclasses.fields(node)]
    names: Any = getattr(node, "_fields", None)
    if isinstance(node, tuple) and names is not None:
        return [(".", name) for name in names]
    if isinstance(node, dict):
        return [("[", key) for key in node]
    if isinstance(node, list | tuple):
        return [("[", index) for index in range(len(node))]
    return []


def ways(root: Any, way: Way = ()) -> list[Way]:
    """Return the ways to everything below the root."""
    found: list[Way] = []
    for step in steps(follow(root, way)):
        found += [(*way, step), *ways(root, (*way, step))]
    return found


def follow(root: Any, way: Way) -> Any:
    """Return what is at the end of a way."""
    return functools.reduce(_go, way, root)


def _go(node: Any, step: tuple[str, Any]) -> Any:
    kind, key = step
    return getattr(node, key) if kind == "." else node[key]


def apart(one: Way, other: Way) -> bool:
    """Return whether neither place is a part of the other."""
    return one[: len(other)] != other and other[: len(one)] != one


def text(root: str, way: Way) -> str:
    """Return a way as source text."""
    return root + "".join(
        f".{key}" if kind == "." else f"[{key!r}]" for kind, key in way
    )


def is_derived(root: Any, way: Way) -> bool:
    """Return whether a place lies in a field that no constructor takes."""
    return any(not (s.init or is_started(s)) for s in _specs(root, way))


def is_compared(root: Any, way: Way) -> bool:
    """Return whether a place lies in nothing but fields that count in `==`."""
    specs = list(_specs(root, way))
    return all(spec.compare for spec in specs) and not is_derived(root, way)


def _specs(node: Any, way: Way) -> Iterator[dataclasses.Field[Any]]:
    """Yield the declared fields that a way leads through."""
    for step in way:
        specs = getattr(type(node), "__dataclass_fields__", {})
        if step[0] == "." and step[1] in specs:
            yield specs[step[1]]
        node = _go(node, step)


def assign(root: Any, way: Way, value: Any) -> None:
    """Assign to a place of a draft."""
    holder, (kind, key) = follow(root, way[:-1]), way[-1]
    if kind == ".":
        setattr(holder, key, value)
    else:
        holder[key] = value


def nested_replace(node: Any, way: Way, value: Any) -> Any:
    """Return what `at(way).set(value)` should: a chain of replacements, inside out."""
    if not way:
        return value
    (_, key), *rest = way
    new = nested_replace(_go(node, way[0]), tuple(rest), value)
    if is_state(node):
        return node.replace(**{key: new})
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return node._replace(**{key: new})  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(node):
        changed: Any = dataclasses.replace(node, **{key: new})  # type: ignore[type-var]
        return changed
    if isinstance(node, dict):
        return node | {key: new}
    return type(node)(new if i == key else item for i, item in enumerate(node))
