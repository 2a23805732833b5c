"""How the body of a class becomes fields.

The standard library's `dataclasses` reads the body, so that every spelling it knows
(`field`, `KW_ONLY`, `InitVar`, `ClassVar`, string annotations) means here what it means
there. This file adds the rules for arrays and for names.
"""

import dataclasses
import keyword
import unicodedata
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import jax

from purestate._compat import is_tracer, own_annotations
from purestate._schema.fields import (
    MISSING,
    array_factory,
    field,
    holds_arrays,
    is_stored,
    static,
)
from purestate._schema.leaves import is_array
from purestate.errors import DeclarationError, ReservedNameError, UnannotatedArrayError
from purestate.errors._text import short

_RESERVED = frozenset({"at", "draft", "replace"})


def read_body(
    cls: type, inherited: Mapping[str, Any], *, kw_only: bool
) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields that the body of `cls` declares itself, in order.

    Args:
        cls: a class whose body has just been executed.
        inherited: the fields of its bases by name.
        kw_only: whether fields are keyword-only where they do not say.

    Raises:
        DeclarationError: a body that cannot become a State; each kind of mistake that
            has a name of its own raises that subclass.
    """
    annotations = own_annotations(cls)
    body = {
        "__annotations__": annotations,
        "__doc__": "read by dataclasses",  # which would write one if there were none
        "__module__": cls.__module__,
    }
    bare = annotations.keys() - cls.__dict__.keys()
    values = {name: _inherited_default(cls, name, inherited) for name in bare}
    for name, value in list(cls.__dict__.items()):
        if name in annotations:
            values[name] = _owned(cls, name, value)
        elif not (name.startswith("__") and name.endswith("__")):
            _check_unannotated(cls, name, value, inherited)
    # dataclasses reads a stand-in: on `cls` itself it would insist that all bases are
    # frozen or none is, and would add methods.
    reader = dataclasses.dataclass(
        init=False, repr=False, eq=False, match_args=False, kw_only=kw_only
    )
    try:
        standin: Any = type(cls.__name__, (), body)
        for name, value in values.items():
            if value is not MISSING:
                setattr(standin, name, value)  # not in the body: __set_name__ has run
        standin = reader(standin)
    except (TypeError, ValueError) as error:
        raise DeclarationError(f"{cls.__name__}: {error}") from error
    fields: dict[str, dataclasses.Field[Any]] = dict(standin.__dataclass_fields__)
    for name, spec in fields.items():
        if is_stored(spec):
            _check_name(cls, name)
    return fields


def _inherited_default(cls: type, name: str, inherited: Mapping[str, Any]) -> Any:
    """Return the default that a bare annotation has from a base, else MISSING."""
    spec = inherited.get(name)
    if spec is not None and spec.default_factory is not MISSING:
        return dataclasses.field(default_factory=spec.default_factory)
    if spec is not None:
        return spec.default
    found = (b.__dict__[name] for b in cls.__mro__[1:] if name in b.__dict__)
    value = next(found, MISSING)
    return MISSING if hasattr(value, "__get__") else value


def _owned(cls: type, name: str, value: Any) -> Any:
    """Return a default that instances can share: arrays become factories."""
    default = value.default if isinstance(value, dataclasses.Field) else value
    is_def = getattr(value, "__qualname__", "") == f"{cls.__qualname__}.{name}"
    if isinstance(value, property) or (is_def and isinstance(value, FunctionType)):
        raise DeclarationError(
            f"{cls.__name__}.{name} is declared as a field and defined as a "
            f"{'property' if isinstance(value, property) else 'method'}: rename one."
        )
    if is_tracer(default):
        raise DeclarationError(
            f"the default of {cls.__name__}.{name} is a tracer: the class is being "
            f"made inside a transformed function. Move the class to module level, or "
            f"give {name} no default."
        )
    if not isinstance(default, type) and hasattr(type(default), "__set__"):
        raise DeclarationError(
            f"{cls.__name__}.{name} = {short(default)} is a descriptor that would be "
            f"asked for the field's value, and a State holds its values itself. Check "
            f"or convert values with ps.field(converter=...), or in __check__."
        )
    if default is field or default is static:
        raise DeclarationError(
            f"{cls.__name__}.{name} = ps.{default.__name__} lacks its parentheses: "
            f"write ps.{default.__name__}()."
        )
    if not holds_arrays(default):
        return value
    spec = value if isinstance(value, dataclasses.Field) else dataclasses.field()
    spec.default = MISSING
    spec.default_factory = array_factory(default)
    return spec


def _check_unannotated(
    cls: type, name: str, value: object, inherited: Mapping[str, Any]
) -> None:
    parts = jax.tree.leaves(value) if type(value) in (list, tuple, dict) else [value]
    if any(map(is_array, parts)):
        raise UnannotatedArrayError(cls, name)
    if isinstance(value, dataclasses.Field):
        raise DeclarationError(
            f"{cls.__name__}.{name} has a field specifier but no annotation: write "
            f"`{name}: SomeType = ...`."
        )
    if name in inherited and is_stored(inherited[name]):
        what = "property or method" if hasattr(value, "__get__") else "value"
        raise DeclarationError(
            f"{cls.__name__}.{name} is a {what} without an annotation, but {name} is a "
            f"field of a base class, whose value would hide it or be hidden. To change "
            f"the field's default write `{name}: SomeType = ...`; else rename it."
        )


def _check_name(cls: type, name: str) -> None:
    if name in _RESERVED:
        raise ReservedNameError(cls, name)
    dunder = name.startswith("__") and name.endswith("__")
    is_python = name.isidentifier() and unicodedata.normalize("NFKC", name) == name
    if dunder or name.startswith("_ps_") or not is_python:
        raise DeclarationError(
            f"{cls.__name__} cannot have a field named {name!r}: choose an identifier "
            f"that does not start with '_ps_' and is not a __special__ name."
        )
    if keyword.iskeyword(name):
        raise DeclarationError(
            f"{cls.__name__} cannot have a field named {name!r}, which is a keyword of "
            f"Python: use {name + '_'!r}."
        )
