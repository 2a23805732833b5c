"""What a jitted function notices while jax traces it, and at no other time.

jax runs the Python function once per structure and type of its arguments. That is when
a retrace is counted, and when what came back can be compared with what went in.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any

import jax

from purestate._compat import untyped_jax
from purestate._host.call.traced_calls import count_calls
from purestate._inspect.diff import Difference, diff, told_apart
from purestate._inspect.donations import note_donor
from purestate._instance.containers import copied_containers, is_same
from purestate._pack.pack import Given, packed_again, unpacked
from purestate._pack.packed import Packed
from purestate._schema.marks import is_state, is_state_class
from purestate._transforms.parameters import DonatedParameter
from purestate.errors import (
    InPlaceWarning,
    LostUpdateWarning,
    RetraceWarning,
    StateDriftWarning,
)
from purestate.errors._base import warn_caller
from purestate.errors._text import short

_MANY = 8  # traces after which it is likely that something changes at every call


@dataclasses.dataclass
class Watch:
    """Watches the traces of one jitted function.

    Attributes:
        function: the user's function.
        name: how to call it in texts.
        donated: the parameters that are donated.
        calls_host: whether a trace has met a host function.
        waits_for_effects: whether its exception may leave no trace in the result.
    """

    function: Callable[..., Any]
    name: str
    donated: tuple[DonatedParameter, ...]
    calls_host: bool = False
    waits_for_effects: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._count = 0
        self._last: Any = None

    def __getstate__(self) -> Any:  # a lock cannot be pickled, and traces stay here
        return self.function, self.name, self.donated

    def __setstate__(self, state: Any) -> None:
        self.function, self.name, self.donated = state
        self.__post_init__()

    def wrapped(self) -> Callable[..., Any]:
        """Return the function that jax traces in place of the user's."""

        @functools.wraps(self.function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            for parameter in self.donated:
                parameter.note(args, kwargs)
                note_donor(self.name, jax.tree.leaves(parameter.read(args, kwargs)))
            is_packed = bool(args) and type(args[0]) is Packed
            args, kwargs, given = unpacked(args, kwargs)
            if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
                out = self.function(*args, **kwargs)  # a plain call, no trace
                return packed_again(out, given) if given else out
            self._count_trace(args, kwargs)
            before = _remembered(args[0], is_packed) if args else None
            calls = count_calls()
            out = self.function(*args, **kwargs)
            self._note_host_calls(calls, (args, kwargs), out)
            self._compare(before, args, kwargs, out, given if is_packed else [])
            return packed_again(out, given) if given else out

        if not hasattr(self.function, "__name__"):  # what profilers show
            traced.__name__ = self.name.rpartition(".")[2]
        return traced

    def _note_host_calls(self, before: tuple[int, int], given: Any, out: Any) -> None:
        calls, effects = count_calls()
        if calls == before[0]:
            return
        self.calls_host = True
        # A failed program fails in all that it computes. What it returns as it came is
        # not waited for, and jax runs a call for that only for the sake of an effect.
        same = set(map(id, jax.tree.leaves(given)))
        if effects != before[1] or same.issuperset(map(id, jax.tree.leaves(out))):
            self.waits_for_effects = True

    def _count_trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen = jax.tree.map(_abstract, (args, kwargs))
        last = self._last
        changes = _named(last, seen)
        if last is not None and not changes:
            return  # the same types again: lowering, or another transform
        with self._lock:
            self._last, self._count = seen, self._count + 1
            count = self._count
        if count >= _MANY:
            warn_caller(RetraceWarning(self.name, count, "\n".join(map(str, changes))))

    def _compare(
        self,
        before: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        packed: list[Given],
    ) -> None:
        cls = type(before)
        first = out[0] if isinstance(out, tuple | list) and out else out
        if packed and type(first) is not cls:
            first = out  # a container of States, packed as a whole
        is_back = bool(packed) and any(map(packed[0].fits, (out, first)))
        if (is_state_class(cls) or packed) and type(first) is cls and not is_back:
            changes = diff(before, first)
            if changes and not all(map(_is_left_out, changes)):
                text = str(changes)
                warn_caller(
                    StateDriftWarning(cls, self.name, text, packed=bool(packed))
                )
        elif is_state_class(cls) and not is_same(args[0], before):
            warn_caller(InPlaceWarning(cls, self.name))
        for parameter in self.donated:
            donated = type(parameter.read(args, kwargs))
            if is_state_class(donated) and not _holds(out, donated):
                warn_caller(LostUpdateWarning(donated, self.name))


def _is_left_out(change: Difference) -> bool:
    """Return whether something became None, as in a gradient or a part of a State.

    What `ps.grad(wrt=...)` and `ps.partition` return is of the State's class, and not
    meant to take its place.
    """
    return change.kind == "class" and change.after == "NoneType"


def _holds(out: Any, cls: type) -> bool:
    parts = jax.tree.leaves(out, is_leaf=lambda part: type(part) is cls)
    return any(type(part) is cls for part in parts)


def _abstract(leaf: Any) -> Any:
    """Return a leaf's type, so that no array and no tracer is kept."""
    if not hasattr(leaf, "dtype") or isinstance(leaf, type):
        return _Static(leaf)  # only a static argument reaches a trace as it is
    weak = bool(getattr(leaf, "weak_type", False))
    return untyped_jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=weak)


def _remembered(argument: Any, is_packed: bool) -> Any:
    """Return what was a State, packed or not, as it is now; None for anything else."""
    if not is_state(argument) and not is_packed:
        return None
    try:
        return copied_containers(argument)
    except Exception:  # noqa: BLE001  # a container that cannot be copied
        return None


class _Static:
    """What is remembered of a static argument: its text, and what tells it apart."""

    def __init__(self, value: Any) -> None:
        self.text = short(value)
        try:
            self.key = (type(value), hash(value), self.text)
        except Exception:  # noqa: BLE001  # jax will say so
            self.key = (type(value), 0, self.text)


def _named(old: Any, new: Any) -> list[Difference]:
    """Return the differences between two calls, the first argument's by its class."""
    if old is None:
        return []
    found: list[Difference] = []
    before, after = map(_arguments, (old, new))
    for name in {**before, **after}:
        a, b = before.get(name), after.get(name)
        found += (_placed(name, change) for change in diff(a, b))
        pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=False)
        found += (
            Difference(f"argument {name}", "static value", *told_apart(x.text, y.text))
            for x, y in pairs
            if type(x) is type(y) is _Static and x.key != y.key
        )
    return found


def _arguments(call: tuple[tuple[Any, ...], dict[str, Any]]) -> dict[str, Any]:
    return {str(i): arg for i, arg in enumerate(call[0])} | call[1]


def _placed(name: str, change: Difference) -> Difference:
    bare = not change.path or change.path.startswith(("[", "."))
    if name == "0" and not bare:
        return change
    path = f"argument {name}{'' if bare else ', '}{change.path}"
    return dataclasses.replace(change, path=path)
