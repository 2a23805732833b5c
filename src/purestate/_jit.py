"""`ps.jit`: `jax.jit`, with donation by name and errors that name fields.

A warm call is one Python function around jax's own: what is added runs while jax
traces, in `except`, or on an instance that was donated and is dead.
"""

import functools
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

import jax

from purestate._consumed import consume
from purestate._explain import explain, without_shared_buffers
from purestate._layout import LAYOUT
from purestate._tracing import Place, Watch
from purestate.errors import JitDeclarationError
from purestate.errors._base import nearest

__all__ = ["jit"]

_JITTED = "__purestate_jitted__"
_DEFAULTS: dict[str, Any] = {"donate": False, "static_argnames": ()}
_F = TypeVar("_F", bound=Callable[..., Any])
_D = TypeVar(
    "_D", bound="classmethod[Any, Any, Any] | staticmethod[Any, Any] | property"
)


@overload
def jit(
    fn: _D,
    *,
    donate: bool | str | Iterable[str] = ...,
    static_argnames: str | Iterable[str] = ...,
    **options: Any,
) -> _D: ...
@overload
def jit(
    fn: _F,
    *,
    donate: bool | str | Iterable[str] = ...,
    static_argnames: str | Iterable[str] = ...,
    **options: Any,
) -> _F: ...
@overload
def jit(
    *,
    donate: bool | str | Iterable[str] = ...,
    static_argnames: str | Iterable[str] = ...,
    **options: Any,
) -> Callable[[_F], _F]: ...
def jit(
    fn: Any = None,
    *,
    donate: bool | str | Iterable[str] = False,
    static_argnames: str | Iterable[str] = (),
    **options: Any,
) -> Any:
    """Return a function compiled by `jax.jit`, as a decorator too.

    Takes functions and methods, `staticmethod`, `classmethod` and `property` objects,
    bound methods of a State (all instances share one trace) and callable States.

    Args:
        fn: what to compile; without it a decorator is returned.
        donate: True gives jax the buffers of the first parameter to reuse, a name or
            names those of other parameters. The donated State cannot be used after the
            call; use the one that it returned.
        static_argnames: parameters that are part of the cache key. A State's static
            fields are so by themselves.
        **options: any other keyword of `jax.jit`.

    Returns:
        A function of the same signature, with jax's `lower`, `trace`, `eval_shape` and
        `clear_cache`.

    Raises:
        JitDeclarationError: `self` or a State would be static, an unknown name.

    Warns:
        RetraceWarning: from the 8th trace on; names what changed.
        StateDriftWarning: a method returns its State with another type or structure.
        LostUpdateWarning: a method that donates its State does not return one.

    >>> import jax, jax.numpy as jnp, purestate as ps
    >>> class Counter(ps.State):
    ...     count: jax.Array
    ...
    ...     @ps.jit(donate=True)
    ...     def step(self):
    ...         return self.replace(count=self.count + 1)
    >>> counter = Counter(count=0)
    >>> newer = counter.step()
    >>> counter
    <Counter, donated to Counter.step()>
    """
    if isinstance(static_argnames, str):
        static_argnames = (static_argnames,)
    settings = {"donate": donate, "static_argnames": tuple(static_argnames), **options}
    if fn is None:
        return functools.partial(jit, **settings)
    if isinstance(fn, staticmethod | classmethod):
        return type(fn)(jit(fn.__func__, **settings))
    if isinstance(fn, property):
        getter: Any = fn.fget
        return property(jit(getter, **settings), fn.fset, fn.fdel, fn.__doc__)
    if isinstance(fn, types.MethodType) and LAYOUT in type(fn.__self__).__dict__:
        return _bound(fn.__self__, fn.__func__, settings)
    if LAYOUT in type(fn).__dict__:
        return _bound(fn, type(fn).__call__, settings)
    if not callable(fn):
        raise JitDeclarationError(
            f"ps.jit takes a function, a method or a callable State, and got an object "
            f"of type {type(fn).__name__}."
        )
    return _compiled(fn, **settings)


def _bound(state: Any, function: Any, settings: dict[str, Any]) -> Any:
    """Return a method jitted once for all instances, bound to one of them."""
    if hasattr(function, _JITTED) and settings == _DEFAULTS:
        return types.MethodType(function, state)
    kept = getattr(function, "__dict__", {}).setdefault("__purestate_compiled__", {})
    key = repr(sorted(settings.items()))
    if key not in kept:
        kept[key] = _compiled(function, **settings)
    return types.MethodType(kept[key], state)


def _compiled(
    fn: Callable[..., Any],
    *,
    donate: bool | str | Iterable[str],
    static_argnames: tuple[str, ...],
    **options: Any,
) -> Callable[..., Any]:
    name = getattr(fn, "__qualname__", type(fn).__name__).rpartition("<locals>.")[2]
    parameters = _parameters(fn)
    donated = _donated(name, parameters, donate)
    static = _static(name, parameters, static_argnames, options)
    if static:
        options["static_argnames"] = static
    if donate is True:
        options["donate_argnums"] = 0
    elif donated:
        options["donate_argnames"] = tuple(place.name for place in donated)
    watch = Watch(fn, name, donated)
    jitted: Any = jax.jit(watch.wrapped(), **options)

    def plain(*args: Any, **kwargs: Any) -> Any:
        try:
            return jitted(*args, **kwargs)
        except Exception as error:
            explain(error, name, args, kwargs)
            raise

    def donating(*args: Any, **kwargs: Any) -> Any:
        try:
            out = jitted(*args, **kwargs)
        except Exception as error:
            separate = without_shared_buffers(error, name, args, kwargs)
            if separate is None:
                explain(error, name, args, kwargs)
                raise
            out = jitted(*separate[0], **separate[1])
        for place in donated:
            consume(place.read(args, kwargs), name, place.inner)
        return out

    call: Any = functools.wraps(fn)(donating if donated else plain)
    for method in ("lower", "trace", "eval_shape", "clear_cache"):
        setattr(call, method, getattr(jitted, method))
    setattr(call, _JITTED, True)
    return call  # type: ignore[no-any-return]


def _parameters(fn: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(fn).parameters)
    except (TypeError, ValueError):  # some builtins have none
        return {}


def _donated(
    name: str,
    parameters: dict[str, inspect.Parameter],
    donate: bool | str | Iterable[str],
) -> tuple[Place, ...]:
    order = list(parameters)
    if isinstance(donate, bool):
        return (Place(0, order[0] if order else ""),) if donate else ()
    names = (donate,) if isinstance(donate, str) else tuple(donate)
    for chosen in names:
        if chosen not in order:
            raise JitDeclarationError(
                f"ps.jit({name}, donate={chosen!r}): {name} has no parameter of that "
                f"name; {nearest(chosen, order, 'parameters')} Fields cannot be "
                f"donated one by one."
            )
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    return tuple(
        Place(None if parameters[n].kind is keyword_only else order.index(n), n)
        for n in names
    )


def _static(
    name: str,
    parameters: dict[str, inspect.Parameter],
    static_argnames: tuple[str, ...],
    options: dict[str, Any],
) -> tuple[str, ...]:
    """Return the static parameters by name; the class of a class method is one.

    Raises:
        JitDeclarationError: a State would be static.
    """
    order = list(parameters)
    numbers = options.get("static_argnums", ())
    numbers = (numbers,) if isinstance(numbers, int) else numbers or ()
    by_number = [order[n] for n in numbers if -len(order) <= n < len(order)]
    for chosen in (*static_argnames, *by_number):
        kind = parameters[chosen].annotation if chosen in parameters else None
        if chosen == "self" or LAYOUT in getattr(kind, "__dict__", {}):
            raise JitDeclarationError(
                f"ps.jit({name}) would make {chosen} static: jit would then compile "
                f"its arrays into the program and return stale results. Leave it out: "
                f"a State is traced, and its ps.static() fields are static already."
            )
    if order[:1] == ["cls"] and parameters["cls"].annotation is inspect.Parameter.empty:
        return ("cls", *static_argnames)
    return static_argnames
