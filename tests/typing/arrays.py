"""Fields of arrays, which take Python numbers at run time.

A checker holds a value to the annotation, so that with `count: jax.Array` the call
`Counter(count=0)` is an error for all of them. `ps.Array` is `jax.Array` when it runs,
and takes numbers here; a converter does too, for all but mypy.
"""

from typing import Any, assert_type

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

import purestate as ps


class Counter(ps.State):
    count: Array
    plain: Array = 0  # error
    array: Array = jnp.array(0)
    number: Array = ps.field(default=0)
    uint8: Array = ps.field(default=0, dtype=jnp.uint8)
    made: Array = ps.field(default_factory=lambda: jnp.zeros(3))
    maybe: Array | None = ps.field(default=0.5)
    given: Array = ps.field(dtype=jnp.uint8, kw_only=True)


counter = Counter(jnp.int32(0), given=jnp.array(0))
Counter(0, given=jnp.array(0))  # error
Counter(jnp.int32(0), given=0)  # error
counter.replace(count=counter.count + 1)
counter.replace(count=0)  # error[3.13]
assert_type(counter.number, Array)


class Converted(ps.State):
    count: Array = ps.field(converter=jnp.asarray)
    start: Array = ps.field(default=0, converter=jnp.asarray)


# mypy has no converters in dataclass_transform.
Converted(0, 0.5)  # error[mypy]
Converted(jnp.array(0)).replace(count=1)  # error[3.13: mypy]


class Open(ps.State):
    """What `ps.Array` does for fields that are given numbers."""

    first: ps.Array
    count: ps.Array = 0
    angle: Float[ps.Array, ""] = 0.0
    many: Int[ps.Array, "n"] = ps.field(default=0)
    maybe: ps.Array | None = None
    named: dict[str, ps.Array] = ps.field(default_factory=dict)

    def __init__(self, first: ps.Array, count: ps.Array = 0) -> None:
        self.first = first
        self.count = count

    def moved(self, by: ps.Array) -> ps.Array:
        return self.first + by


opened = Open(0, 1.5)
Open(jnp.zeros(3), count=jnp.zeros(3))
opened.replace(count=0, angle=1.0, maybe=3, named={"a": 1.0})
# pyright makes no `__replace__` for a class that writes its `__init__`.
opened.replace(cuont=0)  # error[3.13: not pyright]
assert_type(opened.count, Array | Any)
assert_type(opened.moved(3), Array | Any)
total: Array = opened.count.sum()
