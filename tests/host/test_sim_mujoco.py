"""MuJoCo as a simulator whose state is a value."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import purestate as ps
from purestate.errors import HostSimError
from tests.host.test_mujoco import BOX, WHOLE, first_state, stepped

pytestmark = pytest.mark.usefixtures("lowering")


def box(names=None, **options):
    """Return MuJoCo as a HostSim, its state as 32-bit words, or float by float."""
    model = mujoco.MjModel.from_xml_string(BOX)

    def get_words(data):
        state = np.empty(mujoco.mj_stateSize(model, WHOLE))
        mujoco.mj_getState(model, data, state, WHOLE)
        return state.view(np.uint32)

    def set_words(data, state):
        mujoco.mj_setState(model, data, state.view(np.float64), WHOLE)

    def get_names(data):
        return {name: getattr(data, name) for name in names}

    def set_names(data, state):
        for name, value in state.items():
            getattr(data, name)[:] = value

    functions = (get_names, set_names) if names else (get_words, set_words)
    sim = ps.HostSim(
        lambda: mujoco.MjData(model),
        *functions,
        lambda data: mujoco.mj_step(model, data),
        name="box",
        **options,
    )
    return model, sim


def test_200_steps_in_a_scan_are_those_of_mujoco_bit_for_bit():
    model, sim = box()
    expected = first_state(model)
    start = jnp.asarray(expected.view(np.uint32))
    data = mujoco.MjData(model)
    for _ in range(200):
        expected = stepped(model, data, expected)

    found = jax.jit(
        lambda s: jax.lax.scan(lambda s, _: (sim.step(s), None), s, None, 200)[0]
    )(start)

    assert (np.asarray(found).view(np.float64) == expected).all()


@pytest.mark.parametrize("mode", ["loop", "threads"])
def test_simulations_under_vmap_are_those_of_mujoco_bit_for_bit(mode):
    model, sim = box(vmap=mode, threads=2)
    state, states = first_state(model), []
    for _ in range(4):
        for _ in range(20):
            state = stepped(model, mujoco.MjData(model), state)
        states.append(state)
    expected = [stepped(model, mujoco.MjData(model), state) for state in states]

    found = jax.jit(jax.vmap(sim.step))(np.stack(states).view(np.uint32))

    assert (np.asarray(found).view(np.float64) == np.stack(expected)).all()


def test_a_state_with_the_warm_start_of_the_solver_is_all_of_it():
    model, sim = box()
    state = first_state(model)
    for _ in range(70):
        state = stepped(model, mujoco.MjData(model), state)

    sim.check(jnp.asarray(state.view(np.uint32)))


def test_a_state_without_the_warm_start_of_the_solver_is_not_all_of_it():
    model, sim = box(["qpos", "qvel"])
    data = mujoco.MjData(model)
    mujoco.mj_setState(model, data, first_state(model), WHOLE)
    mujoco.mj_step(model, data, 70)
    state = {"qpos": jnp.asarray(data.qpos), "qvel": jnp.asarray(data.qvel)}

    with pytest.raises(HostSimError, match=r"the simulator box remembers"):
        sim.check(state)


def test_a_simulation_has_a_gradient():
    model, sim = box(["qpos", "qvel"], grad="fd")
    start = sim.init()

    def height(v):
        state = {**start, "qvel": start["qvel"].at[2].set(v)}
        return jax.lax.scan(lambda s, _: (sim.step(s), None), state, None, 5)[0][
            "qpos"
        ][2]

    # In free flight the height is linear in the speed: five steps of 5 ms.
    assert np.isclose(5 * model.opt.timestep, jax.jit(jax.grad(height))(1.0), rtol=1e-5)
