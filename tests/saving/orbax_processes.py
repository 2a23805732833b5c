"""A program of one or several processes that saves with orbax, or continues.

python orbax_processes.py PORT COUNT INDEX PATH save|load
"""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import purestate as ps
from purestate.errors import SaveError

SPEC = P("data", "model")


class Run(ps.State):
    w: jax.Array
    key: jax.Array
    count: ps.Array = 0
    name: str = ps.static(default="run")


def make():
    w = jnp.arange(64, dtype=jnp.float32).reshape(8, 8)
    return Run(w=w, key=jax.random.key(3), count=jnp.int32(5))


def mesh(data, model):
    devices = np.array(jax.devices()[: data * model]).reshape(data, model)
    return jax.sharding.Mesh(devices, ("data", "model"))


def shardings(over):
    like = jax.eval_shape(make)
    return jax.tree.map(
        lambda x: NamedSharding(over, SPEC if x.ndim == 2 else P()), like
    )


def sharded(function, over):
    return jax.jit(function, out_shardings=shardings(over))()


def save(path, state):
    from orbax.checkpoint.experimental import v1 as ocp

    leaves, manifest = ps.to_dict(state)
    ocp.save(path, leaves, custom_metadata={"purestate": manifest})


def load(path, over):
    from orbax.checkpoint.experimental import v1 as ocp

    manifest = ocp.metadata(path).custom_metadata["purestate"]
    return ps.from_dict(
        manifest,
        jax.eval_shape(make),
        lambda wanted: ocp.load(path, wanted),
        sharding=shardings(over),
    )


def main(port, count, index, path, what):
    if count > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{port}", count, index)
    over = mesh(2, count)
    if what == "save":
        state = sharded(make, over)
        save(path, state)
        file = pathlib.Path(f"{path}.safetensors")
        if count > 1:  # ps.save writes from one process, which lacks a part
            told = "w of Run live on devices of other processes"
            with pytest.raises(SaveError, match=told):
                ps.save(file, state)
            assert not file.exists()
    else:
        state = load(path, over)
    total = jax.jit(lambda s: (s.w.sum(), s.count))(state)
    assert [2016.0, 5.0] == [float(x) for x in total], total
    expected = np.arange(64, dtype=np.float32).reshape(8, 8)
    for shard in state.w.addressable_shards:
        assert (8 // 2, 8 // count) == shard.data.shape
        np.testing.assert_array_equal(expected[shard.index], shard.data)
    # A file of one process is read by all, each onto its own devices.
    whole = pathlib.Path(f"{path}.whole.safetensors")
    if what == "save":
        ps.save(whole, make())  # replicated: the first process writes
    elif whole.exists():
        again = ps.load(whole, jax.eval_shape(make), sharding=shardings(over))
        assert over == again.w.sharding.mesh
        assert 2016.0 == float(jax.jit(jnp.sum)(again.w))
    sys.stdout.write(f"{count} fine")


if __name__ == "__main__":
    port, count, index, path, what = sys.argv[1:]
    main(int(port), int(count), int(index), path, what)
