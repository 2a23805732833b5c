"""Where tracers hide: a search through any object, for when one has leaked."""

import functools
import itertools
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from purestate._compat import is_tracer
from purestate.errors._text import short


def find_tracers(obj: Any) -> list[str]:
    """Return the paths below an object that lead to tracers.

    Goes through containers, instances and their classes, closures and defaults of
    functions, partial objects and bound methods. Use it on whatever outlives a jitted
    function when jax reports a leak.

    Args:
        obj: an instance, a container, a function, a class or a module.

    >>> import jax, purestate as ps
    >>> kept: dict[str, list] = {}
    >>> _ = jax.jit(lambda x: kept.update(last=[x * 2]))(1.0)
    >>> ps.find_tracers(kept)
    ["['last'][0]"]
    """
    found = ["".join(path) for path, _ in walk([((), obj)])]
    return sorted(path or "the object itself" for path in found)


def walk(
    roots: Iterable[tuple[tuple[str, ...], Any]],
    is_late: Callable[[], bool] = bool,
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the tracers below some objects, with the steps that lead to them.

    The nearest come first, those far into large containers last. What several steps
    lead to is looked at once.

    Args:
        roots: what to start from, each with the steps to it; without any, a module.
        is_late: asked before each step; the walk ends when it returns True.
    """
    seen: set[int] = set()
    waiting: deque[tuple[tuple[str, ...], Any, Iterator[tuple[str, Any]] | None]]
    later: deque[tuple[tuple[str, ...], Any, Iterator[tuple[str, Any]] | None]]
    waiting = deque((path, value, None) for path, value in roots)
    later = deque()  # the rest of large containers, which is to hide nothing else
    while (waiting or later) and not is_late():
        path, value, parts = (waiting or later).popleft()
        some: list[tuple[str, Any]] = []
        try:
            is_found = parts is None and is_tracer(value)
            if parts is None and not is_found:
                if id(value) in seen or isinstance(value, _ATOMS):
                    continue
                seen.add(id(value))
                parts = _parts(value, path == ())
            if parts is not None:
                some = list(itertools.islice(parts, _AT_ONCE))
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001  # whatever a foreign object raises
            continue
        if is_found:  # not within `try`, for what is raised here is the caller's
            yield path, value
        for step, part in some:
            if not issubclass(type(part), _ATOMS):
                waiting.append(((*path, step) if step else path, part, None))
        if len(some) == _AT_ONCE:
            later.append((path, value, parts))


_AT_ONCE = 256
_ATOMS = (str, bytes, int, float, complex, type(None))


def _parts(value: Any, outermost: bool) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if issubclass(kind, dict | types.MappingProxyType):
        yield from ((f"[{_key_text(key)}]", part) for key, part in _items(value))
    if isinstance(value, np.ndarray) and value.dtype == object:
        indices = np.ndindex(value.shape)
        yield from ((f"[{', '.join(map(str, i))}]", value[i]) for i in indices)
    base: Any
    for base in (list, tuple, set, frozenset, deque):
        if issubclass(kind, base):  # not by what a subclass makes of it
            each = base.__iter__(value)
            yield from ((f"[{i}]", part) for i, part in enumerate(each))
    if kind in (dict, list, tuple, set, frozenset, deque):
        return
    if isinstance(value, types.FunctionType):
        yield from _of_function(value)
    if isinstance(value, functools.partial):
        yield ".func", value.func
        yield ".args", value.args
        yield ".keywords", value.keywords
    if isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
        return
    if isinstance(value, staticmethod | classmethod):
        yield "", value.__func__
    if isinstance(value, property):
        yield ".fget", value.fget
    if isinstance(value, types.ModuleType) and not outermost:
        return  # modules lead everywhere
    yield from _attributes(value)
    if not isinstance(value, type) and _is_users(type(value)):
        for step, part in _attributes(type(value)):
            if not isinstance(part, types.FunctionType):
                yield f" (class){step}", part


def _items(held: Any) -> Iterable[tuple[Any, Any]]:
    """Return the items of a dict, copied if that is quick: it may change meanwhile."""
    items = dict.items(held) if issubclass(type(held), dict) else held.items()
    return list(items) if len(items) < 10_000 else items


def _key_text(key: Any) -> str:
    try:
        return short(key)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  # `exit` in a repr, or pytest.fail
        return f"<{type(key).__name__}>"


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    try:
        held = value.__dict__
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  # whatever a foreign object raises
        held = None
    if isinstance(held, dict | types.MappingProxyType):
        for name, part in list(held.items()):
            if not (name.startswith("__") and name.endswith("__")):
                yield f".{name}", part
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            try:
                part = getattr(value, name)
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001  # unset, or not to be read
                continue
            if not name.startswith("__"):
                yield f".{name}", part


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f" (closure {name})", cell.cell_contents
        except ValueError:  # not filled yet
            continue
    if function.__defaults__:
        yield " (defaults)", function.__defaults__
    if function.__kwdefaults__:
        yield " (defaults)", function.__kwdefaults__
    wrapped = function.__dict__.get("__wrapped__")
    if wrapped is not None:
        yield ".__wrapped__", wrapped


def _is_users(cls: type) -> bool:
    library = cls.__module__.partition(".")[0]
    return library not in ("builtins", "jax", "jaxlib", "numpy", "functools", "types")
