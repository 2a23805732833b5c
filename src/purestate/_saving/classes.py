"""Which class a name in a file stands for: nothing is imported to find it."""

import typing
from collections.abc import Iterable
from typing import Any

from purestate._saving.describe import short_name
from purestate._schema.annotations import evaluated
from purestate._schema.layout import Layout, layout_of
from purestate._schema.marks import is_state_class
from purestate._state.state import State


def annotated_classes(layout: Layout, name: str) -> tuple[type, ...]:
    """Return the classes that the annotation of a field mentions, at any depth."""
    owner = layout.cls
    for base in owner.__mro__:
        if is_state_class(base) and name in layout_of(base).stored:
            owner = base  # where it was declared, whose module its names are of
    annotation: Any = layout.specs[name].type
    if isinstance(annotation, str):
        annotation = evaluated(owner, annotation)
    return tuple(_mentioned(annotation))


def _mentioned(annotation: Any) -> typing.Iterator[type]:
    origin = typing.get_origin(annotation) or annotation
    if isinstance(origin, type):
        yield origin
    for part in typing.get_args(annotation):
        yield from _mentioned(part)


def is_named(cls: type, name: str) -> bool:
    """Return whether a State class has or had a name."""
    return _closeness(cls, name, "") > 0


def _closeness(cls: type, name: str, module: str) -> int:
    """Return how well a State class fits a name in a file, 0 for not at all.

    A class of that name may live next to one that once had it, and next to one that
    has only its last part.
    """
    own, was = short_name(cls), layout_of(cls).was
    last = name.rpartition(".")[2]
    found = (last in (own, *was), name in was, name == own, cls.__module__ == module)
    return 4 if all(found[2:]) else max(i * fits for i, fits in enumerate(found[:3], 1))


def state_class(
    name: str, module: str, classes: Iterable[type], met: Iterable[type] = ()
) -> Any:
    """Return the State class of a name, None if there is none.

    Args:
        name: the class's name, in a file.
        module: where it was then; another one will do.
        classes: those of the annotation, which come before all others, and their
            subclasses. Among those that exist a notebook may have left some of the
            same name: the last one is taken.
        met: what the name stood for elsewhere in the file.
    """
    annotated = [cls for cls in classes if is_state_class(cls)]
    below = [sub for cls in annotated for sub in _below(cls)]
    for found in ([*below, *annotated[::-1]], [*met], _below(State)):
        ranks = [_closeness(cls, name, module) for cls in found]
        if any(ranks):  # the last one of the best
            return max(zip(ranks, range(len(found)), found, strict=True))[2]
    return None


def _below(root: Any) -> list[Any]:
    found: dict[Any, None] = {}
    for cls in root.__subclasses__():
        found |= dict.fromkeys([cls, *_below(cls)])
    return [*filter(is_state_class, found)]
