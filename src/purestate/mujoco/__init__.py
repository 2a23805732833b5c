"""MuJoCo in jax programs: `MujocoSim`, whose states are values.

Needs the extra `mujoco`; `import purestate` does not import it.

>>> import jax, jax.numpy as jnp, mujoco, purestate.mujoco
>>> model = mujoco.MjModel.from_xml_string('''
... <mujoco><worldbody><body>
...   <joint name="hinge" type="hinge" axis="0 1 0"/>
...   <geom type="sphere" size=".1" pos="0 0 -.5"/>
... </body></worldbody><actuator><motor joint="hinge"/></actuator></mujoco>''')
>>> sim = purestate.mujoco.MujocoSim(model, substeps=5)
>>> state = sim.init(qpos=jnp.array([0.1]))
>>> state = jax.jit(sim.step)(state, jnp.array([0.5]))
>>> state.qpos.shape, round(float(state.time), 3)
((1,), 0.01)
"""

from purestate.mujoco._sim import MujocoSim
from purestate.mujoco._state import SimState

__all__ = ["MujocoSim", "SimState"]

for _name in __all__:
    globals()[_name].__module__ = __name__
