"""What jax is told about host calls with effects, so that each runs once per step.

Under `grad` jax splits the body of a loop: into what depends on a tangent and what does
not, and then once more, to move what does not change out of the loop. The first split
leaves an effect where it is, for effects have no tangents; the second must not move it,
nor drop it because nobody uses its result. An `io_callback` of jax's own in a `scan`
under `grad`, its result unused, ran 0 times in place of 10; see also jax#16637.

For that, three of jax's rules for such splits are replaced, for the whole process: that
of a host call, and those of `cond` and `while`, which are what they were unless a host
call with effects is inside. The table of these rules is no stable part of jax, so it is
left alone until the first function with effects is declared. Where it is missing,
effects are refused in what is differentiated.
"""

import atexit
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.experimental import io_callback

from purestate._compat import is_differentiating, splits_in_loops
from purestate.errors import HostGradError


def _io() -> dict[str, frozenset[Any]]:
    found: dict[str, frozenset[Any]] = {"": frozenset()}
    for name in ("unordered", "ordered"):
        traced = jax.make_jaxpr(
            lambda ordered: io_callback(lambda: None, None, ordered=ordered),
            static_argnums=0,
        )(name == "ordered")
        found[name] = frozenset(traced.effects)
    return found


# jax's own effects of callbacks: scan, while and cond admit these and no others, and
# checkpoint refuses them, which is right: it would run them again.
IO = _io()
# jax drops an `io_callback` from a loop that it splits, and keeps a `debug.callback`,
# going by these. Both together say that a call has to stay, and in which order.
_DEBUG = frozenset(jax.make_jaxpr(lambda: jax.debug.callback(lambda: None))().effects)
EFFECTS = {name: found | _DEBUG if found else found for name, found in IO.items()}


class _Running(threading.local):
    """Whether this thread runs the derivative rule of a host call."""

    rule = False


_running = _Running()


@contextlib.contextmanager
def rule_runs() -> Iterator[None]:
    """Say that calls come from a derivative rule.

    jax splits what a rule does as well. What the call gets there is known already, so
    that the split would leave it where it is; keeping it would make it an unknown.
    """
    before, _running.rule = _running.rule, True
    try:
        yield
    finally:
        _running.rule = before


@functools.cache
def allow_effects(primitive: Any) -> None:
    """Make effects of a primitive run as often as they should, from now on.

    At the first function that has effects: nobody else pays for it.
    """
    atexit.register(jax.effects_barrier)  # no step is lost at exit
    rules = splits_in_loops()
    controls = (jax.lax.cond_p, jax.lax.while_p)
    if any(control not in rules for control in controls):
        primitive.bind = _refusing(primitive.bind)
        return

    def split(trace: Any, *tracers: Any, **params: Any) -> Any:
        if params["operation"]().options.has_effects and not _running.rule:
            return _kept(trace, primitive, tracers, params)
        return trace.default_process_primitive(primitive, tracers, params)

    rules[primitive] = split
    # jax would move a branch out of the loop whose predicate does not change there, or
    # drop it with its effects if nobody uses its result.
    for control in controls:
        rules[control] = _control(control, rules[control])


def _control(primitive: Any, usual: Callable[..., Any]) -> Callable[..., Any]:
    def split(trace: Any, *tracers: Any, **params: Any) -> Any:
        if _has_host_effects(params):
            return _kept(trace, primitive, tracers, params)
        return usual(trace, *tracers, **params)

    return split


def _kept(trace: Any, primitive: Any, tracers: Any, params: dict[str, Any]) -> Any:
    # As if all operands were unknown before the backward pass: what makes an unknown
    # of a call stays in the loop, at its place.
    staged = [trace.instantiate_const(tracer) for tracer in tracers]
    return trace.default_process_primitive(primitive, staged, params)


def _has_host_effects(params: dict[str, Any]) -> bool:
    """Return whether a body has effects as only host calls have: both kinds."""
    names = ("body_jaxpr", "cond_jaxpr")
    bodies = [*params.get("branches", ()), *map(params.get, names)]
    return any(
        _DEBUG <= body.effects and body.effects & (IO["ordered"] | IO["unordered"])
        for body in bodies
        if body is not None
    )


def _refusing(bind: Callable[..., Any]) -> Callable[..., Any]:
    """Return how a primitive is bound where its effects could be lost in silence.

    A derivative rule would be too late: jax asks for it only where there is a tangent.
    """

    def refuse(*operands: Any, **params: Any) -> Any:
        options = params["operation"]().options
        if options.has_effects and is_differentiating():
            raise HostGradError(
                options.name,
                options.place,
                "has effects, and is inside of what is differentiated. This version of "
                "jax would drop it from a loop without a word, and has no "
                "jax.interpreters.partial_eval.custom_partial_eval_rules by which "
                "purestate could keep it there: leave the function out, or use "
                "another version of jax.",
            )
        return bind(*operands, **params)

    return refuse
