"""Shardings and sharded States have the class of the State; what specs may be."""

from typing import Any, assert_type

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec as P

import purestate as ps


def split(path: str, leaf: Any) -> P | None:
    # JAX does not annotate how a PartitionSpec is made.
    return P("data") if path.endswith("kernel") else None  # error[mypy]


class Net(ps.State):
    # Nor here.
    w: Array = ps.field(spec=P("data", None))  # error[mypy]
    b: Array = ps.field(spec=split, default=0.0)
    ema: Array = ps.field(spec="w", default_factory=lambda: jnp.ones(3))


def make() -> Net:
    return Net(w=jnp.ones((4, 3)))


mesh = jax.make_mesh((1,), ("data",))
net = make()
assert_type(ps.shardings(net, mesh), Net)
assert_type(ps.shard(net, mesh, rules={"rows": "data"}, batch=("data", None)), Net)
assert_type(ps.shard(net), Net)
ps.shard(net, "data")  # error
ps.shardings(net, mesh, rules=["data"])  # error
ps.field(spec=1)  # error
