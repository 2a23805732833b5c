"""How an exception leaves a host function: the whole trip.

1. Eagerly a host function is a plain Python call, and its exception needs no help.
2. In a program XLA calls `guarded(call)`, which `program/lowering` made of the call. It
   keeps the exception in `_failed` under a number and raises `HostCallFailed`, whose
   text holds the number: text is all that comes through XLA. What comes out is a
   `JaxRuntimeError`, or a `ValueError` (jax#34083), without a `__cause__` (jax#26102).
3. It comes out wherever somebody waits for a result of the program: in the call itself,
   in `block_until_ready`, in a later line that prints an array, or never, if nobody
   holds a result any more.
4. A `ps.jit` function that put a host call into its trace, which `traced_calls` counts,
   therefore waits for its result, and hands what is raised to `raise_original`.
   `surface_errors` does the same for a block of code: at its end it waits for all live
   arrays, and then raises what the block left in `_failed`, of a program whose results
   nobody held any more.
5. `original_error` looks for the number in the text of an error, of its causes and its
   contexts, takes the exception out of `_failed`, and notes it on the error for whoever
   asks again. `raise_original` raises it: the same object, its traceback into the host
   function, without XLA's account of it in front.
"""

import collections
import contextlib
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

from purestate._compat import untyped_jax
from purestate.errors._text import error_text

_MARK = re.compile(r"purestate host error #(\d+)")
# Exceptions that nobody asked for yet hold their frames, and the arrays in them, alive.
_KEPT = 256
_failed: collections.OrderedDict[int, BaseException] = collections.OrderedDict()
_numbers = itertools.count(1)
_lock = threading.Lock()


class HostCallFailed(RuntimeError):
    """What a failing host function raises into XLA; `original_error` has the cause."""


def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call`, with its exceptions kept for `original_error`."""

    def guard(*args: Any) -> Any:
        try:
            return call(*args)
        # KeyboardInterrupt and SystemExit too: XLA would make text of them as well.
        except BaseException as error:
            number = next(_numbers)
            with _lock:
                _failed[number] = error
                while len(_failed) > _KEPT:
                    _failed.popitem(last=False)
            text = f"[purestate host error #{number}] {error_text(error)}"
            raise HostCallFailed(text) from error

    return guard


def original_error(error: BaseException) -> BaseException | None:
    """Return the exception that a host function raised, None if `error` is of none.

    Args:
        error: what left a compiled program, for example a `jax.errors.JaxRuntimeError`.

    Returns:
        The exception object itself, with the traceback into the host function.
    """
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        known = getattr(at, "__purestate_original__", None)
        if known is not None:
            return known  # type: ignore[no-any-return]
        # By text: the error is one of XLA's, made from the text alone.
        if mark := _MARK.search(str(at)):
            with _lock:
                found = _failed.pop(int(mark[1]), None)
            if found is not None:
                with contextlib.suppress(AttributeError):
                    at.__purestate_original__ = found  # type: ignore[attr-defined]
                return found
        at = at.__cause__ or at.__context__
    return None


def raise_original(error: BaseException) -> None:
    """Raise the exception of a host function behind `error`, if there is one."""
    found = original_error(error)
    if found is None or found is error:
        return
    context = found.__context__
    try:
        raise found
    finally:
        # What XLA made of it says less than it does, and would be printed above it.
        found.__context__ = context


@contextlib.contextmanager
def surface_errors(wait: bool = True) -> Iterator[None]:
    """Raise the exceptions of host functions themselves, around plain `jax.jit` too.

    Args:
        wait: wait at the end of the block for the programs that were started in it, so
            that an error cannot leave a later line.

    Raises:
        Whatever a host function raised inside the block.

    >>> import jax, jax.numpy as jnp, purestate as ps
    >>> @ps.host_function(out=jax.ShapeDtypeStruct((), jnp.float32))
    ... def sim(x):
    ...     raise ValueError("diverged")
    >>> with ps.surface_errors():
    ...     jax.jit(sim)(1.0)
    Traceback (most recent call last):
    ...
    ValueError: diverged
    """
    with _lock:
        before = set(_failed)
    try:
        yield
        if wait:
            _wait_for_everything()
    except Exception as error:
        raise_original(error)
        raise
    with _lock:
        # Nobody holds the result of the failed program any more, so nothing raised.
        lost = [number for number in _failed if number not in before]
        error_kept = _failed.pop(lost[0]) if wait and lost else None
    if error_kept is not None:
        raise error_kept


def _wait_for_everything() -> None:
    for array in untyped_jax.live_arrays():
        if not array.is_deleted():
            _wait(array.block_until_ready)
    wait_for_effects()


def wait_for_effects() -> None:
    """Wait as `jax.effects_barrier` does, for all but exceptions raised before."""
    _wait(untyped_jax.effects_barrier)


def _wait(wait: Callable[[], object]) -> None:
    """Wait, and pass over an exception of a host function that was raised before.

    A traceback may hold a result of the program that failed. And jax keeps the token of
    such a program, to raise its error at each barrier until another program with a
    callback has run there.
    """
    try:
        wait()
    except Exception as error:
        mark = _MARK.search(str(error))
        if mark is None or int(mark[1]) in _failed:
            raise
