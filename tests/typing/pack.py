"""A packed State is Any to type checkers: it goes wherever the State goes."""

from typing import Any, Self, assert_type

import jax.numpy as jnp
from jax import Array

import purestate as ps


class Train(ps.State):
    w: Array

    @ps.jit
    def step(self, x: Array) -> tuple[Self, Array]:
        return self.replace(w=self.w + x), x


@ps.jit(donate=True)
def update(train: Train, x: Array) -> Train:
    return train.replace(w=train.w + x)


packed = ps.pack(Train(jnp.ones(3)))
assert_type(packed, Any)
packed, out = packed.step(jnp.ones(3))
packed = update(packed, jnp.ones(3))
state: Train = ps.pack(Train(jnp.ones(3)), max_bytes=1024).unpack()

ps.pack()  # error
ps.pack(state, max_bytes="1")  # error
