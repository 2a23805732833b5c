"""The constructor: names, types, defaults, keyword-only and computed fields."""

import dataclasses
from dataclasses import InitVar
from typing import Any, ClassVar, assert_type

import jax.numpy as jnp
from jax import Array

import purestate as ps


class Layer(ps.State):
    unit: ClassVar[str] = "m"
    weight: Array
    width: int = ps.static(default=1)
    label: str = "layer"


Layer(jnp.ones(3))
Layer(jnp.ones(3), 2, "a")
Layer(weight=jnp.ones(3), width=2, label="a")
Layer()  # error
Layer("x")  # error
Layer(jnp.ones(3), width="x")  # error
Layer(jnp.ones(3), widht=2)  # error
Layer(jnp.ones(3), unit="cm")  # error
Layer(jnp.ones(3), 2, "a", 3)  # error
assert_type(Layer(jnp.ones(3)), Layer)
assert_type(Layer(jnp.ones(3)).weight, Array)
assert_type(Layer(jnp.ones(3)).width, int)


class Defaults(ps.State):
    plain: str = "a"
    data: dict[str, int] = ps.field(default_factory=dict)
    fixed: tuple[int, ...] = ps.static(default_factory=tuple)
    text: str = ps.static(default="a")
    maybe: Array | None = ps.field(default=None)
    hidden: float = ps.field(default=1.0, repr=False, compare=False, metadata={"a": 1})
    standard: list[int] = dataclasses.field(default_factory=list)


Defaults()
Defaults("b", {}, (1,), "b", None, 2.0)
Defaults(data={"a": "b"})  # error


class WrongDefaults(ps.State):
    text: str = ps.field(default=b"a")  # error
    label: str = ps.static(default=1)  # error
    # ty does not look into factories.
    names: list[str] = ps.field(default_factory=dict)  # error[not ty]
    # ty does not check Unpack.
    option: int = ps.static(default=1, retrace=True)  # error[not ty]
    both: int = ps.field(default=1, default_factory=int)  # error[not ty]
    static_dtype: int = ps.static(default=1, dtype=jnp.int8)  # error[not ty]
    # No checker: the price of `count: Array = ps.field(default=0)` without an error.
    number: str = ps.field(default=1)


class Standard(ps.State):
    """The standard library's `field` is understood too."""

    names: list[str] = dataclasses.field(default_factory=list)
    derived: int = dataclasses.field(init=False)


Standard([])
Standard(derived=1)  # error


class KeywordOnly(ps.State, kw_only=True):
    a: int
    b: str = "b"


KeywordOnly(a=1)
KeywordOnly(1)  # error


class SomeKeywordOnly(ps.State):
    a: int = 0
    _: dataclasses.KW_ONLY
    b: int


SomeKeywordOnly(1, b=2)
SomeKeywordOnly(1, 2)  # error


class FieldKeywordOnly(ps.State):
    a: int = ps.field(default=0, kw_only=True)
    b: int = ps.static(kw_only=True)
    c: int


FieldKeywordOnly(1, b=2)
FieldKeywordOnly(1, 2)  # error


class Strict(ps.State, strict=True):
    a: int


Strict(1)


class Versioned(ps.State, version=2, was=("Old", "Older")):
    ema: Array = ps.field(was="avg")
    loss: ps.Array = ps.field(was=("cost", "error"), default=0)
    width: int = ps.static(was="size", default=8)

    @staticmethod
    def __migrate__(saved: dict[str, Any], version: int) -> dict[str, Any]:
        return saved


assert_type(Versioned(jnp.ones(2), width=1), Versioned)
Versioned()  # error


class Derived(ps.State):
    side: float
    scale: InitVar[float]
    area: float = ps.field(init=False)
    name: str = ps.static(init=False, default="square")

    def __post_init__(self, scale: float) -> None: ...


Derived(1.0, 2.0)
Derived(1.0, 2.0, 3.0)  # error
Derived(1.0, 2.0, area=3.0)  # error
Derived(1.0, 2.0, name="a")  # error


class DefaultFirst(ps.State):
    a: int = 0
    b: int  # error


def from_rows(rows: list[dict[str, Any]]) -> list[Layer]:
    return [Layer(**row) for row in rows]
