"""Derivatives of a simulator's step, from each source."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import HostGradError, HostSimError
from tests.host.pendulums import (
    TORQUES,
    Pendulum,
    get,
    jac,
    jvp,
    pendulum,
    reference,
    rolled,
    set_,
    vjp,
)
from tests.hosts import agree

pytestmark = pytest.mark.usefixtures("lowering")
RULES = [{"grad": "fd"}, {"vjp": vjp}, {"jvp": jvp}, {"jac": jac}]


def loss(step):
    def total(state, torques):
        final, angles = rolled(step, state, torques)
        return jnp.sum(final["speed"] ** 2) + jnp.sum(jnp.cos(angles))

    return total


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: next(iter(rule)))
def test_a_rollout_has_the_gradient_of_the_same_rollout_in_jax(rule):
    sim = pendulum(**rule)
    expected = jax.value_and_grad(loss(reference), (0, 1))(sim.init(), TORQUES)

    found = jax.jit(jax.value_and_grad(loss(sim.step), (0, 1)))(sim.init(), TORQUES)

    agree(expected, found, 1e-5)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: next(iter(rule)))
def test_a_batch_of_rollouts_has_a_gradient(rule):
    sim = pendulum(**rule)
    torques = jnp.stack([TORQUES, 2 * TORQUES])

    def batched(step):
        return jax.vmap(jax.grad(loss(step), 1), (None, 0))

    expected = batched(reference)(sim.init(), torques)
    found = jax.jit(batched(sim.step))(sim.init(), torques)

    agree(expected, found, 1e-5)


def test_forward_mode_follows_from_a_vjp():
    sim = pendulum(vjp=vjp)
    expected = jax.jacfwd(lambda u: reference(sim.init(), u))(TORQUES[0])

    agree(expected, jax.jacfwd(lambda u: sim.step(sim.init(), u))(TORQUES[0]), 1e-6)


def test_a_step_without_a_rule_says_how_to_give_one():
    sim = pendulum()

    with pytest.raises(HostGradError, match=r"Pendulum \(.*\) has no derivative"):
        jax.grad(lambda u: sim.step(sim.init(), u)["angle"][0])(TORQUES[0])


def test_small_differences_are_not_lost_in_a_state_of_float32():
    class Single(Pendulum):
        def __init__(self):
            super().__init__()
            self.angle, self.speed = np.float32([0.5]), np.float32([0])

    lost = ps.HostSim(Single, get, set_, Single.step, grad="fd")
    with pytest.raises(
        HostSimError,
        match=r"the simulator .*Single keeps float32 as state\['angle'\], which cannot hold the small differences of upcast=True: give upcast=False\.",
    ):
        lost.step(lost.init(), TORQUES[0])

    sim = ps.HostSim(Single, get, set_, Single.step, grad="fd", upcast=False)
    expected = jax.grad(loss(reference), 1)(sim.init(), TORQUES)
    agree(expected, jax.grad(loss(sim.step), 1)(sim.init(), TORQUES), 1e-2)
