"""What jit looks at, and batches that are put together without compiling anything."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purestate._schema.leaves import is_key
from purestate.testing._trees.asserts import mismatch


def flattened(tree: Any) -> tuple[list[Any], Any]:
    """Return the leaves and the structure; JAX's own is untyped."""
    leaves, structure = jax.tree.flatten(tree)
    return leaves, structure


def is_numeric(tree: Any) -> bool:
    """Return whether every leaf is something that jax takes."""
    kinds = jax.Array | np.ndarray | np.generic | bool | int | float | complex
    return all(isinstance(leaf, kinds) for leaf in jax.tree.leaves(tree))


def is_real(leaf: Any) -> bool:
    """Return whether a leaf is a floating-point number, or an array of them."""
    return not is_key(leaf) and bool(jnp.issubdtype(_dtype(leaf), jnp.floating))


def differ_in_type(a: Any, b: Any) -> bool:
    """Return whether two trees differ in anything for which jit traces again."""
    facts = [[_facts(leaf) for leaf in jax.tree.leaves(tree)] for tree in (a, b)]
    if type(a) is not type(b) or facts[0] != facts[1]:
        return True
    # Static values and containers, without asking the trees whether they are equal.
    blank = [jax.tree.map(lambda _: 0, tree) for tree in (a, b)]
    return mismatch(*blank) is not None


def _facts(leaf: Any) -> tuple[Any, ...]:
    is_weak = not hasattr(leaf, "dtype") or bool(getattr(leaf, "weak_type", False))
    return np.shape(leaf), str(_dtype(leaf)), is_weak


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)


def stacked(leaves: Any, axis: int = 0) -> Any:
    """Return leaves of one type as one, along a new axis."""
    if is_key(leaves[0]):
        data = [np.asarray(jax.random.key_data(leaf)) for leaf in leaves]
        impl = jax.random.key_impl(leaves[0])
        return wrap_key_data(np.stack(data, axis), impl=impl)
    arrays = [np.asarray(leaf, _dtype(leaf)) for leaf in leaves]
    return jax.device_put(np.stack(arrays, axis))


# It takes numpy's arrays, too.
wrap_key_data: Any = jax.random.wrap_key_data


def row(tree: Any, index: int) -> Any:
    """Return one item of a batch, with leaves of numpy."""

    def part(leaf: Any) -> Any:
        if is_key(leaf):
            data = np.asarray(jax.random.key_data(leaf))[index]
            return wrap_key_data(data, impl=jax.random.key_impl(leaf))
        return np.asarray(np.asarray(leaf)[index])  # an array, also without axes

    return jax.tree.map(part, tree)
