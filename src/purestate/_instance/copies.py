"""Copying and pickling of States.

Copies and unpickled instances are frozen, have the same tree structure as their source
and start without cached properties. None of this runs a constructor.
"""

import copy
import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any

from purestate._instance.construct import WRAPS, failed
from purestate._instance.draft import settled
from purestate._instance.pytree import adopt_values, new_instance, sealed_aux
from purestate._instance.seal import default_of, fill_defaults, freeze
from purestate._schema.layout import Layout, layout_of
from purestate._schema.marks import AUX, OPEN, held_by
from purestate.errors import FieldError, FrozenStateError


def copied(self: Any) -> Any:
    """Return a shallow copy, without cached properties."""
    self = settled(self)
    layout, aux = layout_of(type(self)), sealed_aux(self)
    values = {name: held_by(self)[name] for name in layout.names}
    return new_instance(layout.cls, values | {AUX: aux})


def deep_copied(self: Any, memo: dict[int, Any]) -> Any:
    """Return a copy whose data are copied too; static values are shared.

    A static value compared by identity would otherwise give the copy another tree
    structure.
    """
    layout, aux = layout_of(type(self)), sealed_aux(self)
    values = {name: copy.deepcopy(held_by(self)[name], memo) for name in layout.data}
    values |= dict(zip(layout.static, aux.values, strict=True))
    return new_instance(layout.cls, values | {AUX: aux})


def pickled(self: Any) -> dict[str, Any]:
    """Return what pickle stores beside the class: the fields by name."""
    sealed_aux(self)
    held, layout = held_by(self), layout_of(type(self))
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
    layout = layout_of(cls)
    if layout.bare:
        cls._ps_awaken()
    if AUX in held_by(self):
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


def wrapped_setstate(setstate: Callable[..., None]) -> Callable[..., None]:
    """Return a hand-written `__setstate__` that ends by freezing the instance."""

    @functools.wraps(setstate)
    def __setstate__(self: Any, state: Any) -> None:
        run_setstate(self, setstate, state)  # cloudpickle carries these lines

    setattr(__setstate__, WRAPS, setstate)
    return __setstate__


def run_setstate(self: Any, setstate: Callable[..., None], state: Any) -> None:
    """Run a hand-written `__setstate__`, and freeze the instance as State's does.

    Raises:
        UnsetFieldError: it left a field without a value that has no default.
    """
    layout, held = layout_of(type(self)), held_by(self)
    if layout.bare:
        type(self)._ps_awaken()
    held[OPEN] = True
    try:
        setstate(self, state)
        if AUX not in held_by(self):
            fill_defaults(layout, held, "__setstate__")
            freeze(self, layout)
    except BaseException as error:
        failed(self, layout, error, "__setstate__")
        raise


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
