"""Models for the tests of MujocoSim, and MuJoCo itself to compare with."""

import functools
import importlib.util
import pathlib

import mujoco
import numpy as np

__all__ = ["GYM", "WHOLE", "ZOO", "gym_model", "native", "random_state", "zoo_model"]

GYM = {
    "humanoid": "humanoid",
    "ant": "ant",
    "hopper": "hopper",
    "half cheetah": "half_cheetah",
    "walker": "walker2d_v5",
    "swimmer": "swimmer",
    "reacher": "reacher",
    "pendulum": "inverted_pendulum",
}
WHOLE = mujoco.mjtState.mjSTATE_INTEGRATION
# All kinds of joints, an actuator with a state, sensors, and contacts with the floor.
ZOO = """
<mujoco model="zoo">
  <option timestep="0.004" integrator="implicitfast" iterations="100" tolerance="0"/>
  <worldbody>
    <geom type="plane" size="5 5 .1"/>
    <body pos="0 0 .6">
      <freejoint/>
      <geom type="box" size=".1 .15 .2" mass="1"/>
      <site name="chest"/>
      <body pos=".2 0 0">
        <joint type="ball" damping=".1"/>
        <geom type="capsule" fromto="0 0 0 .3 0 0" size=".03"/>
        <body pos=".3 0 0">
          <joint name="h" type="hinge" axis="0 1 0" damping=".1"/>
          <joint name="s" type="slide" axis="1 0 0" stiffness="5"/>
          <geom type="sphere" size=".05"/>
        </body>
      </body>
    </body>
    <body mocap="true" pos="2 0 1"><geom type="sphere" size=".1" contype="0"/></body>
  </worldbody>
  <actuator>
    <motor joint="h"/>
    <general joint="s" dyntype="filter" dynprm=".05" gainprm="3"/>
  </actuator>
  <sensor><jointpos joint="h"/><accelerometer site="chest"/></sensor>
  <keyframe><key name="high" qpos="0 0 2 1 0 0 0 1 0 0 0 .1 0"/></keyframe>
</mujoco>
"""


@functools.cache
def gym_model(name):
    """Return a model of Gymnasium's, as its environments use it."""
    package = pathlib.Path(importlib.util.find_spec("gymnasium").origin).parent
    path = package / "envs" / "mujoco" / "assets" / f"{GYM[name]}.xml"
    return mujoco.MjModel.from_xml_path(str(path))


def zoo_model(**options):
    model = mujoco.MjModel.from_xml_string(ZOO)
    for name, value in options.items():
        setattr(model.opt, name, value)
    return model


def random_state(model, seed=0):
    """Return positions and velocities near the model's own."""
    rng = np.random.default_rng(seed)
    data = mujoco.MjData(model)
    velocity = rng.normal(size=model.nv) * 0.3
    mujoco.mj_integratePos(model, data.qpos, velocity, 1.0)
    return data.qpos.copy(), rng.normal(size=model.nv) * 0.3


def native(model, state, controls, substeps=1):
    """Return the state vectors along a simulation by MuJoCo alone."""
    data = mujoco.MjData(model)
    mujoco.mj_setState(model, data, state, WHOLE)
    found = []
    for control in controls:
        data.ctrl[:] = control
        mujoco.mj_step(model, data, nstep=substeps)
        found.append(np.empty_like(state))
        mujoco.mj_getState(model, data, found[-1], WHOLE)
    return np.array(found)
