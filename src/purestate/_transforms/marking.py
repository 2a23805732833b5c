"""Functions that mark what was donated, each written for one structure.

To mark every State that a call has consumed would take as long as a third of the call,
and hardly any is met again. What is met again is held by somebody. So a function here
marks the States that whoever called may hold: the one that was donated, or those in a
donated container. Of the States below it counts the references. Where nobody else holds
one, all ways to it lead through a State that is marked; otherwise `consume` walks
through all. Where anything is not as expected it marks nothing and returns False.

jax calls a program only with a structure that it was traced with. So a structure need
not be compared where it was the only one.
"""

import functools
import sys
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import jax

from purestate._instance.source import define
from purestate._pack.packed import Packed
from purestate._schema.layout import layout_of
from purestate._schema.marks import held_by, is_state_class
from purestate._transforms.consumed import Consumed, consume, set_class, was_deleted

_VALUE = "_ps_value"  # the argument of what is written
Mark = Callable[[Any], bool]
# What these hold is part of jax's structure, and a `tuple` with names.
_CONTAINERS = (dict, list, tuple, OrderedDict, defaultdict)


def shape_of(value: Any) -> Any:
    """Return where the States stand in a value: equal for equal structures.

    None if there are none. Works for tracers as for States that are consumed.
    """
    kind = _kind(value)
    found = {key: shape_of(part) for key, part in _parts(value, kind)}
    inside = frozenset((key, shape) for key, shape in found.items() if shape)
    if is_state_class(kind) or kind is Packed or inside:
        return kind, inside
    if isinstance(value, dict | list | tuple) and not _is_plain(kind):
        return kind, object()  # jax may be told of less than it holds: never the same
    return None


def nothing_to_mark(value: Any) -> bool:
    """Mark a value without States."""
    return True


def always_walk(value: Any) -> bool:
    """Mark a value of which nothing can be said beforehand."""
    return False


def mark_like(value: Any, shape: Any, function: str) -> Mark:
    """Return what marks the next values like this one, whose States are marked.

    Args:
        value: what was donated.
        shape: what `shape_of` returned, whenever its class was traced.
        function: the name of the function that it was donated to.
    """
    if shape_of(value) != shape:
        return always_walk
    writer = _Writer()
    try:
        writer.write(_VALUE, value, shape, is_below=False)
    except _Unknown:
        return always_walk
    kind = _kind(value)
    writer.names["_ps_walk"] = functools.partial(consume, kind=kind, function=function)
    return writer.function(kind)


def _kind(value: Any) -> type:
    kind = type(value)
    return kind._ps_who[0] if issubclass(kind, Consumed) else kind


def _is_plain(kind: type) -> bool:
    return kind in _CONTAINERS or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def _parts(value: Any, kind: type) -> Iterator[tuple[Any, Any]]:
    """Return what a State or a container holds, by name, key or index."""
    if is_state_class(kind):
        held = held_by(value)
        return ((name, held[name]) for name in layout_of(kind).data if name in held)
    if not _is_plain(kind):
        return iter(())
    return iter(value.items()) if isinstance(value, dict) else iter(enumerate(value))


class _Unknown(Exception):
    """There is no short way to tell whether a State lost a buffer."""


class _Writer:
    """Writes the source of one function."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}  # its globals
        self.reads: list[str] = []
        self.tests: list[str] = []
        self.marks: list[str] = []
        self.below: list[str] = []  # what nobody else may hold
        self.states: list[str] = []  # of these, what may have weak references

    def write(self, at: str, value: Any, shape: Any, *, is_below: bool) -> None:
        """Write what marks a value that is read by the expression `at`.

        Raises:
            _Unknown: it cannot be written.
        """
        kind, inside = shape
        local = at
        if at != _VALUE:
            local = f"_ps_{len(self.reads)}"
            self.reads.append(f"{local} = {at}")
        is_one = is_state_class(kind) or kind is Packed
        if is_below:
            self.below.append(local)
            if is_one:
                self.states.append(local)
        elif is_one and (type(value) is not kind or jax.tree.leaves(value)):
            self.mark(local, value, kind)
        if is_one and kind is not Packed and layout_of(kind).cached:
            # A cached value may hold a State, too.
            count = len(layout_of(kind).names) + 1
            self.tests.append(f"len({local}._ps_dict) != {count}")
        parts = dict(_parts(value, kind))
        for key, shape_inside in inside:
            self.write(
                self.read(local, kind, key),
                parts[key],
                shape_inside,
                is_below=is_below or is_one,
            )

    def mark(self, local: str, value: Any, kind: type) -> None:
        """Write the question for a buffer, and the mark."""
        if type(value) is kind:
            raise _Unknown  # it lost nothing this time, or cannot change class
        leaf = self.deleted(local, value)
        if leaf is None:
            raise _Unknown
        becomes = self.constant(type(value))
        if local != _VALUE:  # found by its class
            self.tests.append(f"type({local}) is not {self.constant(kind)}")
        self.tests.append(f"not {leaf}.is_deleted()")
        self.marks.append(f"_ps_set_class({local}, {becomes})")

    def deleted(self, at: str, value: Any) -> str | None:
        """Return the expression for a deleted array in a value."""
        kind = _kind(value)
        if kind is Packed:
            leaves = enumerate(held_by(value)["_ps_leaves"])
            gone = (i for i, leaf in leaves if was_deleted(leaf))
            return next((f"{at}._ps_leaves[{i}]" for i in gone), None)
        parts = list(_parts(value, kind))
        for key, part in parts:
            if isinstance(part, jax.Array) and was_deleted(part):
                return self.read(at, kind, key)
        found = (self.deleted(self.read(at, kind, k), part) for k, part in parts)
        return next(filter(None, found), None)

    def read(self, at: str, kind: type, key: Any) -> str:
        """Return the expression for a part of what an expression is for."""
        if is_state_class(kind):
            return f"{at}.{key}"
        return f"{at}[{self.constant(key)}]"

    def constant(self, value: Any) -> str:
        """Return an expression for a constant."""
        if type(value) is int:
            return repr(value)
        name = f"_ps_constant_{len(self.names)}"
        self.names[name] = value
        return name

    def function(self, owner: type) -> Mark:
        """Return the function."""
        # All reads and tests come before the first mark: a marked State refuses. The
        # references are counted after it, so that no thread can take one more.
        lines = [*self.reads]
        if self.tests:
            lines += [f"if {' or '.join(self.tests)}:", "    return False"]
        lines += self.marks
        if self.below:
            held, weak = (
                f"({''.join(f'{x}, ' for x in names)})"
                for names in (self.below, self.states)
            )
            alone = len(self.below) * _ALONE
            is_held = f"sum(map(_ps_references, {held})) != {alone}"
            is_watched = f"any(map(_ps_weak_references, {weak}))"
            lines += [f"if {is_held} or {is_watched}:", f"    _ps_walk({_VALUE})"]
        lines.append("return True")
        self.names |= {
            "_ps_set_class": set_class,
            "_ps_references": sys.getrefcount,
            "_ps_weak_references": weakref.getweakrefcount,
        }
        return define(owner, f"mark({_VALUE})", lines, self.names, shared=True)


def _references() -> int:
    """Return what is counted for an object that one container holds."""
    held = [object()]
    _ps_0 = held[0]
    return sum(map(sys.getrefcount, (_ps_0,)))


_ALONE = _references()
