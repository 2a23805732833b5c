"""Networks of States that the tests of `at` share."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

import purestate as ps


class Moments(NamedTuple):
    mu: object
    nu: object = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Frozen:
    w: object
    rest: object = None


class Layer(ps.State):
    weight: jax.Array
    bias: object = None
    name: str = ps.static(default="layer")

    @property
    def first(self):
        return self.weight

    @property
    def double(self):
        return self.weight * 2


class Net(ps.State):
    head: object = None
    rest: object = None
    name: str = ps.static(default="net")

    @property
    def last(self):
        return self.rest[-1]


def layer(value=1.0):
    return Layer(weight=jnp.full(2, value))


class Positive(ps.State):
    value: jax.Array

    def __check__(self):
        return self.value > 0


class Outer(ps.State):
    inner: Positive
    total: jax.Array = ps.field(init=False)

    def __post_init__(self):
        self.total = 10 * self.inner.value

    def __check__(self):
        if self.inner.value > 5:
            raise ValueError("more than five")
