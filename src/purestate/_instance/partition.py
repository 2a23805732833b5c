"""`ps.partition` and `ps.combine`: a tree in two parts, each with None for the other.

Nothing is constructed on the way: no converter, check or `__post_init__` runs, since a
part of a State need not be a valid one. What a `where` means is decided here for
`grad(wrt=)` as well.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax

from purestate._inspect.diff import diff
from purestate._inspect.key_paths import path_text
from purestate._instance.at import selected_paths
from purestate._instance.leaves import Leaves, is_path, leaves
from purestate._instance.pytree import new_instance
from purestate._schema.layout import layout_of
from purestate._schema.marks import held_by, is_state
from purestate._schema.text import root_name
from purestate.errors import CombineError, FieldError

_T = TypeVar("_T")
Names = str | Iterable[str]


class Index(int):
    """The position of a leaf, told apart from numbers that users keep in fields."""


def partition(tree: _T, where: Leaves | Callable[[_T], Any] | Names) -> tuple[_T, _T]:
    """Return two trees of one structure: what is chosen, and the rest.

    Each has None where the other has a leaf; `ps.combine` puts them together again.

    Args:
        tree: a State, or any pytree.
        where: what `ps.grad(wrt=)` takes: a choice of leaves, names of fields, paths,
            or a selector, `lambda s: s.params`. Names of fields leave None for whole
            fields, as in a gradient.

    Raises:
        PlaceError: a path in `where` leads to no leaf.
        FieldError: `where` names no field.

    >>> import jax, jax.numpy as jnp, purestate as ps
    >>> class Net(ps.State):
    ...     w: jax.Array
    ...     seen: jax.Array
    >>> net = Net(w=jnp.ones(2), seen=jnp.array(3))
    >>> ps.partition(net, ps.floats)
    (Net(w=f32[2], seen=None), Net(w=None, seen=i32[]))
    """
    structure: Any  # untyped in some versions of jax
    found, structure = jax.tree.flatten(tree)
    numbered = structure.unflatten(map(Index, range(len(found))))
    choice = normal(where, "where")
    part = selected(tree, numbered, choice)
    if isinstance(choice, tuple) and is_state(tree):
        rest = dict.fromkeys(choice)
        return selected(tree, tree, choice), new_instance(
            type(tree), held_by(tree) | rest
        )
    chosen = {int(i) for i in jax.tree.leaves(part) if type(i) is Index}
    both = (
        [leaf if (i in chosen) is kept else None for i, leaf in enumerate(found)]
        for kept in (True, False)
    )
    one, other = map(structure.unflatten, both)
    return one, other


def combine(first: _T, *others: _T) -> _T:
    """Return one tree with, in each place, the first value that is not None.

    None may stand for a leaf or for a whole part. A place that is None in all of the
    trees stays None.

    Raises:
        CombineError: the trees do not belong together; it names the place.

    >>> import jax.numpy as jnp, purestate as ps
    >>> ps.combine({"w": 1, "b": None}, {"w": None, "b": 2})
    {'b': 2, 'w': 1}
    """
    made: _T = _combined([first, *others], (), root_name(first))
    return made


def _combined(trees: list[Any], path: tuple[Any, ...], root: str) -> Any:
    found = [tree for tree in trees if tree is not None]
    if len(found) < 2:
        return found[0] if found else None
    levels = [_one_level(tree) for tree in found]
    parts, structure = levels[0]
    for _, other in levels[1:]:
        if other != structure:
            shells = [one.unflatten([0] * one.num_leaves) for one in (structure, other)]
            place = path_text(path, root)
            inner = len(root_name(shells[0]))
            raise CombineError(
                str(dataclasses.replace(one, path=place + one.path[inner:]))
                for one in diff(*shells)
            )
    if parts and parts[0][0] == ():  # a leaf
        return found[0]
    children = (
        _combined([level[0][i][1] for level in levels], (*path, *step), root)
        for i, (step, _) in enumerate(parts)
    )
    return structure.unflatten(children)


def _one_level(tree: Any) -> Any:
    return jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)


def normal(
    where: Any, argument: str
) -> Leaves | Callable[[Any], Any] | tuple[str, ...]:
    """Return a `where` as a choice of leaves, a selector, or names of fields.

    Raises:
        TypeError: it is something else.
    """
    if callable(where):
        found: Leaves | Callable[[Any], Any] = where
        return found
    many = hasattr(where, "__iter__") and not isinstance(where, str)
    names: tuple[Any, ...] = tuple(where) if many else (where,)
    if not all(isinstance(name, str) for name in names):
        hint = "; positions of arguments go into argnums=" if argument == "wrt" else ""
        raise TypeError(
            f"{argument} takes names of fields, paths, ps.leaves(...) or a selector, "
            f"and got {where!r}{hint}."
        )
    return leaves(*names) if any(map(is_path, names)) else names


def selected(
    given: Any, tree: Any, where: Leaves | Callable[[Any], Any] | tuple[str, ...]
) -> Any:
    """Return the part of `tree` that `where` means in `given`, of the same structure.

    Names of fields give None for other fields, a choice None for other leaves, and a
    selector the part alone.
    """
    if isinstance(where, Leaves):
        structure: Any
        found, structure = jax.tree.flatten(tree)
        pairs = zip(where.among(given), found, strict=True)
        return structure.unflatten(leaf if flag else None for flag, leaf in pairs)
    if callable(where):
        paths, many = selected_paths(given, where)
        parts = [_follow(tree, path) for path in paths]
        return tuple(parts) if many else parts[0]
    if not is_state(given):
        return selected(given, tree, leaves(*where))
    layout = layout_of(type(given))
    for name in where:
        if name in layout.static:
            raise FieldError(
                f"{layout.cls.__name__}.{name} is static, so it has no gradient and no "
                f"leaves; choose from {', '.join(layout.data)}."
            )
        if name not in layout.data and isinstance(
            getattr(layout.cls, name, None), property
        ):
            raise FieldError(
                f"{layout.cls.__name__}.{name} is a property and no field: write "
                f"lambda s: s.{name}, if it leads to one."
            )
        if name not in layout.data:
            raise FieldError.unknown(layout.cls, name, layout.data)
    rest = {name: None for name in layout.data if name not in where}
    return new_instance(layout.cls, held_by(tree) | rest)


def _follow(tree: Any, path: tuple[tuple[str, Any], ...]) -> Any:
    for kind, key in path:
        tree = getattr(tree, key) if kind == "." else tree[key]
    return tree
