"""What a jitted function notices while jax traces it, and at no other time.

jax runs the Python function once per structure and type of its arguments. That is when
a retrace is counted, and when what came back can be compared with what went in.
"""

import dataclasses
import functools
import sys
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import jax

from purestate._consumed import Path, inner_states
from purestate._diff import Difference, diff
from purestate._host._failures import count_calls
from purestate._layout import LAYOUT
from purestate.errors import LostUpdateWarning, RetraceWarning, StateDriftWarning
from purestate.errors._base import short

__all__ = ["Watch"]

_MANY = 8  # traces after which it is likely that something changes at every call


@dataclasses.dataclass
class Place:
    """A donated parameter.

    Attributes:
        position: where it stands in a call, None for a keyword-only parameter.
        name: its name, empty if the function has no signature.
        by_name: whether it was named, and did not just come first.
        inner: where States have been in it, deepest first, as far as it was traced.
    """

    position: int | None
    name: str
    by_name: bool
    inner: tuple[Path, ...] = ()

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the argument of a call."""
        if self.position is not None and self.position < len(args):
            return args[self.position]
        return kwargs.get(self.name)

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remember where States are in the argument that is being traced."""
        found = {*self.inner, *inner_states(self.read(args, kwargs))}
        self.inner = tuple(sorted(found, key=len, reverse=True))


@dataclasses.dataclass
class Watch:
    """Watches the traces of one jitted function.

    Attributes:
        function: the user's function.
        name: how to call it in texts.
        donated: the parameters that are donated.
        calls_host: whether a trace has met a host function.
    """

    function: Callable[..., Any]
    name: str
    donated: tuple[Place, ...]
    calls_host: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._last: Any = None

    def wrapped(self) -> Callable[..., Any]:
        """Return the function that jax traces in place of the user's."""

        @functools.wraps(self.function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            self._count_trace(args, kwargs)
            for place in self.donated:
                place.note(args, kwargs)
            calls = count_calls()
            out = self.function(*args, **kwargs)
            self.calls_host = self.calls_host or calls != count_calls()
            self._compare(args, kwargs, out)
            return out

        return traced

    def _count_trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen = jax.tree.map(_abstract, (args, kwargs))
        with self._lock:
            changes = _named(self._last, seen)
            if self._last is not None and not changes:
                return  # the same types again: lowering, or another transform
            self._last, self._count = seen, self._count + 1
            count = self._count
        if count >= _MANY:
            _warn(RetraceWarning(self.name, count, "\n".join(map(str, changes))))

    def _compare(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        given = args[0] if args else None
        cls = type(given)
        first = out[0] if isinstance(out, tuple | list) and out else out
        if LAYOUT in cls.__dict__ and type(first) is cls:
            changes = diff(given, first)
            if changes and not all(map(_is_cut_by_gradient, changes)):
                _warn(StateDriftWarning(cls, self.name, str(changes)))
        for place in self.donated:
            donated = type(place.read(args, kwargs))
            if LAYOUT in donated.__dict__ and not _holds(out, donated):
                _warn(LostUpdateWarning(donated, self.name))


def _is_cut_by_gradient(change: Difference) -> bool:
    """Return whether a leaf without a gradient became None, as `ps.grad` returns it."""
    has_none = change.before.startswith(("i", "u", "bool", "key"))
    return change.kind == "class" and change.after == "NoneType" and has_none


def _holds(out: Any, cls: type) -> bool:
    parts = jax.tree.leaves(out, is_leaf=lambda part: type(part) is cls)
    return any(type(part) is cls for part in parts)


def _abstract(leaf: Any) -> Any:
    """Return a leaf's type, so that no array and no tracer is kept."""
    if not hasattr(leaf, "dtype") or isinstance(leaf, type):
        return _Static(leaf)  # only a static argument reaches a trace as it is
    weak = bool(getattr(leaf, "weak_type", False))
    struct: Any = jax.ShapeDtypeStruct  # untyped in some versions of jax
    return struct(leaf.shape, leaf.dtype, weak_type=weak)


class _Static:
    """What is remembered of a static argument: its text, and what tells it apart."""

    def __init__(self, value: Any) -> None:
        self.text, self.key = short(value), (type(value), hash(value))


def _named(old: Any, new: Any) -> list[Difference]:
    """Return the differences between two calls, the first argument's by its class."""
    if old is None:
        return []
    found: list[Difference] = []
    before, after = map(_arguments, (old, new))
    for name in {**before, **after}:
        a, b = before.get(name), after.get(name)
        found += (_placed(name, change) for change in diff(a, b))
        pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=False)
        found += (
            Difference(f"argument {name}", "static value", x.text, y.text)
            for x, y in pairs
            if type(x) is type(y) is _Static and x.key != y.key
        )
    return found


def _arguments(call: tuple[tuple[Any, ...], dict[str, Any]]) -> dict[str, Any]:
    return {str(i): arg for i, arg in enumerate(call[0])} | call[1]


def _placed(name: str, change: Difference) -> Difference:
    bare = not change.path or change.path.startswith(("[", "."))
    if name == "0" and not bare:
        return change
    path = f"argument {name}{'' if bare else ', '}{change.path}"
    return dataclasses.replace(change, path=path)


def _warn(warning: Warning) -> None:
    """Warn at the line of the user's that led here, past our frames and jax's."""
    depth, frame = 2, sys._getframe(1)  # level 1 is this function itself
    while frame.f_back is not None and _is_library(frame):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(warning, stacklevel=depth)


def _is_library(frame: types.FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] in ("purestate", "jax", "contextlib", "functools")
