"""Assignments to fields are errors, also in methods."""

from typing import Self

import jax.numpy as jnp
from jax import Array

import purestate as ps


class Box(ps.State):
    cache: Array
    gain: float = ps.static(default=2.0)

    def apply(self, x: Array) -> Array:
        self.cache = x  # error
        self.gain += 1.0  # error
        return x

    def updated(self, x: Array) -> tuple[Self, Array]:
        return self.replace(cache=x), x


class Sub(Box):
    extra: int = 0

    def reset(self) -> None:
        self.cache = jnp.zeros(3)  # error
        self.extra = 1  # error


box = Box(jnp.zeros(3))
box.cache = jnp.ones(3)  # error
box.gain = 3.0  # error
# pyrefly lets frozen classes take any new name.
box.undeclared = 3  # error[not pyrefly]
# mypy does not check `del` of a frozen field.
del box.cache  # error[not mypy]
Sub(jnp.zeros(3)).cache = jnp.ones(3)  # error
Sub(jnp.zeros(3)).extra = 1  # error


class Written(ps.State):
    """Allowed while constructing, yet no checker makes an exception for constructors.

    Without a comment that silences it, write a classmethod or `object.__setattr__`.
    """

    n: int
    double: int = ps.field(init=False, default=0)

    def __init__(self, n: float) -> None:
        self.n = int(n)  # error
        object.__setattr__(self, "n", int(n))

    def __post_init__(self) -> None:
        self.double = 2 * self.n  # error
        object.__setattr__(self, "double", 2 * self.n)

    @classmethod
    def make(cls, text: str) -> Self:
        return cls(float(text))


Written(1.5)
Written("x")  # error
