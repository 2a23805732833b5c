"""Parts of a MujocoSim's states on several devices: the numbers are those of one."""

import os

import pytest

from tests.helpers import ROOT, python

HEAD = """
import jax, jax.numpy as jnp, numpy as np, mujoco, purestate as ps
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from purestate.mujoco import MujocoSim
from tests.simulators import zoo_model, random_state

assert 4 == jax.device_count()
explicit = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Explicit,))
auto = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
sim = MujocoSim(zoo_model(), substeps=2)
pairs = [random_state(sim.model, seed) for seed in range(8)]
q, v = (jnp.stack([jnp.asarray(p[i], jnp.float32) for p in pairs]) for i in (0, 1))
forces = jnp.arange(8.0 * sim.model.nbody * 6).reshape(8, sim.model.nbody, 6)
right = sim.init(qpos=q, qvel=v)
pushed = right.replace(xfrc_applied=forces)

def same(expected, found):
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)

def on(mesh, *arrays):
    return [jax.device_put(a, NamedSharding(mesh, P("d"))) for a in arrays]
"""

PROGRAMS = {
    "init on explicit axes": """
        qe, ve = on(explicit, q, v)
        make = lambda q, v: sim.init(qpos=q, qvel=v)
        same(right, make(qe, ve))
        with jax.set_mesh(explicit):
            for given in ((qe, ve), (qe, v), (q, ve)):
                same(right, make(*given))
                same(right, jax.jit(make)(*given))
            assert jax.typeof(make(qe, v).words).sharding.spec == P("d", None, None)
            same(sim.init(qpos=q[0], qvel=v), jax.jit(make)(q[0], ve))
    """,
    "replace and views on explicit axes": """
        (fe,) = on(explicit, forces)
        def change(s, f):
            with s.draft() as drafted:
                drafted.xfrc_applied = f
            return s.replace(xfrc_applied=f), s.at(lambda s: s.xfrc_applied).set(f), drafted.xfrc_applied

        expected = change(right, forces)
        with jax.set_mesh(explicit):
            placed = jax.tree.map(lambda a: on(explicit, a)[0], right)
            for given in ((placed, fe), (placed, forces), (right, fe)):
                same(expected, change(*given))
                same(expected, jax.jit(change)(*given))
            assert "d" == jax.jit(lambda s, f: s.replace(xfrc_applied=f))(placed, forces).words.sharding.spec[0]
            there = jax.tree.map(lambda a: on(explicit, a)[0], pushed)
            same(forces, jax.jit(lambda s: s.xfrc_applied)(there))
    """,
    "one state from a vector that is split": """
        m = mujoco.MjModel.from_xml_string("<mujoco><worldbody>" + '<body><joint/><geom size=".1"/></body>' * 4 + "</worldbody></mujoco>")
        four = MujocoSim(m)
        x = jnp.arange(4.0)
        (xe,) = on(explicit, x)
        with jax.set_mesh(explicit):
            same(four.init(qpos=x), jax.jit(lambda x: four.init(qpos=x))(xe))
    """,
    "vmap on explicit axes": """
        qe, ve = on(explicit, q, v)
        make = jax.vmap(lambda q, v: sim.init().replace(qpos=q, qvel=v))
        step = jax.vmap(sim.step)
        after = step(right)
        with jax.set_mesh(explicit):
            same(right, jax.jit(make)(qe, ve))
            same(after, jax.jit(lambda q, v: step(make(q, v)))(qe, ve))
            same(after, jax.jit(lambda q, v: step(sim.init(qpos=q, qvel=v)))(qe, ve))
    """,
    "gradients on explicit axes": """
        (qe,) = on(explicit, q)
        def height(q):
            return jax.vmap(sim.step)(sim.init(qpos=q)).qpos[:, 2].sum()
        expected = jax.jit(jax.grad(height))(q)
        with jax.set_mesh(explicit):
            same(expected, jax.jit(jax.grad(height))(qe))
    """,
    "a scan inside shard_map": """
        def roll(q, v):
            start = sim.init(qpos=q, qvel=v)
            return jax.lax.scan(lambda s, _: (jax.vmap(sim.step)(s), None), start, None, length=3)[0]

        def pushing(q, f):
            start = sim.init(qpos=jnp.zeros_like(q[0]))
            start = jax.tree.map(lambda a: jnp.stack([a] * len(q)), start)
            def body(s, _):
                return jax.vmap(sim.step)(s.replace(xfrc_applied=f)), None
            return jax.lax.scan(body, start.replace(qpos=q), None, length=2)[0]

        for mesh in (auto, explicit):
            for f, args in ((roll, (q, v)), (pushing, (q, forces))):
                split = jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
                same(jax.jit(f)(*args), jax.jit(split)(*on(mesh, *args)))
    """,
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_numbers_are_those_of_one_device(program):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

    done = python(HEAD, PROGRAMS[program], devices=4, env={"PYTHONPATH": path})

    assert 0 == done.returncode, done.stderr
