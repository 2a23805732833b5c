"""The types of a simulation, whose parts are names of replace."""

from typing import assert_type

import jax.numpy as jnp

from purestate.mujoco import MujocoSim, SimState


def advance(sim: MujocoSim, state: SimState) -> SimState:
    assert_type(sim.init(qpos=jnp.zeros(3)), SimState)
    assert_type(sim.step(state, jnp.zeros(2)), SimState)
    assert_type(state.replace(qpos=jnp.zeros(3), ctrl=0.0), SimState)
    state.replace(qpo=jnp.zeros(3))  # error
    sim.step(state, steps=3)  # error
    return state.at(lambda s: s.values).set(jnp.zeros(3))


MujocoSim(None, substep=5)  # error
