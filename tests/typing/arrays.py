"""Fields of type `jax.Array`, which take Python numbers at run time.

A checker holds a value to the annotation, so that `Counter(count=0)` is an error for all
of them. Typed code gives an array, or names a converter, which all but mypy know.
"""

from typing import assert_type

import jax.numpy as jnp
from jax import Array

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
