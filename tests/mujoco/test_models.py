"""MujocoSim on models whose step depends on more than positions and velocities."""

import contextlib
import copy

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import purestate as ps
from purestate.errors import HostGradError, SimulationError
from purestate.mujoco import MujocoSim
from tests.hosts import x64
from tests.mujoco.test_grad import PARTS, differences
from tests.mujoco.test_steps import ENGINES, HAS_BATCH, controls, exact, rollout, start
from tests.simulators import native, random_state, zoo_model

ARM = """
<mujoco model="arm">
  <option timestep="0.004" integrator="implicitfast" iterations="100" tolerance="0"/>
  {head}
  <worldbody>
    <body name="a" pos="0 0 1"><freejoint/><geom size=".1" mass="1"/><site name="s"/>
      <body pos=".2 0 0"><joint type="ball" damping=".1" stiffness="2"/>
        <geom type="capsule" fromto="0 0 0 .3 0 0" size=".03"/>
        <body pos=".3 0 0"><joint name="h" axis="0 1 0" damping=".1"/>
          <geom size=".05"/><site name="t" pos=".1 0 0"/></body></body></body>
    <body name="d" pos="0 1 1"><joint name="k" axis="1 0 0"/>
      <geom type="box" size=".1 .1 .3" pos="0 0 -.2"/></body>
    <body name="m" mocap="true" pos="0 0 1.2"/>
  </worldbody>
  {rest}
</mujoco>
"""
PID = """
<extension><plugin plugin="mujoco.pid"><instance name="pid">
  <config key="kp" value="1"/><config key="ki" value=".4"/>
  <config key="kd" value=".01"/><config key="slewmax" value=".5"/>
</instance></plugin></extension>
"""
SMOOTH = {
    "equalities": """
      <equality><weld body1="a" body2="m"/>
        <joint joint1="h" joint2="k" polycoef="0 .5 0 0 0"/></equality>
      <actuator><motor joint="h"/></actuator>""",
    "tendons": """
      <tendon><spatial name="t" stiffness="10" damping="1" springlength=".2 .3">
        <site site="s"/><site site="t"/></spatial>
        <fixed name="f" stiffness="3"><joint joint="h" coef="1"/>
          <joint joint="k" coef="-1"/></fixed></tendon>
      <actuator><motor tendon="t" gear="3"/><position tendon="f" kp="9"/></actuator>""",
    "activations": """
      <actuator><muscle joint="k" lengthrange="-2 2" force="30"/>
        <general joint="h" dyntype="filterexact" dynprm=".05" actlimited="true"
          actrange="-.2 .2"/>
        <general joint="k" dyntype="integrator" ctrllimited="true"
          ctrlrange="-.05 .15"/></actuator>""",
}
WITH_MEMORY = {
    "pid": (
        PID,
        """
  <actuator><plugin joint="h" plugin="mujoco.pid" instance="pid" actdim="2"/>
  </actuator>""",
    )
}
if HAS_BATCH:
    WITH_MEMORY["delays"] = (
        "",
        """
      <actuator><motor joint="h" delay=".02" nsample="6"/></actuator>
      <sensor><jointpos joint="h" delay=".02" nsample="8"/></sensor>""",
    )


@pytest.fixture(autouse=True)
def no_log_in_the_tree(tmp_path, monkeypatch):
    """MuJoCo writes its warnings into the working directory."""
    monkeypatch.chdir(tmp_path)


def arm(rest, head=""):
    return mujoco.MjModel.from_xml_string(ARM.format(head=head, rest=rest))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", WITH_MEMORY)
def test_models_with_a_memory_have_the_bits_of_mujoco(name, engine):
    head, rest = WITH_MEMORY[name]
    model = arm(rest, head)
    with x64():
        sim = MujocoSim(model, substeps=2, engine=engine)
        state, given = start(sim), controls(model, 40)

        found = jax.vmap(rollout(sim))(ps.stack([state] * 2), np.stack([given] * 2))

        expected = native(model, np.array(state.values), given, 2)[-1]
        assert np.array_equal(expected, found.values[0])


@pytest.mark.parametrize("name", SMOOTH)
def test_the_jacobian_of_other_models_is_that_of_differences(name):
    model = arm(SMOOTH[name])
    with x64():
        sim = MujocoSim(model, substeps=2)
        control = np.full(model.nu, 0.1)
        state = rollout(sim)(start(sim), controls(model, 10)).replace(ctrl=control)
        # Quaternions of any length.
        qpos = state.qpos.at[3:7].multiply(1.3).at[7:11].multiply(0.7)
        state = state.replace(qpos=qpos)
        layout = state.layout
        rows = np.concatenate([np.arange(layout.size)[layout.part(p)] for p in PARTS])

        def step(values, ctrl):
            return sim.step(state.replace(values=values), ctrl).values

        found = jax.jit(jax.jacrev(step, (0, 1)))(state.values, control)

    found = jax.tree.map(np.asarray, found)
    found = found[0][np.ix_(rows, rows)], found[1][rows]
    expected = differences(model, np.array(state.values), control, 2, rows, rows)
    for wanted, got in zip(expected, found, strict=True):
        assert np.abs(wanted - got).max() <= 1e-6 * np.abs(wanted).max()


@pytest.mark.skipif(not HAS_BATCH, reason="delays came with MuJoCo 4")
def test_delays_are_refused_where_they_are_differentiated():
    sim = MujocoSim(arm(WITH_MEMORY["delays"][1]))
    state = sim.init()

    with pytest.raises(
        HostGradError,
        match=r"MujocoSim\('arm'\)\.step .* cannot be differentiated: the model has "
        r"delayed actuators or sensors, which MuJoCo's mjd_transitionFD does not "
        r"differentiate\. Leave them out, or cut the derivative off with "
        r"jax\.lax\.stop_gradient\(state\)\.",
    ):
        jax.grad(lambda u: sim.step(state, u).qpos[2])(jnp.ones(1))


def test_the_gradient_at_a_lost_simulation_is_an_error():
    """Also where the step itself is not asked for: jit leaves it out."""
    sim = MujocoSim(zoo_model())
    state = sim.init()

    def height(speed):
        return sim.step(state.replace(qvel=speed)).qpos[2]

    with pytest.raises(
        SimulationError,
        match=r"cannot differentiate a state that is not finite, or too large,: "
        r"qvel\[0\] is nan\.",
    ):
        ps.jit(jax.grad(height))(state.qvel.at[0].set(jnp.nan))


def test_the_gradient_of_a_step_that_mujoco_resets_is_an_error(capfd):
    sim = MujocoSim(zoo_model())
    state = sim.init().replace(qfrc_applied=jnp.full(11, 1e12))

    with pytest.raises(SimulationError, match=r"diverged: MuJoCo found qacc\[\d+\]"):
        ps.jit(jax.grad(lambda v: sim.step(state.replace(qvel=v)).qpos[2]))(state.qvel)


def test_lost_simulations_count_as_constant_where_they_are_masked(capfd):
    sim = MujocoSim(zoo_model(), diverged="nan", observe="xpos")
    fresh = sim.init(*random_state(sim.model))

    def total(scale, bad):
        state = fresh.replace(qvel=fresh.qvel * scale, qfrc_applied=bad)
        after = sim.step(state)
        seen = sim.observe(after)["xpos"].sum()
        return jnp.where(jnp.isnan(seen), 0.0, seen)

    several = jax.jit(jax.vmap(jax.grad(total), in_axes=(None, 0)))
    found = several(1.0, jnp.zeros((3, 11)).at[1].set(1e12).at[2].set(jnp.nan))

    assert 0.0 != found[0]
    assert [0.0, 0.0] == found[1:].tolist()
    assert jnp.isnan(
        sim.observe(sim.step(fresh.replace(qvel=fresh.qvel * 2e12)))["xpos"]
    ).all()


def crowded():
    """Return a model whose memory is too small for the contacts of its bodies."""
    body = '<body pos="{} 0 .05"><freejoint/><geom size=".1"/></body>'
    bodies = "".join(body.format(i / 10) for i in range(12))
    for memory in range(4000, 100000, 1000):
        with contextlib.suppress(mujoco.FatalError, ValueError):
            model = mujoco.MjModel.from_xml_string(
                f"<mujoco model='crowded'><size memory='{memory}'/><worldbody>"
                f"<geom type='plane' size='9 9 1'/>{bodies}</worldbody></mujoco>"
            )
            apart = mujoco.MjData(model)
            apart.qpos[2::7] = np.arange(12) + 1
            mujoco.mj_step(model, apart)
            try:
                mujoco.mj_step(model, mujoco.MjData(model))
            except mujoco.FatalError:
                return model
    raise AssertionError("no such memory")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_simulation_for_which_memory_is_out_has_failed_alone(engine, capfd):
    sim = MujocoSim(crowded(), engine=engine)
    crowd = sim.init()
    apart = sim.init(qpos=crowd.qpos.at[2::7].set(jnp.arange(12.0) + 1))
    both = ps.stack([apart, crowd])

    with pytest.raises(
        SimulationError,
        match=r"MujocoSim\('crowded'\) diverged in 1 of 2 simulations \(1\): MuJoCo "
        r"raised: .*out of memory",
    ):
        ps.jit(jax.vmap(sim.step))(both)
    with pytest.raises(SimulationError, match=r"diverged: MuJoCo raised: .*out of mem"):
        ps.jit(sim.step)(crowd)
    with pytest.raises(SimulationError, match=r"diverged: MuJoCo raised: .*out of mem"):
        ps.jit(jax.grad(lambda v: sim.step(crowd.replace(qvel=v)).qpos[2]))(crowd.qvel)
    good = ps.stack([apart, apart])
    assert MujocoSim(sim.model).step(apart) == sim.step(apart)
    assert jax.vmap(MujocoSim(sim.model).step)(good) == jax.vmap(sim.step)(good)

    lenient = MujocoSim(sim.model, engine=engine, diverged="nan")
    found = jax.vmap(lenient.step)(both)
    assert [False, True] == jnp.isnan(found.qpos).all(axis=1).tolist()
    assert jnp.isnan(lenient.step(crowd).qpos).all()


def test_a_force_that_is_large_but_not_too_large_keeps_its_gradient():
    model = copy.copy(zoo_model())
    sims = [MujocoSim(model, diverged=kind) for kind in ("error", "nan")]
    state = sims[0].init().replace(xfrc_applied=jnp.zeros((5, 6)).at[0].set(1e12))

    one, two = (
        jax.grad(lambda v, s=s: s.step(state.replace(qvel=v)).qpos[2])(state.qvel)
        for s in sims
    )

    assert np.abs(one).max() > 1e-3
    assert np.array_equal(one, two)


def test_states_are_finite_in_double_precision_beyond_float32():
    sim = MujocoSim(zoo_model())
    data = mujoco.MjData(sim.model)
    data.xfrc_applied[0] = 1e200  # on the world, which does not move

    state = sim.from_data(data)

    assert 1e200 == exact(sim, sim.step(state))[state.layout.part("xfrc_applied")][0]
