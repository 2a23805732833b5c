"""Which axes annotations name: those that `dims=` can give sizes for."""

import dataclasses
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from purestate._schema.annotations import evaluated
from purestate._schema.marks import is_state_class
from purestate.errors import StrategyError
from purestate.testing._strategies.construct import parameters, stored
from purestate.testing._strategies.registered import registered

Annotations = Iterable[tuple[Any, Any]]  # each with the class that it is evaluated in
_SHARED = "..."  # the shape that arrays without one in their annotation have


def check_dims(subject: str, dims: Any, annotations: Annotations) -> None:
    """Check that the axes in `dims=` are there.

    Raises:
        StrategyError: an axis that no annotation names.
    """
    if not isinstance(dims, Mapping) or not dims:
        return
    try:
        known = dict.fromkeys(_axes(annotations, set()))
    except _Unresolved:  # any axis may come of it
        return
    for name in dims:
        if name != _SHARED and name not in known:
            raise StrategyError.unknown_name(subject, "axis", name, "axes", known)


class _Unresolved(Exception):
    """Internal: a string annotation that names nothing yet."""


def _axes(annotations: Annotations, seen: set[Any]) -> Iterator[str]:
    for annotation, owner in annotations:
        if isinstance(annotation, typing.ForwardRef):
            annotation = annotation.__forward_arg__
        if isinstance(annotation, str):
            annotation = evaluated(owner or type(None), annotation)
        if registered(annotation) is None:
            if isinstance(annotation, str):
                raise _Unresolved
            yield from _axes_of_one(annotation, owner, seen)


def _axes_of_one(annotation: Any, owner: Any, seen: set[Any]) -> Iterator[str]:
    dims = getattr(annotation, "dim_str", None)
    if dims is not None:
        for word in dims.split():
            label = word.lstrip("*#?").rpartition("=")[2]
            if not label.startswith("_"):
                yield from re.findall(r"[A-Za-z_]\w*", label)
        return
    inner: list[Any] = []
    if isinstance(annotation, typing.TypeVar):
        inner = [*annotation.__constraints__, annotation.__bound__]
    elif isinstance(annotation, dataclasses.InitVar):
        inner = [annotation.type]
    elif typing.get_origin(annotation) is typing.Annotated:
        inner = [typing.get_args(annotation)[0]]
    elif typing.get_origin(annotation) is not typing.Literal:
        inner = [*typing.get_args(annotation)]
    for alias in ("__value__", "__supertype__"):  # `type X = ...`, NewType
        inner.append(getattr(annotation, alias, None))
    yield from _axes(((part, owner) for part in inner if part is not None), seen)
    plain = typing.get_origin(annotation) or annotation
    if isinstance(plain, type) and plain not in seen and _is_made(plain):
        seen.add(plain)
        yield from _axes(annotations_of(plain), seen)


def _is_made(cls: type) -> bool:
    is_tuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
    return is_tuple or is_state_class(cls) or dataclasses.is_dataclass(cls)


def annotations_of(cls: Any) -> Annotations:
    """Yield what a class says about its fields, and about what makes it."""
    for parameter in (*parameters(cls).values(), *stored(cls)):
        yield parameter.annotation, parameter.owner
