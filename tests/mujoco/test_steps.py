"""MujocoSim: the same bits as MuJoCo, whatever else was simulated."""

import contextlib
import copy
import importlib.util
import pickle

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import purestate as ps
from purestate.mujoco import MujocoSim, SimState
from tests.hosts import x64
from tests.simulators import GYM, WHOLE, gym_model, native, random_state, zoo_model

HAS_BATCH = hasattr(mujoco, "mjVERSION_HEADER") and mujoco.mj_version() >= 4000000
ENGINES = ["batch", "threads"] if HAS_BATCH else ["threads"]
if importlib.util.find_spec("numba"):
    ENGINES.append("native")
PRECISIONS = {"x64 off": contextlib.nullcontext, "x64 on": x64}


def exact(sim, state):
    """Return a state in double precision."""
    data = sim.to_data(state)
    found = np.empty(mujoco.mj_stateSize(sim.model, WHOLE))
    mujoco.mj_getState(sim.model, data, found, WHOLE)
    return found


def start(sim, seed=0):
    qpos, qvel = random_state(sim.model, seed)
    data = mujoco.MjData(sim.model)
    data.qpos[:], data.qvel[:] = qpos, qvel
    return sim.from_data(data)


def controls(model, count, seed=1):
    rng = np.random.default_rng(seed)
    return rng.uniform(-0.4, 0.4, (count, model.nu)).astype(np.float32)


def rollout(sim):
    def run(state, given):
        def body(state, control):
            return sim.step(state, control), state.qpos

        return jax.lax.scan(body, state, given)[0]

    return jax.jit(run)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", GYM)
def test_200_steps_have_the_bits_of_mujoco(name, precision):
    model = gym_model(name)
    with PRECISIONS[precision]():
        sim = MujocoSim(model)
        state, given = start(sim), controls(model, 200)

        found = exact(sim, rollout(sim)(state, given))

    assert (native(model, exact(sim, state), given)[-1] == found).all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["humanoid", "ant"])
def test_200_steps_of_a_batch_have_the_bits_of_mujoco(name, engine, precision):
    model = gym_model(name)
    with PRECISIONS[precision]():
        sim = MujocoSim(model, substeps=2, engine=engine)
        states = [start(sim, seed) for seed in range(3)]
        given = np.stack([controls(model, 200, seed) for seed in range(3)])

        found = jax.vmap(rollout(sim))(ps.stack(states), given)

        for state, control, row in zip(states, given, ps.unstack(found), strict=True):
            expected = native(model, exact(sim, state), control, 2)[-1]
            assert (expected == exact(sim, row)).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_any_depth_of_vmap_is_the_loop_bit_for_bit(engine):
    sim = MujocoSim(zoo_model(), substeps=2, engine=engine)
    states = ps.stack([start(sim, seed) for seed in range(6)])
    nested = ps.stack(
        [ps.stack(rows) for rows in (ps.unstack(states)[:3], ps.unstack(states)[3:])]
    )
    given = jnp.asarray(controls(sim.model, 3))

    found = jax.jit(jax.vmap(jax.vmap(sim.step), in_axes=(0, None)))(nested, given)

    rows = [row for half in ps.unstack(found) for row in ps.unstack(half)]
    for number, (state, row) in enumerate(zip(ps.unstack(states), rows, strict=True)):
        assert sim.step(state, given[number % 3]) == row


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_depends_on_nothing_that_was_simulated_before(engine):
    model = zoo_model(iterations=2)  # a solver that shows where it started
    sim = MujocoSim(model, engine=engine)
    step = jax.jit(jax.vmap(sim.step))
    state = start(sim)
    for _ in range(150):
        state = sim.step(state)
    assert sim.to_data(state).ncon
    here, there = (ps.stack([s, s]) for s in (state, start(sim, 5)))

    before = step(here)
    for _ in range(3):
        step(there)

    assert before == step(here)
    assert before == jax.vmap(MujocoSim(model, engine=engine).step)(here)


def test_an_eager_step_is_the_jitted_one():
    sim = MujocoSim(zoo_model(), substeps=3)
    state = start(sim)

    assert sim.step(state) == jax.jit(sim.step)(state)


def test_a_changed_part_counts_and_all_others_keep_every_bit():
    sim = MujocoSim(zoo_model())
    state = sim.step(start(sim))
    before = exact(sim, state)
    expected = before.copy()
    expected[state.layout.part("qvel")] = np.float32(range(state.qvel.size))

    found = exact(sim, state.replace(qvel=jnp.arange(state.qvel.size)))

    assert not (before == np.float32(before)).all()
    assert (expected == found).all()


def test_a_part_set_to_what_it_is_keeps_its_bits():
    sim = MujocoSim(zoo_model())
    state = sim.step(start(sim))

    assert (exact(sim, state) == exact(sim, state.replace(qpos=state.qpos))).all()


def test_tiny_numbers_keep_their_bits_between_jit_and_outside():
    """XLA's threads set float32 numbers below 1.2e-38 to zero, Python's do not."""
    sim = MujocoSim(zoo_model())
    data = mujoco.MjData(sim.model)
    data.qvel[:] = 1e-41
    state = sim.from_data(data)

    assert (exact(sim, state)[state.layout.part("qvel")] == 1e-41).all()
    flushed = jax.jit(lambda s: s.replace(values=s.values + 0))(state)
    assert (exact(sim, sim.step(state)) == exact(sim, jax.jit(sim.step)(flushed))).all()


@pytest.mark.parametrize(
    "change",
    {
        "replace": lambda s, q: s.replace(qpos=q),
        "at": lambda s, q: s.at(lambda s: s.qpos).set(q),
        "apply": lambda s, q: s.at(lambda s: s.qpos).apply(lambda old: old * 0 + q),
        "__replace__": lambda s, q: s.__replace__(qpos=q),  # copy.replace, from 3.13
    }.items(),
    ids=lambda item: item[0],
)
def test_positions_can_be_set_in_each_way(change):
    sim = MujocoSim(zoo_model())
    state, qpos = sim.init(), jnp.arange(13.0)

    found = change[1](state, qpos)

    assert qpos.tolist() == found.qpos.tolist()
    assert isinstance(found, SimState)
    assert state.qvel.tolist() == found.qvel.tolist()


def test_positions_of_a_state_on_the_host_can_be_set():
    sim = MujocoSim(zoo_model())
    state, qpos = sim.init(), np.arange(13.0)

    found = jax.device_get(state).replace(qpos=qpos)

    assert sim.step(state.replace(qpos=qpos)) == sim.step(found)


def test_a_draft_sets_parts_element_by_element():
    sim = MujocoSim(zoo_model())

    with sim.init().draft() as new:
        new.qpos = new.qpos.at[2].set(7.0)
        new.ctrl += 0.5
        new.xfrc_applied = jnp.ones_like(new.xfrc_applied)

    assert 7.0 == new.qpos[2]
    assert [0.5, 0.5] == new.ctrl.tolist()
    assert (1.0 == new.xfrc_applied).all()
    assert (5, 6) == new.xfrc_applied.shape


def test_a_state_of_init_is_that_of_a_new_mjdata():
    sim = MujocoSim(zoo_model())
    state, data = sim.init(), mujoco.MjData(sim.model)

    for name in state.layout.names:
        expected = np.float32(getattr(data, name))
        assert np.array_equal(expected, getattr(state, name)), name
    assert 0.5 == sim.init(qvel=np.full(11, 0.5)).qvel[3]
    assert 2.0 == sim.init(keyframe="high").qpos[2] == sim.init(keyframe=0).qpos[2]


def test_positions_with_axes_in_front_make_a_batch():
    sim = MujocoSim(zoo_model())

    state = sim.init(qpos=jnp.zeros((3, 5, 13)), qvel=jnp.ones((5, 11)))

    assert (3, 5, 13) == state.qpos.shape
    assert (3, 5) == state.time.shape
    assert (1.0 == state.qvel).all()


def test_controls_are_those_given_or_those_in_the_state():
    sim = MujocoSim(zoo_model())
    state, given = start(sim), jnp.array([0.3, -0.2])

    found = sim.step(state, given)

    assert found == sim.step(state.replace(ctrl=given))
    assert given.tolist() == found.ctrl.tolist()
    assert found != sim.step(state)


def test_applied_forces_and_mocap_bodies_are_part_of_the_state():
    model = zoo_model()
    sim = MujocoSim(model)
    state = start(sim).replace(
        qfrc_applied=jnp.full(11, 0.1), mocap_pos=jnp.array([[1.0, 2.0, 3.0]])
    )

    found = exact(sim, sim.step(state))

    assert (native(model, exact(sim, state), [np.zeros(2)])[-1] == found).all()
    assert [1.0, 2.0, 3.0] == sim.to_data(state).mocap_pos[0].tolist()


def test_a_later_change_of_the_model_has_no_effect():
    model = zoo_model()
    sim = MujocoSim(model)
    before = sim.step(start(sim))

    model.opt.gravity[:] = 0
    sim.model.opt.gravity[:] = 0

    assert before == sim.step(start(sim))


def test_data_goes_into_a_state_and_back():
    sim = MujocoSim(zoo_model())
    data = mujoco.MjData(sim.model)
    mujoco.mj_step(sim.model, data, nstep=20)
    given = mujoco.MjData(sim.model)

    found = sim.to_data(sim.from_data(data), given)

    assert found is given
    assert (data.qpos == found.qpos).all()
    assert (data.qvel == found.qvel).all()
    assert data.time == found.time
    assert (found.xpos != 0).any()


def test_a_state_goes_into_data_and_back_with_every_bit():
    model = zoo_model(iterations=2)  # a solver that shows where it started
    sim = MujocoSim(model)
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data, nstep=200)
    state = sim.from_data(data)
    assert data.ncon

    data = sim.to_data(state)
    again = sim.from_data(data)
    mujoco.mj_step(model, data)

    assert state == again
    assert sim.step(state) == sim.from_data(data)


def test_a_state_made_with_x64_off_can_be_stepped_with_x64_on():
    sim = MujocoSim(zoo_model())
    state = start(sim)
    expected = exact(sim, sim.step(state))

    with x64():
        found = sim.step(state)

    assert jnp.float32 == found.qpos.dtype
    assert (expected == exact(sim, found)).all()


@pytest.mark.usefixtures("lowering")
def test_every_way_into_a_program_gives_the_same_bits():
    sim = MujocoSim(zoo_model())
    state, given = start(sim), controls(sim.model, 20)
    expected = native(sim.model, exact(sim, state), given)[-1]

    assert (expected == exact(sim, rollout(sim)(state, given))).all()
    batch = jax.vmap(rollout(sim))(ps.stack([state] * 3), np.stack([given] * 3))
    assert all((expected == exact(sim, row)).all() for row in ps.unstack(batch))


def test_a_simulator_can_be_copied_and_pickled():
    sim = MujocoSim(zoo_model(), substeps=2, observe="xpos", threads=1, diverged="nan")
    state = start(sim)

    again = pickle.loads(pickle.dumps(sim))

    assert copy.deepcopy(sim) is sim
    assert repr(again) == repr(sim)
    assert again.step(state) == sim.step(state)
    assert (again.observe(state)["xpos"] == sim.observe(state)["xpos"]).all()


def test_a_simulator_is_configuration_of_a_state():
    class World(ps.State):
        state: SimState
        sim: MujocoSim = ps.static()

        @ps.jit(donate=True)
        def step(self, ctrl):
            return self.replace(state=self.sim.step(self.state, ctrl))

    sim = MujocoSim(zoo_model())
    expected = sim.step(sim.step(sim.init()))

    world = World(state=sim.init(), sim=sim)
    for _ in range(2):
        world = world.step(jnp.zeros(2))

    assert expected == world.state


def test_models_without_joints_or_actuators_have_steps():
    still = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><geom size='1'/></worldbody></mujoco>"
    )
    sim = MujocoSim(still, observe="geom_xpos")
    state = jax.jit(jax.vmap(sim.step, in_axes=(0, None)))(
        ps.stack([sim.init()] * 2), jnp.zeros(0)
    )

    assert (2, 0) == state.qpos.shape
    assert [0.002, 0.002] == pytest.approx(state.time.tolist())
    assert (2, 1, 3) == jax.vmap(sim.observe)(state)["geom_xpos"].shape
    assert 0.0 == jax.grad(lambda t: sim.step(sim.init().replace(time=t)).time - t)(1.0)


def test_a_step_is_traced_once():
    sim = MujocoSim(zoo_model())
    traces = []

    @jax.jit
    def step(state):
        traces.append(1)
        return sim.step(state)

    state = step(step(start(sim)))
    step(state.replace(qpos=state.qpos * 2))

    assert 1 == len(traces)
