"""`ps.jit`: `jax.jit`, with donation by name and errors that name fields.

A warm call is one Python function around jax's own: what is added runs while jax
traces, in `except`, or on an instance that was donated and is dead.
"""

import contextlib
import functools
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

import jax

from purestate._compat import OUTSIDE, current_trace
from purestate._consumed import consume
from purestate._explain import explain, without_shared_buffers
from purestate._host._failures import note_call, raise_original
from purestate._layout import LAYOUT
from purestate._parameters import (
    add_donated,
    as_tuple,
    donated_places,
    parameters_of,
    static_names,
    takes_class,
)
from purestate._tracing import Watch
from purestate.errors import JitDeclarationError

__all__ = ["jit"]

_JITTED = "__purestate_jitted__"  # on a function that ps.jit returned: itself
_COMPILED = "__purestate_compiled__"  # on a method: itself, and what it was jitted to
_DEFAULTS: dict[str, Any] = {"donate": False, "static_argnames": (), "wait": True}
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
    wait: bool = ...,
    **options: Any,
) -> _D: ...
@overload
def jit(
    fn: _F,
    *,
    donate: bool | str | Iterable[str] = ...,
    static_argnames: str | Iterable[str] = ...,
    wait: bool = ...,
    **options: Any,
) -> _F: ...
@overload
def jit(
    *,
    donate: bool | str | Iterable[str] = ...,
    static_argnames: str | Iterable[str] = ...,
    wait: bool = ...,
    **options: Any,
) -> Callable[[_F], _F]: ...
def jit(
    fn: Any = None,
    *,
    donate: bool | str | Iterable[str] = False,
    static_argnames: str | Iterable[str] = (),
    wait: bool = True,
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
        wait: wait for the result where host functions are called, so that an exception
            of theirs leaves the call that caused it. Other calls never wait.
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
    settings = {
        "donate": donate,
        "static_argnames": tuple(static_argnames),
        "wait": wait,
        **options,
    }
    if fn is None:
        return functools.partial(jit, **settings)
    if isinstance(fn, staticmethod):
        return staticmethod(jit(fn.__func__, **settings))
    if isinstance(fn, classmethod):
        return classmethod(_compiled(fn.__func__, of_class=True, **settings))
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
    made = _for_all_instances(function, settings)

    def call(*args: Any, **kwargs: Any) -> Any:
        return made(state, *args, **kwargs)

    bound: Any = functools.wraps(types.MethodType(function, state), updated=())(call)
    for method in ("lower", "trace", "eval_shape"):
        setattr(bound, method, functools.partial(getattr(made, method), state))
    bound.clear_cache = made.clear_cache
    return bound


def _for_all_instances(function: Any, settings: dict[str, Any]) -> Any:
    # `functools.wraps` copies attributes: each tells which function it is about.
    if getattr(function, _JITTED, None) is function and settings == _DEFAULTS:
        return function
    kept: dict[str, Any]
    owner, kept = getattr(function, _COMPILED, (None, {}))
    if owner is not function:
        kept = {}
        with contextlib.suppress(AttributeError):  # some callables hold no attributes
            setattr(function, _COMPILED, (function, kept))
    key = repr(sorted(settings.items()))
    if key not in kept:
        kept[key] = _compiled(function, **settings)
    return kept[key]


def _compiled(
    fn: Callable[..., Any],
    *,
    donate: bool | str | Iterable[str],
    static_argnames: tuple[str, ...],
    wait: bool,
    of_class: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    name = getattr(fn, "__qualname__", type(fn).__name__).rpartition("<locals>.")[2]
    parameters = parameters_of(fn)
    order = list(parameters)
    of_class = of_class or takes_class(parameters)
    donated = donated_places(name, parameters, donate, int(of_class))
    static = static_names(name, fn, parameters, static_argnames, options)
    if of_class and order:
        static = (*order[:1], *static)
    if static:
        options["static_argnames"] = static
    add_donated(options, donated)
    # What jax does not trace is not looked at when something goes wrong.
    numbers = as_tuple(options.get("static_argnums"))
    fixed = {*static, *(order[n] for n in numbers if n < len(order))}
    watch = Watch(fn, name, donated)
    jitted: Any = jax.jit(watch.wrapped(), **options)

    def traced(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        named = dict(enumerate(order))
        return (
            tuple(None if named.get(i) in fixed else a for i, a in enumerate(args)),
            {key: None if key in fixed else value for key, value in kwargs.items()},
        )

    def plain(*args: Any, **kwargs: Any) -> Any:
        try:
            out = jitted(*args, **kwargs)
            if watch.calls_host:
                _settle(out, wait)
            return out
        except Exception as error:
            raise_original(error)
            explain(error, name, *traced(args, kwargs))
            raise

    def donating(*args: Any, **kwargs: Any) -> Any:
        try:
            out = jitted(*args, **kwargs)
        except Exception as error:
            separate = without_shared_buffers(error, name, args, kwargs)
            if separate is None:
                raise_original(error)
                explain(error, name, *traced(args, kwargs))
                raise
            out = jitted(*separate[0], **separate[1])
        for place in donated:
            consume(place.read(args, kwargs), name, place.inner)
        if watch.calls_host:
            try:
                _settle(out, wait)
            except Exception as error:
                raise_original(error)
                raise
        return out

    call: Any = functools.wraps(fn)(donating if donated else plain)
    for method in ("lower", "trace", "eval_shape", "clear_cache"):
        setattr(call, method, getattr(jitted, method))
    setattr(call, _JITTED, call)
    return call  # type: ignore[no-any-return]


def _settle(out: Any, wait: bool) -> None:
    """Wait for host functions, whose exceptions would leave a later line."""
    if current_trace() != OUTSIDE:
        note_call()  # jax kept the inner trace: the outer function calls them as well
    elif wait:
        untyped: Any = jax
        untyped.block_until_ready(out)
        untyped.effects_barrier()
