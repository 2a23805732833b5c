"""How States, arrays and containers are printed.

Printing is what one does when something is wrong, so nothing here may raise: not for a
half-built instance, a traced, donated or placeholder leaf, nor for a field whose own
repr fails.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import wadler_lindig as wl

from purestate._compat import is_tracer
from purestate._schema.layout import Layout, layout_of
from purestate._schema.marks import LAYOUT, held_by, is_state_class

_ITEMS = 8  # entries of one container or State that are shown
_LONGEST = 120  # characters of a value's own repr
_BUDGET = 500  # values that are shown in all


def printed(value: Any, values: bool, width: int) -> str:
    """Return the text for a value, see `pformat`."""
    return str(wl.pformat(value, width=width, custom=_Custom(values)))


def shown_fields(state: Any) -> list[tuple[str, Any]]:
    """Return the fields to print, by name; one without a value as `<unset>`."""
    layout: Layout = layout_of(type(state))
    held = held_by(state)
    names = [name for name in layout.names if layout.specs[name].repr]
    return [(name, held.get(name, _Text("<unset>"))) for name in names]


class _Text:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


class _Custom:
    """Tells wadler_lindig how to print what it does not know, or would print long."""

    def __init__(self, values: bool) -> None:
        self.values = values
        self.within: set[int] = set()  # objects that are being printed
        self.left = _BUDGET

    def __call__(self, value: Any) -> wl.AbstractDoc | None:
        if id(value) in self.within:
            return wl.TextDoc("<recursive>")
        self.left -= 1
        if self.left < 0:
            return wl.TextDoc("...")
        self.within.add(id(value))
        try:
            return self._known(value)
        except Exception:  # noqa: BLE001  # whatever a foreign object raises
            return wl.TextDoc(_own_repr(value))
        finally:
            self.within.discard(id(value))

    def _known(self, value: Any) -> wl.AbstractDoc | None:
        kind = type(value)
        if is_state_class(kind):
            return self._call(kind.__name__, shown_fields(value))
        if hasattr(kind, LAYOUT):  # a subclass that was never set up
            return wl.TextDoc(f"<{kind.__name__}>")
        if isinstance(value, dict) and len(value) > _ITEMS:
            return self._cut(value)
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return self._row(value) if len(value) > _ITEMS else None
        if isinstance(value, type):
            return wl.TextDoc(value.__qualname__)
        if isinstance(value, np.generic):
            return wl.TextDoc(_own_repr(value))
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            return wl.TextDoc(self._array(value))
        if isinstance(value, set | frozenset) and len(value) > _ITEMS:
            return wl.TextDoc(f"{type(value).__name__} of {len(value)}")
        if isinstance(value, dict | list | tuple | set | frozenset):
            return None
        if dataclasses.is_dataclass(value) or callable(value):
            return None
        return wl.TextDoc(_own_repr(value))

    def _doc(self, value: Any) -> wl.AbstractDoc:
        return wl.pdoc(value, custom=self)

    def _call(self, name: str, fields: list[tuple[str, Any]]) -> wl.AbstractDoc:
        docs = [wl.TextDoc(f"{n}=") + self._doc(v) for n, v in fields[: 4 * _ITEMS]]
        return self._bracketed(f"{name}(", docs, len(fields), ")")

    def _row(self, value: list[Any] | tuple[Any, ...]) -> wl.AbstractDoc:
        begin, end = ("[", "]") if isinstance(value, list) else ("(", ")")
        docs = [self._doc(item) for item in value[:_ITEMS]]
        return self._bracketed(begin, docs, len(value), end)

    def _cut(self, value: dict[Any, Any]) -> wl.AbstractDoc:
        first = list(value.items())[:_ITEMS]
        docs = [wl.TextDoc(f"{k!r}: ") + self._doc(v) for k, v in first]
        return self._bracketed("{", docs, len(value), "}")

    def _bracketed(
        self, begin: str, docs: Sequence[wl.AbstractDoc], total: int, end: str
    ) -> wl.AbstractDoc:
        if total > len(docs):
            docs = [*docs, wl.TextDoc(f"... {total - len(docs)} more")]
        return wl.bracketed(
            begin=wl.TextDoc(begin),
            docs=docs,
            sep=wl.comma,
            end=wl.TextDoc(end),
            indent=2,
        )

    def _array(self, value: Any) -> str:
        dtype, shape = str(value.dtype), tuple(value.shape)
        for long, short in _SHORT:
            dtype = dtype.replace(long, short)
        text = f"{dtype}[{','.join(map(str, shape))}]"
        if is_tracer(value):
            return f"{text}(traced)"
        if getattr(value, "is_deleted", bool)():
            return f"{text}(deleted)"
        if self.values:
            return _own_repr(np.asarray(value).tolist() if shape == () else value)
        return f"{text}(numpy)" if isinstance(value, np.ndarray) else text


_SHORT = (
    ("bfloat", "bf"),
    ("float", "f"),
    ("uint", "u"),
    ("int", "i"),
    ("complex", "c"),
)


def _own_repr(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # whatever a foreign object raises
        return f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
