"""A simulator's own functions, brought into the shape of one pure function.

`Simulator` holds what a person gave to `ps.HostSim`, and what the state of a new
simulator looks like; every later state is held against that.
"""

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from purestate._host.call.leaf import Leaf, as_operand, refusal, type_text
from purestate._host.call.workers import OwnThread
from purestate._inspect.key_paths import path_text
from purestate._schema.leaves import is_key
from purestate.errors import HostSimError
from purestate.errors._text import short

Array = np.ndarray[Any, Any]


class Simulator:
    """`make`, `get`, `set` and `step` of a simulator, and its first state."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Any],
        get: Callable[[Any], Any],
        set: Callable[[Any, Any], Any],  # noqa: A002  # what users call it
        step: Callable[..., Any],
    ) -> None:
        self.name = name
        self.thread: OwnThread | None = None
        self._make, self._get, self._set, self._step = make, get, set, step
        self._lock = threading.Lock()
        self._first: tuple[Any, list[Array], list[str]] | None = None
        self._spare: Any = None  # the simulator that the first state came from

    def make(self) -> Any:
        """Return a simulator to be used as scratch."""
        with self._lock:
            spare, self._spare = self._spare, None
        return self._make() if spare is None else spare

    def make_new(self) -> Any:
        """Return a simulator that nobody has touched."""
        return self._make()

    def start(self) -> tuple[Any, list[Array], list[str]]:
        """Return structure, leaves and paths of the state of a new simulator."""
        if self._first is not None:
            return self._first
        if self.thread is None:
            return self._begin()
        return self.thread.run(self._begin)  # type: ignore[no-any-return]

    def once(self, sim: Any, state: Any, inputs: Any, named: Any) -> tuple[Any, Any]:
        """Return the new state and what `step` returned, safe from later steps.

        Raises:
            HostSimError: the new state is of another type than the first one.
        """
        self._set(sim, self.native(state))
        result = self._step(sim, *inputs, **named)
        tree, leaves, paths = self.start()
        found, found_tree = jax.tree.flatten(self._get(sim))
        if found_tree != tree:
            raise HostSimError(
                self.name,
                f"changed the structure of its state: get= returned at first\n"
                f"  {tree}\nand after a step\n  {found_tree}",
            )
        # Copies, for the simulator is lent to the next call when this one ends.
        copies = [np.array(leaf, subok=True) for leaf in found]  # with masks, if any
        for path, old, new in zip(paths, leaves, copies, strict=True):
            if old.shape != new.shape or old.dtype != new.dtype:
                raise HostSimError(
                    self.name,
                    f"changed the type of its state: get= returned at first "
                    f"{type_text(old)} as {path}, and after a step {type_text(new)}.",
                )
        result = None if is_nothing(result) else jax.tree.map(_detached, result)
        return jax.tree.unflatten(tree, copies), result

    def native(self, state: Any) -> Any:
        """Return a state with the dtypes that the simulator gave, its own to keep."""
        tree, leaves, _ = self.start()
        given = zip(jax.tree.leaves(state), leaves, strict=True)
        cast = [array.astype(leaf.dtype) for array, leaf in given]
        return jax.tree.unflatten(tree, cast)

    def require_own(self, state: Any) -> None:
        """Raise an error if a state of jax arrays is not one of this simulator."""
        tree, leaves, paths = self.start()
        given, found_tree = jax.tree.flatten(state)
        if found_tree != tree:
            raise HostSimError(
                self.name,
                f"got a state of another structure than its own:\n"
                f"  expected: {tree}\n  received: {found_tree}\n"
                f"Start from init(), and change parts of what it returned.",
            )
        for path, own, leaf in zip(paths, leaves, given, strict=True):
            dtype = np.dtype(jax.dtypes.canonicalize_dtype(own.dtype))
            expected, operand = Leaf(own.shape, dtype), as_operand(leaf)
            if operand is None or operand[0] != expected:
                found = type(leaf).__name__ if operand is None else operand[0]
                raise HostSimError(
                    self.name,
                    f"got {found} as {path}, which is {expected} in its own state.",
                )

    # --- the functions that a host call takes ----------------------------------------

    def advance(self) -> Callable[..., Any]:
        """Return `step` as a function of simulator, state and inputs."""

        def advance(sim: Any, state: Any, /, *inputs: Any, **named: Any) -> Any:
            new, result = self.once(sim, state, inputs, named)
            return new if result is None else (new, result)

        signature = inspect.signature(advance)
        with contextlib.suppress(TypeError, ValueError):
            own = list(inspect.signature(self._step).parameters.values())
            if own and own[0].kind is not inspect.Parameter.VAR_POSITIONAL:
                two = list(signature.parameters.values())[:2]
                signature = inspect.Signature([*two, *own[1:]])
        functools.update_wrapper(advance, self._step)
        advance.__signature__ = signature  # type: ignore[attr-defined]
        return advance

    def on_states(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of simulator, state and inputs that gets native states."""

        @functools.wraps(fn)
        def native(sim: Any, state: Any, *inputs: Any, **named: Any) -> Any:
            found = fn(sim, self.native(state), *inputs, **named)
            return jax.tree.map(_detached, found)

        return native

    def as_rule(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return a derivative rule that gets native states."""

        @functools.wraps(fn)
        def rule(sim: Any, args: Any, linear: Any) -> Any:
            state, *inputs = args
            return fn(sim, (self.native(state), *inputs), linear)

        return rule

    # --- the first state -------------------------------------------------------------

    def _begin(self) -> tuple[Any, list[Array], list[str]]:
        with self._lock:
            if self._first is None:
                sim = self._make()
                self._first = self._flat(self._get(sim))
                self._spare = sim
            return self._first

    def _flat(self, state: Any) -> tuple[Any, list[Array], list[str]]:
        found, tree = jax.tree_util.tree_flatten_with_path(state)
        paths = [path_text(keys, "state") for keys, _ in found]
        for path, (_, leaf) in zip(paths, found, strict=True):
            if is_key(leaf) or as_operand(leaf) is None:
                raise HostSimError(
                    self.name,
                    f"has {short(leaf)} as {path}: get= returns numpy arrays and "
                    f"numbers.{_more(leaf)}",
                )
        return tree, [np.array(leaf) for _, leaf in found], paths


def _more(leaf: Any) -> str:
    """Return what is wrong with an array or a number that jax does not take."""
    if not isinstance(leaf, np.ndarray | np.generic | int):
        return ""
    return " It is {}, {}.".format(*refusal(leaf))


def is_nothing(result: Any) -> bool:
    """Return whether a step had no result."""
    return result is None or not jax.tree.leaves(result)


def _detached(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value
