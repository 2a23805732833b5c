"""What differs between versions of Python and JAX, and nothing else.

Every other file may assume that what is exported here behaves the same everywhere.
"""

import functools
import inspect
import sys
import threading
from typing import Any

import jax.numpy as jnp
from jax.core import Tracer

__all__ = [
    "current_trace",
    "fills_dict",
    "is_tracer",
    "is_tracing",
    "outermost_trace",
    "own_annotations",
]

_SHARED_KEYS = 30  # beyond this, CPython gives each instance a dict of its own [1]


def fills_dict(count: int) -> bool:
    """Return whether `count` attributes are best stored through an object's `__dict__`.

    From CPython 3.13 on they stay inside the object [2]. Before, asking for `__dict__`
    makes later attribute reads about 1.4 x slower; a finished dict put in place of it
    does not.

    [1] CPython, Objects/dictobject.c, SHARED_KEYS_MAX_SIZE
    [2] python/cpython#115776
    """
    return sys.version_info >= (3, 13) or count > _SHARED_KEYS


def own_annotations(cls: type) -> dict[str, Any]:
    """Return the annotations of the class body itself, strings left as strings."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(
            cls, format=annotationlib.Format.FORWARDREF
        )
    return inspect.get_annotations(cls)


def is_tracer(value: object) -> bool:
    """Return whether `value` stands for an array inside a transformed function."""
    return isinstance(value, Tracer)


def current_trace() -> object:
    """Return something that equals itself exactly while the same trace is running."""
    import jax.extend.core  # imports much, so only once it is needed

    home: Any = jax.extend.core
    if not hasattr(home, "get_opaque_trace_state"):
        home = sys.modules["jax.core"]
    return home.get_opaque_trace_state(convention="purestate")


@functools.cache
def outermost_trace() -> object:
    """Return what `current_trace` is while nothing is traced, in any thread."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(current_trace()))
    thread.start()  # a new thread is inside of no trace
    thread.join()
    return found[0]


def is_tracing() -> bool:
    """Return whether jnp returns tracers, also for arguments that are none."""
    return is_tracer(jnp.zeros(()))
