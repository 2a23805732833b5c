"""The public names of purestate.mujoco, and what of them is written down."""

import pickle
import pickletools

import jax.numpy as jnp
import pytest

import purestate.mujoco
from purestate.mujoco import MujocoSim, SimState
from tests.simulators import random_state, zoo_model


@pytest.mark.parametrize("name", ["MujocoSim", "SimState"])
def test_a_public_class_says_where_it_is_public(name):
    assert "purestate.mujoco" == getattr(purestate.mujoco, name).__module__
    assert name in purestate.mujoco.__all__


def test_a_state_comes_back_from_pickle_with_every_bit():
    sim = MujocoSim(zoo_model())
    state = sim.step(sim.init(*random_state(sim.model)))

    again = pickle.loads(pickle.dumps(state))

    assert SimState is type(again)
    assert state == again
    assert jnp.array_equal(state.words, again.words)
    assert sim.step(state) == sim.step(again)


@pytest.mark.parametrize("kind", ["simulator", "state"])
def test_a_pickle_finds_the_public_classes_where_they_are_public(kind):
    sim = MujocoSim(zoo_model())
    data = pickle.dumps({"simulator": sim, "state": sim.init()}[kind])

    texts = {value for _, value, _ in pickletools.genops(data)}

    assert "purestate.mujoco" in texts
    assert not texts & {"purestate.mujoco._sim", "purestate.mujoco._state"}
