"""Which annotations ask for an array.

The answer decides what becomes of a Python number that is given for a field: an array
where one is asked for, itself everywhere else.
"""

import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    Array: TypeAlias = jax.Array | Any
    """The annotation of a field that is given Python numbers, `count: ps.Array = 0`.

    It is `jax.Array` when the program runs, and fields with that take numbers as well;
    but a type checker that sees `jax.Array` refuses the number.
    """
else:
    Array = jax.Array

_NUMBERS = (bool, int, float, complex)
# `jax.Array`, `Optional[Array]`, and jaxtyping's `Float[Array, "n"]`.
_ARRAY = re.compile(
    r"([\w.]+\.)?Array|([\w.]+\.)?Optional\[([\w.]+\.)?Array\]"
    r"|([\w.]+\.)?(?!Tuple|Dict|Callable)[A-Z]\w*\[([\w.]+\.)?Array,\s*['\"].*\]"
)


def array_dtypes(cls: type, annotation: object) -> tuple[str, ...] | None:
    """Return the dtypes by name that an annotation admits, None if it is no array's.

    An array's annotation is `jax.Array`, jaxtyping on it, or a union of these with
    anything but Python numbers. The empty tuple stands for any dtype.
    """
    if isinstance(annotation, str):
        annotation = evaluated(cls, annotation)
    return _array_dtypes(annotation)


def _array_dtypes(annotation: Any) -> tuple[str, ...] | None:
    if isinstance(annotation, str):
        # Names that exist only for a type checker: the usual ones are taken at their
        # word.
        members = [member.strip() for member in annotation.split("|")]
        arrays = [bool(_ARRAY.fullmatch(member)) for member in members]
        others = {m for m, is_one in zip(members, arrays, strict=True) if not is_one}
        return () if any(arrays) and others <= {"None"} else None
    if isinstance(annotation, type) and issubclass(annotation, jax.Array):
        return ()
    if isinstance(annotation, type(jnp.int32)):  # the class of jax's scalar types
        return (annotation.dtype.name,)
    inner = getattr(annotation, "array_type", None)  # jaxtyping, without importing it
    if inner is not None and hasattr(annotation, "dtypes"):
        dtypes = annotation.dtypes if isinstance(annotation.dtypes, tuple) else ()
        return None if _array_dtypes(inner) is None else dtypes
    origin = typing.get_origin(annotation)
    if origin in (typing.Annotated, typing.Final):
        return _array_dtypes(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return _union_dtypes(typing.get_args(annotation))
    for alias in ("__value__", "__supertype__"):  # `type X = ...`, NewType
        if hasattr(annotation, alias):
            return _array_dtypes(getattr(annotation, alias))
    return None


def _union_dtypes(members: tuple[Any, ...]) -> tuple[str, ...] | None:
    if any(m in _NUMBERS or m in (Any, object) for m in members):
        return None
    found = [d for d in map(_array_dtypes, members) if d is not None]
    if not found:
        return None
    return () if () in found else tuple(name for dtypes in found for name in dtypes)


def evaluated(cls: type, annotation: str) -> object:
    """Return what a string annotation of a class stands for, or the string itself."""
    for namespace in _namespaces(cls):
        try:
            return eval(annotation, namespace[0], namespace[1])
        except Exception:  # noqa: BLE001  # whatever a foreign object raises
            continue
    return annotation


def _namespaces(cls: type) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
    module = sys.modules.get(cls.__module__)
    scope = {} if module is None else module.__dict__
    yield scope, dict(vars(cls))
    # A class inside a function: the function's local names, from its frame.
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is scope and frame.f_locals is not scope:
            yield scope, frame.f_locals
        frame = frame.f_back  # type: ignore[assignment]
