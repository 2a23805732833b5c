"""What a field is, and how the body of a class becomes fields.

The standard library's `dataclasses` reads the body, so that every spelling it knows
(`field`, `KW_ONLY`, `InitVar`, `ClassVar`, string annotations) means here what it means
there. This file adds the field specifiers and the rules for arrays in a class body.
"""

import dataclasses
import functools
import keyword
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

import jax
import numpy as np

from purestate._compat import is_tracer, own_annotations
from purestate.errors import (
    DeclarationError,
    ReservedNameError,
    UnannotatedArrayError,
)

__all__ = ["field", "is_initvar", "is_static", "is_stored", "read_body", "static"]

_T = TypeVar("_T")
_MISSING: Any = dataclasses.MISSING
_RESERVED = frozenset({"at", "draft", "replace"})


@overload
def field(
    *,
    default: _T,
    init: bool = True,
    repr: bool = True,
    compare: bool = True,
    kw_only: bool = ...,
    metadata: Mapping[str, Any] | None = None,
    converter: Callable[[Any], Any] | None = None,
    dtype: Any = None,
) -> _T: ...
@overload
def field(
    *,
    default_factory: Callable[[], _T],
    init: bool = True,
    repr: bool = True,
    compare: bool = True,
    kw_only: bool = ...,
    metadata: Mapping[str, Any] | None = None,
    converter: Callable[[Any], Any] | None = None,
    dtype: Any = None,
) -> _T: ...
@overload
def field(
    *,
    init: bool = True,
    repr: bool = True,
    compare: bool = True,
    kw_only: bool = ...,
    metadata: Mapping[str, Any] | None = None,
    converter: Callable[[Any], Any] | None = None,
    dtype: Any = None,
) -> Any: ...
def field(
    *,
    metadata: Mapping[str, Any] | None = None,
    converter: Callable[[Any], Any] | None = None,
    dtype: Any = None,
    **options: Any,
) -> Any:
    """Return a specifier for a data field, one that jax traces.

    Takes what `dataclasses.field` takes, and:

    Args:
        metadata: kept as it is; `{"static": True}` makes the field static.
        converter: called with the given value, once per construction and for the
            changed fields of a `replace`; its result is stored.
        dtype: the dtype that a Python number given for this field gets, such as
            `jnp.bfloat16`. Without it the annotation decides, then JAX's default.
        **options: `default`, `default_factory`, `init`, `repr`, `compare`, `kw_only`.

    Raises:
        TypeError: an option that `dataclasses.field` does not know.
        ValueError: both `default` and `default_factory`.

    >>> import jax, jax.numpy as jnp, purestate as ps
    >>> class Counter(ps.State):
    ...     count: jax.Array = ps.field(default=0, dtype=jnp.uint8)
    >>> Counter().count.dtype
    dtype('uint8')
    """
    extra = {"converter": converter, "dtype": dtype}
    found = {k: v for k, v in extra.items() if v is not None}
    default = options.get("default", _MISSING)
    if _is_array(default):
        del options["default"]
        options["default_factory"] = _array_factory(default)
    return dataclasses.field(metadata={**(metadata or {}), **found}, **options)


@overload
def static(
    *,
    default: _T,
    init: bool = True,
    repr: bool = True,
    compare: bool = True,
    kw_only: bool = ...,
    metadata: Mapping[str, Any] | None = None,
    converter: Callable[[Any], Any] | None = None,
) -> _T: ...
@overload
def static(
    *,
    default_factory: Callable[[], _T],
    init: bool = True,
    repr: bool = True,
    compare: bool = True,
    kw_only: bool = ...,
    metadata: Mapping[str, Any] | None = None,
    converter: Callable[[Any], Any] | None = None,
) -> _T: ...
@overload
def static(
    *,
    init: bool = True,
    repr: bool = True,
    compare: bool = True,
    kw_only: bool = ...,
    metadata: Mapping[str, Any] | None = None,
    converter: Callable[[Any], Any] | None = None,
) -> Any: ...
def static(
    *,
    metadata: Mapping[str, Any] | None = None,
    converter: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Any:
    """Return a specifier for a static field, one that is part of jit's cache key.

    A static field holds configuration: numbers, strings, functions, anything hashable.
    jit compiles once for each different value.

    Args:
        metadata: kept as it is, with `"static": True` added.
        converter: as for `field`; `converter=tuple` admits lists, for example.
        **options: `default`, `default_factory`, `init`, `repr`, `compare`, `kw_only`.

    Raises:
        DeclarationError: `metadata` says `{"static": False}`.
        TypeError: an option that `dataclasses.field` does not know.
        ValueError: both `default` and `default_factory`.

    >>> import jax, purestate as ps
    >>> class Scale(ps.State):
    ...     w: jax.Array
    ...     power: int = ps.static(default=2)
    >>> len(jax.tree.leaves(Scale(w=jax.numpy.ones(3))))
    1
    """
    if metadata is not None and metadata.get("static", True) is not True:
        raise DeclarationError(
            "ps.static(metadata={'static': False}) says both static and not: use "
            "ps.field() for a field that jax traces."
        )
    merged = {**(metadata or {}), "static": True}
    return field(metadata=merged, converter=converter, **options)


def is_static(spec: dataclasses.Field[Any]) -> bool:
    """Return whether the field is part of the tree structure instead of a leaf."""
    return bool(spec.metadata.get("static", False))


def is_initvar(spec: dataclasses.Field[Any]) -> bool:
    """Return whether the field is an `InitVar`: given to `__post_init__`, not kept."""
    return _kind(spec) == "_FIELD_INITVAR"


def is_stored(spec: dataclasses.Field[Any]) -> bool:
    """Return whether instances hold a value for it: no `ClassVar`, no `InitVar`."""
    return _kind(spec) == "_FIELD"


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
    body: dict[str, Any] = {
        "__annotations__": annotations,
        "__doc__": "",
        "__module__": cls.__module__,
    }
    for name, value in list(cls.__dict__.items()):
        if name in annotations:
            body[name] = _owned(cls, name, value)
        elif not (name.startswith("__") and name.endswith("__")):
            _check_unannotated(cls, name, value, inherited)
    # dataclasses reads a stand-in: on `cls` itself it would insist that all bases are
    # frozen or none is, and would add methods.
    reader = dataclasses.dataclass(
        init=False, repr=False, eq=False, match_args=False, kw_only=kw_only
    )
    try:
        standin: Any = reader(type(cls.__name__, (), body))
    except (TypeError, ValueError) as error:
        raise DeclarationError(f"{cls.__name__}: {error}") from error
    fields: dict[str, dataclasses.Field[Any]] = dict(standin.__dataclass_fields__)
    for name, spec in fields.items():
        if is_stored(spec):
            _check_name(cls, name)
    return fields


def _kind(spec: dataclasses.Field[Any]) -> str:
    return str(spec._field_type.name)  # type: ignore[attr-defined]


def _owned(cls: type, name: str, value: Any) -> Any:
    """Return a default that instances can share: arrays become factories."""
    default = value.default if isinstance(value, dataclasses.Field) else value
    if is_tracer(default):
        raise DeclarationError(
            f"the default of {cls.__name__}.{name} is a tracer: the class is being "
            f"made inside a transformed function. Move the class to module level, or "
            f"give {name} no default."
        )
    if not _is_array(default):
        return value
    spec = value if isinstance(value, dataclasses.Field) else dataclasses.field()
    spec.default = _MISSING
    spec.default_factory = _array_factory(default)
    return spec


def _is_array(value: object) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def _array_factory(value: Any) -> Callable[[], Any]:
    if isinstance(value, jax.Array):
        return functools.partial(_same, value)
    return value.copy().copy  # type: ignore[no-any-return]  # one copy per instance


def _same(value: _T) -> _T:
    return value


def _check_unannotated(
    cls: type, name: str, value: object, inherited: Mapping[str, Any]
) -> None:
    parts = jax.tree.leaves(value) if type(value) in (list, tuple, dict) else [value]
    if any(map(_is_array, parts)):
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
    if dunder or name.startswith("_ps_") or not name.isidentifier():
        raise DeclarationError(
            f"{cls.__name__} cannot have a field named {name!r}: choose an identifier "
            f"that does not start with '_ps_' and is not a __special__ name."
        )
    if keyword.iskeyword(name):
        raise DeclarationError(
            f"{cls.__name__} cannot have a field named {name!r}, which is a keyword of "
            f"Python: use {name + '_'!r}."
        )
