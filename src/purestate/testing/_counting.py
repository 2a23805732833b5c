"""How often JAX traces and compiles, and how often host functions run."""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Iterator
from typing import Any

import jax


@contextlib.contextmanager
def assert_traces(n: int, of: Any = None) -> Iterator[None]:
    """Assert that JAX traces exactly `n` times in a `with` block.

    Args:
        n: how often.
        of: a jitted function or method: its traces count. None: every program that is
            compiled, those of single operations outside of jit among them.

    Raises:
        AssertionError: another number of traces.

    >>> import jax, jax.numpy as jnp, purestate.testing as pst
    >>> double = jax.jit(lambda x: 2 * x)
    >>> with pst.assert_traces(1, of=double):
    ...     _ = double(jnp.ones(3)), double(jnp.ones(3))
    """
    name = getattr(of, "__name__", None)
    event = "jaxpr_trace_duration" if of is not None else "backend_compile_duration"
    with recorded() as events:
        yield
    found = [e for e, fun in events if e == event and (of is None or fun == name)]
    if len(found) != n:
        what = "programs compiled" if of is None else f"traces of {name}"
        raise AssertionError(f"expected {n} {what}, and there were {len(found)}.")


_recordings: list[list[tuple[str, str]]] = []


@contextlib.contextmanager
def recorded() -> Iterator[list[tuple[str, str]]]:
    """Record what JAX traces and compiles in the block: pairs of event and function."""
    _listen()
    events: list[tuple[str, str]] = []
    _recordings.append(events)
    try:
        yield events
    finally:
        # By identity: two empty recordings are equal.
        _recordings[:] = [other for other in _recordings if other is not events]


@functools.cache
def _listen() -> None:
    # Once per process: jax 0.7.2 cannot unregister a listener.
    def listen(event: str, duration_secs: float, **facts: Any) -> None:
        for events in _recordings:
            events.append((event.rpartition("/")[2], str(facts.get("fun_name", ""))))

    jax.monitoring.register_event_duration_secs_listener(listen)


@dataclasses.dataclass
class HostCalls:
    """How often the Python function of a host function ran."""

    total: int = 0


@contextlib.contextmanager
def count_host_calls(fn: Any) -> Iterator[HostCalls]:
    """Count how often a host function's own code runs in a `with` block.

    A call that is made to find out what the function returns counts, too; with `out=`
    there is none. Wait for results and effects before the block ends.

    Args:
        fn: what `ps.host_function` returned.

    Raises:
        TypeError: something else was given, or a native function, whose calls in
            programs nobody counts.

    >>> import jax, jax.numpy as jnp, numpy as np, purestate as ps
    >>> import purestate.testing as pst
    >>> sin = ps.host_function(np.sin, out=lambda x: x)
    >>> with pst.count_host_calls(sin) as calls:
    ...     _ = jax.jit(jax.vmap(sin))(jnp.arange(4.0)).block_until_ready()
    >>> calls.total
    4
    """
    options = getattr(fn, "_options", None)
    if options is None:
        raise TypeError(
            f"count_host_calls takes a host function, and got an object of type "
            f"{type(fn).__name__}."
        )
    if fn.lowering == "native":
        raise TypeError(
            f"count_host_calls cannot count calls of {fn.options.label}, which is "
            f"native: programs call it without Python. With the environment variable "
            f"PURESTATE_HOST_LOWERING=pure it is a callback, and counted."
        )
    calls, lock = HostCalls(), threading.Lock()
    replaced = {name: getattr(options, name) for name in ("fn", "batch_fn")}

    def counted(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            with lock:
                calls.total += 1
            return original(*args, **kwargs)

        return call

    # Compiled programs look the function up when they call it.
    for name, original in replaced.items():
        if original is not None:
            object.__setattr__(options, name, counted(original))
    try:
        yield calls
    finally:
        for name, original in replaced.items():
            object.__setattr__(options, name, original)
