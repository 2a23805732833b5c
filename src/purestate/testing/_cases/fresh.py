"""Copies of a case, so that what donates or writes leaves the next law its own."""

from typing import Any

import jax
import numpy as np

from purestate._compat import is_tracer
from purestate._schema.leaves import is_key
from purestate.testing._trees.leaves import wrap_key_data


def fresh(tree: Any) -> Any:
    """Return a tree with arrays of its own, which can be donated or written to.

    Through the host, so that nothing is compiled.
    """
    return jax.tree.map(_copied, tree)


def _copied(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    if not isinstance(leaf, jax.Array) or is_tracer(leaf):
        return leaf
    if is_key(leaf):
        words = np.array(jax.random.key_data(leaf))
        return wrap_key_data(words, impl=jax.random.key_impl(leaf))
    made: Any = jax.device_put(np.array(leaf), leaf.sharding)
    return made
