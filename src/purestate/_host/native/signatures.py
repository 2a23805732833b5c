"""From the types of a host call to those of a handler, and back from numba's.

Structures are tuples, nested, with None: for numba, a tuple is a type of its own. All
else (a dict, a State, a list, keywords) is not native.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from purestate._host.call.leaf import Leaf, may_cast
from purestate._host.native.numba_parts import as_dtype, types

# What both XLA and numba have. float16 numba can only store, and of bfloat16, int4 and
# the small floats it knows nothing.
_DTYPES = frozenset(
    np.dtype(name)
    for name in (
        *("bool", "float32", "float64", "complex64", "complex128"),
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    )
)


def known(leaves: Sequence[Leaf]) -> bool:
    """Return whether numba has the dtypes of arrays, and none is a typed key."""
    return all(leaf.key is None and leaf.dtype in _DTYPES for leaf in leaves)


def described(leaves: Sequence[Leaf]) -> tuple[tuple[Any, int], ...]:
    """Return dtype and rank of each array."""
    return tuple((leaf.dtype, len(leaf.shape)) for leaf in leaves)


def as_text(tree: Any) -> str | None:
    """Return a structure of names as Python code, None if it is not of tuples."""
    if tree is None or type(tree) is str:
        return str(tree)
    if type(tree) is not tuple:
        return None
    found = [as_text(each) for each in tree]
    return None if None in found else f"({''.join(f'{each}, ' for each in found)})"


def parts(
    kind: Any,
    tree: Any,
    leaves: Sequence[Leaf],
    chosen: Sequence[int],
    casting: str,
    *,
    rule: str = "",
) -> list[tuple[str, Any]] | None:
    """Return where results are in what a function returns, and their dtypes.

    Args:
        kind: numba's type of what it returns.
        tree: the structure that is declared.
        leaves: what is declared at its leaves.
        chosen: which of them are results.
        casting: numpy's rule for other dtypes.
        rule: "vjp" or "jvp" of what returns derivatives: None then stands for zeros,
            which are "" here, for a leaf, for all, and of a "vjp" for an argument; and
            of a "vjp" one value for a tuple of one.

    Returns:
        None if it is not what is declared: then a callback says so.
    """
    found: dict[int, tuple[str, Any]] = {}

    def walk(part: Any, kind: Any, text: str, depth: int = 0) -> None:
        may_be_none = rule and (type(part) is int or depth <= (rule == "vjp"))
        if may_be_none and isinstance(kind, types.NoneType):
            for i in jax.tree.leaves(part):
                found[i] = ("", leaves[i].dtype)
        elif type(part) is tuple:
            if not isinstance(kind, types.BaseAnonymousTuple) or len(kind) != len(part):
                raise TypeError
            for i, (each, own) in enumerate(zip(part, kind, strict=True)):
                walk(each, own, f"{text}[{i}]", depth + 1)
        elif part is None:
            if not isinstance(kind, types.NoneType):
                raise TypeError
        elif type(part) is not int:
            raise TypeError
        elif part in chosen:
            found[part] = (text, _dtype(kind, leaves[part], casting))

    whole = jax.tree.unflatten(tree, range(len(leaves)))
    is_tuple = isinstance(kind, types.BaseAnonymousTuple) and len(kind) == 1
    if rule == "vjp" and type(whole) is tuple and len(whole) == 1 and not is_tuple:
        whole = whole[0]
    try:
        walk(whole, kind, "r")
    except TypeError:
        return None
    return [found[i] for i in chosen]


def _dtype(kind: Any, leaf: Leaf, casting: str) -> Any:
    """Return the dtype of a leaf, if it can become what is declared.

    Raises:
        TypeError: it cannot.
    """
    kind = types.unliteral(kind)
    if isinstance(kind, types.Array):
        ndim, number = kind.ndim, kind.dtype
    else:
        ndim, number = 0, kind
    if ndim != len(leaf.shape) or not isinstance(number, types.Number | types.Boolean):
        raise TypeError
    dtype = as_dtype(number)
    is_number = not isinstance(kind, types.Array)
    if is_number and isinstance(number, types.Integer):
        dtype = np.dtype(np.int64)  # as numpy has it, for whom it is Python's
    if casting == "unsafe":
        # Only what cannot lose anything: numpy's ways to do so are its own.
        casting = "safe"
    if not may_cast(dtype, leaf.dtype, casting, is_number):
        raise TypeError
    return dtype
