"""`functools.cached_property` on a State: allowed, and never a home for tracers.

The cached value lives in the instance's `__dict__` as usual. It is not a field: the
tree does not contain it, and copies, updates and rebuilt instances start without.
"""

import functools
from typing import Any

import jax
import numpy as np

from purestate._compat import is_tracer, is_tracing
from purestate._schema.marks import held_by


def guard_cached_properties(cls: type) -> frozenset[str]:
    """Replace every `functools.cached_property` by one that never keeps a tracer."""
    names = set()
    for base in cls.__mro__[::-1]:
        for name, value in list(base.__dict__.items()):
            if isinstance(value, functools.cached_property):
                names.add(name)
                if not isinstance(value, _CachedProperty):
                    safe = _CachedProperty(value.func)
                    safe.__set_name__(cls, name)
                    setattr(cls, name, safe)
            elif name in names:
                names.discard(name)
    return frozenset(names)


class _CachedProperty(functools.cached_property[Any]):
    """`functools.cached_property`, but a result that may hold a tracer is not cached.

    A State closed over by a jitted function outlives the trace; a tracer kept on it
    would be handed to the next caller.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        value = self.func(instance)
        if not is_tracing() or _is_concrete(value):
            held_by(instance)[str(self.attrname)] = value
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored_cached_property, (self.func, self.attrname)


def _is_concrete(value: Any) -> bool:
    """Return whether a value made while tracing surely holds no tracer."""
    try:
        leaves = jax.tree.leaves(value)
    except Exception:  # noqa: BLE001  # keys that cannot be sorted, and the like
        return False
    plain = (bool, int, float, complex, str, bytes, np.ndarray, jax.Array)
    return all(isinstance(x, plain) and not is_tracer(x) for x in leaves)


def _restored_cached_property(func: Any, name: str) -> _CachedProperty:
    made = _CachedProperty(func)
    made.attrname = name
    return made
