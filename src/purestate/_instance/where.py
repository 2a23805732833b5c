"""`ps.where`: one of two trees, by a flag that may be traced.

It is `jnp.where` leaf by leaf, with no promotion and no broadcasting between the two,
so that a carry of `scan` stays what it was. Both are computed; `lax.cond` chooses what
is computed.
"""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from purestate._inspect.diff import diff
from purestate._inspect.donations import explaining_deleted
from purestate._inspect.key_paths import path_text
from purestate._schema.leaves import is_key
from purestate._schema.text import root_name
from purestate.errors import WhereError

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
        a: of the same structure, static values, shapes and dtypes as `b`.
        b: another.

    Returns:
        A tree of the structure of `a` and `b`.

    Raises:
        WhereError: they differ in more than numbers, or the flag does not fit; it names
            the places.

    >>> import jax, jax.numpy as jnp, purestate as ps
    >>> class Walk(ps.State):
    ...     position: jax.Array
    ...     steps: jax.Array
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
        raise WhereError.different(type(a).__name__, _differences(a, b))
    root, chosen = root_name(a), []
    for (path, x), y in zip(found, others, strict=True):
        if shape and (_is_chosen(x) and np.shape(x)[: len(shape)] != shape):
            place = path_text(path, root) or "the leaf"
            raise WhereError.of_shape(shape, place, np.shape(x))
        chosen.append(x if x is y or not _is_chosen(x) else _chosen(flag, shape, x, y))
    made: _T = structure.unflatten(chosen)
    return made


def _flag_shape(flag: Any) -> tuple[int, ...]:
    if _is_chosen(flag) and not is_key(flag):
        return np.shape(flag)
    raise WhereError.not_a_flag(flag)


def _is_chosen(leaf: Any) -> bool:
    """Return whether a leaf is a number or an array, of which `where` can take one."""
    if isinstance(leaf, type | jax.Ref):
        return False
    return hasattr(leaf, "dtype") or isinstance(leaf, bool | int | float | complex)


def _agree(x: Any, y: Any) -> bool:
    if x is y:
        return True
    if not (_is_chosen(x) and _is_chosen(y)):
        return type(x) is type(y) and not isinstance(x, jax.Ref) and bool(x == y)
    if hasattr(x, "dtype") and hasattr(y, "dtype"):
        return bool(x.dtype == y.dtype and x.shape == y.shape)
    return np.ndim(x) == np.ndim(y) == 0


def _differences(a: Any, b: Any) -> str:
    found = [one for one in diff(a, b, values=False) if one.kind != "weak type"]
    return "\n".join(map(str, found)) or "values that are not numbers"


def _chosen(flag: Any, shape: tuple[int, ...], x: Any, y: Any) -> Any:
    wide = (
        flag
        if not shape
        else jnp.reshape(flag, shape + (1,) * (np.ndim(x) - len(shape)))
    )
    return jnp.where(wide, x, y)
