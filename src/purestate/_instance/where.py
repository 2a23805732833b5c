"""`ps.where`: one of two trees, by a flag that may be traced.

It is `jnp.where` leaf by leaf, with no promotion and no broadcasting between the two,
so that a carry of `scan` stays what it was. Both are computed; `lax.cond` chooses what
is computed.
"""

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from purestate._inspect.diff import Difference, diff, told_apart
from purestate._inspect.donations import explaining_deleted
from purestate._inspect.key_paths import path_text
from purestate._schema.leaves import is_key
from purestate._schema.text import root_name
from purestate.errors import WhereError
from purestate.errors._text import short

_T = TypeVar("_T")


@explaining_deleted()
def where(flag: ArrayLike, a: _T, b: _T) -> _T:
    """Return `a` where the flag is true, else `b`: States, or any pytrees.

    A leaf that both share, the same object, is passed through: after
    `first = state.replace(obs=obs)` the program of `ps.where(done, first, state)`
    chooses between the two `obs` alone. No converter or check runs. As with `jnp.where`
    the gradient goes through both sides, where 0 times NaN is NaN.

    Args:
        flag: a bool or a number, or an array of them. Its shape, `()`, `(B,)` or
            `(T, B)`, must begin that of every leaf: with an axis for each axis of a
            batch of States, it chooses for each State in the batch.
        a: of the same structure, static values, shapes and dtypes as `b`. A Python
            number fits an array of shape () whose dtype it does not change.
        b: another.

    Returns:
        A tree of the structure of `a` and `b`.

    Raises:
        WhereError: they differ in more than numbers, or the flag does not fit; it names
            the places.

    >>> import jax, jax.numpy as jnp, purestate as ps
    >>> class Walk(ps.State):
    ...     position: ps.Array
    ...     steps: ps.Array
    >>> walk = Walk(position=2.5, steps=10)
    >>> ps.where(walk.position > 2, Walk(position=0.0, steps=0), walk)
    Walk(position=f32[], steps=i32[])
    """
    shape = _flag_shape(flag)
    structure: Any
    found, structure = jax.tree_util.tree_flatten_with_path(a)
    others, other = jax.tree.flatten(b)
    if structure != other or not all(
        _agree(x, y) for (_, x), y in zip(found, others, strict=True)
    ):
        name = "array" if isinstance(a, jax.Array) else type(a).__name__
        raise WhereError.different(name, _differences(a, b))
    root, chosen = root_name(a), []
    for (path, x), y in zip(found, others, strict=True):
        if not _is_chosen(x):
            chosen.append(x)
            continue
        if shape and np.shape(x)[: len(shape)] != shape:
            place = path_text(path, root) or "the leaf"
            raise WhereError.of_shape(shape, place, np.shape(x))
        chosen.append(x if x is y else _chosen(flag, shape, x, y))
    made: _T = structure.unflatten(chosen)
    return made


def _flag_shape(flag: Any) -> tuple[int, ...]:
    if _is_chosen(flag) and not is_key(flag):
        return np.shape(flag)
    raise WhereError.not_a_flag(flag)


def _is_chosen(leaf: Any) -> bool:
    """Return whether a leaf is a number or an array of numbers or keys."""
    if isinstance(leaf, jax.Array | np.ndarray | np.generic):
        kinds = (jnp.number, jnp.bool_, jax.dtypes.prng_key)
        return not isinstance(leaf, jax.Ref) and any(
            jnp.issubdtype(leaf.dtype, kind) for kind in kinds
        )
    return isinstance(leaf, _NUMBERS)


_NUMBERS = (bool, int, float, complex)


def _agree(x: Any, y: Any) -> bool:
    if x is y:
        return True
    if not (_is_chosen(x) and _is_chosen(y)):
        return _is_equal(x, y)
    if hasattr(x, "dtype") and hasattr(y, "dtype"):
        return bool(x.dtype == y.dtype and x.shape == y.shape)
    if hasattr(x, "dtype"):
        x, y = y, x
    return np.shape(y) == () and _takes(y, x)


def _takes(like: Any, number: Any) -> bool:
    """Return whether a number keeps the type of what it meets, as a carry has to."""
    if not hasattr(like, "dtype"):
        return _width(like) == _width(number)
    if is_key(like) or _width(number) > _width(like):
        return False
    if not jnp.issubdtype(like.dtype, jnp.integer):
        return True
    iinfo: Any = jnp.iinfo  # numpy's does not know int4; jax's is untyped in some
    return bool(iinfo(like.dtype).min <= number <= iinfo(like.dtype).max)


def _width(number: Any) -> int:
    """Return the place of bool, int, float or complex, whichever a number is of."""
    dtype = getattr(number, "dtype", None)
    if dtype is None:
        return next(i for i, kind in enumerate(_NUMBERS) if isinstance(number, kind))
    kinds: tuple[Any, ...] = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next(i for i, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind))


def _is_equal(x: Any, y: Any) -> bool:
    """Return whether two leaves that are not numbers are of one type and equal."""
    if type(x) is not type(y):
        return False
    if isinstance(x, np.ndarray) and (x.dtype, x.shape) != (y.dtype, y.shape):
        return False
    try:
        same = x == y
        same = same.all() if isinstance(x, np.ndarray) else same
    except Exception:  # noqa: BLE001  # whatever a foreign __eq__ raises
        return False
    return isinstance(same, bool | np.bool_) and bool(same)


def _differences(a: Any, b: Any) -> str:
    """Return what keeps one tree from taking the other's place, a line for each."""
    root = root_name(a)
    ours, theirs = (
        {root + jax.tree_util.keystr(path): (path, leaf) for path, leaf in found}
        for found in map(jax.tree_util.tree_leaves_with_path, (a, b))
    )
    lines = [
        str(one) for one in diff(a, b) if not (one.path in ours and one.path in theirs)
    ]
    for place, (path, x) in ours.items():
        if place in theirs and not _agree(x, theirs[place][1]):
            lines.append(_difference(path_text(path, root), x, theirs[place][1]))
    return "\n".join(lines) or "the tree structure"


def _difference(place: str, x: Any, y: Any) -> str:
    if _is_chosen(x) and _is_chosen(y) and np.shape(x) == np.shape(y):
        return str(Difference(place, "dtype", *map(_type_text, (x, y))))
    found = [one for one in diff(x, y) if one.kind != "weak type"]
    if not found:
        found = [Difference("", "value", *told_apart(short(x), short(y)))]
    return "\n".join(str(dataclasses.replace(one, path=place)) for one in found)


def _type_text(number: Any) -> str:
    dtype = getattr(number, "dtype", None)
    return f"{type(number).__name__} {number!r}" if dtype is None else str(dtype)


def _chosen(flag: Any, shape: tuple[int, ...], x: Any, y: Any) -> Any:
    wide = (
        flag
        if not shape
        else jnp.reshape(flag, shape + (1,) * (np.ndim(x) - len(shape)))
    )
    return jnp.where(wide, x, y)
