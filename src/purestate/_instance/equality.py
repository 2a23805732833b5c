"""Equality, hash, copying and pickling of States.

Copies and unpickled instances are frozen, have the same tree structure as their source
and start without cached properties. None of this runs a constructor.
"""

from typing import Any

import jax
import numpy as np

from purestate._compat import is_tracer
from purestate._inspect.key_paths import path_text
from purestate._instance.pytree import new_instance, sealed_aux
from purestate._schema.layout import Layout, layout_of
from purestate._schema.leaves import is_key
from purestate._schema.marks import AUX, held_by
from purestate._schema.static_values import typed
from purestate.errors import (
    TracedEqualityError,
    UnhashableStateError,
)


def are_equal(a: Any, b: Any) -> bool:
    """Return whether two States of one class agree in everything that is compared.

    Raises:
        TracedEqualityError: a leaf is a tracer.
    """
    layout = layout_of(type(a))
    specs = layout.specs
    aux, other = sealed_aux(a), sealed_aux(b)
    if aux is not other and any(
        specs[name].compare and typed(x) != typed(y)
        for name, x, y in zip(layout.static, aux.values, other.values, strict=True)
    ):
        return False
    flat: list[Any] = [
        jax.tree_util.tree_flatten_with_path(_compared(s, layout)) for s in (a, b)
    ]
    first, second = flat
    for path, leaf in (*first[0], *second[0]):
        if is_tracer(leaf):
            raise TracedEqualityError(type(a), path_text(path, layout.cls.__name__))
    if first[1] != second[1]:
        return False
    pairs = zip(first[0], second[0], strict=True)
    return all(same_leaf(x, y) for (_, x), (_, y) in pairs)


def _compared(self: Any, layout: Layout) -> Any:
    """Return a State with the data that count, and with nothing that does not."""
    values = {
        name: held_by(self)[name] if layout.specs[name].compare else None
        for name in layout.data
    }
    return new_instance(layout.cls, values | {AUX: None})


def same_leaf(a: Any, b: Any) -> bool:
    """Return whether two leaves have one type and the same values."""
    if a is b and not hasattr(a, "dtype"):
        return True
    if not (hasattr(a, "dtype") and hasattr(b, "dtype")):
        return type(a) is type(b) and bool(a == b)
    if a.dtype != b.dtype or np.shape(a) != np.shape(b):
        return False
    if isinstance(a, jax.ShapeDtypeStruct) or isinstance(b, jax.ShapeDtypeStruct):
        return bool(a == b)
    if isinstance(a, jax.Ref) or isinstance(b, jax.Ref):
        return a is b  # what it holds may change, so only the same is equal for ever
    if is_key(a):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    return bool(np.array_equal(np.asarray(a), np.asarray(b)))


def hashed(self: Any) -> int:
    """Return the hash of a State without data fields: that of its static values.

    Raises:
        UnhashableStateError: the class has data fields.
    """
    if layout_of(type(self)).data:
        raise UnhashableStateError(type(self))
    layout, aux = layout_of(type(self)), sealed_aux(self)
    pairs = zip(layout.static, aux.values, strict=True)
    return hash(tuple(typed(v) for name, v in pairs if layout.specs[name].compare))
