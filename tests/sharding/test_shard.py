"""`ps.shard` and programs of sharded States, on eight devices that share a processor.

Each program runs in a process of its own: the number of devices is settled when JAX
starts.
"""

import pytest

from tests.helpers import python

HEAD = """
import warnings
import jax, jax.numpy as jnp, numpy as np, purestate as ps
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from purestate import _compat

warnings.simplefilter("error")

def mesh_of(*kinds):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=kinds)

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
MESHES = [mesh_of(AUTO, AUTO), mesh_of(EXPLICIT, EXPLICIT)]
MIXED = [mesh_of(EXPLICIT, AUTO), mesh_of(AUTO, EXPLICIT)]
RULES = {"embed": "data", "mlp": "model"}

class Net(ps.State):
    w: jax.Array = ps.field(spec=P("embed", "mlp"))
    b: jax.Array = ps.field(spec=P("mlp"))
    key: jax.Array
    scale: float = 1.0

def make():
    w = jnp.arange(32.0).reshape(8, 4)
    return Net(w=w, b=jnp.arange(4.0), key=jax.random.key(7))

def data(tree):
    found = jax.tree.leaves(tree)
    return [jax.random.key_data(x) if ps._schema.leaves.is_key(x) else x for x in found]

def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(data(a), data(b), strict=True))

def placed(state, shardings):
    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(shardings), strict=True)
    return all(x.sharding.is_equivalent_to(s, x.ndim) for x, s in pairs)

def spans(tree):
    parts = [s.data for x in data(tree) if isinstance(x, jax.Array) for s in x.addressable_shards]
    return {(p.unsafe_buffer_pointer(), p.unsafe_buffer_pointer() + p.nbytes) for p in parts}

def apart(a, b):
    return not any(s < v and u < t for s, t in spans(a) for u, v in spans(b))

give_away = jax.jit(lambda s: jax.tree.map(jnp.copy, s), donate_argnums=0, keep_unused=True)
"""

PROGRAMS = {
    "moved": """
        for mesh in MESHES + MIXED:
            wanted = ps.shardings(make(), mesh, rules=RULES)
            net = ps.shard(make(), mesh, rules=RULES)
            assert placed(net, wanted) and same(net, make())
            assert P("data", "model") == net.w.sharding.spec
    """,
    "from anywhere to anywhere, sharing no memory": """
        all_axes = {"embed": ("data", "model"), "mlp": None}
        nothing = {"embed": None, "mlp": None}
        places = [(m, r) for m in MESHES for r in (RULES, all_axes, nothing)]
        one = jax.make_mesh((1, 1), ("data", "model"), axis_types=(AUTO, AUTO), devices=jax.devices()[:1])
        places += [(one, nothing)]
        for before in (make(), *(ps.shard(make(), m, rules=r) for m, r in places)):
            for mesh, rules in places:
                after = ps.shard(before, mesh, rules=rules)
                assert placed(after, ps.shardings(before, mesh, rules=rules))
                assert apart(before, after)
                made = give_away(after)
                assert all(leaf.is_deleted() for leaf in jax.tree.leaves(after))
                assert same(before, make()) and same(made, make())
    """,
    "from numpy, sharing no memory": """
        big = np.zeros(4096 + 64, np.uint8)
        start = -big.ctypes.data % 64  # where JAX would take the memory as it is
        w = big[start : start + 4096].view(np.float32).reshape(8, 128)
        for mesh in MESHES:
            net = ps.shard(make().replace(w=w), mesh, rules=RULES)
            lo, hi = w.ctypes.data, w.ctypes.data + w.nbytes
            assert not any(lo <= start < hi for start, _ in spans(net))
    """,
    "inside of jit": """
        for mesh in MESHES + MIXED:
            wanted = ps.shardings(make(), mesh, rules=RULES)
            with jax.set_mesh(mesh):
                found = jax.jit(lambda s: ps.shard(s, rules=RULES))(make())
                assert placed(found, wanted) and same(found, make())
                found = jax.jit(lambda s: ps.shard(s, mesh, rules=RULES))(make())
                assert placed(found, wanted) and same(found, make())
        found = jax.jit(lambda s: ps.shard(s, MESHES[0], rules=RULES))(make())
        assert P("data", "model") == found.w.sharding.spec
    """,
    "the mesh that is set": """
        for mesh in MESHES:
            with jax.set_mesh(mesh):
                if _compat.FINDS_MESH:
                    assert mesh == ps.shardings(make(), rules=RULES).w.mesh
                    assert mesh == ps.shard(make(), rules=RULES).w.sharding.mesh
                seen = []
                jax.eval_shape(lambda: seen.append(ps.shardings(make(), rules=RULES)))
                assert mesh.abstract_mesh.shape == seen[0].w.mesh.shape
    """,
    "the mesh that is set, in grad and vmap outside of jit": """
        for mesh in MESHES if _compat.FINDS_MESH else []:
            with jax.set_mesh(mesh):
                def total(w):
                    return ps.shard(make().replace(w=w), rules=RULES).w.sum()

                w = make().w
                assert np.array_equal(jnp.ones((8, 4)), jax.grad(total)(w))
                assert [496.0] * 3 == jax.vmap(total)(jnp.stack([w] * 3)).tolist()
    """,
    "a batch": """
        rules = {"embed": None, "mlp": "model"}
        for mesh in MESHES:
            batch = ps.stack([make()] * 4)
            batch = ps.shard(batch, mesh, rules=rules, batch="data")
            assert P("data", None, "model") == batch.w.sharding.spec
            assert (1, 8, 2) == batch.w.addressable_shards[0].data.shape
            found = jax.jit(jax.vmap(lambda net: net.w.sum()))(batch)
            assert [496.0] * 4 == found.tolist()
    """,
}

TRAINED = """
    import optax
    from purestate.optax import Optimizer

    class Model(ps.State):
        w: jax.Array = ps.field(spec=P(None, "mlp"))
        out: jax.Array = ps.field(spec=P("mlp", None))

        def loss(self, x):
            hidden = jnp.tanh(x @ self.w)
            # Both have the axis "model": with explicit axes the sum must be asked for.
            kinds = jax.typeof(hidden).sharding.mesh.axis_types
            asked = P("data", None) if EXPLICIT in kinds else None
            return (jnp.matmul(hidden, self.out, out_sharding=asked) ** 2).mean()

    class Train(ps.State):
        model: Model
        opt: Optimizer

        def step(self, x):
            loss, grads = jax.value_and_grad(lambda m: m.loss(x))(self.model)
            opt, model = self.opt.update(self.model, grads=grads)
            return self.replace(model=model, opt=opt), loss

    def start():
        keys = jax.random.split(jax.random.key(1))
        model = Model(w=jax.random.normal(keys[0], (8, 6)), out=jax.random.normal(keys[1], (6, 2)))
        return Train(model=model, opt=Optimizer(model, optax.adam, 1e-2))

    def run(train, step, x):
        losses = []
        for _ in range(4):
            before = jax.tree.leaves(train)
            train, loss = step(train, x)
            losses.append(float(loss))
            gone = [leaf.is_deleted() for leaf in before]
            assert all(gone), gone
        return train, losses

    x = jax.random.normal(jax.random.key(2), (16, 8))
    _, expected = run(start(), ps.jit(Train.step, donate=True), x)
    for mesh in MESHES:
        wanted = ps.shardings(jax.eval_shape(start), mesh, rules=RULES)
        traces = []

        def step(train, x):
            traces.append(1)
            return Train.step(train, x)

        with jax.set_mesh(mesh):
            train = ps.jit(start, out_shardings=wanted)()
            assert placed(train, wanted)
            assert (8, 3) == train.opt.state[0].mu.w.addressable_shards[0].data.shape
            split = jax.device_put(x, NamedSharding(mesh, P("data")))
            step = ps.jit(step, donate=True, out_shardings=(wanted, None))
            train, losses = run(train, step, split)
        assert placed(train, wanted)
        assert np.allclose(expected, losses, rtol=1e-5), (expected, losses)
        assert [1] == traces
"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_shard(name):
    done = python(HEAD, PROGRAMS[name], devices=8)

    assert 0 == done.returncode, done.stderr


def test_a_state_is_born_sharded_and_trained_with_donation():
    pytest.importorskip("optax", reason="needs the extra `optax`")
    done = python(HEAD, TRAINED, devices=8)

    assert 0 == done.returncode, done.stderr
