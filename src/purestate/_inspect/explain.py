"""`ps.explain`: who kept the tracer that an error of jax is about, after the fact.

A tracer that outlives its trace was stored somewhere. The search starts from what the
frames of the error can see, as `find_tracers` searches an object; where a value was
computed jax knows, and where it was stored is in the source of that function. Nothing
is recorded while a program runs.
"""

import contextlib
import functools
import os
import re
import site
import sys
import sysconfig
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from purestate._compat import (
    JAX_FOLDER,
    LEAKED,
    TRACER_ERRORS,
    Line,
    computed_lines,
    is_over,
    is_tracer,
    last_error,
    origin_text,
    traced_function,
)
from purestate._inspect.stores import Sources
from purestate._schema.marks import is_state
from purestate._schema.tracers import walk

_SECONDS = 0.5  # that a search may take
_SHOWN = 8  # places in one explanation


@dataclass(frozen=True)
class Held:
    """A place that holds a tracer whose trace is over.

    Attributes:
        path: the way to it, from a variable of a function or a module, as in
            `main: box.cache`. Empty if no object was found that holds it.
        stored: the line of the statement that stored it, with its text; "" if that is
            not known.
        computed: the line that computed it, or the function whose argument it was.
    """

    path: str
    stored: str
    computed: str

    def __str__(self) -> str:
        return "  ".join(filter(None, self._cells()))

    def _cells(self) -> tuple[str, str]:
        if self.stored:
            return self.path, f"stored at {self.stored}"
        return self.path, self.computed


@dataclass(frozen=True, repr=False)
class Explanation:
    """What `ps.explain` found; false if that is nothing.

    Attributes:
        code: the line that raised the error.
        error: the class of the error.
        held: the places that hold a tracer, those of the error's tracer first.
        advice: what to do.
    """

    code: str = ""
    error: str = ""
    held: tuple[Held, ...] = ()
    advice: str = ""

    def __bool__(self) -> bool:
        return bool(self.held)

    def __str__(self) -> str:
        if not self.held:
            return "nothing is known: no error about a tracer that was kept"
        width = max(len(place.path) for place in self.held)
        lines = [f"{self.code}  {self.error}".strip()]
        for place in self.held:
            path, line = place._cells()
            begin = f"{path.ljust(width)}   " if width else ""
            lines.append(f"   {begin}{line}".rstrip())
        return "\n".join([*lines, self.advice])

    __repr__ = __str__


class _Explain:
    """Return who kept the tracer that an error is about.

    For `UnexpectedTracerError`, `TracerArrayConversionError` and the like, after they
    were raised: which object holds the tracer, under which attribute or key, and the
    line where it was stored, or else computed. It knows plain classes and those of any
    library, containers, closures, globals and modules.

    A search takes half a second at most, and raises nothing. What is not known is not
    said: of an error about something else, the explanation is empty, and false.

    Args:
        error: the exception; by default the one that is being handled, or else the
            last one that nobody handled.

    Returns:
        An explanation, which prints as text.

    >>> class Box:
    ...     def apply(self, x):
    ...         self.cache = 2.0 * x
    ...         return x
    >>> box = Box()
    >>> _ = jax.jit(box.apply)(1.0)
    >>> try:
    ...     box.cache + 1
    ... except jax.errors.UnexpectedTracerError:
    ...     print(ps.explain().held[0].path.endswith("box.cache"))
    True
    """

    def __call__(self, error: BaseException | None = None) -> Explanation:
        end = time.monotonic() + _SECONDS
        try:
            given = last_error() if error is None else error
            for one in _chain_of(given):
                found = _Search(one, end).explanation()
                if found:
                    return found
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001  # an error of ours would hide theirs
            return Explanation()
        return Explanation()

    def install(self) -> None:
        """Have errors that nobody handles explained on stderr, below their traceback.

        In programs, in their threads, and in cells of IPython and Jupyter. A second
        call does nothing more.
        """
        if not isinstance(sys.excepthook, _Hook):
            sys.excepthook = _Hook(sys.excepthook, lambda given: given[1])
        if not isinstance(threading.excepthook, _Hook):
            hook = _Hook(threading.excepthook, lambda given: given[0].exc_value)
            threading.excepthook = hook
        find = getattr(sys.modules.get("IPython"), "get_ipython", None)
        shell = find() if find is not None else None
        if shell is not None and not getattr(shell, "_purestate_explains", False):
            shell.events.register("post_run_cell", _after_cell)
            shell._purestate_explains = True

    def __reduce__(self) -> str:
        return "explain"


explain = _Explain()


class _Hook:
    """An excepthook: the one that was there, then the explanation."""

    def __init__(
        self, before: Callable[..., Any], error_of: Callable[[tuple[Any, ...]], Any]
    ) -> None:
        self._before, self._error_of = before, error_of

    def __call__(self, *given: Any) -> None:
        # A hook of ours may be behind another one that was set in between.
        _told.is_told = False
        self._before(*given)
        if not _told.is_told:
            _print_explanation(self._error_of(given))
        _told.is_told = True


_told = threading.local()


def _after_cell(result: Any) -> None:
    _print_explanation(getattr(result, "error_in_exec", None))


def _print_explanation(error: BaseException | None) -> None:
    found = explain(error) if error is not None else None
    if found and sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"\n{found}\n")


def _chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it was raised from."""
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


class _Search:
    """One look for what holds the tracer of an error, until a time at the latest."""

    def __init__(self, error: BaseException, end: float) -> None:
        self._error = error
        # What was found is read up in the source, which takes a part of the time.
        self._is_late = lambda: time.monotonic() > end - 0.4 * _SECONDS
        self._text = str(error)
        self._sources = Sources(lambda: time.monotonic() > end)
        inner = [(tb.tb_frame, tb.tb_lineno) for tb in _entries(error.__traceback__)]
        outer = inner[0][0].f_back if inner else None
        self._raised = inner[::-1]  # the innermost first
        self._frames = [frame for frame, _ in self._raised]
        self._culprits = list(self._given_to_jax())
        self._locals: set[tuple[str, ...]] = set()  # variables of functions
        self._values: dict[tuple[str, ...], Any] = {}  # of all variables
        self._known: set[int] = set()  # modules that were looked at
        while outer is not None:
            self._frames.append(outer)
            outer = outer.f_back

    def explanation(self) -> Explanation:
        if not self._culprits and not self._is_about_tracers():
            return Explanation()
        kept = list(filter(self._is_kept, self._culprits))
        if self._culprits and not kept:
            return Explanation()
        wanted: list[tuple[tuple[str, ...], Any, Any]] = []
        for variables in (self._seen_by_frames, self._other_modules):
            found = list(self._found(list(variables())))
            wanted = [one for one in found if self._is_meant(one[1])]
            if wanted:
                break
        meant = {path for path, _, _ in wanted}
        roots = {path[:2] for path in meant}
        beside = [x for x in found if x[0][:2] in roots and x[0] not in meant]
        places = _without_doubles([*wanted, *beside])[:_SHOWN]
        held = tuple(self._held(path, tracer) for path, tracer, _ in places)
        if not held:
            held = tuple(self._held((), tracer) for tracer in kept[:1])
        held = tuple(place for place in held if place.path or place.computed)
        if not held:
            return Explanation()
        is_attribute = any(
            place.stored and _is_attribute(path, owner)
            for place, (path, _, owner) in zip(held, places, strict=False)
        )
        name = type(self._error).__name__
        return Explanation(self._code(), name, held, _ADVICE[is_attribute])

    def _is_about_tracers(self) -> bool:
        if isinstance(self._error, TRACER_ERRORS):
            return True
        return type(self._error) is Exception and LEAKED in self._text

    def _given_to_jax(self) -> Iterable[Any]:
        """Return the tracers that code of jax was given where the error was raised."""
        found: dict[int, Any] = {}
        for frame, _ in self._raised:
            if not frame.f_code.co_filename.startswith(JAX_FOLDER):
                break
            for value in list(frame.f_locals.values()):
                parts = value if type(value) is tuple else (value,)
                found.update((id(part), part) for part in parts if is_tracer(part))
        return found.values()

    def _is_kept(self, tracer: Any) -> bool:
        """Return whether a tracer outlived its trace.

        One that is not over was left by an exception if the function that it ran is
        none of those that run now.
        """
        if is_over(tracer):
            return True
        lines = _users(computed_lines(tracer))
        function = traced_function(tracer)
        if lines:
            ran = {(f.f_code.co_filename, f.f_code.co_name) for f in self._frames}
            return (lines[-1].file, lines[-1].function) not in ran
        if function is not None and _is_users(function.file):
            begun = {
                (f.f_code.co_filename, f.f_code.co_firstlineno) for f in self._frames
            }
            return (function.file, function.number) not in begun
        is_leak = isinstance(self._error, jax.errors.UnexpectedTracerError)
        return is_leak and len(self._culprits) == 1 and tracer is self._culprits[0]

    def _is_meant(self, tracer: Any) -> bool:
        """Return whether an error is about a tracer, as far as it can be told."""
        if any(tracer is culprit for culprit in self._culprits):
            return True
        is_leak = isinstance(self._error, jax.errors.UnexpectedTracerError)
        if self._culprits and not is_leak:
            return False
        lines = _users(computed_lines(tracer))
        if lines and self._names(lines[0]):
            return True
        origin = origin_text(tracer)
        if origin:  # of a tracer that is alive jax has more to say in that line
            return origin in map(str.strip, self._text.splitlines())
        return not lines and type(tracer).__name__ in self._text

    def _names(self, line: Line) -> bool:
        """Return whether the text of the error names a line."""
        return bool(re.search(rf"{re.escape(line.file)}:{line.number}\b", self._text))

    def _found(
        self, roots: Iterable[tuple[tuple[str, ...], Any]]
    ) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
        """Yield kept tracers with the steps to them, and what they are held by."""
        aliases = []
        for path, tracer in walk(roots, self._is_late):
            if not self._is_kept(tracer):
                continue
            if path in self._locals:
                aliases.append((path, tracer, None))
                continue
            yield path, tracer, self._at(path[:-1])
        for path, tracer, _ in aliases:
            if self._stored(path, tracer):  # by `nonlocal`; others only name it
                yield path, tracer, None

    def _seen_by_frames(self) -> Iterator[tuple[tuple[str, ...], Any]]:
        """Yield the variables of the user's functions, then those of their modules."""
        modules: dict[int, dict[str, Any]] = {}
        for frame in self._frames:
            if not _is_users(frame.f_code.co_filename):
                continue
            modules[id(frame.f_globals)] = frame.f_globals
            if frame.f_code.co_name != "<module>":
                found = self._variables(frame.f_code.co_name, dict(frame.f_locals))
                self._locals.update(path for path, _ in found)
                yield from found
        self._known = set(modules)
        for held in modules.values():
            yield from self._variables(str(held.get("__name__", "")), dict(held))

    def _other_modules(self) -> Iterator[tuple[tuple[str, ...], Any]]:
        """Yield the variables of all other modules of the user."""
        loaded: list[tuple[str, Any]] = list(sys.modules.items())
        for name, module in loaded:
            file = getattr(module, "__file__", None)
            is_users = name == "__main__" or (bool(file) and _is_users(str(file)))
            if not isinstance(module, types.ModuleType) or not is_users:
                continue
            if id(vars(module)) not in self._known:
                self._known.add(id(vars(module)))  # one may have several names
                yield from self._variables(name, dict(vars(module)))

    def _variables(
        self, name: str, held: dict[str, Any]
    ) -> list[tuple[tuple[str, ...], Any]]:
        found = {(name, x): y for x, y in held.items() if not _HIDDEN.fullmatch(x)}
        self._values = found | self._values
        return list(found.items())

    def _at(self, path: tuple[str, ...]) -> Any:
        """Return the object at the end of a path of attributes, None for others."""
        value = self._values.get(path[:2])
        for step in path[2:]:
            try:
                value = vars(value)[step[1:]] if step.startswith(".") else None
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001  # slots, or a foreign object
                return None
        return value

    def _held(self, path: tuple[str, ...], tracer: Any) -> Held:
        name = f"{path[0]}: {''.join(path[1:])}" if path else ""
        stored = self._stored(path, tracer) if path else ""
        return Held(name, stored, self._computed(tracer))

    def _stored(self, path: tuple[str, ...], tracer: Any) -> str:
        lines = _users(computed_lines(tracer))
        function = traced_function(tracer)
        if not lines and function is not None and _is_users(function.file):
            lines = [function]
        steps: tuple[str, ...] = path[1:]
        if path[:2] not in self._locals:  # an attribute of a module, for other ones
            steps = (path[0].rpartition(".")[2], f".{path[1]}", *path[2:])
        objects = [self._at(path[:i]) for i in range(2, len(path) + 1)]
        if len(steps) > len(objects):
            objects.insert(0, None)

        def may_be(name: str, step: int) -> bool:
            known = [x for place, x in self._values.items() if place[-1] == name]
            wanted = objects[step] if step < len(objects) else None
            return wanted is None or not known or any(x is wanted for x in known)

        classes = list(map(_class_names, objects))
        found = self._sources.stored(steps, lines, classes, may_be)
        return _line_text(found.line, found.text) if found is not None else ""

    def _computed(self, tracer: Any) -> str:
        lines = _users(computed_lines(tracer))
        function = traced_function(tracer)
        if lines:
            return f"computed at {_line_text(lines[0], self._sources.text(lines[0]))}"
        if function is not None and _is_users(function.file):
            return f"an argument of {_line_text(function, '')}"
        return ""

    def _code(self) -> str:
        """Return the line of the user's that raised the error."""
        for frame, number in self._raised:
            file = frame.f_code.co_filename
            if _is_users(file):
                line = Line(file, number, frame.f_code.co_name)
                text = self._sources.text(line)
                return text if 0 < len(text) <= 60 else _line_text(line, "")
        return ""


_ADVICE = {
    True: "Return it instead: purestate.State makes this an error at that line.",
    False: "Return it instead: what a traced function leaves elsewhere is no array.",
}
# Of the interpreter, and of IPython: the values and the texts of earlier cells.
_HIDDEN = re.compile(r"__\w+__|_+|_i*\d*|_[ido]h|In|Out|@.*")


def _entries(tb: types.TracebackType | None) -> Iterator[types.TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _without_doubles(
    places: list[tuple[tuple[str, ...], Any, Any]],
) -> list[tuple[tuple[str, ...], Any, Any]]:
    """Return the places without those that are others by another way.

    An attribute of a class is seen through its instances, and a variable through the
    functions that use it.
    """
    direct = {
        (id(tracer), path[-1].removeprefix("."))
        for path, tracer, _ in places
        if _CLASS not in path and not path[-1].startswith(" ")
    }

    def is_double(path: tuple[str, ...], tracer: Any) -> bool:
        name = path[-1].removeprefix(".")
        cell = _CELL.fullmatch(name)
        if cell is None and _CLASS not in path:
            return False
        return (id(tracer), cell[1] if cell else name) in direct

    return [place for place in places if not is_double(place[0], place[1])]


# Steps of `walk`.
_CLASS = " (class)"
_CELL = re.compile(r" \(closure (.*)\)")


def _is_attribute(path: tuple[str, ...], owner: Any) -> bool:
    """Return whether a place is what State would have refused to assign."""
    if owner is None or not path[-1].startswith("."):
        return False
    return not isinstance(owner, type | types.ModuleType) and not is_state(owner)


def _class_names(value: Any) -> set[str] | None:
    """Return the names of the class of an object and of its bases, None if unknown."""
    if value is None:
        return None
    kind = value if isinstance(value, type) else type(value)
    return {base.__name__ for base in kind.__mro__}


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Return the folders of what is not the user's own code."""
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found.update(site.getsitepackages() if hasattr(site, "getsitepackages") else ())
    found.add(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    found.update({JAX_FOLDER, os.path.dirname(os.path.realpath(os.__file__))})
    return tuple(os.path.join(path, "") for path in found)


def _is_users(file: str) -> bool:
    if file.startswith(("<frozen", "<purestate", "<__array_function__")):
        return False
    parts = file.replace(os.sep, "/")
    if "/site-packages/" in parts or "/dist-packages/" in parts:
        return False
    return not file.startswith(_libraries()) and "purestate_pytest" not in file


def _users(lines: Sequence[Line]) -> list[Line]:
    """Return the lines of the user's up to where a trace began, the innermost first."""
    found: list[Line] = []
    for line in lines:
        if _is_users(line.file):
            found.append(line)
        elif (
            found
            and line.file.startswith(JAX_FOLDER)
            and not line.file.endswith(_PASSING)
        ):
            break  # jax 0.7.2 goes on with the caller of jit, who has only results
    return found


# Files of jax that call a function without a trace of their own.
_PASSING = (os.path.join("_src", "tree.py"), os.path.join("_src", "tree_util.py"))


def _line_text(line: Line, text: str) -> str:
    file = line.file
    with contextlib.suppress(OSError, ValueError):
        inside = os.path.relpath(file)
        file = file if inside.startswith("..") or file.startswith("<") else inside
    place = f"{file}:{line.number}"
    if line.function != "<module>":
        place += f" in {line.function}"
    return f"{place}: {_cut(text)}" if text else place


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
