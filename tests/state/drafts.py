"""States that the tests of `draft` share."""

import dataclasses
from typing import NamedTuple

import jax

import purestate as ps
from purestate.errors import FrozenStateError


class Item(NamedTuple):
    value: object
    note: object = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Mutable:
    value: object


class Leaf(ps.State):
    x: jax.Array
    y: jax.Array = 0
    name: str = ps.static(default="leaf")


class Tree(ps.State):
    left: object = None
    right: object = None
    name: str = ps.static(default="tree")


class Positive(ps.State):
    value: jax.Array

    def __check__(self):
        return self.value > 0


class Derived(ps.State):
    x: object
    made: object = ps.field(init=False)

    def __post_init__(self):
        self.made = self.make()

    def make(self):
        return 10 * self.x


def is_frozen(state):
    try:
        state.x = 1
    except FrozenStateError:
        return True
    return False
