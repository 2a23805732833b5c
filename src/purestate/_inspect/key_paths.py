"""Key paths as a person reads them: `opt.mu['w'][0]`."""

from typing import Any

import jax


def path_text(path: Any, root: str = "") -> str:
    """Return a jax key path as text, after the name of what it starts from.

    >>> import jax
    >>> [(path, _)] = jax.tree.leaves_with_path({"a": [1]})
    >>> path_text(path, "params")
    "params['a'][0]"
    """
    text = root + jax.tree_util.keystr(tuple(path))
    return text.removeprefix(".")


def children(tree: Any) -> tuple[dict[str, Any], Any]:
    """Return the parts one level down by their step, and the level's structure.

    >>> children({"a": [1], "b": None})[0]
    {"['a']": [1], "['b']": None}
    """
    parts, structure = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda x: x is not tree
    )
    return {path_text(path, " ")[1:]: part for path, part in parts}, structure


def names_on(path: Any) -> tuple[str, ...]:
    """Return the names that a jax key path goes through: fields, keys, indices.

    >>> import jax
    >>> [(path, _)] = jax.tree.leaves_with_path({"a": [1]})
    >>> names_on(path)
    ('a', '0')
    """
    return tuple(map(_name, path))


def _name(key: Any) -> str:
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key).strip(".[]'\"")
