"""One drawn call under test: a method with its State, or a function, and arguments."""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from purestate._pack.packed import Packed
from purestate._schema.marks import is_state
from purestate._state.state import State
from purestate.errors import StrategyError
from purestate.errors._text import error_text
from purestate.testing._cases.fresh import fresh
from purestate.testing._cases.outside import Places, of_class, of_function
from purestate.testing._strategies.annotations import draw_value
from purestate.testing._strategies.axes import Annotations, annotations_of
from purestate.testing._strategies.construct import ABSENT, Parameter, given_value
from purestate.testing._strategies.scope import Scope
from purestate.testing._strategies.states import Drawing
from purestate.testing._trees.leaves import flattened, is_numeric
from purestate.testing._trees.source_text import paste_call


@dataclasses.dataclass(frozen=True)
class Callee:
    """What is called.

    Attributes:
        written: as the user wrote it, perhaps jitted.
        raw: the same without jit around it.
        name: for messages.
        owner: the class of `self`, None for a function.
        parameters: what it takes, without `self`.
        static: names of parameters that jit must not trace.
    """

    written: Any
    raw: Any
    name: str
    owner: Any
    parameters: Mapping[str, inspect.Parameter]
    static: frozenset[str]

    @classmethod
    def of(cls, fn: Any, on: Any, static: frozenset[str]) -> "Callee":
        """Find out what a method or function takes.

        Raises:
            StrategyError: `fn` is not callable.
        """
        if not callable(fn):
            raise StrategyError(
                f"check_method takes a method or a function, and got an object of "
                f"type {type(fn).__name__}."
            )
        if isinstance(getattr(fn, "__self__", None), State | Packed):
            bound = fn.__qualname__.rpartition("<locals>.")[2]
            raise StrategyError(
                f"{bound} is bound to an instance, and check_method draws instances: "
                f"get it from the class, check_method({bound})."
            )
        raw: Any = fn
        while hasattr(raw, "lower") and hasattr(raw, "__wrapped__"):
            raw = raw.__wrapped__
        name = getattr(fn, "__qualname__", type(fn).__name__).rpartition("<locals>.")[2]
        owner = on or _owner(raw)
        parameters = dict(inspect.signature(raw).parameters)
        if owner is not None:
            if on is not None:
                name = f"{on.__name__}.{raw.__name__}"
            parameters.pop(next(iter(parameters)))
        return cls(fn, raw, name, owner, parameters, static)

    def outside(self) -> Places:
        """Return where it may keep things between calls: objects with their names."""
        found = of_function(self.name, self.raw)
        return found if self.owner is None else [*found, *of_class(self.owner)]

    @property
    def annotations(self) -> Annotations:
        """What it says about its arguments and its State, with where it says so."""
        said = () if self.owner is None else annotations_of(self.owner)
        home = self.owner or _Namespace.of(self.raw)
        return [*said, *((p.annotation, home) for p in self.parameters.values())]

    def check_names(self, names: Iterable[str]) -> None:
        """Check that arguments of these names are there.

        Raises:
            StrategyError: one is not.
        """
        for name in names:
            if name not in self.parameters:
                raise StrategyError.unknown_name(
                    self.name, "argument", name, "arguments", self.parameters
                )

    @property
    def is_jitted(self) -> bool:
        """Whether the user jitted it."""
        return self.written is not self.raw

    def call(self, fn: Any, values: Mapping[str, Any]) -> Any:
        """Call it with arguments by name, `self` among them."""
        first = (values["self"],) if self.owner is not None else ()
        positional, named = [*first], {}
        for name, parameter in self.parameters.items():
            if name not in values:
                continue
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(values[name])
            else:
                named[name] = values[name]
        return fn(*positional, **named)


def _owner(raw: Any) -> Any:
    """Return the State class whose body holds a function, or None."""
    name = getattr(raw, "__name__", "")
    waiting: list[Any] = [State]
    while waiting:
        cls = waiting.pop()
        held = cls.__dict__.get(name)
        if held is not None and inspect.unwrap(held) is inspect.unwrap(raw):
            return cls
        waiting += cls.__subclasses__()
    return None


@dataclasses.dataclass
class Call:
    """One call, with all that a law needs.

    Attributes:
        callee: what is called.
        drawing: how `self` is drawn.
        args: strategies or values that the user gave.
        scope: what all arguments share.
        variant: which of a few structures it has.
        devices: the backends that were asked for.
        device: the one where it runs.
        memo: jitted functions and the like, kept from one example to the next.
        operands: arguments by name that jit traces, `self` among them.
        statics: the others.
    """

    callee: Callee
    drawing: Drawing
    args: Mapping[str, Any]
    scope: Scope
    variant: int
    devices: Mapping[str, Any]
    device: Any
    memo: dict[Any, Any]
    operands: dict[str, Any] = dataclasses.field(default_factory=dict)
    statics: dict[str, Any] = dataclasses.field(default_factory=dict)
    example: str = ""

    def __post_init__(self) -> None:
        owner = self.callee.owner
        values: dict[str, Any] = {}
        shown = ""
        if owner is not None:
            made = self.drawing.draw(self.scope)
            values["self"] = made.state
            shown = paste_call(made.cls.__name__, made.given)
        for name, parameter in self.callee.parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if name in self.args:
                values[name] = given_value(self.scope, self.args[name])
            elif parameter.annotation is not parameter.empty:
                values[name] = self._drawn(parameter)
            elif parameter.default is parameter.empty:
                raise StrategyError.unannotated(f"{self.callee.name}.{name}")
        for name, value in values.items():
            traced = name not in self.callee.static and is_numeric(value)
            (self.operands if traced else self.statics)[name] = value
        given = {name: value for name, value in values.items() if name != "self"}
        if owner is None:
            self.example = paste_call(self.callee.name, given)
        else:
            method = self.callee.name.rpartition(".")[2]
            self.example = f"{shown}{paste_call(f'.{method}', given)}"

    def _drawn(self, parameter: inspect.Parameter) -> Any:
        name = parameter.name
        is_static = name in self.callee.static
        owner = self.callee.owner or _Namespace.of(self.callee.raw)
        asked = Parameter(name, parameter.annotation, owner, ABSENT, is_static)
        with self.scope.within(f"args={{{name!r}: ...}}"):
            return draw_value(self.scope, asked, f"{self.callee.name}.{name}")

    @functools.cached_property
    def eager(self) -> Any:
        """What the call returns outside of jit.

        Raises:
            StrategyError: it raises.
        """
        self.trace_first()
        try:
            return self.again()
        except Exception as error:
            text = error_text(error)
            raise StrategyError.fails(self.callee.name, self.example, text) from error

    def trace_first(self) -> None:
        """Trace it, before the first plain call of this structure.

        What a trace leaves in a cache shows only if nothing was put in it before.
        """
        with contextlib.suppress(Exception):
            self.once("traced", lambda: jax.eval_shape(self.run, self.operands))

    def again(self) -> Any:
        """Call the plain function on a copy of the operands."""
        return self.run(fresh(self.operands))

    def run(self, operands: Mapping[str, Any]) -> Any:
        """Call the plain function."""
        return self.callee.call(self.callee.raw, {**operands, **self.statics})

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what a function made for the first case of this structure."""
        whole = (key, *self.fixed, self.structure)
        if whole not in self.memo:
            self.memo[whole] = make()
        return self.memo[whole]

    @property
    def fixed(self) -> tuple[Any, ...]:
        """The static arguments, as a key."""
        return tuple(sorted((k, repr(v)) for k, v in self.statics.items()))

    @functools.cached_property
    def structure(self) -> tuple[Any, ...]:
        """The structure and the types of the operands, as a key."""
        leaves, structure = flattened(self.operands)
        types = [str(jax.typeof(leaf)) for leaf in leaves]
        return (str(structure), *types)

    @property
    def counted(self) -> tuple[Any, list[Any]]:
        """The plain function of operands, jitted, and a list that grows by a trace."""
        key = ("jit", *self.fixed)
        if key not in self.memo:
            traces: list[Any] = []

            def run(operands: Any) -> Any:
                traces.append(None)
                return self.run(operands)

            self.memo[key] = jax.jit(run), traces
        found: tuple[Any, list[Any]] = self.memo[key]
        return found

    @property
    def jitted(self) -> Any:
        """The plain function of operands, jitted."""
        return self.counted[0]

    @property
    def seen(self) -> list[Any]:
        """The operands that stand for all structures seen so far."""
        found: list[Any] = self.memo.setdefault(("seen", *self.fixed), [])
        return found

    def other(self) -> dict[str, Any]:
        """Draw operands of the same structure and other values."""
        scope = self.drawing.scope(self.scope.draw, variant=self.variant)
        again = dataclasses.replace(self, scope=scope, operands={}, statics={})
        return again.operands

    @property
    def carry(self) -> str | None:
        """The name of the operand that is the state: `self`, or the first one."""
        return next(iter(self.operands), None)

    def state_of(self, result: Any) -> Any:
        """Return the new state in a result, which comes alone or first; else None."""
        name = self.carry
        if name is None:
            return None
        state = self.operands[name]
        if isinstance(state, jax.Array):  # tracers are arrays of another type
            return result if isinstance(result, jax.Array) else None
        if type(result) is type(state) and not isinstance(result, tuple):
            return result
        if not is_state(state) or not isinstance(result, tuple):
            return None
        first = next(iter(result), None)
        return first if type(first) is type(state) else None


class _Namespace:
    """Stands for a class where string annotations of a function are evaluated."""

    @staticmethod
    def of(fn: Any) -> Any:
        module = getattr(fn, "__module__", __name__)
        return type("function", (), {"__module__": module})
