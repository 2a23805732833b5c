"""Assertions about trees, with messages that name the field.

`ps.diff` says how classes, static values, structure and dtypes differ, chex compares
numbers; this adds typed keys, NaN, bits, and the path.
"""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from purestate._inspect.diff import diff
from purestate._inspect.key_paths import path_text
from purestate._schema.leaves import is_key
from purestate._schema.text import root_name

# Relative tolerances: about the square root of the precision would be too loose, and a
# reduction in another order loses a few digits.
_TOLERANCE = {
    "float64": 1e-9,
    "float32": 1e-4,
    "float16": 1e-2,
    "bfloat16": 5e-2,
}
_COARSEST = 0.3  # floating-point numbers of 8 bits and less


def assert_same(expected: Any, found: Any) -> None:
    """Assert that two trees are the same: class, static values, dtypes, every bit.

    NaN is the same as NaN, and 0.0 another number than -0.0.

    Raises:
        AssertionError: lists the differences, by field path.

    >>> import jax.numpy as jnp, purestate.testing as pst
    >>> pst.assert_same({"x": jnp.ones(2)}, {"x": jnp.array([1.0, 2.0])})
    Traceback (most recent call last):
        ...
    AssertionError: these should be the same and are not:
    ['x'][1]: value 1.0 -> 2.0
    """
    _report(mismatch(expected, found, exact=True), "the same")


def assert_close(
    expected: Any, found: Any, *, rtol: float | None = None, atol: float | None = None
) -> None:
    """Assert that two trees have the same structure and dtypes, and numbers that agree.

    Keys, integers and booleans must be equal, and NaN stands for itself. Weak types do
    not count.

    Args:
        expected: a State, or any tree.
        found: another.
        rtol: relative tolerance; by default that of the dtype, 1e-4 for float32.
        atol: absolute tolerance; by default `rtol` times the largest expected number of
            the leaf, or times 1 if that is smaller.

    Raises:
        AssertionError: the first difference, by field path.

    >>> import jax.numpy as jnp, purestate.testing as pst
    >>> pst.assert_close(jnp.float32(1.0), jnp.float32(1.000001))
    """
    _report(mismatch(expected, found, rtol=rtol, atol=atol), "close")


def _report(found: tuple[str, str] | None, wanted: str) -> None:
    if found is not None:
        raise AssertionError(f"these should be {wanted} and are not:\n{found[1]}")


def mismatch(
    expected: Any,
    found: Any,
    *,
    exact: bool = False,
    rtol: float | None = None,
    atol: float | None = None,
    slack: float = 1.0,
) -> tuple[str, str] | None:
    """Return the path of the first difference and a text about all, or None.

    Args:
        expected: a tree.
        found: another.
        exact: whether to compare bits and weak types, too.
        rtol: as for `assert_close`.
        atol: likewise.
        slack: factor to the default of `rtol`.
    """
    changes = [
        change
        for change in diff(expected, found)
        if exact or (change.kind != "weak type" and not _is_number_pair(change))
    ]
    if changes:
        return changes[0].path, "\n".join(map(str, changes))
    root = root_name(expected)
    texts = []
    paired = zip(parted(expected), jax.tree.leaves(found), strict=True)
    for (path, a), b in paired:
        place = path_text(path, root)
        text = _bits(a, b, place) if exact else _numbers(a, b, place, rtol, atol, slack)
        if text is not None:
            texts.append((place, text))
    return (texts[0][0], "\n".join(t for _, t in texts)) if texts else None


def _is_number_pair(change: Any) -> bool:
    """Return whether a Python number met the scalar array that jit makes of it."""
    numbers = {"bool", "int", "float", "complex"}
    texts = {text.removesuffix("(numpy)") for text in (change.before, change.after)}
    return (
        change.kind == "class"
        and bool(texts & numbers)
        and all(text in numbers or text.endswith("[]") for text in texts)
    )


def parted(tree: Any) -> list[tuple[Any, Any]]:
    """Return the leaves with their paths."""
    return jax.tree_util.tree_leaves_with_path(tree)


def _plain(leaf: Any) -> Any:
    if is_key(leaf):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)


def _bits(a: Any, b: Any, place: str) -> str | None:
    if a is b:
        return None
    if not hasattr(a, "dtype"):
        same = a == b or a != a
        return None if same else f"{place}: value {a!r} -> {b!r}"
    x, y = _plain(a), _plain(b)
    if x.tobytes() == y.tobytes():
        return None
    words_of = f"u{x.dtype.itemsize}" if x.dtype.itemsize in (1, 2, 4, 8) else "u1"
    if x.dtype.kind == "c":
        words_of = f"u{x.dtype.itemsize // 2}"
    x_bits, y_bits = (np.atleast_1d(np.ascontiguousarray(z)) for z in (x, y))
    differ = x_bits.view(words_of) != y_bits.view(words_of)
    differ = differ.reshape(*x_bits.shape, -1).any(-1).reshape(x.shape)
    if jnp.issubdtype(x.dtype, jnp.inexact):
        differ &= ~((x != x) & (y != y))  # all NaN are one
    return _first(differ, x, y, place)


def _numbers(
    a: Any,
    b: Any,
    place: str,
    rtol: float | None,
    atol: float | None,
    slack: float,
) -> str | None:
    is_array = hasattr(a, "dtype") or hasattr(b, "dtype")
    if not is_array and not isinstance(a, float | complex):
        return None if a == b else f"{place}: value {a!r} -> {b!r}"
    x, y = _plain(a), _plain(b)
    if x.dtype == object or not jnp.issubdtype(x.dtype, jnp.inexact):
        return _first(np.asarray(x != y), x, y, place)
    relative = slack * tolerance(x.dtype) if rtol is None else rtol
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    x, y = x.astype(wide), y.astype(wide)
    finite = np.abs(x[np.isfinite(x)])
    if atol is None:
        atol = relative * max(1.0, float(finite.max(initial=0.0)))
    try:
        chex.assert_trees_all_close(y, x, rtol=relative, atol=atol)
    except AssertionError:
        close = np.isclose(y, x, rtol=relative, atol=atol, equal_nan=True)
        return _first(~close, x, y, place) or f"{place}: another sign of infinity"
    return None


def tolerance(dtype: Any) -> float:
    """Return the relative tolerance of a floating-point or complex dtype."""
    name = np.finfo(dtype).dtype.name if dtype.kind == "c" else np.dtype(dtype).name
    return _TOLERANCE.get(name, _COARSEST)


def _first(differ: Any, x: Any, y: Any, place: str) -> str | None:
    if not differ.any():
        return None
    index = tuple(int(i) for i in np.argwhere(differ)[0])
    where = f"{place}[{', '.join(map(str, index))}]" if index else place
    count = int(differ.sum())
    what = "value" if count == 1 else f"{count} of {x.size} values, the first"
    return f"{where}: {what} {x[index]} -> {y[index]}"
