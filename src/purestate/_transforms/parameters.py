"""Which parameters of a function are donated, static, or the class of its method.

jax takes positions and names, and completes one by the other only if the other is not
given. Here both are worked out, once, from whatever the user wrote.
"""

import dataclasses
import inspect
import operator
import typing
from collections.abc import Callable, Iterable
from typing import Any

from purestate._schema.marks import LAYOUT
from purestate._transforms.consumed import consume
from purestate._transforms.marking import (
    Mark,
    always_walk,
    mark_like,
    nothing_to_mark,
    shape_of,
)
from purestate.errors import JitDeclarationError
from purestate.errors._text import nearest

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclasses.dataclass
class DonatedParameter:
    """A donated parameter.

    Attributes:
        position: where it stands in a call, None for a keyword-only parameter.
        name: its name, empty if the function has no signature.
        shapes: where States stood in what it was traced with, by class.
        marks: what marks an argument after a call, by class.
    """

    position: int | None
    name: str
    shapes: dict[type, set[Any]] = dataclasses.field(default_factory=dict)
    marks: dict[type, Mark] = dataclasses.field(default_factory=dict)

    def __reduce__(self) -> Any:
        return DonatedParameter, (self.position, self.name)

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the argument of a call."""
        if self.position is not None and self.position < len(args):
            return args[self.position]
        return kwargs.get(self.name)

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remember what is known of the argument that is being traced."""
        value = self.read(args, kwargs)
        known = self.shapes.setdefault(type(value), set())
        known.add(shape_of(value))
        if len(known) > 1:
            self.marks[type(value)] = always_walk
        elif None in known:
            self.marks[type(value)] = nothing_to_mark

    def consume(self, value: Any, kind: type, function: str) -> None:
        """Mark an argument that was of class `kind`, which its mark left alone."""
        if consume(value, kind, function) and kind not in self.marks:
            self._learn(value, kind, function)

    def _learn(self, value: Any, kind: type, function: str) -> None:
        known = self.shapes.get(kind, set())
        if len(known) == 1:
            self.marks[kind] = mark_like(value, next(iter(known)), function)
        if len(known) != 1:  # another thread may be tracing
            self.marks[kind] = always_walk


@dataclasses.dataclass
class Parameters:
    """The parameters of one function, as far as `ps.jit` asks.

    Attributes:
        function: the function.
        name: how to call it in texts.
        by_name: its parameters, none if it does not tell.
        positional: the names of those that have a position.
    """

    function: Callable[..., Any]
    name: str

    def __post_init__(self) -> None:
        try:
            self.by_name = dict(inspect.signature(self.function).parameters)
        except (TypeError, ValueError):  # some builtins have none
            self.by_name = {}
        kinds = (inspect.Parameter.POSITIONAL_ONLY, _NAMED[0])
        self.positional = [n for n, p in self.by_name.items() if p.kind in kinds]

    def takes_class(self) -> bool:
        """Return whether the first parameter is the class of a class method."""
        first = next(iter(self.by_name.values()), None)
        in_class = "." in self.name
        is_bare = first is not None and first.annotation is first.empty
        return in_class and is_bare and first is not None and first.name == "cls"

    def chosen(
        self, numbers: Iterable[int], names: Iterable[str]
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return parameters by position and by name, each completed by the other."""
        count = len(self.positional)
        found = {n + count if -count <= n < 0 else n for n in numbers}
        named = {
            self.positional[n]
            for n in found
            if 0 <= n < count and self.by_name[self.positional[n]].kind in _NAMED
        }
        named |= set(names)
        found |= {self.positional.index(n) for n in named if n in self.positional}
        return tuple(sorted(found)), tuple(sorted(named))

    def static(self, names: Iterable[str], numbers: Iterable[int]) -> Any:
        """Return the static parameters by position and by name.

        Raises:
            JitDeclarationError: a State would be static, or a name is unknown.
        """
        self._check_known("static_argnames", names)
        found, named = self.chosen(numbers, names)
        for name in named:
            kind = self.by_name[name].annotation if name in self.by_name else None
            if name == "self" or _mentions_state(kind, self.function):
                raise JitDeclarationError(
                    f"ps.jit({self.name}) would make {name} static: jit would then "
                    f"compile its arrays into the program and return stale results. "
                    f"Leave it out: a State is traced, and its ps.static() fields are "
                    f"static already."
                )
        return found, named

    def donated(self, donate: Any, first: int) -> Any:
        """Return the donated parameters by position and by name.

        Args:
            donate: what the user wrote: a bool, a name or names.
            first: the position of the first parameter that can be donated.

        Raises:
            JitDeclarationError: a name that is no parameter.
        """
        if donate is None or isinstance(donate, int):
            order = list(self.by_name)
            if not donate:
                return (), ()
            if first < len(self.positional) or first >= len(order):
                return self.chosen([first], ())
            return self.chosen((), order[first : first + 1])
        names = (donate,) if isinstance(donate, str) else tuple(donate)
        self._check_known("donate", names)
        return self.chosen((), names)

    def donated_parameters(
        self, numbers: Iterable[int], names: Iterable[str]
    ) -> tuple[DonatedParameter, ...]:
        """Return where to find donated arguments in a call."""
        named = dict.fromkeys(names)
        found = []
        for n in numbers:
            name = self.positional[n] if n < len(self.positional) else ""
            named.pop(name, None)
            found.append(DonatedParameter(n, name))
        return (*found, *(DonatedParameter(None, name) for name in named))

    def _check_known(self, option: str, names: Iterable[str]) -> None:
        kinds = [parameter.kind for parameter in self.by_name.values()]
        if not kinds or inspect.Parameter.VAR_KEYWORD in kinds:
            return
        for name in names:
            if name not in self.by_name:
                hint = nearest(name, self.by_name, "parameters")
                fields = " Fields cannot be donated one by one."
                raise JitDeclarationError(
                    f"ps.jit({self.name}, {option}={name!r}): {self.name} has no "
                    f"parameter of that name; {hint}"
                    f"{fields if option == 'donate' else ''}"
                )


def as_tuple(numbers: Any) -> tuple[int, ...]:
    """Return argument numbers as a tuple: jax takes one, several, or None."""
    if numbers is None:
        return ()
    if hasattr(numbers, "__index__"):
        return (operator.index(numbers),)
    return tuple(map(operator.index, numbers))


def _mentions_state(annotation: Any, fn: Callable[..., Any]) -> bool:
    if isinstance(annotation, str):
        annotation = getattr(fn, "__globals__", {}).get(annotation)
    if LAYOUT in getattr(annotation, "__dict__", {}):
        return True
    return any(_mentions_state(part, fn) for part in typing.get_args(annotation))
