"""`ps.jit`: `jax.jit`, with donation by name and errors that name fields.

What is given is read once, when a function is decorated; `program` has what happens at
a call.
"""

import contextlib
import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, overload

import jax

from purestate._pack.packed import is_jitted, is_state_or_packed
from purestate._schema.marks import is_state
from purestate._schema.text import function_name
from purestate._transforms.parameters import Parameters, as_tuple
from purestate._transforms.program import Program, calling
from purestate._transforms.stages import staged
from purestate._transforms.watch import Watch
from purestate.errors import JitDeclarationError

_COMPILED = "__purestate_compiled__"  # on a method: itself, and what it was jitted to
_METHODS = ("lower", "trace", "eval_shape", "clear_cache")  # of jax's own functions
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

    >>> import purestate as ps
    >>> class Counter(ps.State):
    ...     count: ps.Array
    ...
    ...     @ps.jit(donate=True)
    ...     def step(self):
    ...         return self.replace(count=self.count + 1)
    >>> counter = Counter(count=0)
    >>> newer = counter.step()
    >>> counter
    <Counter, donated to Counter.step()>
    """
    if isinstance(static_argnames, str) or static_argnames is None:
        static_argnames = (static_argnames,) if static_argnames else ()
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
    if isinstance(fn, types.MethodType) and is_state_or_packed(fn.__self__):
        return _bound(fn.__self__, fn.__func__, settings)
    if is_state(fn) and callable(fn):
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


def _is_told_by_repr(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_told_by_repr, value))
    return value is None or type(value) in (bool, int, str)


def _for_all_instances(function: Any, settings: dict[str, Any]) -> Any:
    if is_jitted(function) and settings == _DEFAULTS:
        return function
    if not all(map(_is_told_by_repr, settings.values())):
        return _compiled(function, **settings)  # shardings and the like
    kept: dict[str, Any]
    # `functools.wraps` copies attributes, so it tells which function it is about.
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
    name = function_name(fn)
    parameters = Parameters(fn, name)
    first = int(of_class or parameters.takes_class())
    static, static_names = parameters.static(
        static_argnames, as_tuple(options.pop("static_argnums", None))
    )
    if first:
        static, static_names = parameters.chosen((0, *static), static_names)
    numbers, names = parameters.donated(donate, first)
    more = options.pop("donate_argnames", None) or ()
    numbers, names = parameters.chosen(
        (*numbers, *as_tuple(options.pop("donate_argnums", None))),
        (*names, *((more,) if isinstance(more, str) else more)),
    )
    donated = parameters.donated_parameters(numbers, names)
    chosen = {
        "static_argnums": static,
        "static_argnames": static_names,
        "donate_argnums": numbers,
        "donate_argnames": names,
    }
    options |= {option: value for option, value in chosen.items() if value}
    watch = Watch(fn, name, donated)
    run: Any = jax.jit(watch.wrapped(), **options)
    program = Program(run, name, watch, donated, static, static_names, wait)
    call: Any = calling(program, fn)
    if not hasattr(fn, "__name__"):  # a partial object, an instance
        call.__name__ = call.__qualname__ = name
    for method in _METHODS:
        setattr(call, method, _of_jax(call, method))
    call.__dict__ = _Attributes(call.__dict__)
    return call  # type: ignore[no-any-return]


class _Attributes(dict[str, Any]):
    """The attributes of a jitted function; a function that wraps it copies the others.

    `jax.grad` and `jax.jit` update the attributes of what they return with those of
    what they got, as `functools.wraps` does. With `trace` among them, jax would trace
    the inner function and take the result for that of the outer one. An update asks a
    mapping that is iterated in its own way for its `keys`; reading an attribute does
    not.
    """

    def keys(self) -> Any:
        return dict.fromkeys(
            name for name in dict(self.items()) if name not in _METHODS
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (list(self.items()),)


def _of_jax(call: Any, name: str) -> Callable[..., Any]:
    """Return a method of jax's jitted function behind `call`, as a function.

    Its own is a method whose function has another name ("jit_lower"): pools that pickle
    methods by name, as joblib's do, would look for that.
    """

    def method(*args: Any, **kwargs: Any) -> Any:
        program: Program = call.__purestate_jitted__
        return staged(getattr(program.run, name)(*args, **kwargs), program)

    method.__name__, method.__qualname__ = name, f"{call.__qualname__}.{name}"
    return method
