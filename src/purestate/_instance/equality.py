"""Equality and hash of States: by class, structure, static values and leaves."""

from typing import Any

import jax
import numpy as np
from jax.tree_util import tree_leaves_with_path

from purestate._compat import Tracer, is_tracer
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

# Leaves for which `same_leaf` is `==` and jax needs not be asked.
_PLAIN = frozenset({bool, int, float, complex, str, bytes})


def are_equal(a: Any, b: Any) -> bool:
    """Return whether two States of one class agree in everything that is compared.

    Raises:
        TracedEqualityError: a leaf is a tracer.
    """
    layout = layout_of(type(a))
    (first, aux), (second, other) = layout.flatten(a), layout.flatten(b)
    if aux is not other and any(
        layout.specs[name].compare and typed(x) != typed(y)
        for name, x, y in zip(layout.static, aux.values, other.values, strict=True)
    ):
        return False
    if layout.compared is not layout.data:
        first, second = (
            tuple(held_by(state)[name] for name in layout.compared) for state in (a, b)
        )
    kinds = list(map(type, first))
    if _PLAIN.issuperset(kinds) and kinds == list(map(type, second)):
        return first == second
    return _are_equal_trees(a, b, layout)


def _are_equal_trees(a: Any, b: Any, layout: Layout) -> bool:
    a, b = _compared(a, layout), _compared(b, layout)
    flat: list[Any] = [jax.tree.flatten(state) for state in (a, b)]
    (first, was), (second, now) = flat
    # Of each type once: isinstance(leaf, Tracer) takes 0.3 us, for jax overrides it.
    if any(
        issubclass(kind, Tracer) for kind in {*map(type, first), *map(type, second)}
    ):
        for path, leaf in (*tree_leaves_with_path(a), *tree_leaves_with_path(b)):
            if is_tracer(leaf):
                raise TracedEqualityError(type(a), path_text(path, layout.cls.__name__))
    return bool(was == now) and all(map(same_leaf, first, second))


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
