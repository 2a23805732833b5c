"""`machine`: a State and its methods, step after step, with everything in between.

hypothesis chooses which method comes next and with what; each step runs outside of jit
and inside, and between steps the State is saved and restored, donated, or put into a
batch. What a single call cannot show, a history can.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import hypothesis.strategies as st
import jax
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from purestate.errors import LawError, StrategyError
from purestate.errors._text import error_text
from purestate.testing._cases.call import Call, Callee
from purestate.testing._cases.donated import quietly
from purestate.testing._cases.fresh import fresh
from purestate.testing._cases.outside import LEAK, is_leak, tracers_of
from purestate.testing._laws.law import as_names
from purestate.testing._strategies.axes import check_dims
from purestate.testing._strategies.construct import Made, is_refusal
from purestate.testing._strategies.scope import Scope
from purestate.testing._strategies.states import Drawing
from purestate.testing._trees.asserts import mismatch
from purestate.testing._trees.leaves import differ_in_type, row, stacked
from purestate.testing._trees.source_text import paste, paste_call

_PROMISES = {
    "jit": "step after step, jit gives what the plain call gives",
    "check": "what a method returns passes the checks of its class",
    "vmap": "in a batch, a step gives what it gives alone",
    "donation": "a donated step gives what the plain call gives",
    "leaks": "tracing it leaves no tracer behind",
    "saves": "a state that was kept is not changed by later steps",
}


def machine(
    cls: Any,
    *,
    methods: Iterable[str] | None = None,
    fields: Mapping[str, Any] | None = None,
    args: Mapping[str, Mapping[str, Any]] | None = None,
    dims: Mapping[str, Any] | Sequence[int] | None = None,
    dtypes: Sequence[Any] | None = None,
) -> type[RuleBasedStateMachine]:
    """Return a hypothesis state machine made from a State class.

    Its rules are the methods: each is called with drawn arguments, outside of jit and
    inside, on the State that came out of the step before. Other rules keep a State and
    go back to it, step in a batch, and donate.

    Args:
        cls: the class.
        methods: names of the methods; by default those that are jitted.
        fields: as for `states`.
        args: per method, strategies or values for arguments.
        dims: as for `states`.
        dtypes: as for `states`.

    Returns:
        A class; `Machine.TestCase` is a test that pytest finds.

    Raises:
        StrategyError: there are no methods to call, or `args` or `dims` name what is
            not there.
        LawError: when run: the history broke a law.

    >>> import jax, purestate as ps, purestate.testing as pst
    >>> class Counter(ps.State):
    ...     count: ps.Array = 0
    ...
    ...     @jax.jit
    ...     def step(self):
    ...         return self.replace(count=self.count + 1)
    >>> TestCounter = pst.machine(Counter).TestCase
    """
    names = list(_jitted(cls) if methods is None else as_names(methods))
    if not names:
        raise StrategyError(
            f"{cls.__name__} has no jitted methods to step with: name some, "
            f"machine({cls.__name__}, methods=[...])."
        )
    for name in (*names, *(args or {})):
        if not callable(getattr(cls, name, None)):
            raise StrategyError(f"{cls.__name__} has no method {name!r}.")
    drawing = Drawing(cls, fields, dims, dtypes, specials=False)
    callees = {name: Callee.of(getattr(cls, name), cls, frozenset()) for name in names}
    for name, given in (args or {}).items():
        if name not in callees:
            subject = f"the machine of {cls.__name__}"
            raise StrategyError.unknown_name(subject, "step", name, "steps", callees)
        callees[name].check_names(given)
    said = [pair for callee in callees.values() for pair in callee.annotations]
    check_dims(cls.__name__, dims, said)
    made: dict[str, Any] = {"__doc__": f"Histories of a {cls.__name__}."}
    for name, callee in callees.items():
        made[f"call_{name}"] = _step(callee, (args or {}).get(name, {}))
    body = {"_cls": cls, "_drawing": drawing, "_memo": {}, **made}
    return type(f"{cls.__name__}Machine", (_Machine,), body)


def _jitted(cls: Any) -> Iterable[str]:
    for name in dir(cls):
        held = getattr(cls, name, None)  # a static str has a `lower` as well
        if not name.startswith("_") and callable(held) and hasattr(held, "eval_shape"):
            yield name


def _step(callee: Callee, args: Mapping[str, Any]) -> Any:
    @rule(data=st.data(), how=st.sampled_from(["plain", "donated", "in a batch"]))
    def call(self: Any, data: Any, how: str) -> None:
        self.step(callee, args, data.draw, how)

    return call


class _Machine(RuleBasedStateMachine):
    """What all machines share."""

    _cls: Any
    _drawing: Drawing
    _memo: dict[Any, Any]

    def __init__(self) -> None:
        super().__init__()
        self.state: Any = None
        self.kept: list[tuple[Any, Any]] = []
        self.history: list[str] = []

    @initialize(data=st.data(), variant=st.integers(0, 1))
    def start(self, data: Any, variant: int) -> None:
        """Draw the first State."""
        scope = self._drawing.scope(data.draw, variant)
        made = self._drawing.draw(scope)
        self.variant, self.sizes, self.state = variant, scope.sizes, made.state
        self.history = [f"state = {paste_call(made.cls.__name__, made.given)}"]

    @rule()
    @precondition(lambda self: self.state is not None)
    def keep(self) -> None:
        """Save the State, with a copy to compare it with later."""
        self.kept.append((self.state, fresh(self.state)))

    @rule(data=st.data())
    @precondition(lambda self: len(self.kept) > 0)
    def restore(self, data: Any) -> None:
        """Go back to a State that was saved."""
        self.state, _ = data.draw(st.sampled_from(self.kept))
        self.history.append("state = one that was kept")

    def step(
        self, callee: Callee, args: Mapping[str, Any], draw: Any, how: str
    ) -> None:
        """Call a method in one of the ways, and go on with the State it returns."""
        scope = self._drawing.scope(draw, self.variant)
        scope.sizes.update(self.sizes)
        memo = self._memo.setdefault(callee.name, {})
        device = jax.devices()[0]
        here = _Here(self._cls, dims=self._drawing.dims, dtypes=self._drawing.dtypes)
        here.state = self.state
        call = Call(callee, here, args, scope, self.variant, {}, device, memo)
        given = {k: v for k, v in (call.operands | call.statics).items() if k != "self"}
        shown = ", ".join(f"{name}={paste(value)}" for name, value in given.items())
        self.history.append(f"state.{callee.name.rpartition('.')[2]}({shown})  # {how}")
        try:
            self._go_on(call, how)
        except Exception as error:
            if not is_leak(error, callee.outside):
                raise
            kept = tracers_of(callee.outside())
            self._broken("leaks", next(iter(kept), ""), LEAK)

    def _go_on(self, call: Call, how: str) -> None:
        call.trace_first()
        try:
            # On the State itself, not on a copy: one that was kept must not notice.
            eager = call.run(call.operands)
        except Exception as error:
            if not is_refusal(self._cls, error):
                raise
            self._broken("check", "", error_text(error))
        law = "jit"
        if how == "donated":
            law = "donation"
            step = call.once("donated", lambda: jax.jit(call.run, donate_argnums=0))
            with quietly():
                found = step(fresh(call.operands))
        elif how == "in a batch" and _is_arrays(call.operands):
            law = "vmap"
            batch = jax.tree.map(lambda leaf: stacked([leaf] * 2), call.operands)
            mapped = call.once("batch", lambda: jax.jit(jax.vmap(call.run)))
            found = row(mapped(batch), 1)
        else:
            found = call.jitted(call.operands)
        self._compare(law, eager, found)
        state = call.state_of(eager)
        # A new structure would compile again at every step: a machine stays with one.
        if state is not None and not differ_in_type(self.state, state):
            self.state = state
        for was, copy in self.kept:
            self._compare("saves", copy, was)

    def _compare(self, law: str, expected: Any, found: Any) -> None:
        difference = mismatch(expected, found, slack=10)
        if difference is not None:
            self._broken(law, *difference)

    def _broken(self, law: str, path: str, what: str) -> NoReturn:
        name, history = self._cls.__name__, "\n".join(self.history)
        backend = jax.default_backend()
        raise LawError(law, _PROMISES[law], name, path, backend, what, history)


class _Here(Drawing):
    """Draws the State that a machine has come to."""

    state: Any = None

    def draw(self, scope: Scope) -> Made:
        return Made(self.cls, {}, self.state)


def _is_arrays(tree: Any) -> bool:
    return all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(tree))
