"""Host functions in a program of two processes, which talk over the loopback device."""

from tests.helpers import two_processes

PROGRAM = """
import jax.numpy as jnp, numpy as np, purestate as ps
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

assert (2, 1) == (jax.device_count(), jax.local_device_count())
mesh = Mesh(np.array(jax.devices()), ("d",))
seen = []

def look(x):
    seen.append(x.tolist())
    return np.sin(x)

def saw():
    jax.effects_barrier()
    found = list(seen)
    seen.clear()
    return found

def local(a):
    return np.concatenate([np.asarray(shard.data) for shard in a.addressable_shards])

def shard_map(f, out_specs=P("d")):
    return jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=out_specs)

sin = ps.host_function(look, out=lambda x: x, vjp=lambda a, ct: (ct * np.cos(a[0]),))
x = np.arange(8.0, dtype=np.float32)
half = x[:4] if RANK == 0 else x[4:]
xs = jax.make_array_from_callback((8,), NamedSharding(mesh, P("d")), lambda i: x[i])

# shard_map: each process calls its own function, with its own shard
out = jax.jit(shard_map(sin))(xs)
assert np.allclose(local(out), np.sin(half), atol=1e-6)
assert [half.tolist()] == saw()
slope = jax.jit(shard_map(jax.grad(lambda x: sin(x).sum())))(xs)
assert np.allclose(local(slope), np.cos(half), atol=1e-6)
saw()
total = jax.jit(shard_map(lambda x: jax.lax.psum(sin(x).sum(), "d"), P()))(xs)
assert np.allclose(total, np.sin(x).sum(), atol=1e-5)
saw()

# plain jit: the first process calls its function once, both have the result
for f, expected in ((sin, np.sin(x)), (lambda x: sin(x) * 2, 2 * np.sin(x))):
    out = jax.jit(f)(xs)
    for shard in out.addressable_shards:
        assert np.allclose(shard.data, expected[shard.index], atol=1e-6), shard
    assert ([x.tolist()] if RANK == 0 else []) == saw()

# effects: the same
save = ps.host_function(lambda x: seen.append(x.tolist()), effects=True)
jax.block_until_ready(jax.jit(shard_map(lambda x: (save(x), x)[1]))(xs))
assert [half.tolist()] == saw()
jax.block_until_ready(jax.jit(lambda x: (save(x), x)[1])(xs))
assert ([x.tolist()] if RANK == 0 else []) == saw()

# what belongs to one process stays there
assert np.allclose(jax.jit(sin)(jnp.ones(2)), np.sin(1.0), atol=1e-6)
assert [[1.0, 1.0]] == saw()

# an exception leaves the call of the process in which it was raised
def fail(x):
    raise ValueError(f"process {RANK}")

try:
    ps.jit(shard_map(ps.host_function(fail, out=lambda x: x)))(xs)
except ValueError as error:
    assert f"process {RANK}" == str(error)
else:
    raise AssertionError("lost")
print("process", RANK, "is done")
"""


def test_two_processes():
    said = two_processes(PROGRAM)

    assert [f"process {rank} is done\n" for rank in (0, 1)] == said
