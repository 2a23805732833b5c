"""`ps.vmap`: jax's, with errors about batch axes that name the field."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from purestate._inspect.donations import explain_deleted
from purestate._inspect.key_paths import path_text
from purestate._schema.text import function_name, root_name
from purestate.errors import BatchAxisError

_P = ParamSpec("_P")
_T = TypeVar("_T")


def vmap(
    fn: Callable[_P, _T], in_axes: Any = 0, out_axes: Any = 0, **options: Any
) -> Callable[_P, _T]:
    """Return `jax.vmap(fn)`, with errors about batch axes that name the field.

    Args:
        fn: as in `jax.vmap`.
        in_axes: as in `jax.vmap`; `ps.prefix(state, field=0)` maps single fields.
        out_axes: as in `jax.vmap`.
        **options: as in `jax.vmap`.

    Raises:
        BatchAxisError: when called, if a leaf lacks the mapped axis, or sizes differ.

    >>> import jax, jax.numpy as jnp, purestate as ps
    >>> class Model(ps.State):
    ...     friction: jax.Array
    ...     mass: ps.Array
    >>> m = Model(friction=jnp.arange(3.0), mass=2.0)
    >>> axes = ps.prefix(m, friction=0)
    >>> ps.vmap(lambda m: m.friction * m.mass, in_axes=(axes,))(m).tolist()
    [0.0, 2.0, 4.0]
    """
    mapped = jax.vmap(fn, in_axes, out_axes, **options)

    @functools.wraps(fn, updated=())
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return mapped(*args, **kwargs)
        except RuntimeError as error:
            explain_deleted(error)
            raise
        except ValueError as error:
            try:
                sizes = _sizes(args, kwargs, in_axes)
            except Exception:  # noqa: BLE001  # axes that do not fit: jax says it best
                sizes = []
            found = {size for _, size in sizes}
            if len(found) > 1 or any(isinstance(size, str) for size in found):
                raise BatchAxisError(function_name(fn), sizes) from error
            raise

    return call


def _sizes(
    args: tuple[Any, ...], kwargs: dict[str, Any], in_axes: Any
) -> list[tuple[str, Any]]:
    """Return the mapped leaves by place, with the size of their axis or their shape."""
    if isinstance(in_axes, int) or in_axes is None:
        in_axes = (in_axes,) * len(args)
    if len(in_axes) != len(args):
        return []
    found = []
    for i, (arg, axes) in enumerate(zip(args, in_axes, strict=False)):
        found += _leaf_axes(arg, axes, root_name(arg) or f"argument {i}")
    for name, arg in kwargs.items():  # jax maps them along their first axis
        found += _leaf_axes(arg, 0, f"argument {name!r}")
    sizes: list[tuple[str, Any]] = []
    for place, leaf, axis in found:
        shape = jnp.shape(leaf)
        inside = -len(shape) <= axis < len(shape)
        sizes.append(
            (place, shape[axis] if inside else f"no axis {axis}, shape {shape}")
        )
    return sizes


def _leaf_axes(arg: Any, axes: Any, root: str) -> list[tuple[str, Any, int]]:
    structure: Any
    each, structure = jax.tree_util.tree_flatten_with_path(
        axes, is_leaf=lambda axis: axis is None
    )
    parts = structure.flatten_up_to(arg)
    return [
        (path_text((*path, *rest), root), leaf, axis)
        for (path, axis), part in zip(each, parts, strict=True)
        if axis is not None
        for rest, leaf in jax.tree.leaves_with_path(part)
    ]
