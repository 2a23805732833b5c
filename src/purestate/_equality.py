"""Equality, hash, copying and pickling of States.

Copies and unpickled instances are frozen, have the same tree structure as their source
and start without cached properties. None of this runs a constructor.
"""

import copy
import dataclasses
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purestate._compat import is_tracer
from purestate._construct import current
from purestate._layout import AUX, Layout, layout_of
from purestate._open import settled
from purestate._paths import words
from purestate._pytree import adopt_values, new_instance, sealed_aux
from purestate._static import typed
from purestate._values import default_of
from purestate.errors import (
    FieldError,
    FrozenStateError,
    TracedEqualityError,
    UnhashableStateError,
)

__all__ = [
    "are_equal",
    "copied",
    "deep_copied",
    "hashed",
    "pickled",
    "same_leaf",
    "unpickle",
]


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
            raise TracedEqualityError(type(a), words(path, layout.cls.__name__))
    if first[1] != second[1]:
        return False
    pairs = zip(first[0], second[0], strict=True)
    return all(same_leaf(x, y) for (_, x), (_, y) in pairs)


def _compared(self: Any, layout: Layout) -> Any:
    """Return a State with the data that count, and with nothing that does not."""
    values = {
        name: self.__dict__[name] if layout.specs[name].compare else None
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
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
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


def copied(self: Any) -> Any:
    """Return a shallow copy, without cached properties."""
    self = settled(self)
    layout, aux = layout_of(type(self)), sealed_aux(self)
    values = {name: self.__dict__[name] for name in layout.names}
    return new_instance(layout.cls, values | {AUX: aux})


def deep_copied(self: Any, memo: dict[int, Any]) -> Any:
    """Return a copy whose data are copied too; static values are shared.

    A static value compared by identity would otherwise give the copy another tree
    structure.
    """
    layout, aux = layout_of(type(self)), sealed_aux(self)
    values = {name: copy.deepcopy(self.__dict__[name], memo) for name in layout.data}
    values |= dict(zip(layout.static, aux.values, strict=True))
    return new_instance(layout.cls, values | {AUX: aux})


def pickled(self: Any) -> dict[str, Any]:
    """Return what pickle stores beside the class: the fields by name."""
    sealed_aux(self)
    held, layout = self.__dict__, layout_of(type(self))
    values = {name: held[name] for name in layout.names}
    for name in layout.static:
        if callable(values[name]):
            values[name] = _findable(values[name])
    return values


def unpickle(self: Any, values: dict[str, Any]) -> None:
    """Fill an empty instance with what was pickled, perhaps by an older class.

    Raises:
        FieldError: a field that the class does not have any more, or a new one without
            a default.
        FrozenStateError: the instance is finished.
    """
    cls = type(self)
    layout = current(cls)
    if self.__dict__:
        raise FrozenStateError.constructing(cls)
    if tuple(values) != layout.names:
        values = _fitted(layout, values)
    for name in layout.static:
        if isinstance(values[name], _Public):
            values[name] = values[name].found()
    aux = layout.intern(values)
    values.update(zip(layout.static, aux.values, strict=True))
    values[AUX] = aux
    adopt_values(self, values)


class _Public:
    """A function of jax that pickle cannot find by its own name, by its public one."""

    def __init__(self, home: str, name: str) -> None:
        self.home, self.name = home, name

    def found(self) -> Any:
        return getattr(importlib.import_module(self.home), self.name)


def _findable(function: Any) -> Any:
    """Return a function as it is, or by its public name where pickle would fail.

    `jax.nn.relu` and others are wrapped after they were defined; pickle looks for them
    in the module of the definition and finds something else.
    """
    name = getattr(function, "__name__", "")
    for home in ("jax.nn", "jax.numpy", "jax.lax", "jax.scipy.special"):
        if getattr(importlib.import_module(home), name, None) is function:
            return _Public(home, name)
    return function


def _fitted(layout: Layout, values: dict[str, Any]) -> dict[str, Any]:
    cls = layout.cls
    for name in values:
        if name not in layout.names:
            raise FieldError.unknown(cls, name, layout.names)
    made = {n: default_of(layout.specs[n]) for n in layout.names if n not in values}
    unset = [name for name, value in made.items() if value is dataclasses.MISSING]
    if unset:
        raise FieldError.missing(cls, unset, layout.names)
    return {name: (values | made)[name] for name in layout.names}
