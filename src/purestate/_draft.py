"""Drafts: a block in which a copy of a State can be assigned to, frozen at its end.

A draft is an instance of the State's own class. Its nested States are drafts and its
containers and numpy arrays are copies, so that nothing reaches the original. The end of
the block is one `replace` per changed State, children first: checks, converters and
derived fields work as there. If anything raises, the draft is lost and nothing else.
"""

import copy
import dataclasses
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np

from purestate._compat import current_trace
from purestate._layout import AUX, DRAFT, LAYOUT, layout_of
from purestate._pytree import adopt_values, new_instance, sealed_aux
from purestate._replace import replaced
from purestate._values import NUMBERS, strong
from purestate.errors import DraftError, FieldError

__all__ = ["Draft"]

_S = TypeVar("_S")


class Draft(Generic[_S]):
    """The context manager that `State.draft` returns."""

    def __init__(self, state: _S) -> None:
        self._source = state
        self._root: Any = None
        self._opened: list[Any] = []
        self._trace: object = None
        self._ended = "not entered"

    def __enter__(self) -> Any:  # type checkers hold a State to be frozen
        if self._root is not None:
            raise DraftError(
                f"this draft of {type(self._source).__name__} was entered already: "
                f"call .draft() anew for every block."
            )
        self._trace = current_trace()
        self._ended = ""
        self._root = self._thawed(_settled(self._source))
        return self._root

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._ended = f"its block raised {kind.__name__}"  # type: ignore[union-attr]
            return
        try:
            self._freeze(self._root)
        except BaseException as failure:
            self._ended = f"it could not be frozen: {type(failure).__name__}"
            for draft in self._opened:  # also those that were frozen before the failure
                draft.__dict__.pop(AUX, None)
                draft.__dict__[DRAFT] = (self, None)
            raise
        self._ended = "its block has ended"
        for draft in self._opened:  # taken out of the tree, and perhaps kept elsewhere
            if DRAFT in draft.__dict__:
                adopt_values(draft, dict(draft.__dict__[DRAFT][1].__dict__))

    def assign(self, draft: Any, name: str, value: Any) -> None:
        """Store a value in one of the block's drafts.

        Raises:
            DraftError: the block has ended or raised, or belongs to another trace.
            FieldError: a name that is not a field.
            StaticFieldError: a value that a static field cannot hold.
        """
        layout = layout_of(type(draft))
        where = f"cannot assign {layout.cls.__name__}.{name} in this draft"
        if self._ended:
            raise DraftError(
                f"{where}: {self._ended}, so the value would be lost. Assign inside "
                f"the `with state.draft() as new:` block."
            )
        if current_trace() != self._trace:
            raise DraftError(
                f"{where}: it was opened outside of the function that jax is tracing "
                f"now, so the value would leak as a tracer. Open the draft inside that "
                f"function and return the State from it."
            )
        if name not in layout.names:
            raise FieldError.unknown(layout.cls, name, layout.names)
        if name in layout.static:
            layout.fit(name, value)
        elif name in layout.arrays and type(value) in NUMBERS:
            value = strong(layout, name, value)
        draft.__dict__[name] = value

    def _thawed(self, value: Any) -> Any:
        """Return a copy that can be assigned to, in depth."""
        kind = type(value)
        if LAYOUT in kind.__dict__:
            layout = layout_of(kind)
            held = {name: self._thawed(value.__dict__[name]) for name in layout.data}
            held |= {name: value.__dict__[name] for name in layout.static}
            made = new_instance(kind, held | {DRAFT: (self, value)})
            self._opened.append(made)
            return made
        if kind is np.ndarray:
            return value.copy()
        if isinstance(value, dict):
            made = copy.copy(value)
            made.update({key: self._thawed(item) for key, item in value.items()})
            return made
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return kind(*map(self._thawed, value))
        if isinstance(value, list | tuple):
            return kind(map(self._thawed, value))
        if isinstance(value, set):
            return copy.copy(value)
        if dataclasses.is_dataclass(kind) and not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            made = copy.copy(value)
            for spec in dataclasses.fields(value):
                setattr(made, spec.name, self._thawed(getattr(value, spec.name)))
            return made
        return value

    def _freeze(self, value: Any) -> None:
        """Freeze every draft of this block in a tree, children first."""
        for child in _children(value):
            self._freeze(child)
        mark = getattr(value, "__dict__", {}).get(DRAFT)
        if mark is None or mark[0] is not self or LAYOUT not in type(value).__dict__:
            return
        layout, source, held = layout_of(type(value)), mark[1], value.__dict__
        changes = {
            name: held[name]
            for name in layout.names
            if not _is_same(held[name], source.__dict__[name])
        }
        made = replaced(source, changes) if changes else source
        adopt_values(value, {n: made.__dict__[n] for n in (*layout.names, AUX)})


def _settled(state: Any) -> Any:
    """Return the State itself, or what an open draft would be if it ended now."""
    if AUX in state.__dict__:
        return state
    aux, layout = sealed_aux(state), layout_of(type(state))
    held = {name: _settled_value(state.__dict__[name]) for name in layout.names}
    return new_instance(layout.cls, held | {AUX: aux})


def _settled_value(value: Any) -> Any:
    if DRAFT in getattr(value, "__dict__", {}):
        return _settled(value)
    if type(value) in (list, tuple):
        return type(value)(map(_settled_value, value))
    if type(value) is dict:
        return {key: _settled_value(item) for key, item in value.items()}
    return value


def _children(value: Any) -> Iterator[Any]:
    kind = type(value)
    if LAYOUT in kind.__dict__:
        if DRAFT in value.__dict__:
            yield from (value.__dict__[name] for name in layout_of(kind).data)
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
    elif dataclasses.is_dataclass(kind):
        yield from (getattr(value, spec.name) for spec in dataclasses.fields(value))


def _is_same(new: Any, old: Any) -> bool:
    """Return whether a thawed value still holds what it was copied from."""
    if new is old:
        return True
    if type(new) is not type(old):
        return False
    if LAYOUT in type(new).__dict__:
        names = layout_of(type(new)).names
        return all(_is_same(new.__dict__[n], old.__dict__[n]) for n in names)
    if type(new) is np.ndarray:
        return new.dtype == old.dtype and np.array_equal(new, old, equal_nan=False)
    if isinstance(new, dict):
        return list(new) == list(old) and all(_is_same(new[k], old[k]) for k in new)
    if isinstance(new, list | tuple):
        return len(new) == len(old) and all(map(_is_same, new, old))
    return False
