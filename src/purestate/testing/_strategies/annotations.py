"""From an annotation to a value: what a field or an argument may be, drawn.

jaxtyping is understood without being imported. Where annotations say too little, a
default, the name of a key and `register_strategy` help; where nothing does, the error
says which field it is.
"""

import collections.abc as abc
import dataclasses
import enum
import re
import types
import typing
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np

from purestate._instance.numbers import is_number
from purestate._schema.annotations import array_dtypes, evaluated
from purestate._schema.marks import is_state_class
from purestate.errors import StrategyError
from purestate.testing._strategies.arrays import draw_array, draw_numpy, keys
from purestate.testing._strategies.construct import ABSENT, Parameter, construct
from purestate.testing._strategies.registered import registered
from purestate.testing._strategies.scope import Scope

_KEY_NAMES = re.compile(r"(.*_)?(key|rng)", re.IGNORECASE)
_LISTS = (list, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection)
_DICTS = (dict, abc.Mapping, abc.MutableMapping)
_SETS = (set, frozenset, abc.Set)
# Small and safe to compute with; jit compiles once for each.
_STATIC: dict[Any, tuple[Any, ...]] = {
    bool: (False, True),
    int: (1, 2, 3),
    float: (1.0, 0.5, 2.0),
    complex: (1j, 0.5 + 0.5j),
    str: ("a", "b"),
    bytes: (b"a", b"b"),
}
_ODD_STATIC: dict[Any, tuple[Any, ...]] = {
    int: (0, -1),
    float: (0.0, -0.0, float("nan")),
    str: ("",),
}


def unchanged(value: Any) -> Any:
    """Return the value: a function for static fields."""
    return value


# A plain function, a method of a class and one of a str are static values, too.
_ANY_STATIC = (
    *(1, "a", None, True, 1.0, ("a", 2)),
    *(unchanged, dict.fromkeys, "a".upper),
)


def draw_value(scope: Scope, parameter: Parameter, place: str) -> Any:
    """Draw what a parameter may be.

    Raises:
        StrategyError: its annotation says too little.
    """
    annotation, owner = parameter.annotation, parameter.owner
    if annotation is ABSENT:
        if parameter.default is ABSENT:
            raise StrategyError.unannotated(place, scope.given, scope.part)
        return parameter.default
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        annotation = evaluated(owner or type(None), annotation)
    if isinstance(annotation, typing.TypeVar):
        annotation = scope.typevars.get(annotation, annotation)
    parameter = dataclasses.replace(parameter, annotation=annotation)
    known = registered(annotation)
    if known is not None:
        return scope.draw(known)
    keeps_default = parameter.static and parameter.default is not ABSENT
    if keeps_default and not _is_listed(annotation):
        return parameter.default
    if array_dtypes(type(None), annotation) is not None or annotation is np.ndarray:
        return _array(scope, parameter, place)
    for rule in (_special_form, _scalar, _container, _instance):
        found = rule(scope, parameter, place)
        if found is not _NO:
            return found
    if parameter.default is not ABSENT:
        return parameter.default
    raise StrategyError.unknown(place, _text(annotation), scope.given, scope.part)


class _No:
    """The answer of a rule that does not know the annotation."""


_NO = _No()


def _is_listed(annotation: Any) -> bool:
    """Return whether an annotation lists its values: each of them must work."""
    if annotation is bool or typing.get_origin(annotation) is typing.Literal:
        return True
    return isinstance(annotation, type) and issubclass(annotation, enum.Enum)


def _array(scope: Scope, parameter: Parameter, place: str) -> Any:
    """Draw for `jax.Array`, jaxtyping on it, unions with it, and `np.ndarray`."""
    annotation = parameter.annotation
    members = _members(annotation)
    if members != (annotation,):
        return _one_of(scope, parameter, members, place)
    if annotation is np.ndarray:
        shape = scope.shared_shape()
        return draw_numpy(scope.draw, shape, scope.dtype(), scope.specials)
    dims = getattr(annotation, "dim_str", None)
    dtypes = array_dtypes(type(None), annotation) or ()
    if "prng_key" in dtypes and len(dtypes) == 1:
        return scope.draw(keys(scope.shape(dims or "", place)))
    default = parameter.default
    is_numeric = is_number(default) or hasattr(default, "dtype")
    name = place.rpartition(".")[2]
    if dims is None and not is_numeric and _KEY_NAMES.fullmatch(name):
        return scope.draw(keys())
    if is_numeric and jnp.issubdtype(_dtype_of(default), jax.dtypes.prng_key):
        return scope.draw(keys(jnp.shape(default)))
    if dims is not None:
        shape = scope.shape(dims, place)
    else:
        shape = jnp.shape(default) if is_numeric else scope.shared_shape()
    wanted = parameter.dtype
    if wanted is None and is_numeric and not dtypes:
        wanted = _dtype_of(default)
    dtype = scope.dtype(dtypes) if wanted is None else wanted
    return draw_array(scope.draw, shape, dtype, scope.specials)


def _dtype_of(value: Any) -> Any:
    if hasattr(value, "dtype"):
        return value.dtype
    return jax.dtypes.canonicalize_dtype(np.dtype(type(value)))


def _special_form(scope: Scope, parameter: Parameter, place: str) -> Any:
    annotation = parameter.annotation
    origin = typing.get_origin(annotation)
    arguments: Any = typing.get_args(annotation)
    if annotation is None or annotation is type(None):
        return None
    if isinstance(annotation, typing.TypeVar):
        return _one_of(scope, parameter, _bounds(annotation), place)
    if isinstance(annotation, dataclasses.InitVar):
        return _one_of(scope, parameter, (annotation.type,), place)
    if origin is typing.Annotated:
        for extra in arguments[1:]:
            if isinstance(extra, st.SearchStrategy):
                return scope.draw(extra)
        return _one_of(scope, parameter, arguments[:1], place)
    if origin is typing.Final:
        return _one_of(scope, parameter, arguments, place)
    if origin is typing.Literal:
        return scope.choose(arguments)
    if origin in (typing.Union, types.UnionType):
        return _one_of(scope, parameter, arguments, place)
    for alias in ("__value__", "__supertype__"):  # `type X = ...`, NewType
        if hasattr(annotation, alias):
            return _one_of(scope, parameter, (getattr(annotation, alias),), place)
    return _NO


def _bounds(variable: Any) -> tuple[Any, ...]:
    return variable.__constraints__ or (variable.__bound__ or object,)


def _members(annotation: Any) -> tuple[Any, ...]:
    origin = typing.get_origin(annotation)
    arguments: Any = typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return tuple(arguments)
    if origin in (typing.Annotated, typing.Final):
        return tuple(arguments[:1])
    for alias in ("__value__", "__supertype__"):
        if hasattr(annotation, alias):
            return (getattr(annotation, alias),)
    return (annotation,)


def _one_of(
    scope: Scope, parameter: Parameter, members: Sequence[Any], place: str
) -> Any:
    if type(None) in members and scope.too_deep:
        return None
    chosen = scope.choose(members)
    return draw_value(scope, dataclasses.replace(parameter, annotation=chosen), place)


def _scalar(scope: Scope, parameter: Parameter, place: str) -> Any:
    annotation = parameter.annotation
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return scope.choose(list(annotation))
    if annotation in (object, Any):
        return _anything(scope, parameter, place)
    if annotation not in _STATIC:
        return _NO
    if parameter.static or annotation in (str, bytes):
        odd = _ODD_STATIC.get(annotation, ()) if scope.specials else ()
        return scope.choose((*_STATIC[annotation], *odd))
    dtype = {bool: "bool", int: "int32", float: "float32", complex: "complex64"}
    return draw_numpy(scope.draw, (), dtype[annotation], scope.specials).item()


def _anything(scope: Scope, parameter: Parameter, place: str) -> Any:
    if parameter.static:
        return scope.choose(_ANY_STATIC)
    array = dataclasses.replace(parameter, annotation=jax.Array)
    kinds = (jax.Array,) if scope.is_tame else (jax.Array, None, list, dict)
    kind = scope.choose(kinds)
    if kind in (list, dict):
        found = [draw_value(scope, array, place) for _ in range(2)]
        return found if kind is list else dict(zip("ab", found, strict=True))
    return None if kind is None else draw_value(scope, array, place)


def _container(scope: Scope, parameter: Parameter, place: str) -> Any:
    annotation = parameter.annotation
    kind = typing.get_origin(annotation) or annotation
    arguments = typing.get_args(annotation)

    def part(annotation: Any, step: Any) -> Any:
        inner = dataclasses.replace(parameter, annotation=annotation, default=ABSENT)
        return draw_value(scope, inner, f"{place}[{step!r}]")

    count = 0 if scope.too_deep else None
    if kind is tuple and arguments and arguments[-1] is not ...:
        return tuple(part(a, i) for i, a in enumerate(arguments) if a != ())
    if kind is tuple or kind in _LISTS or kind in _SETS:
        inner = arguments[0] if arguments else object
        length = scope.choose((1, 2, 0)) if count is None else count
        items = [part(inner, i) for i in range(length)]
        if kind is tuple or (parameter.static and kind in _LISTS):
            return tuple(items)
        if kind in _LISTS:
            return items
        return set(items) if kind is set else frozenset(items)
    if kind in _DICTS:
        named, inner = arguments or (str, object)
        length = scope.choose((1, 2, 0)) if count is None else count
        labels = "abc"[:length] if named is str else [part(named, "key")] * (length > 0)
        return {label: part(inner, label) for label in labels}
    return _NO


def _instance(scope: Scope, parameter: Parameter, place: str) -> Any:
    annotation = parameter.annotation
    plain = typing.get_origin(annotation) or annotation
    if not isinstance(plain, type):
        return _NO
    if (
        is_state_class(plain)
        or dataclasses.is_dataclass(plain)
        or (issubclass(plain, tuple) and hasattr(plain, "_fields"))
    ):
        return construct(scope, annotation, {}, draw_value, place).state
    return _NO


def _text(annotation: Any) -> str:
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__qualname__
    return str(annotation)
