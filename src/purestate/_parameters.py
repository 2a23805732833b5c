"""Which parameters of a function are donated, static, or the class of its method."""

import inspect
import typing
from collections.abc import Callable, Iterable
from typing import Any

from purestate._layout import LAYOUT
from purestate._tracing import Place
from purestate.errors import JitDeclarationError
from purestate.errors._base import nearest

__all__ = [
    "add_donated",
    "as_tuple",
    "donated_places",
    "parameters_of",
    "static_names",
    "takes_class",
]


def as_tuple(numbers: int | Iterable[int] | None) -> tuple[int, ...]:
    """Return argument numbers as a tuple, as jax takes one, several or none."""
    return (numbers,) if isinstance(numbers, int) else tuple(numbers or ())


def takes_class(parameters: dict[str, inspect.Parameter]) -> bool:
    """Return whether the first parameter is the class of a class method."""
    first = next(iter(parameters.values()), None)
    return first is not None and first.name == "cls" and first.annotation is first.empty


def add_donated(options: dict[str, Any], donated: tuple[Place, ...]) -> None:
    """Add to jax's options what is donated, beside what they may name themselves."""
    numbers = [p.position for p in donated if p.position is not None and not p.by_name]
    names = [p.name for p in donated if p.by_name]
    if numbers:
        options["donate_argnums"] = (
            *numbers,
            *as_tuple(options.get("donate_argnums")),
        )
    if names:
        given = options.get("donate_argnames") or ()
        given = (given,) if isinstance(given, str) else tuple(given)
        options["donate_argnames"] = (*names, *given)


def parameters_of(fn: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return a function's parameters by name, none if it does not tell."""
    try:
        return dict(inspect.signature(fn).parameters)
    except (TypeError, ValueError):  # some builtins have none
        return {}


def donated_places(
    name: str,
    parameters: dict[str, inspect.Parameter],
    donate: bool | str | Iterable[str],
    first: int,
) -> tuple[Place, ...]:
    """Return the parameters to donate, for `donate=` as the user wrote it.

    Raises:
        JitDeclarationError: a name that is no parameter.
    """
    order = list(parameters)
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    if donate is False:
        return ()
    if donate is True:
        chosen = order[first] if first < len(order) else ""
        if chosen and parameters[chosen].kind is keyword_only:
            return (Place(None, chosen, True),)
        return (Place(first, chosen, False),)
    names = (donate,) if isinstance(donate, str) else tuple(donate)
    for chosen in names:
        if chosen not in order:
            raise JitDeclarationError(
                f"ps.jit({name}, donate={chosen!r}): {name} has no parameter of that "
                f"name; {nearest(chosen, order, 'parameters')} Fields cannot be "
                f"donated one by one."
            )
    return tuple(
        Place(None if parameters[n].kind is keyword_only else order.index(n), n, True)
        for n in names
    )


def static_names(
    name: str,
    fn: Callable[..., Any],
    parameters: dict[str, inspect.Parameter],
    static_argnames: tuple[str, ...],
    options: dict[str, Any],
) -> tuple[str, ...]:
    """Return the static parameters by name.

    Raises:
        JitDeclarationError: a State would be static.
    """
    order = list(parameters)
    numbers = as_tuple(options.get("static_argnums"))
    by_number = [order[n] for n in numbers if -len(order) <= n < len(order)]
    for chosen in (*static_argnames, *by_number):
        kind = parameters[chosen].annotation if chosen in parameters else None
        if chosen == "self" or _mentions_state(kind, fn):
            raise JitDeclarationError(
                f"ps.jit({name}) would make {chosen} static: jit would then compile "
                f"its arrays into the program and return stale results. Leave it out: "
                f"a State is traced, and its ps.static() fields are static already."
            )
    return static_argnames


def _mentions_state(annotation: Any, fn: Callable[..., Any]) -> bool:
    if isinstance(annotation, str):
        annotation = getattr(fn, "__globals__", {}).get(annotation)
    if LAYOUT in getattr(annotation, "__dict__", {}):
        return True
    return any(_mentions_state(part, fn) for part in typing.get_args(annotation))
