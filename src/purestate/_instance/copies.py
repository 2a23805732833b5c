"""Copying and pickling of States.

Copies and unpickled instances are frozen, have the same tree structure as their source
and start without cached properties. None of this runs a constructor.
"""

import copy
import copyreg
import dataclasses
import functools
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

from purestate._instance.construct import WRAPS, failed
from purestate._instance.draft import blocks, settled
from purestate._instance.pytree import adopt_values, new_instance, sealed_aux
from purestate._instance.seal import default_of, fill_defaults, freeze
from purestate._schema.layout import BETWEEN, Layout, layout_of
from purestate._schema.marks import AUX, OPEN, held_by
from purestate._schema.static_values import is_value_dataclass
from purestate.errors import FieldError, FrozenStateError


def copied(self: Any) -> Any:
    """Return a shallow copy, without cached properties."""
    if blocks.open or AUX not in held_by(self):
        self = settled(self)
    layout = layout_of(type(self))
    row, aux = layout.flatten(self)
    return layout.unflatten(aux, row)


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
    """Return the fields by name, in a form that can be pickled, for hooks of users."""
    sealed_aux(self)
    held, layout = held_by(self), layout_of(type(self))
    values = {name: held[name] for name in layout.names}
    return values | {name: _portable(values[name]) for name in layout.static}


def reduced(self: Any) -> tuple[Any, ...]:
    """Return how pickle makes a State again: of its class, of names and of a row.

    The names are one string, an object of the class that a pickle of many instances
    holds once; a row becomes an instance by the way of unflatten.
    """
    layout = layout_of(type(self))
    if layout.has_pickle_hooks:  # one of them called this one through super()
        return object.__reduce__(self)  # type: ignore[return-value]
    row, aux = layout.flatten(self)
    state = layout.row_names, row, tuple(map(_portable, aux.values))
    return copyreg.__newobj__, (layout.cls,), state  # type: ignore[attr-defined]


def unpickle(self: Any, state: dict[str, Any] | tuple[Any, ...]) -> None:
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
    if type(state) is tuple and state[0] == layout.row_names:
        _, row, static = state
    else:
        given = _by_name(*state) if type(state) is tuple else dict(state)
        values = given if tuple(given) == layout.names else _fitted(layout, given)
        row = tuple(values[name] for name in layout.data)
        static = tuple(values[name] for name in layout.static)
    aux = layout.aux
    if static:
        aux = layout.intern(dict(zip(layout.static, map(_found, static), strict=True)))
    adopt_values(self, held_by(layout.unflatten(aux, row)))


def _by_name(names: str, row: Any, static: Any) -> dict[str, Any]:
    known = names.split()
    known.remove(BETWEEN)
    return dict(zip(known, (*row, *static), strict=True))


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


class _Portable:
    """A static value in a form that can be pickled; `found` is the value again."""

    def __init__(self, make: Callable[..., Any], *parts: Any) -> None:
        self.make, self.parts = make, parts

    def found(self) -> Any:
        return self.make(*map(_found, self.parts))


def _found(part: Any) -> Any:
    return part.found() if type(part) is _Portable else part


def _portable(value: Any) -> Any:
    """Return a static value, with functions of jax in it by their public names.

    `jax.nn.relu` and others are wrapped after they were defined; pickle looks for them
    in the module of the definition and finds something else.
    """
    if isinstance(value, tuple):
        return _of_parts(value, _tuple, type(value), *value)
    if isinstance(value, functools.partial):
        names = tuple(value.keywords)
        parts = (value.func, *value.args, *value.keywords.values())
        return _of_parts(value, _partial, names, *parts)
    if is_value_dataclass(value):
        names = tuple(f.name for f in dataclasses.fields(value))
        parts = tuple(getattr(value, name) for name in names)
        return _of_parts(value, _dataclass, type(value), names, *parts)
    home = _public_home(value) if callable(value) else None
    return value if home is None else _Portable(_named, home, value.__name__)


def _of_parts(value: Any, make: Callable[..., Any], *parts: Any) -> Any:
    made = [_portable(part) if part is not value else part for part in parts]
    changed = any(new is not old for new, old in zip(made, parts, strict=True))
    return _Portable(make, *made) if changed else value


def _public_home(function: Any) -> str | None:
    """Return the public module of jax that has a function which pickle would not find.

    It finds plain functions and classes, by name in their module; what jax has wrapped
    is another object than the function of that name.
    """
    name, module = (getattr(function, a, None) for a in ("__name__", "__module__"))
    if not isinstance(name, str) or not str(module).startswith("jax"):
        return None
    own = getattr(sys.modules.get(str(module)), name, None)
    if isinstance(function, type | types.FunctionType) and own is function:
        return None
    homes = [
        home for home in sys.modules if home.startswith("jax.") and "._" not in home
    ]
    found = (h for h in homes if getattr(sys.modules[h], name, None) is function)
    return min(found, key=len, default=None)


def _named(home: str, name: str) -> Any:
    return getattr(importlib.import_module(home), name)


def _tuple(kind: Any, *parts: Any) -> Any:
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


def _partial(names: tuple[str, ...], function: Any, *parts: Any) -> Any:
    count = len(parts) - len(names)
    named = dict(zip(names, parts[count:], strict=True))
    return functools.partial(function, *parts[:count], **named)


def _dataclass(cls: type, names: tuple[str, ...], *parts: Any) -> Any:
    made: Any = object.__new__(cls)
    for name, part in zip(names, parts, strict=True):
        object.__setattr__(made, name, part)
    return made


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
