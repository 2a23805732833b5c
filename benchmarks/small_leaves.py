"""A State of many small arrays, and steps whose cost is that of its leaves."""

from typing import Any

import jax
import jax.numpy as jnp

import purestate as ps

FLOATS = 8  # in a leaf


def state_of(count: int) -> Any:
    """Return a State of that many small arrays."""
    names = [f"f{i}" for i in range(count)]
    cls = type("S", (ps.State,), {"__annotations__": dict.fromkeys(names, jax.Array)})
    leaves = jnp.arange(count * FLOATS, dtype=jnp.float32).reshape(count, FLOATS)
    return cls(*[jnp.array(row) for row in leaves])


def one(s: Any) -> Any:
    """Change one leaf."""
    return s.replace(f0=s.f0 + 1)


def every(s: Any) -> Any:
    """Change every leaf."""
    return jax.tree.map(lambda x: 0.9 * x + 1, s)


def normed(s: Any) -> Any:
    """Change every leaf by what depends on all of them."""
    total = sum(jnp.sum(x * x) for x in jax.tree.leaves(s))
    return jax.tree.map(lambda x: x * jax.lax.rsqrt(total + 1), s)


def adam(s: Any) -> Any:
    """Change a quarter of the leaves by another quarter, with two moments each."""
    leaves, structure = jax.tree.flatten(s)
    n = len(leaves) // 4
    p, g, m, v = (leaves[i * n : (i + 1) * n] for i in range(4))
    m = [0.9 * a + 0.1 * b for a, b in zip(m, g, strict=True)]
    v = [0.999 * a + 0.001 * b * b for a, b in zip(v, g, strict=True)]
    p = [a - 1e-3 * b / (jnp.sqrt(c) + 1e-8) for a, b, c in zip(p, m, v, strict=True)]
    return jax.tree.unflatten(structure, [*p, *g, *m, *v])
