"""Gradients through MuJoCo, against differences of MuJoCo alone."""

import copy

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import purestate as ps
from purestate.errors import HostGradError
from purestate.mujoco import MujocoSim
from tests.hosts import x64
from tests.simulators import GYM, gym_model, native, random_state, zoo_model

PARTS = ("qpos", "qvel", "act")


def prepared(name, steps=20):
    """Return a model that can be differentiated, and a state in motion."""
    if name.startswith("zoo"):
        model = zoo_model()
    else:
        model = copy.copy(gym_model(name))
        model.opt.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
        model.opt.iterations, model.opt.tolerance = 100, 0
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = random_state(model)
    data.ctrl[:] = 0.1
    mujoco.mj_step(model, data, nstep=250 if name == "zoo on the floor" else steps)
    assert data.ncon or name != "zoo on the floor"
    return model, data


def differences(model, state, control, substeps, elements, rows):
    """Return the derivative of MuJoCo's next state, extrapolated from two steps.

    Differences of two sizes, for an error of fourth order in the size.
    """

    def central(eps, move):
        pair = []
        for sign in (eps, -eps):
            near, ctrl = move(state.copy(), control.copy(), sign)
            pair.append(native(model, near, [ctrl], substeps)[-1][rows])
        return (pair[0] - pair[1]) / (2 * eps)

    def along(move, eps=1e-6):
        return (4 * central(eps, move) - central(2 * eps, move)) / 3

    def moved_state(i):
        def move(near, ctrl, by):
            near[i] += by
            return near, ctrl

        return move

    def moved_control(i):
        def move(near, ctrl, by):
            ctrl[i] += by
            return near, ctrl

        return move

    by_state = [along(moved_state(i)) for i in elements]
    by_control = [along(moved_control(i)) for i in range(model.nu)]
    return np.stack(by_state, axis=1), np.stack(by_control, axis=1)


@pytest.mark.parametrize("substeps", [1, 3])
@pytest.mark.parametrize("name", [*GYM, "zoo in the air", "zoo on the floor"])
def test_the_jacobian_of_a_step_is_that_of_differences(name, substeps):
    """Rotated free and ball joints, hinges, slides, activations and contacts."""
    model, data = prepared(name)
    with x64():
        sim = MujocoSim(model, substeps=substeps)
        state, control = sim.from_data(data), jnp.full(model.nu, 0.1)
        state = state.replace(ctrl=control)
        layout = state.layout
        rows = np.concatenate([np.arange(layout.size)[layout.part(p)] for p in PARTS])

        def step(values, ctrl):
            return sim.step(state.replace(values=values), ctrl).values

        backward = jax.jit(jax.jacrev(step, (0, 1)))(state.values, control)
        forward = jax.jit(jax.jacfwd(step, (0, 1)))(state.values, control)

    expected = differences(
        model, np.asarray(state.values), np.asarray(control), substeps, rows, rows
    )
    backward, forward = jax.tree.map(np.asarray, (backward, forward))
    found = backward[0][np.ix_(rows, rows)], backward[1][rows]
    for wanted, got in zip(expected, found, strict=True):
        assert np.abs(wanted - got).max() <= 1e-6 * np.abs(wanted).max()
    for one, other in zip(forward, backward, strict=True):
        assert np.allclose(one, other, rtol=1e-12, atol=1e-12)


def test_the_length_of_a_quaternion_has_no_influence_and_no_gradient():
    model, data = prepared("zoo in the air")
    data.qpos[3:7] *= 1.5
    with x64():
        sim = MujocoSim(model)
        state = sim.from_data(data)
        found = jax.jacrev(lambda q: sim.step(state.replace(qpos=q)).qpos)(state.qpos)
    found = np.asarray(found)
    rows = np.arange(13) + 1
    expected, _ = differences(
        model, np.asarray(state.values), np.full(2, 0.1), 1, rows, rows
    )

    assert np.allclose(expected, found, rtol=1e-6, atol=1e-7)
    assert np.allclose(
        found @ np.r_[0, 0, 0, data.qpos[3:7], np.zeros(6)], 0, atol=1e-9
    )


def test_gradients_in_float32_are_those_in_double_precision():
    model, data = prepared("humanoid")

    def gradient():
        sim = MujocoSim(model, substeps=2)
        state = sim.from_data(data)

        def loss(qpos, ctrl):
            after = sim.step(state.replace(qpos=qpos), ctrl)
            return jnp.sum(jnp.sin(after.qpos)) + jnp.sum(after.qvel**2) / 100

        return jax.jit(jax.grad(loss, (0, 1)))(state.qpos, state.ctrl)

    single = gradient()
    with x64():
        double = gradient()
    single, double = jax.tree.map(np.asarray, (single, double))

    assert jnp.float32 == single[0].dtype
    for one, two in zip(single, double, strict=True):
        assert np.abs(one - two).max() <= 1e-5 * np.abs(two).max()


def test_a_gradient_goes_through_a_scan():
    model = zoo_model()
    with x64():
        sim = MujocoSim(model)
        state = sim.init(*random_state(model))

        def final(force):
            given = jnp.broadcast_to(force, (20, 2))
            after, _ = jax.lax.scan(lambda s, c: (sim.step(s, c), None), state, given)
            return after.qpos[-1] + after.qvel[0]

        force = jnp.array([0.2, -0.3])
        found = jax.jit(jax.grad(final))(force)
        eps = 1e-5
        expected = [
            (final(force + eps * unit) - final(force - eps * unit)) / (2 * eps)
            for unit in np.eye(2)
        ]

    assert np.allclose(expected, found, rtol=1e-6)


@pytest.mark.parametrize("engine", ["threads", None])
def test_the_gradient_of_a_batch_is_that_of_each(engine):
    model, _ = prepared("zoo in the air")
    sim = MujocoSim(model, engine=engine)
    qpos = np.float32([random_state(model, seed)[0] for seed in range(4)])

    def loss(q):
        return jnp.sum(sim.step(sim.init(qpos=q)).qpos ** 2)

    together = jax.jit(jax.vmap(jax.grad(loss)))(qpos)
    of_sum = jax.jit(jax.grad(lambda qs: jax.vmap(loss)(qs).sum()))(qpos)

    alone = [jax.grad(loss)(q) for q in qpos]
    assert np.array_equal(alone, together)
    assert np.array_equal(alone, of_sum)


def test_a_whole_jacobian_asks_mujoco_once(monkeypatch):
    model, data = prepared("zoo in the air")
    sim = MujocoSim(model)
    state, calls = sim.from_data(data), []
    inner = sim._calls._jacobian.step
    monkeypatch.setattr(
        sim._calls._jacobian, "step", lambda *a: (calls.append(1), inner(*a))[1]
    )

    jac = jax.jit(jax.jacrev(lambda q: sim.step(state.replace(qpos=q)).qpos))
    jax.block_until_ready(jac(state.qpos))

    assert 1 == len(calls)


def test_rk4_is_refused_where_it_is_differentiated():
    sim = MujocoSim(gym_model("humanoid"))
    state = sim.init()
    message = (
        r"MujocoSim\('humanoid'\)\.step .* cannot be differentiated: the model is "
        r"integrated by RK4, which MuJoCo's mjd_transitionFD does not support\. Choose "
        r"another integrator, model\.opt\.integrator = "
        r"mujoco\.mjtIntegrator\.mjINT_IMPLICITFAST, or cut the derivative off with "
        r"jax\.lax\.stop_gradient\(state\)\."
    )

    with pytest.raises(HostGradError, match=message):
        jax.jit(jax.grad(lambda q: sim.step(state.replace(qpos=q)).qpos[2]))(state.qpos)
    assert (
        0.0
        == jax.grad(
            lambda q: sim.step(jax.lax.stop_gradient(state.replace(qpos=q))).qpos[2]
        )(state.qpos).sum()
    )


def test_a_whole_state_can_be_differentiated():
    model, data = prepared("zoo in the air")
    sim = MujocoSim(model)

    found = ps.grad(lambda s: sim.step(s).qpos[2])(sim.from_data(data))

    assert found.words is None
    assert abs(found.qpos[2] - 1) < 1e-3
    assert abs(found.qvel[2] - model.opt.timestep) < 1e-3
    assert 0.0 == found.qacc_warmstart.sum()


def test_what_is_observed_has_a_gradient():
    model, data = prepared("zoo in the air")
    with x64():
        sim = MujocoSim(model, observe=("xpos", "sensordata", "ncon"))
        state = sim.from_data(data)

        def look(qpos, qvel):
            seen = sim.observe(state.replace(qpos=qpos, qvel=qvel))
            return jnp.concatenate([seen["xpos"].ravel(), seen["sensordata"]])

        found = jax.jit(jax.jacrev(look, (0, 1)))(state.qpos, state.qvel)
        forward = jax.jit(jax.jacfwd(look, (0, 1)))(state.qpos, state.qvel)
        eps = 1e-6
        point = [np.asarray(state.qpos), np.asarray(state.qvel)]
        for which in range(2):
            columns = []
            for unit in np.eye(len(point[which])):
                pair = [
                    look(
                        *(
                            p + s * unit if i == which else p
                            for i, p in enumerate(point)
                        )
                    )
                    for s in (eps, -eps)
                ]
                columns.append((pair[0] - pair[1]) / (2 * eps))
            expected = np.stack(columns, axis=1)

            assert (
                np.abs(expected - found[which]).max() <= 1e-6 * np.abs(expected).max()
            )
            assert np.allclose(forward[which], found[which], rtol=1e-12, atol=1e-12)
