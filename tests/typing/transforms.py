"""What JAX's transforms leave of the types of methods and States."""

from typing import Any, Self, assert_type

import jax
import jax.numpy as jnp
from jax import Array

import purestate as ps


class Box(ps.State):
    cache: Array
    gain: float = ps.static(default=2.0)

    @jax.jit
    def apply(self, x: Array) -> tuple[Self, Array]:
        out = self.gain * x
        return self.replace(cache=out), out

    def plain(self, x: Array) -> tuple[Self, Array]:
        return self.replace(cache=x), x


box = Box(jnp.zeros(3))
# jax.jit forgets the signature: neither arguments nor results are checked.
# pyrefly says Never: the body of `__call__` in JAX only raises.
assert_type(box.apply(jnp.ones(3)), Any)  # error[pyrefly]
box.apply(1, 2, y=3)
moved, out = box.apply(jnp.ones(3))
# As above, for pyrefly.
assert_type(moved, Any)  # error[pyrefly]

# vmap keeps it; grad of jax forgets it, grad of ours does not: see grad.py.
assert_type(jax.vmap(box.plain)(jnp.ones((2, 3))), tuple[Box, Array])
assert_type(jax.eval_shape(box.plain, jnp.ones(3)), Any)
assert_type(jax.tree.map(jnp.sum, box), Any)


def body(carry: Box, x: Array) -> tuple[Box, Array]:
    return carry.plain(x)


last, outs = jax.lax.scan(body, box, jnp.ones((2, 3)))
assert_type(last, Box)


class Typed(ps.State):
    """`ps.jit` keeps the signature."""

    cache: Array

    @ps.jit
    def apply(self, x: Array) -> tuple[Self, Array]:
        return self.replace(cache=x), x

    @ps.jit(donate=True)
    def donated(self, x: Array) -> Self:
        return self.replace(cache=x)

    @ps.jit
    @staticmethod
    def double(x: Array) -> Array:
        return 2 * x

    @property
    @ps.jit
    def total(self) -> Array:
        return self.cache.sum()


typed = Typed(jnp.zeros(3))
assert_type(typed.apply(jnp.ones(3)), tuple[Typed, Array])
assert_type(typed.donated(jnp.ones(3)), Typed)
assert_type(typed.double(jnp.ones(3)), Array)
assert_type(typed.total, Array)
typed.apply("x")  # error
typed.apply()  # error
typed.donated(jnp.ones(3), 1)  # error
assert_type(ps.vmap(typed.apply)(jnp.ones((2, 3))), tuple[Typed, Array])
