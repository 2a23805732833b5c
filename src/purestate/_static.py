"""When two static values are the same: what jit's cache key is made of.

Equality is typed. `True`, `1` and `1.0` are different values, as are `0.0` and `-0.0`;
NaN equals itself, and numpy's integers and booleans count as Python's (jax#9273).
"""

import dataclasses
import enum
import functools
import math
import types
from typing import Any

import jax
import numpy as np

__all__ = ["Unfit", "is_plain", "plain_number", "short", "typed"]

# Exact types whose == agrees with `typed` for non-zero, non-NaN values.
_PLAIN = frozenset(
    {bool, int, str, bytes, type(None), type, types.FunctionType, type(len)}
)
_SCALARS = (str, bytes, int, enum.Enum, type(None), type)


class Unfit(Exception):
    """Internal: a value, or a part of one, that cannot be static."""

    def __init__(self, value: object, path: str = "") -> None:
        super().__init__(path)
        self.value, self.path = value, path


def typed(value: Any) -> Any:
    """Return a key that is equal for the same value of the same type only."""
    value = plain_number(value)
    kind = type(value)
    if kind in (float, complex):
        return kind, _float_key(value)
    if isinstance(value, _SCALARS):
        return kind, value
    if isinstance(value, jax.Array | np.ndarray):
        raise Unfit(value)
    if isinstance(value, tuple):
        return kind, tuple(_at(f"[{i}]", part) for i, part in enumerate(value))
    if isinstance(value, frozenset):
        return kind, frozenset(map(typed, value))
    if kind is functools.partial:
        named = sorted(value.keywords.items())
        return (
            kind,
            _at(".func", value.func),
            tuple(_at(f".args[{i}]", part) for i, part in enumerate(value.args)),
            tuple((name, _at(f".{name}", part)) for name, part in named),
        )
    if kind is slice:  # hashable from Python 3.12 on only
        return kind, typed((value.start, value.stop, value.step))
    if _is_value_dataclass(value):
        try:
            names = [f.name for f in dataclasses.fields(value) if f.compare]
            return kind, tuple(_at(f".{n}", getattr(value, n)) for n in names)
        except Unfit:
            if _is_hashable(value):  # by a __hash__ of its own
                return kind, value
            raise
    if not _is_hashable(value):
        raise Unfit(value)
    return kind, value


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _at(step: str, part: Any) -> Any:
    try:
        return typed(part)
    except Unfit as unfit:
        raise Unfit(unfit.value, step + unfit.path) from None


def _is_value_dataclass(value: Any) -> bool:
    """Return whether its == is the one that `dataclasses` writes, field by field."""
    params = getattr(type(value), "__dataclass_params__", None)
    return (
        params is not None
        and bool(params.eq and params.frozen)
        and not hasattr(type(value), "__purestate_layout__")
    )


def _float_key(value: Any) -> Any:
    if isinstance(value, complex):
        return _float_key(value.real), _float_key(value.imag)
    return "nan" if math.isnan(value) else (value, math.copysign(1.0, value))


def plain_number(value: Any) -> Any:
    """Return numpy's integers and booleans as Python's; they count as the same."""
    if isinstance(value, np.integer):
        return int(value)
    return bool(value) if isinstance(value, np.bool_) else value


def is_plain(value: object) -> bool:
    """Return whether `typed` agrees with type and `==` for the value."""
    if type(value) is float:
        return value != 0.0 and value == value
    return type(value) in _PLAIN


def short(value: object, limit: int = 60) -> str:
    """Return a value's repr, cut to `limit` characters; never raises."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # whatever a foreign object raises
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
