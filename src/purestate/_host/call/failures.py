"""How an exception leaves a host function: the whole trip.

1. Eagerly a host function is a plain Python call, and its exception needs no help.
2. In a program XLA calls `guarded(call)`, which `program/lowering` made of the call. It
   keeps the exception in `_failed` under a number and raises `HostCallFailed`, whose
   text holds the number: text is all that comes through XLA. What comes out is a
   `JaxRuntimeError`, or a `ValueError` (jax#34083), without a `__cause__` (jax#26102).
   In a program of several devices the call is `numbered` instead: it returns the number
   beside its results, and each device raises once all of them have it.
3. It comes out wherever somebody waits for a result of the program: in the call itself,
   in `block_until_ready`, in a later line that prints an array, or never, if nobody
   holds a result any more.
4. A `ps.jit` function that put a host call into its trace, which `traced_calls` counts,
   therefore waits for its result, and hands what is raised to `raise_original`.
   `surface_errors` does the same for a block of code: at its end it waits for all live
   arrays, and then raises what the block left in `_failed`, of a program whose results
   nobody held any more. What came out before that was handled in the block.
5. `original_error` looks for the number in the text of an error, of its causes and its
   contexts, takes the exception out of `_failed`, and notes it on the error for whoever
   asks again. `raise_original` raises it: the same object, its traceback into the host
   function, without XLA's account of it in front.
"""

import collections
import contextlib
import dataclasses
import itertools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from purestate._compat import note_runtime_errors, untyped_jax
from purestate.errors._text import error_text

_MARK = re.compile(r"purestate host error #(\d+)")
# Exceptions that nobody asked for yet hold their frames, and the arrays in them, alive.
_KEPT = 256
_failed: collections.OrderedDict[int, BaseException] = collections.OrderedDict()
_numbers = itertools.count(1)
# The numbers of errors that came out of a wait, since `surface_errors` was first used.
_came_out: collections.deque[int] = collections.deque(maxlen=4 * _KEPT)
_lock = threading.Lock()


class HostCallFailed(RuntimeError):
    """What a failing host function raises into XLA; `original_error` has the cause."""


def guarded(call: Callable[..., Any], note: str = "") -> Callable[..., Any]:
    """Return `call`, with its exceptions kept for `original_error`.

    Args:
        call: the call.
        note: what else to say where jax's account of an exception is all there is.
    """

    def guard(*args: Any) -> tuple[Any, ...]:
        try:
            return tuple(call(*args))
        # KeyboardInterrupt and SystemExit too: XLA would make text of them as well.
        except BaseException as error:
            raise _marked(_keep(error), error, note) from error

    return guard


def numbered(call: Callable[..., Any], results: Sequence[Any]) -> Callable[..., Any]:
    """Return `call` with one more result, the number of its exception, or 0.

    It never raises; after an exception the results themselves are zeros.

    Args:
        call: takes and returns numpy arrays.
        results: shapes and dtypes of what it returns.
    """

    def number(*args: Any) -> tuple[Any, ...]:
        try:
            return (*call(*args), np.int32(0))
        except BaseException as error:  # noqa: BLE001  # `raise_numbered` raises it
            zeros = [np.zeros(result.shape, result.dtype) for result in results]
            return (*zeros, np.int32(_keep(error)))

    return number


def raise_numbered(number: Any) -> Any:
    """Return the number if it is 0; raise what a `numbered` call kept under it."""
    if number != 0:
        with _lock:
            error = _failed.get(int(number))
        raise _marked(int(number), error) from error
    return number


def kept_text(error: BaseException) -> str:
    """Keep an exception for `original_error`; return the text that holds its number."""
    return str(_marked(_keep(error), error))


def _keep(error: BaseException) -> int:
    number = next(_numbers)
    with _lock:
        _failed[number] = error
        while len(_failed) > _KEPT:
            _failed.popitem(last=False)
    return number


def _marked(number: int, error: BaseException | None, note: str = "") -> HostCallFailed:
    why = "an exception of a host function" if error is None else error_text(error)
    return HostCallFailed(f"[purestate host error #{number}] {why}{note}")


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
    _forget_failed_program()
    context = found.__context__
    try:
        raise found
    finally:
        # What XLA made of it says less than it does, and would be printed above it.
        found.__context__ = context


def _forget_failed_program() -> None:
    """Have later programs of this thread start afresh.

    jax keeps a token for each device, of the last program with callbacks there, and one
    for ordered effects; where somebody waits for effects, those of a failed program
    raise its error again. From jax 0.12 on, waiting once empties the list. In 0.10 only
    a newer program takes an older one's place (jax#37587), which is why one runs here.
    """
    try:
        untyped_jax.effects_barrier()
    except Exception:  # noqa: BLE001  # the failure that is being dealt with
        from jax.experimental import io_callback

        newer = untyped_jax.jit(lambda x: (io_callback(lambda: None, None), x + 1)[1])
        # Where a mesh is set, jax refuses single devices.
        with contextlib.suppress(ValueError):
            for device in untyped_jax.local_devices():
                newer(untyped_jax.device_put(np.int32(0), device))


@contextlib.contextmanager
def surface_errors(wait: bool = True) -> Iterator[None]:
    """Raise the exceptions of host functions themselves, around plain `jax.jit` too.

    Args:
        wait: wait at the end of the block for the programs that were started in it, so
            that an error cannot leave a later line.

    Raises:
        Exception: whatever a host function raised inside the block, if the block did
            not handle it, and, of another thread, if that did not.

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
    note_runtime_errors(_note)
    start = next(_numbers)
    try:
        yield
    except Exception as error:
        raise_original(error)
        raise
    if not wait:
        return
    # What came out inside the block, and did not leave it, was handled there.
    known = _Handled(start, frozenset(_came_out))
    for array in untyped_jax.live_arrays():
        if not array.is_deleted():
            known.run(array.block_until_ready)
    known.run(untyped_jax.effects_barrier)
    with _lock:
        # Nobody holds the result of the failed program any more, so nothing raised.
        lost = [n for n in _failed if n > start and n not in _came_out]
        error_kept = _failed.pop(lost[0]) if lost else None
    if error_kept is not None:
        raise error_kept


def wait_for_effects() -> None:
    """Wait as `jax.effects_barrier` does, for all but exceptions raised before.

    jax keeps the token of a program that failed, to raise its error at each barrier
    until another program with a callback has run there.
    """
    try:
        untyped_jax.effects_barrier()
    except Exception as error:
        mark = _MARK.search(str(error))
        if mark is None or int(mark[1]) in _failed:
            raise


@dataclasses.dataclass(frozen=True)
class _Handled:
    """Errors that are not news: of before a block, or handled inside it."""

    start: int
    numbers: frozenset[int]

    def run(self, wait: Callable[[], Any]) -> None:
        """Wait for a program; raise its exception, if it is news."""
        try:
            wait()
        except Exception as error:
            for each in getattr(error, "exceptions", (error,)):
                mark = _MARK.search(str(each))
                number = int(mark[1]) if mark else None
                if number is None or not self._knows(number):
                    raise_original(each)
                    raise

    def _knows(self, number: int) -> bool:
        return number < self.start or number in self.numbers


def _note(text: str) -> None:
    _came_out.extend(int(number) for number in _MARK.findall(text))
