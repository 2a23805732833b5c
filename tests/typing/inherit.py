"""Subclasses, generic and abstract classes, mixins."""

from abc import abstractmethod
from functools import cached_property
from typing import Generic, Self, TypeVar, assert_type

import jax.numpy as jnp
from jax import Array

import purestate as ps

T = TypeVar("T")


class Base(ps.State):
    f: int | str
    n: int = ps.static(default=1)


class Narrow(Base):
    # For a checker a field can be assigned to, so that a narrower type is no subtype.
    f: str  # error[not mypy]


class Wide(Base):
    n: float = ps.static(default=1.0)  # error


narrow = Narrow(f="x")
assert_type(narrow.f, str)
narrow.f = "y"
Narrow(f=1)  # error
assert_type(narrow.replace(f="z"), Narrow)
narrow.replace(f=1)  # error[3.13]


class Box(ps.State, Generic[T]):
    value: T

    def swapped(self, value: T) -> Self:
        return self.replace(value=value)


class IntBox(Box[int]):
    count: int = 0


assert_type(Box(1), Box[int])
assert_type(Box(1).value, int)
assert_type(Box("a").replace(value="b"), Box[str])
assert_type(Box("a").swapped("b"), Box[str])
assert_type(IntBox(1).swapped(2).replace(count=1), IntBox)
Box(1).replace(value="a")  # error[3.13]
Box(1).swapped("a")  # error
IntBox("a")  # error
IntBox(1).replace(value="a")  # error[3.13]


class Shape(ps.State):
    size: Array

    @abstractmethod
    def area(self) -> Array: ...

    @property
    def double(self) -> Array:
        return 2 * self.size

    @cached_property
    def root(self) -> Array:
        return jnp.sqrt(self.size)


class Square(Shape):
    def area(self) -> Array:
        return self.size**2


assert_type(Square(jnp.ones(())).double, Array)
assert_type(Square(jnp.ones(())).root, Array)


class Mixin:
    # For mypy and pyright a self-type must be a supertype of its class.
    def grown(self: "S") -> "S":  # error[mypy, pyright]
        # As in replace.py, for pyrefly.
        return self.replace()  # error[3.13: pyrefly]


S = TypeVar("S", bound=ps.State)


class Left(ps.State):
    a: int


class Right(ps.State):
    b: str


class Both(Left, Right):
    c: float


both = Both("b", 1, 1.0)
Both(1, "b", 1.0)  # error
both.replace(a=2, b="c", c=2.0)
both.replace(d=1)  # error[3.13]


def described(state: Left | Right) -> str:
    match state:
        case Left(a):
            return str(a)
        case Right(b):
            return b
