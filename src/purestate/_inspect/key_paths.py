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
