"""What a field is: the specifiers, and the questions that others ask of them.

A field is a `dataclasses.Field`; what purestate adds stands in its metadata. Data
fields are leaves or subtrees for jax, static fields are part of the tree structure.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from purestate._compat import field_kind
from purestate._schema.leaves import is_array
from purestate.errors import DeclarationError
from purestate.errors._text import short

_T = TypeVar("_T")
MISSING: Any = dataclasses.MISSING

if TYPE_CHECKING:
    from typing import Unpack

    class _Options(TypedDict, total=False):
        """What `field` and `static` pass on to `dataclasses.field`."""

        init: bool
        repr: bool
        compare: bool
        kw_only: bool
        derived: bool
        spec: PartitionSpec | Callable[[str, Any], PartitionSpec | None] | str | None
        was: str | tuple[str, ...]
        metadata: Mapping[str, Any] | None


@overload  # with a converter the default is its argument, of any type
def field(
    *,
    converter: Callable[[Any], Any],
    default: Any = ...,
    default_factory: Callable[[], Any] = ...,
    dtype: Any = None,
    **options: "Unpack[_Options]",
) -> Any: ...
@overload  # a number becomes an array where the annotation asks for one
def field(
    *,
    default: complex,
    converter: None = None,
    dtype: Any = None,
    **options: "Unpack[_Options]",
) -> Any: ...
@overload
def field(
    *,
    default: _T,
    converter: None = None,
    dtype: Any = None,
    **options: "Unpack[_Options]",
) -> _T: ...
@overload
def field(
    *,
    default_factory: Callable[[], _T],
    converter: None = None,
    dtype: Any = None,
    **options: "Unpack[_Options]",
) -> _T: ...
@overload
def field(
    *, converter: None = None, dtype: Any = None, **options: "Unpack[_Options]"
) -> Any: ...
def field(
    *,
    metadata: Mapping[str, Any] | None = None,
    converter: Callable[[Any], Any] | None = None,
    dtype: Any = None,
    derived: bool | None = None,
    spec: PartitionSpec | Callable[[str, Any], Any] | str | None = None,
    was: str | tuple[str, ...] = (),
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
        derived: of a field with `init=False`: whether `__post_init__` computes it from
            others, and every `replace` computes it anew, as is the default. False says
            that `__post_init__` only starts it: from then on it is data like any other,
            as weights are that were drawn from an `InitVar`.
        spec: how its arrays are split over devices, for `ps.shardings`: a
            `PartitionSpec` for each of them, with axes of the mesh or names that
            `rules=` map to some; a function of the path below the field and the leaf
            that returns one; or the name of another field, which this one mirrors.
        was: the name that the field had when files were saved, or a tuple of them.
        **options: `default`, `default_factory`, `init`, `repr`, `compare`, `kw_only`.

    Raises:
        DeclarationError: `derived=` without `init=False`, `spec=` for a static field,
            or a `was=` that is no name.
        TypeError: an option that `dataclasses.field` does not know, or a `spec=` or
            `converter=` of another type.
        ValueError: both `default` and `default_factory`.

    >>> import jax.numpy as jnp, purestate as ps
    >>> class Counter(ps.State):
    ...     count: ps.Array = ps.field(default=0, dtype=jnp.uint8)
    >>> Counter().count.dtype
    dtype('uint8')
    """
    for habit in ("static", "pytree_node"):
        if habit in options:
            raise DeclarationError(
                f"ps.field() has no option {habit!r}: write ps.static() for a field "
                f"that jit does not trace, ps.field() for one that it does."
            )
    if converter is not None and not callable(converter):
        raise TypeError(f"converter= takes a function, and got {converter!r}.")
    if dtype is not None:
        jnp.dtype(dtype)  # raises TypeError for what is not a dtype
    if derived is not None and options.get("init", True):
        raise DeclarationError(
            "derived= says what becomes of a field that __post_init__ sets: write "
            "ps.field(init=False, derived=False), or leave derived= out."
        )
    if spec is not None:
        _check_spec(spec, metadata or {})
    extra = {"converter": converter, "dtype": dtype, "derived": derived, "spec": spec}
    found = {k: v for k, v in extra.items() if v is not None}
    if was != ():
        found["was"] = as_names(was)
    default = options.get("default", MISSING)
    if holds_arrays(default):
        del options["default"]
        options["default_factory"] = array_factory(default)
    return dataclasses.field(metadata={**(metadata or {}), **found}, **options)


def _check_spec(spec: object, metadata: Mapping[str, Any]) -> None:
    if metadata.get("static", False):
        raise DeclarationError(
            "a static field has no spec=: it is part of the tree structure, and no "
            "array. Leave spec= out, or write ps.field()."
        )
    if not (isinstance(spec, PartitionSpec | str) or callable(spec)):
        raise TypeError(
            f"spec= takes a PartitionSpec, P('data', None), a function of (path, leaf) "
            f"that returns one, or the name of a field, and got {short(spec)}."
        )


@overload
def static(
    *,
    converter: Callable[[Any], Any],
    default: Any = ...,
    default_factory: Callable[[], Any] = ...,
    **options: "Unpack[_Options]",
) -> Any: ...
@overload
def static(
    *, default: _T, converter: None = None, **options: "Unpack[_Options]"
) -> _T: ...
@overload
def static(
    *,
    default_factory: Callable[[], _T],
    converter: None = None,
    **options: "Unpack[_Options]",
) -> _T: ...
@overload
def static(*, converter: None = None, **options: "Unpack[_Options]") -> Any: ...
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
        **options: `default`, `default_factory`, `init`, `repr`, `compare`, `kw_only`;
            `derived` and `was` as for `field`.

    Raises:
        DeclarationError: `metadata` says `{"static": False}`, or `was=` is no name.
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
    return field_kind(spec) == "_FIELD_INITVAR"


def is_stored(spec: dataclasses.Field[Any]) -> bool:
    """Return whether instances hold a value for it: no `ClassVar`, no `InitVar`."""
    return field_kind(spec) == "_FIELD"


def sharding_spec(spec: dataclasses.Field[Any]) -> Any:
    """Return its `spec=`: a PartitionSpec, a function, a field's name, or None."""
    return spec.metadata.get("spec")


def old_names(spec: dataclasses.Field[Any]) -> tuple[str, ...]:
    """Return the names that the field had in files of earlier versions of its class."""
    return spec.metadata.get("was", ())  # type: ignore[no-any-return]


def as_names(was: Any) -> tuple[str, ...]:
    """Return a `was=` as a tuple of names.

    Raises:
        DeclarationError: neither a name nor a tuple of names.
    """
    names: tuple[Any, ...] = was if isinstance(was, tuple) else (was,)
    if not all(isinstance(name, str) and name for name in names):
        raise DeclarationError(
            f"was={was!r}: give the old name as a string, or a tuple of old names."
        )
    return names


def holds_arrays(value: object) -> bool:
    """Return whether a default is an array, or a pytree with arrays in it."""
    return is_array(value) or (
        not isinstance(value, type) and any(map(is_array, jax.tree.leaves(value)))
    )


def array_factory(value: Any) -> Callable[[], Any]:
    """Return a factory that copies the arrays of a default.

    Donating one instance would otherwise delete the arrays of all others.
    """
    if isinstance(value, np.ndarray):
        value = value.copy()
    return functools.partial(jax.tree.map, _copied, value)


def _copied(leaf: Any) -> Any:
    return leaf.copy() if is_array(leaf) else leaf
