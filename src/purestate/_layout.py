"""One record of facts per class, and one shared object per set of static values.

jit compares the static values of a State at every call. They are therefore interned:
equal values are the same `Aux` object, so that the comparison is one of identity. What
"equal" means is decided here once, by `typed`: `True`, `1` and `1.0` differ, as do
`0.0` and `-0.0`, and NaN equals itself (jax#9273).
"""

import dataclasses
import enum
import functools
import math
import threading
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from purestate.errors import StaticFieldError

__all__ = ["AUX", "FAILED", "LAYOUT", "Aux", "Layout", "layout_of", "typed"]

AUX = "__purestate_aux__"  # in an instance's __dict__: present once it is sealed
FAILED = "__purestate_failed__"  # likewise: its constructor raised
LAYOUT = "__purestate_layout__"  # on the class

# Exact types whose == agrees with `typed` for non-zero, non-NaN values.
_PLAIN = frozenset(
    {bool, int, str, bytes, type(None), type, types.FunctionType, type(len)}
)
_SCALARS = (str, bytes, int, enum.Enum, type(None), type)
_lock = threading.RLock()


class Aux:
    """The static values of a State: jax's auxiliary data, compared by identity."""

    __slots__ = ("__weakref__", "layout", "values")

    def __init__(self, layout: "Layout", values: tuple[Any, ...]) -> None:
        self.layout = layout
        self.values = values

    def __repr__(self) -> str:
        # jax quotes this in its own errors about mismatched trees.
        pairs = zip(self.layout.static, self.values, strict=False)
        return f"({', '.join(f'{name}={_short(value)}' for name, value in pairs)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _intern, (self.layout, self.values)


class Interned(dict[tuple[Any, ...], "weakref.ref[Aux]"]):
    """The live `Aux` objects of a class, held weakly."""

    __slots__ = ("layout",)

    def __init__(self, layout: "Layout") -> None:
        super().__init__()
        self.layout = layout

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.layout, "interned")


class Layout:
    """What is known about a State class, computed once when the class is made.

    Attributes:
        cls: the class.
        specs: every declared name, `InitVar` and `ClassVar` included, in order.
        names: the stored fields, in order; `data` and `static` are its two parts.
        arrays: data fields annotated as arrays, with the dtypes that they admit.
        converters: fields with a `converter=`.
        checks: the `__check__` functions of the class and its bases, base first.
        derived: `init=False` fields of a class with a `__post_init__`.
        cached: names of `functools.cached_property` attributes.
        strict: whether updates must keep shape, dtype and structure.
        init: the class whose hand-written `__init__` constructs it, None if generated.
        plain: data fields that `replace` may store as they come.
        namespace: globals of the functions generated for the class.
        interned: the live `Aux` objects by their key.
        aux: the only `Aux` of a class without static fields.
        functions: the functions registered with jax, by name.
        size: number of names in an empty class body, to notice one filled later.
    """

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.specs: dict[str, dataclasses.Field[Any]] = {}
        self.names: tuple[str, ...] = ()
        self.data: tuple[str, ...] = ()
        self.static: tuple[str, ...] = ()
        self.arrays: dict[str, tuple[str, ...]] = {}
        self.converters: dict[str, Callable[[Any], Any]] = {}
        self.checks: tuple[tuple[type, Callable[[Any], object]], ...] = ()
        self.derived: tuple[str, ...] = ()
        self.cached: frozenset[str] = frozenset()
        self.strict = False
        self.init: type | None = None
        self.plain: frozenset[str] = frozenset()
        self.namespace: dict[str, Any] = {}
        self.interned = Interned(self)
        self.aux = _intern(self, ())
        self.functions: dict[str, Any] = {}
        self.size: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return layout_of, (self.cls,)

    def intern(self, values: Mapping[str, Any]) -> Aux:
        """Return the one `Aux` for the static values among `values`.

        Raises:
            StaticFieldError: a value that is an array, a tracer or unhashable.
        """
        if not self.static:
            return self.aux
        parts = []
        for name in self.static:
            value = values[name]
            try:
                typed(value)
            except _Unfit as unfit:
                raise StaticFieldError(
                    self.cls, name, unfit.value, _place(name, unfit.path)
                ) from None
            parts.append(_plain_number(value))
        return _intern(self, tuple(parts))


def layout_of(cls: type) -> Layout:
    """Return the record of a State class.

    Raises:
        KeyError: a subclass whose `__init_subclass__` did not call `super()`'s.
    """
    return cls.__dict__[LAYOUT]  # type: ignore[no-any-return]


def _intern(layout: Layout, values: tuple[Any, ...]) -> Aux:
    keys = [tuple(map(typed, values))]
    if all(map(_is_plain, values)):
        # What generated constructors look up without a call.
        keys.append(tuple(x for value in values for x in (value, type(value))))
    interned = layout.interned
    with _lock:
        known = interned.get(keys[0])
        aux = None if known is None else known()
        if aux is None:
            aux = Aux(layout, values)
            for key in keys:
                forget = functools.partial(_forget, interned, key)
                interned[key] = weakref.ref(aux, forget)
    return aux


def _forget(
    interned: Interned,
    key: tuple[Any, ...],
    dead: weakref.ref[Aux],
) -> None:
    with _lock:
        if interned.get(key) is dead:
            del interned[key]


class _Unfit(Exception):
    """A value, or a part of one, that cannot be static."""

    def __init__(self, value: object, path: str = "") -> None:
        super().__init__(path)
        self.value, self.path = value, path


def typed(value: Any) -> Any:
    """Return a key that is equal for the same value of the same type only."""
    value = _plain_number(value)
    kind = type(value)
    if kind in (float, complex):
        return kind, _float_key(value)
    if isinstance(value, _SCALARS):
        return kind, value
    if isinstance(value, jax.Array | np.ndarray):
        raise _Unfit(value)
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
        except _Unfit:
            if _is_hashable(value):  # by a __hash__ of its own
                return kind, value
            raise
    if not _is_hashable(value):
        raise _Unfit(value)
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
    except _Unfit as unfit:
        raise _Unfit(unfit.value, step + unfit.path) from None


def _is_value_dataclass(value: Any) -> bool:
    """Return whether its == is the one that `dataclasses` writes, field by field."""
    params = getattr(type(value), "__dataclass_params__", None)
    return (
        params is not None
        and bool(params.eq and params.frozen)
        and LAYOUT not in type(value).__dict__
    )


def _float_key(value: Any) -> Any:
    if isinstance(value, complex):
        return _float_key(value.real), _float_key(value.imag)
    return "nan" if math.isnan(value) else (value, math.copysign(1.0, value))


def _plain_number(value: Any) -> Any:
    """Return numpy's integers and booleans as Python's; they count as the same."""
    if isinstance(value, np.integer):
        return int(value)
    return bool(value) if isinstance(value, np.bool_) else value


def _is_plain(value: object) -> bool:
    if type(value) is float:
        return value != 0.0 and value == value
    return type(value) in _PLAIN


def _place(name: str, path: str) -> str:
    return f"its part {name}{path}" if path else ""


def _short(value: object, limit: int = 60) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
