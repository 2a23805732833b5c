"""Where code keeps things between its calls, and the tracers that are found there.

A function can keep things in its defaults, its closure, its attributes, in globals and
in classes. What an earlier trace left there breaks the next call.
"""

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

from jax import errors

from purestate._schema.layout import layout_of
from purestate._schema.marks import is_state_class
from purestate._schema.tracers import find_tracers

Places = list[tuple[str, Any]]
KEPT = (
    "Something is kept from one call to the next: in a default argument, a closure, a "
    "global or a class."
)
LEAK = f"a tracer was left there by an earlier trace, and is used again.\n{KEPT}"
# What jax says when a tracer is asked for its value. Outside of a trace none is there,
# but for one that was kept, or one of a trace that the code runs itself.
_ASKED: Any = (
    errors.ConcretizationTypeError,
    errors.NonConcreteBooleanIndexError,
    errors.TracerArrayConversionError,
    errors.TracerIntegerConversionError,
)
_LIBRARIES = ("jax", "jaxlib", "numpy", "builtins")  # they keep no user's tracers


def tracers_of(places: Places) -> list[str]:
    """Return the paths to tracers below some objects, which have names."""
    return [f"{name}{path}" for name, held in places for path in find_tracers(held)]


def is_leak(
    error: BaseException | None, outside: Callable[[], Places] | None = None
) -> bool:
    """Return whether an error comes of a tracer that an earlier trace left behind.

    Args:
        error: what was raised; its causes count.
        outside: where a tracer may be kept, if nothing was being traced.
    """
    while error is not None:
        if isinstance(error, errors.UnexpectedTracerError):
            return True
        if outside is not None and isinstance(error, _ASKED):
            return bool(tracers_of(outside()))
        error = error.__cause__
    return False


def of_function(name: str, fn: Any) -> Places:
    """Return a function, and the globals that it names; each with its name."""
    plain = inspect.unwrap(fn)
    held = getattr(plain, "__globals__", {})
    found: Places = []
    names = dict.fromkeys(_names(getattr(plain, "__code__", None)))
    for label in names:
        value = held.get(label)
        if not isinstance(value, types.ModuleType):
            found.append((label, value))
        elif value.__name__.partition(".")[0] not in _LIBRARIES:
            inside = vars(value)
            found += [(f"{label}.{n}", inside[n]) for n in names if n in inside]
    kept = [(n, v) for n, v in found if not isinstance(v, types.ModuleType)]
    return [*kept, (name, fn)]


def of_class(cls: Any) -> Places:
    """Return a class, and what the code that makes its instances refers to."""
    hooks = ["__post_init__", "__check__", "__check_init__"]
    if not is_state_class(cls) or layout_of(cls).init is not None:
        hooks.append("__init__")  # otherwise it is generated
    found: Places = [(cls.__name__, cls)]
    for base in cls.__mro__:
        for name in hooks:
            if isinstance(hook := base.__dict__.get(name), types.FunctionType):
                found += of_function(f"{base.__name__}.{name}", hook)
    return found


def _names(code: Any) -> Iterator[str]:
    """Yield the globals and attributes that code names, also within functions in it."""
    if isinstance(code, types.CodeType):
        yield from code.co_names
        for part in code.co_consts:
            yield from _names(part)
