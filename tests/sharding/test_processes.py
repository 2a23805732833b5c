"""`ps.shard` in a program of two processes, which talk over the loopback device."""

from tests.helpers import two_processes

PROGRAM = """
jax.config.update("jax_num_cpu_devices", 2)

import jax.numpy as jnp, numpy as np, purestate as ps
from jax.sharding import AxisType, PartitionSpec as P

class Net(ps.State):
    w: jax.Array = ps.field(spec=P("rows", "columns"))
    table: np.ndarray = ps.field(spec=P("columns"))
    key: jax.Array
    scale: float

def net():
    w = jnp.arange(32.0).reshape(8, 4)
    return Net(w=w, table=np.arange(6), key=jax.random.key(3), scale=2.0)

def holds(state):
    for name in ("w", "table", "scale"):
        whole = np.asarray(getattr(net(), name))
        for shard in getattr(state, name).addressable_shards:
            assert np.array_equal(shard.data, whole[shard.index]), name
    key = jax.random.key_data(state.key).addressable_shards[0].data
    assert np.array_equal(key, jax.random.key_data(net().key))

assert (4, 2) == (jax.device_count(), jax.local_device_count())
axes = ("data", "model")
meshes = [jax.make_mesh((2, 2), axes, axis_types=(AxisType.Auto,) * 2)]
meshes += [jax.make_mesh((2, 2), axes, axis_types=(AxisType.Explicit,) * 2)]
rules = {"rows": "data", "columns": "model"}
other = {"rows": "model", "columns": None}
give_away = jax.jit(lambda s: jax.tree.map(jnp.copy, s), donate_argnums=0)

for mesh in meshes:
    here = net()
    spread = ps.shard(here, mesh, rules=rules)
    assert (4, 2) == spread.w.addressable_shards[0].data.shape
    assert not spread.w.is_fully_addressable
    holds(spread)

    moved = ps.shard(spread, mesh, rules=other)
    assert (4, 4) == moved.w.addressable_shards[0].data.shape
    holds(moved)

    again = ps.shard(moved, mesh, rules=other)
    kept = give_away(again)
    assert again.w.is_deleted() and not moved.w.is_deleted()
    holds(moved), holds(kept)

    give_away(spread)
    assert spread.w.is_deleted() and here == net()
print("done")
"""


def test_each_process_holds_its_part():
    assert ["done\n"] * 2 == two_processes(PROGRAM)
