"""`replace`: names and types for target 3.13 and later, and everywhere the own type."""

import copy
import dataclasses
from dataclasses import InitVar
from typing import Any, Self, TypeVar, assert_type

import jax.numpy as jnp
from jax import Array

import purestate as ps


class Counter(ps.State):
    count: Array
    step: int = ps.static(default=1)

    def stepped(self) -> Self:
        return self.replace(step=2)

    def pair(self, x: Array) -> tuple[Self, Array]:
        return self.replace(count=x), x

    def unknown_name(self) -> Self:
        # ty sees `(...) -> Self` on Self.
        return self.replace(stpe=2)  # error[3.13: not ty]

    def wrong_type(self) -> Self:
        # As above, for ty.
        return self.replace(step="a")  # error[3.13: not ty]

    def from_names(self, **changes: Any) -> Self:
        return self.replace(**changes)


class Sub(Counter):
    extra: float = 0.0

    def stepped(self) -> Self:
        return super().stepped().replace(extra=1.0)

    def reset(self) -> Self:
        return super().replace(extra=0.0)


counter = Counter(jnp.zeros(3))
counter.replace()
counter.replace(count=jnp.ones(3), step=2)
counter.replace(conut=jnp.ones(3))  # error[3.13]
counter.replace(step="a")  # error[3.13]
counter.replace(jnp.ones(3))  # error
assert_type(counter.replace(step=2), Counter)
assert_type(counter.replace(step=2).count, Array)

sub = Sub(jnp.zeros(3))
sub.replace(extra="a")  # error[3.13]
sub.replace(step="a")  # error[3.13]
assert_type(sub.replace(extra=1.0), Sub)
assert_type(sub.replace(step=2).replace(extra=1.0), Sub)
assert_type(sub.stepped(), Sub)
assert_type(sub.pair(jnp.ones(3)), tuple[Sub, Array])

# Through the class.
assert_type(Counter.replace(counter, step=2), Counter)

# The standard library's ways.
assert_type(dataclasses.replace(sub, step=2), Sub)
assert_type(copy.replace(sub, step=2), Sub)  # error[3.11]
assert_type(copy.copy(sub), Sub)
assert_type(copy.deepcopy(sub), Sub)

# Code that takes any State.
S = TypeVar("S", bound=ps.State)
C = TypeVar("C", bound=Counter)


def any_state(state: ps.State) -> ps.State:
    assert_type(state.replace(anything=1), ps.State)
    return state.replace(anything=1)


def same_state(state: S) -> S:
    # pyrefly takes a TypeVar for its bound when it meets a descriptor.
    return state.replace(anything=1)  # error[3.13: pyrefly]


def same_counter(state: C) -> C:
    # As above, for pyrefly.
    return state.replace(step=2)  # error[3.13: pyrefly]


def one_of(state: Counter | Sub) -> Counter:
    return state.replace(step=2)


class KeywordOnly(ps.State, kw_only=True):
    a: int
    b: str = "b"


KeywordOnly(a=1).replace(b="c")
KeywordOnly(a=1).replace(b=1)  # error[3.13]


class Empty(ps.State):
    pass


Empty().replace()
Empty().replace(a=1)  # error[3.13]


class WithInit(ps.State):
    n: int

    def __init__(self, n: float) -> None:
        object.__setattr__(self, "n", int(n))


WithInit(1.5).replace(n=2)
# pyright synthesises no `__replace__` for a class with an `__init__`.
WithInit(1.5).replace(m=2)  # error[3.13: not pyright]
assert_type(WithInit(1.5).replace(n=2), WithInit)


class Derived(ps.State):
    side: float
    area: float = ps.field(init=False)


Derived(1.0).replace(side=2.0)
# ty has `init=False` fields in `__replace__`.
Derived(1.0).replace(area=2.0)  # error[3.13: not ty]


class Overridden(Counter):
    # ty does not let a method override a descriptor.
    def replace(self, **changes: Any) -> Self:  # error[3.13: ty]
        return super().replace(**changes)


assert_type(Overridden(jnp.zeros(3)).replace(step=2), Overridden)


class Started(ps.State):
    seed: InitVar[int]
    w: Array = ps.field(init=False, derived=False)
    rate: float = 1.0

    def __post_init__(self, seed: int) -> None: ...


started = Started(0)
# An InitVar that only starts fields is not needed; two ask for it.
started.replace(rate=2.0)  # error[3.13: mypy, pyrefly]
started.at(lambda s: s.rate).set(2.0)
started.at(lambda s: s.w).set(jnp.ones(2))
