"""Assignments to fields: where a checker sees that they fail, and where it does not.

A checker makes no exception for constructors, so it would reject every `self.x = ...`
of an `__init__` along with the mistakes. Fields are therefore open to it; the run time
refuses the assignment, at that line. A `Final` field is the checker's business too.
"""

from typing import Final, Self

import jax.numpy as jnp
from jax import Array

import purestate as ps


class Box(ps.State):
    cache: Array
    gain: float = ps.static(default=2.0)

    def apply(self, x: Array) -> Array:
        self.cache = x  # FrozenStateError when it runs
        return x

    def updated(self, x: Array) -> tuple[Self, Array]:
        return self.replace(cache=x), x


box = Box(jnp.zeros(3))
box.cache = "x"  # error
box.gain = "x"  # error
box.undeclared = 3  # error


class Written(ps.State):
    n: int
    double: int = ps.field(init=False, default=0)

    def __init__(self, n: float) -> None:
        self.n = int(n)
        self.n = "x"  # error

    def __post_init__(self) -> None:
        self.double = 2 * self.n

    @classmethod
    def make(cls, text: str) -> Self:
        return cls(float(text))


Written(1.5)
Written("x")  # error


class Config(ps.State):
    """A `Final` field may be set in `__init__`, and nowhere else.

    With `= ps.static()` it would count as set in the class.
    """

    width: Final[int]
    scale: Final[Array]

    def __init__(self, width: int) -> None:
        self.width = width
        self.scale = jnp.ones(width)

    def widen(self) -> Self:
        self.scale = jnp.ones(1)  # error
        return self


Config(3).width = 4  # error
Config(3).scale = jnp.ones(4)  # error


def hashed(box: Box) -> int:
    return hash(box)
