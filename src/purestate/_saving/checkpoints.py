"""Numbered files of a directory, for a training loop that is the user's own.

A loop offers its state after every step. It is written when it is due, or when a signal
asked the program to stop: between two steps, where it is whole, and never in a signal
handler. What the files hold and how they are written is told in `save` and `load`.
"""

import contextlib
import operator
import os
import pathlib
import re
import signal
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

import jax

from purestate._saving.describe import describe
from purestate._saving.file import local_path, sweep
from purestate._saving.load import allowed_words, load
from purestate._saving.save import prepare
from purestate.errors import (
    CorruptFileError,
    LoadError,
    LoadWarning,
    PersistError,
    SaveError,
)
from purestate.errors._base import warn_caller

if TYPE_CHECKING:
    from typing import Self

_T = TypeVar("_T")
_NAME = re.compile(r"(\d{8}|[1-9]\d{8,})\.safetensors")
_TIME = re.compile(r"(\d+(?:\.\d+)?) ?(s|min|h)")
_UNITS = {"s": 1, "min": 60, "h": 3600}


class Checkpoints:
    """Checkpoints of one run: the files `{step:08d}.safetensors` of a directory.

    Within a `with` block, in the main thread, SIGINT and SIGTERM let the step end: the
    next `offer` or `save` writes the state, and then raises KeyboardInterrupt or
    SystemExit(143). A second SIGINT raises KeyboardInterrupt at once. An exception of
    the block saves nothing: its state may have been donated.

    Args:
        directory: made by the first save. `resume` takes the highest step in it, so a
            new run wants a new directory.
        every: when `offer` saves: a number of steps, or a time as "30 s", "5 min",
            "2 h". None: only `save` does, and a signal.
        keep: how many files are kept, the newest; None keeps all.
        background: copy the arrays, which needs their memory once more, and write them
            on a thread, one save at a time. Its error is raised by the next call, or at
            the end of the `with` block.

    Attributes:
        directory: where the files are, as an absolute path.
        extra: what was saved beside the state that `resume` returned; None if there was
            no file.

    Raises:
        PersistError: several processes, which signals reach at different steps.
        ValueError: an `every` or a `keep` that is none.

    >>> import tempfile, jax, purestate as ps
    >>> class Counter(ps.State):
    ...     count: ps.Array = 0
    >>> with ps.Checkpoints(tempfile.mkdtemp(), every=2, keep=2) as saves:
    ...     state, start = saves.resume(Counter())
    ...     for step in range(start + 1, 8):
    ...         state = state.replace(count=state.count + 1)
    ...         saves.offer(step, state)
    ...     saves.save(7, state)
    >>> saves.steps
    [6, 7]
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        every: int | str | None = None,
        keep: int | None = 3,
        background: bool = False,
    ) -> None:
        if jax.process_count() > 1:
            raise PersistError(
                "Checkpoints is for one process: signals reach processes at different "
                "steps. Use orbax's training.Checkpointer with ps.to_dict, see "
                "docs/saving.md."
            )
        if keep is not None and not (_is_count(keep) and keep > 0):
            raise ValueError(
                f"keep={keep!r}: give how many files to keep, 1 or more, or None for "
                f"all."
            )
        # Absolute: a program may change its folder while it runs.
        place = os.path.abspath(local_path(directory, SaveError.address))
        self.directory = pathlib.Path(place)
        self.extra: Any = None
        self._steps, self._seconds = _interval(every)
        self._keep = keep
        self._background = background
        self._thread: threading.Thread | None = None
        self._failed: list[BaseException] = []
        self._handlers: list[dict[int, Any]] = []
        self._asked = 0  # the signal that asked to stop
        self._interrupted = False
        self._process = 0  # that of the block
        self._saved(0)
        # Without a `with` block and another call nobody would see the error.
        weakref.finalize(self, _report, self._failed)

    # --- files ------------------------------------------------------------------------

    @property
    def steps(self) -> list[int]:
        """The steps that there are files of, sorted."""
        return _steps_in(self.directory)

    def path(self, step: int) -> pathlib.Path:
        """Return the path of the file of a step."""
        return _path(self.directory, step)

    @overload
    def resume(
        self, like: type[_T], *, allow: str | Iterable[str] = (), sharding: Any = None
    ) -> tuple[_T, int]: ...
    @overload
    def resume(
        self, like: _T, *, allow: str | Iterable[str] = (), sharding: Any = None
    ) -> tuple[_T, int]: ...
    def resume(
        self, like: Any, *, allow: str | Iterable[str] = (), sharding: Any = None
    ) -> tuple[Any, int]:
        """Return the state of the newest whole file, and its step.

        Args:
            like: the state to start with, which is returned with the step 0 if there is
                no file; or what else `ps.load` takes, for a directory with files.
            allow: as for `ps.load`.
            sharding: as for `ps.load`.

        Raises:
            LoadError: the newest whole file does not fit `like`, or there is no file
                and `like` is no state to start with.
            TypeError: `like` is None.
            ValueError: a word in `allow` that `ps.load` does not know.

        Warns:
            LoadWarning: a file is damaged, and the one before it was taken.
        """
        self.wait()
        allowed = allowed_words(allow)
        self.extra = None
        if like is None:
            raise TypeError("resume(None): give the state to start with.")
        steps = self.steps
        for step in reversed(steps):
            path, saved = self.path(step), None
            try:
                with load(path) as saved:
                    state = load(saved, like, allow=allowed, sharding=sharding)
            except FileNotFoundError:
                if saved is not None:  # of a `__migrate__`
                    raise
                continue  # another program has removed the file since
            except CorruptFileError as error:
                way = "Going back to the checkpoint before it."
                if step == steps[0]:
                    way = "There is none before it."
                warn_caller(LoadWarning(f"{str(error).rstrip('.')}. {way}"))
                continue
            self.extra = saved.extra
            self._saved(step)
            return state, step
        try:
            describe(like)
        except SaveError as error:
            raise LoadError(
                f"{self.directory} holds no checkpoint: give resume the state to "
                f"start with."
            ) from error
        return like, 0

    def offer(self, step: int, state: object, extra: Any = None) -> None:
        """Save the state if that is due, or if the program was asked to stop.

        Args:
            step: how many steps the state has seen.
            state: as for `ps.save`.
            extra: as for `save`.

        Raises:
            KeyboardInterrupt: SIGINT asked to stop; the state has been saved.
            SystemExit: SIGTERM did; the code is 143.
        """
        if self._steps is not None:
            # Not `step % every`: a call may take many steps at once.
            due = step // self._steps != self._mark
        else:
            due = self._seconds is not None and time.monotonic() >= self._next
        if due or self._asked or self._failed:
            self.save(step, state, extra)

    def save(self, step: int, state: object, extra: Any = None) -> None:
        """Save the state as the file of a step, and remove files beyond `keep`.

        Args:
            step: how many steps the state has seen; a file of that step is replaced.
            state: as for `ps.save`.
            extra: a JSON value, or a function that returns one, called only here.

        Raises:
            KeyboardInterrupt: SIGINT asked to stop; the state has been saved.
            OSError: the file cannot be written.
            SaveError: the state cannot be saved.
            SystemExit: SIGTERM asked to stop; the code is 143.
            ValueError: a negative step.
        """
        self.wait()
        step = operator.index(step)
        if step < 0:
            raise ValueError(f"step={step}: a checkpoint has a step from 0 up.")
        path, found = self.path(step), extra() if callable(extra) else extra
        write = prepare(path, state, found, copy=self._background)
        self.directory.mkdir(parents=True, exist_ok=True)
        work = (write, self.directory, step, self._keep)
        if self._background:
            # Nothing on the thread refers to `self`, whose end reports lost errors.
            self._thread = threading.Thread(
                target=_attempt, args=(self._failed, *work), name="ps.Checkpoints"
            )
            self._thread.start()
        else:
            _finish(*work)
        self._saved(step)
        if self._asked:
            self.wait()
            asked, self._asked, self._interrupted = self._asked, 0, False
            if asked == signal.SIGINT:
                raise KeyboardInterrupt(f"stopped after step {step}, saved as {path}")
            raise SystemExit(128 + asked)

    def wait(self) -> None:
        """Return when what is written in the background is in place.

        Raises:
            Exception: what writing it raised.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failed:
            raise self._failed.pop()

    def _saved(self, step: int) -> None:
        self._mark = step // self._steps if self._steps is not None else 0
        self._next = time.monotonic() + (self._seconds or 0)

    # --- signals ----------------------------------------------------------------------

    def __enter__(self) -> "Self":
        taken = {}
        self._process = os.getpid()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                # What is ignored stays so, as nohup wants it; None is not of Python.
                if callable(before) or before is signal.SIG_DFL:
                    taken[int(number)] = before
                    signal.signal(number, self._ask)
        self._handlers.append(taken)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        try:
            self.wait()
        except BaseException as failed:
            if error is None:
                raise
            kind_of = type(failed).__name__
            error.add_note(f"A checkpoint was not written: {kind_of}: {failed}")
        finally:
            before = self._handlers.pop()
            for number, handler in before.items():
                signal.signal(number, handler)
            asked, self._asked, self._interrupted = self._asked, 0, False
        if asked and error is None:  # and nothing was offered since
            if callable(before[asked]):
                before[asked](asked, None)
            else:
                raise SystemExit(128 + asked)

    def _ask(self, number: int, frame: types.FrameType | None) -> None:
        """Note that the program shall stop; the handler of SIGINT and SIGTERM."""
        if os.getpid() != self._process:
            # A process that the block forked, such as one that loads data.
            # What was there before the first block, if several are of this object.
            before = [taken[number] for taken in self._handlers if number in taken]
            signal.signal(number, before[0])
            signal.raise_signal(number)
            return
        if number == signal.SIGINT:
            if self._interrupted:
                raise KeyboardInterrupt("stopped at once, without saving")
            self._interrupted = True
            _say("stopping after this step (again: at once)")
        self._asked = self._asked or number


def _interval(every: Any) -> tuple[int | None, float | None]:
    """Return `every` as a number of steps, or of seconds."""
    if every is None:
        return None, None
    if isinstance(every, str):
        found = _TIME.fullmatch(every)
        if found and float(found[1]) > 0:
            return None, float(found[1]) * _UNITS[found[2]]
    elif _is_count(every) and every > 0:
        return operator.index(every), None
    raise ValueError(
        f"every={every!r}: give a number of steps, or a time as '30 s', '5 min', '2 h'."
    )


def _is_count(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _finish(
    write: Callable[[], None], directory: pathlib.Path, step: int, keep: int | None
) -> None:
    """Write a file, then remove what it made superfluous."""
    write()
    # What was left when the program was killed has the name of a step that may never
    # be saved again.
    sweep(os.fspath(directory), _NAME.pattern)
    # Files of later steps are not newer: `resume` went back because they are damaged.
    older = [found for found in _steps_in(directory) if found <= step]
    for found in older[:-keep] if keep is not None else ():
        _path(directory, found).unlink(missing_ok=True)


def _attempt(failed: list[BaseException], *work: Any) -> None:
    try:
        _finish(*work)
    except BaseException as error:  # noqa: BLE001  # another call raises it
        failed.append(error)


def _report(failed: list[BaseException]) -> None:
    for error in failed:
        sys.excepthook(type(error), error, error.__traceback__)


def _say(text: str) -> None:
    # print() cannot be entered again when the signal came in the middle of one.
    with contextlib.suppress(OSError):
        os.write(2, f"\n{text}\n".encode())


def _path(directory: pathlib.Path, step: int) -> pathlib.Path:
    return directory / f"{step:08d}.safetensors"


def _steps_in(directory: pathlib.Path) -> list[int]:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    found = filter(None, map(_NAME.fullmatch, names))
    return sorted(int(match[1]) for match in found)
