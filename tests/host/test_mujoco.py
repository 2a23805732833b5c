"""Host functions around MuJoCo, the simulator that nobody can rewrite in jax.numpy."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import purestate as ps

pytestmark = pytest.mark.usefixtures("lowering")

PENDULUM = """
<mujoco>
  <worldbody>
    <body>
      <joint name="j" type="hinge" axis="0 1 0"/>
      <geom type="sphere" size=".1" pos="0 0 -.5" mass="1"/>
    </body>
  </worldbody>
  <actuator><motor joint="j"/></actuator>
</mujoco>
"""
# A box that tumbles onto a plane: a free joint, contacts, and a solver with a memory.
BOX = """
<mujoco>
  <option timestep="0.005" iterations="3"/>
  <worldbody>
    <geom type="plane" size="5 5 .1"/>
    <body pos="0 0 .4">
      <freejoint/>
      <geom type="box" size=".1 .15 .2" euler="20 30 0" mass="1"/>
    </body>
  </worldbody>
</mujoco>
"""
WHOLE = mujoco.mjtState.mjSTATE_INTEGRATION  # with the solver's warm start


def stepped(model, data, state):
    """Return the state one step later, in double precision; `data` is only scratch."""
    # A copy: MuJoCo 3.3 takes no array that is read-only.
    mujoco.mj_setState(model, data, state.copy(), WHOLE)
    mujoco.mj_step(model, data)
    following = np.empty_like(state)
    mujoco.mj_getState(model, data, following, WHOLE)
    return following


def first_state(model):
    data = mujoco.MjData(model)
    data.qvel[:3] = 1.0
    data.qvel[3:] = [3.0, -2.0, 1.0]
    state = np.empty(mujoco.mj_stateSize(model, WHOLE))
    mujoco.mj_getState(model, data, state, WHOLE)
    return state


def test_a_simulator_gets_numbers_and_not_tracers():
    model = mujoco.MjModel.from_xml_string(PENDULUM)

    def simulate(q, v, force):
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:], data.ctrl[:] = q, v, force
        mujoco.mj_step(model, data)
        return data.qpos.copy(), data.qvel.copy()

    one = jax.ShapeDtypeStruct((1,), jnp.float32)
    step = ps.host_function(simulate, out=(one, one))
    forces = np.full((20, 1), 0.3, np.float32)
    q, v, expected = np.full(1, 0.5, np.float32), np.zeros(1, np.float32), []
    for force in forces:
        q, v = (np.float32(part) for part in simulate(q, v, force))
        expected.append(q)

    def body(carry, force):
        q, v = step(*carry, force)
        return (q, v), q

    _, found = jax.jit(
        lambda f: jax.lax.scan(body, (jnp.full(1, 0.5), jnp.zeros(1)), f)
    )(forces)
    batch = jax.vmap(lambda q: step(q, jnp.zeros(1), jnp.zeros(1))[0])(
        jnp.array([[0.1], [0.2]])
    )

    assert (np.stack(expected) == np.asarray(found)).all()
    alone = [simulate(np.float32([q]), np.zeros(1), np.zeros(1))[0] for q in (0.1, 0.2)]
    assert (np.float32(alone) == np.asarray(batch)).all()


def test_a_state_that_travels_as_words_keeps_every_bit():
    model = mujoco.MjModel.from_xml_string(BOX)
    start = first_state(model)
    expected, single = start, np.float32(start)
    data = mujoco.MjData(model)
    for _ in range(200):
        expected = stepped(model, data, expected)
        single = np.float32(stepped(model, data, np.float64(single)))

    @ps.host_function(scratch=lambda: mujoco.MjData(model), out=lambda words: words)
    def exact(data, words):
        return stepped(model, data, words.view(np.float64)).view(np.uint32)

    @ps.host_function(scratch=lambda: mujoco.MjData(model), out=lambda state: state)
    def rounded(data, state):
        return stepped(model, data, np.float64(state))

    def rollout(step, start):
        body = jax.jit(
            lambda s: jax.lax.scan(lambda s, _: (step(s), None), s, None, 200)
        )
        return np.asarray(body(start)[0])

    words = rollout(exact, start.view(np.uint32))
    floats = rollout(rounded, np.float32(start))

    assert (words.view(np.float64) == expected).all()
    assert (floats == single).all()
    assert not np.allclose(floats, expected, rtol=1e-7, atol=0)  # why words are needed


def test_a_step_depends_on_its_arguments_and_not_on_earlier_steps():
    model = mujoco.MjModel.from_xml_string(BOX)
    data = mujoco.MjData(model)
    state = first_state(model)
    for _ in range(70):
        state = stepped(model, data, state)
    assert data.ncon  # it lies on the plane, so the solver has work

    @ps.host_function(scratch=lambda: mujoco.MjData(model), out=lambda words: words)
    def step(data, words):
        return stepped(model, data, words.view(np.float64)).view(np.uint32)

    here, there = state.view(np.uint32), first_state(model).view(np.uint32)
    call = jax.jit(step)
    before = np.asarray(call(here))
    for _ in range(3):
        call(there)
    after = np.asarray(call(here))

    assert (before == after).all()
    fresh = stepped(model, mujoco.MjData(model), state)
    assert (after.view(np.float64) == fresh).all()


def test_the_orientation_of_a_free_body_has_a_gradient():
    model = mujoco.MjModel.from_xml_string(BOX)

    def height(qpos):
        data = mujoco.MjData(model)
        data.qpos[:] = qpos
        mujoco.mj_forward(model, data)
        return data.geom_xpos[1][2] + data.geom_xmat[1].reshape(3, 3)[2] @ [
            1.0,
            2.0,
            3.0,
        ]

    where = np.array([0.1, 0.2, 0.7, 0.8, 0.6, 0.0, 0.0])
    steps = np.eye(7) * 1e-6
    expected = [(height(where + h) - height(where - h)) / 2e-6 for h in steps]

    sensed = ps.host_function(
        height, out=jax.ShapeDtypeStruct((), jnp.float32), grad="fd", upcast=True
    )
    found = jax.jit(jax.grad(sensed))(jnp.float32(where))

    assert np.allclose(expected, found, atol=1e-5)
    assert np.abs(np.asarray(found)[3:]).max() > 0.5
