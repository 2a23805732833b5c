"""How two States, or any two trees, differ: by field path, in words.

jit compiles again when static values, structure, shape, dtype or weak type differ; this
is the list of exactly those, with the values of leaves on request.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from purestate._compat import is_tracer
from purestate._inspect.key_paths import children
from purestate._inspect.repr import pformat
from purestate._schema.layout import layout_of
from purestate._schema.leaves import is_key
from purestate._schema.marks import is_state
from purestate._schema.static_values import typed
from purestate._schema.text import root_name
from purestate.errors._text import short


@dataclasses.dataclass(frozen=True)
class Difference:
    """One place where two trees differ.

    Attributes:
        path: the place, such as `Box.opt.mu[0]`.
        kind: "class", "static value", "structure", "shape", "dtype", "weak type" or
            "value".
        before: what the first tree has there, as text.
        after: what the second has.
    """

    path: str
    kind: str
    before: str
    after: str

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        return f"{place}{self.kind} {self.before} -> {self.after}"


class Differences(tuple[Difference, ...]):
    """All differences, in field order; empty, hence false, when two trees are alike."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no differences"


def diff(a: Any, b: Any, *, values: bool = False) -> Differences:
    """Return the differences between two trees, by path.

    Without `values` these are the reasons for which a jitted function that has been
    called with `a` is traced again for `b`.

    Args:
        a: a State, or any pytree.
        b: another.
        values: whether to compare the numbers in the leaves too; the largest absolute
            difference and its index are given.

    Raises:
        TypeError: `values=True` and a leaf is a tracer.

    >>> import jax, jax.numpy as jnp, purestate as ps
    >>> class Shape(ps.State):
    ...     length: jax.Array
    ...     sides: int = ps.static()
    >>> print(ps.diff(Shape(jnp.ones(3), sides=3), Shape(jnp.ones(2), sides=4)))
    Shape.sides: static value 3 -> 4
    Shape.length: shape (3,) -> (2,)
    """
    root = root_name(a)
    return Differences(_walk(a, b, root, values))


def _walk(a: Any, b: Any, path: str, values: bool) -> Iterator[Difference]:
    if a is b:
        return
    if _is_leaf(a) and _is_leaf(b):
        yield from _leaves(a, b, path, values)
        return
    if type(a) is not type(b):
        yield Difference(path, "class", _kind(a), _kind(b))
        return
    if is_state(a):
        for name in layout_of(type(a)).static:
            old, new = getattr(a, name), getattr(b, name)
            if typed(old) != typed(new):
                texts = _told_apart(old, new)
                yield Difference(f"{path}.{name}", "static value", *texts)
    (first, was), (second, now) = children(a), children(b)
    if first.keys() != second.keys():
        yield Difference(path, "structure", _listed(first), _listed(second))
        return
    if was != now and not is_state(a):
        yield Difference(path, "structure", short(was), short(now))
        return
    for step, child in first.items():
        yield from _walk(child, second[step], path + step, values)


def _told_apart(old: Any, new: Any) -> tuple[str, str]:
    if all(map(_is_transformation, (old, new))):
        return short(old), (
            "another, and no two of optax are equal: use purestate.optax.Optimizer, or "
            "functools.partial(optax.adam, 1e-3)"
        )
    return told_apart(short(old), short(new))


def _is_transformation(value: Any) -> bool:
    """Return whether a value is what optax updates with, a pair of closures."""
    names = getattr(value, "_fields", ())
    return isinstance(value, tuple) and {"init", "update"} <= set(names)


def told_apart(old: str, new: str) -> tuple[str, str]:
    """Return two texts for different values, also where they look alike."""
    if old != new:
        return old, new
    return old, "another that looks the same but is not equal: make it once, not anew"


def _leaves(a: Any, b: Any, path: str, values: bool) -> Iterator[Difference]:
    if not (_is_array(a) and _is_array(b)):
        if type(a) is not type(b):
            yield Difference(path, "class", _kind(a), _kind(b))
        elif values and a is not b and short(a, 1000) != short(b, 1000):
            yield Difference(path, "value", short(a), short(b))
        return
    facts = {
        "shape": (a.shape, b.shape),
        "dtype": (a.dtype, b.dtype),
        "weak type": (_is_weak(a), _is_weak(b)),
    }
    found = [(kind, *pair) for kind, pair in facts.items() if pair[0] != pair[1]]
    for kind, old, new in found:
        yield Difference(path, kind, str(old), str(new))
    if values and not {"shape", "dtype"} & {kind for kind, *_ in found}:
        yield from _numbers(a, b, path)


def _numbers(a: Any, b: Any, path: str) -> Iterator[Difference]:
    if isinstance(a, jax.Ref) or isinstance(b, jax.Ref):
        if a is not b:
            yield Difference(path, "value", "a Ref", "another Ref")
        return
    if is_tracer(a) or is_tracer(b):
        raise TypeError(
            f"cannot compare values at {path}: it is a tracer. Call ps.diff outside "
            f"the transformed function, or leave out values=True."
        )
    if is_key(a):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    x, y = np.asarray(a), np.asarray(b)
    different = ~((x == y) | ((x != x) & (y != y)))
    if not different.any():
        return
    if np.issubdtype(x.dtype, np.number):
        wide = np.promote_types(x.dtype, np.float64)
        with np.errstate(invalid="ignore"):
            distance = np.abs(x.astype(wide) - y.astype(wide))
        distance = np.nan_to_num(distance, nan=np.inf)
    else:  # booleans, and what numpy cannot subtract
        distance = np.ones(x.shape)
    distance = np.where(different, distance, -1)
    index = np.unravel_index(np.argmax(distance), x.shape)
    where = f"{path}[{', '.join(map(str, index))}]" if index else path
    count = int(different.sum())
    what = "value" if count == 1 else f"{count} of {x.size} values, the largest"
    yield Difference(where, what, str(x[index]), str(y[index]))


def _is_leaf(tree: Any) -> bool:
    return tree is not None and jax.tree_util.all_leaves([tree])


def _is_array(leaf: Any) -> bool:
    is_type = isinstance(leaf, type)
    return not is_type and hasattr(leaf, "dtype") and hasattr(leaf, "shape")


def _is_weak(leaf: Any) -> bool:
    return bool(getattr(leaf, "weak_type", False))


def _kind(value: Any) -> str:
    return pformat(value) if hasattr(value, "dtype") else type(value).__name__


def _listed(parts: dict[str, Any]) -> str:
    text = ", ".join(step.strip(".") for step in parts) or "empty"
    return text if len(text) <= 60 else f"{text[:57]}..."
