"""What jax is told about host calls with effects, so that each runs once per step.

Under `grad` jax splits the body of a loop: into what depends on a tangent and what does
not, and then once more, to move what does not change out of the loop. The first split
leaves an effect where it is, for effects have no tangents; the second must not move it,
nor drop it because nobody uses its result.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import io_callback

from purestate._compat import on_partial_evaluation, splits_in_loops


def _io() -> dict[str, frozenset[Any]]:
    found: dict[str, frozenset[Any]] = {"": frozenset()}
    for name in ("unordered", "ordered"):
        traced = jax.make_jaxpr(
            lambda ordered: io_callback(lambda: None, None, ordered=ordered),
            static_argnums=0,
        )(name == "ordered")
        found[name] = frozenset(traced.effects)
    return found


# jax's own effects of callbacks: scan, while and cond know them, checkpoint refuses.
IO = _io()
# jax drops an `io_callback` from a loop that it splits, and keeps a `debug.callback`.
_DEBUG = frozenset(jax.make_jaxpr(lambda: jax.debug.callback(lambda: None))().effects)
EFFECTS = {name: found | _DEBUG if found else found for name, found in IO.items()}


class _Running(threading.local):
    """Whether this thread runs the derivative rule of a host call."""

    rule = False


_running = _Running()


@contextlib.contextmanager
def rule_runs() -> Iterator[None]:
    """Say that calls come from a derivative rule: what they get is known already."""
    before, _running.rule = _running.rule, True
    try:
        yield
    finally:
        _running.rule = before


def kept_in_loops(primitive: Any) -> None:
    """Keep effects of a primitive, and branches and loops with them, in their loop."""

    def split(trace: Any, *tracers: Any, **params: Any) -> Any:
        if params["op"].options.has_effects and not _running.rule:
            return _kept(trace, primitive, tracers, params)
        return trace.default_process_primitive(primitive, tracers, params)

    on_partial_evaluation(primitive, split)
    # jax would move a branch out of the loop whose predicate does not change there, or
    # drop it with its effects if nobody uses its result.
    for control in (jax.lax.cond_p, jax.lax.while_p):
        _keep_control(control)


def _keep_control(primitive: Any) -> None:
    usual = splits_in_loops(primitive)

    def split(trace: Any, *tracers: Any, **params: Any) -> Any:
        if _has_host_effects(params):
            return _kept(trace, primitive, tracers, params)
        return usual(trace, *tracers, **params)

    on_partial_evaluation(primitive, split)


def _kept(trace: Any, primitive: Any, tracers: Any, params: dict[str, Any]) -> Any:
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
