"""When two static values are the same: what jit's cache key is made of.

Equality is typed. `True`, `1` and `1.0` are different values, as are `0.0` and `-0.0`;
NaN equals itself, and numpy's integers and booleans count as Python's (jax#9273).
"""

import dataclasses
import enum
import functools
import math
import types
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purestate._compat import is_inside_trace, is_written_by_dataclasses
from purestate._schema.marks import AUX, held_by, is_state
from purestate._schema.tracers import find_tracers

# Exact types whose == agrees with `typed`; floats are asked for in `is_plain`.
_PLAIN = frozenset({bool, int, str, bytes, type(None)})
_METHODS = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
_SCALARS = (str, bytes, int, enum.Enum, type(None), type)


class Unfit(Exception):
    """Internal: a value, or a part of one, that cannot be static."""

    def __init__(self, value: object, path: str = "") -> None:
        super().__init__(path)
        self.value, self.path = value, path


def typed(value: Any) -> Any:
    """Return a key that is equal for the same value of the same type only.

    Raises:
        Unfit: the value, or a part of it, is an array, a tracer or unhashable, or a
            method of something that holds arrays.
    """
    kind = type(value)
    if isinstance(value, float | complex | np.inexact):
        return kind, _float_key(value)
    if isinstance(value, _SCALARS):
        return kind, value
    if _is_small_float(value):
        return kind, _float_key(float(value))
    if isinstance(value, jax.Array | np.ndarray | jax.Ref):
        raise Unfit(value)
    if isinstance(value, tuple):
        return kind, tuple(_at(f"[{i}]", part) for i, part in enumerate(value))
    if isinstance(value, frozenset):
        return kind, frozenset(map(typed, value))
    if isinstance(value, functools.partial):
        named = sorted(value.keywords.items())
        return (
            kind,
            _at(".func", value.func),
            tuple(_at(f".args[{i}]", part) for i, part in enumerate(value.args)),
            tuple((name, _at(f".{name}", part)) for name, part in named),
        )
    if kind is slice:  # hashable from Python 3.12 on only
        return kind, typed((value.start, value.stop, value.step))
    if is_value_dataclass(value):
        names = [f.name for f in dataclasses.fields(value) if f.compare]
        return kind, tuple(_at(f".{n}", getattr(value, n, None)) for n in names)
    if isinstance(value, Mapping) and kind.__hash__ is not None:
        # FrozenDict(a=1) and (a=True) have one hash and are equal.
        pairs = ((typed(k), _at(f"[{k!r}]", part)) for k, part in value.items())
        return kind, frozenset(pairs)
    if callable(value) and is_inside_trace() and find_tracers(value):
        raise Unfit(value)
    if isinstance(value, _METHODS) and _has_owner(value):
        return kind, getattr(value, "__func__", value.__name__), _owner_key(value)
    try:
        hash(value)
    except Exception:  # noqa: BLE001  # whatever a foreign __hash__ raises
        raise Unfit(value) from None
    return kind, value


def _has_owner(method: Any) -> bool:
    """Return whether a method is bound; a function of a C module has that as owner."""
    return not isinstance(method.__self__, types.ModuleType | None)


def _owner_key(method: Any) -> Any:
    """Return what tells the owner of a bound method: itself where it has no hash.

    Raises:
        Unfit: it is an array, or a pytree with arrays: jit would keep those as
            constants of the program, and compile for every other one.
    """
    owner = method.__self__
    if is_state(owner) and AUX not in held_by(owner):
        raise Unfit(method)  # it is being made, and will hold what it holds later
    if not isinstance(owner, type) and any(map(_is_array, jax.tree.leaves(owner))):
        raise Unfit(method)
    try:
        return typed(owner)
    except Unfit:
        return _Same(owner)


def _is_array(leaf: object) -> bool:
    return (
        not isinstance(leaf, type) and hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    )


class _Same:
    """Equal for the same object only."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is _Same and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _at(step: str, part: Any) -> Any:
    try:
        return typed(part)
    except Unfit as unfit:
        raise Unfit(unfit.value, step + unfit.path) from None


def is_value_dataclass(value: Any) -> bool:
    """Return whether its == and hash are those that `dataclasses` writes."""
    cls = type(value)
    params = getattr(cls, "__dataclass_params__", None)
    if params is None or not (params.eq and (params.frozen or params.unsafe_hash)):
        return False
    return all(map(is_written_by_dataclasses, (cls.__eq__, cls.__hash__)))


def _is_small_float(value: Any) -> bool:
    """Return whether it is a bfloat16 or another float of ml_dtypes."""
    return isinstance(value, np.generic) and bool(
        jnp.issubdtype(value.dtype, jnp.floating)
    )


def _float_key(value: Any) -> Any:
    if isinstance(value, complex | np.complexfloating):
        return _float_key(value.real), _float_key(value.imag)
    return "nan" if math.isnan(value) else (value, math.copysign(1.0, value))


def python_numbers(value: Any) -> Any:
    """Return numpy's integers and booleans as Python's, also in tuples."""
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, tuple):
        parts = [python_numbers(part) for part in value]
        if any(new is not old for new, old in zip(parts, value, strict=True)):
            kind: Any = type(value)
            return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    return value


def is_plain(value: object) -> bool:
    """Return whether `typed` agrees with type and `==`, and it can refer to nothing."""
    if type(value) is float:
        return value != 0.0 and value == value
    if type(value) is types.FunctionType:
        return not (value.__closure__ or value.__defaults__ or value.__kwdefaults__)
    if isinstance(value, types.BuiltinMethodType):
        return not _has_owner(value)
    return type(value) in _PLAIN
