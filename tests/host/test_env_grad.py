"""Gradients through programs with a live environment."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purestate.errors import HostGradError, HostVmapError
from tests.host.environments import cartpole, lean, pendulum
from tests.hosts import agree

pytestmark = pytest.mark.usefixtures("lowering")


def objective(env_reset, env_step, steps):
    """Return the score-function objective of a rollout, and its rewards."""

    def loss(weights, seed, noise):
        def body(observed, u):
            logit = weights @ observed
            action = jax.lax.stop_gradient(jnp.int32(u < jax.nn.sigmoid(logit)))
            observed, reward, *_ = env_step(action)
            score = action * logit - jax.nn.softplus(logit)
            return observed, (score, reward)

        observed, _ = env_reset(seed)
        _, (scores, rewards) = jax.lax.scan(body, observed, noise)
        to_go = jnp.cumsum(rewards[::-1])[::-1]
        return -(scores * to_go).sum(), rewards

    return loss


@pytest.mark.parametrize("eager", [False, True])
def test_value_and_grad_of_a_rollout_makes_exactly_its_steps(eager):
    counted, env = cartpole()
    weights, noise = jnp.array([0.1, 0.2, -0.1, 0.3]), jnp.linspace(0.1, 0.9, 15)
    loss = objective(env.reset, env.step, 15)
    step = jax.value_and_grad(loss, has_aux=True)
    step = step if eager else jax.jit(step)

    (value, rewards), gradient = step(weights, 3, noise)

    jax.effects_barrier()
    assert (15, 1) == (counted.steps, counted.resets)
    assert (15,) == rewards.shape
    expected = plain_score_gradient(np.asarray(weights), 3, np.asarray(noise))
    agree(expected, (value, gradient), 1e-5)


def plain_score_gradient(weights, seed, noise):
    env = gymnasium.make("CartPole-v1")
    observed, _ = env.reset(seed=seed)
    scores, slopes, rewards = [], [], []
    for u in noise:
        logit = float(weights @ observed)
        p = 1 / (1 + np.exp(-logit))
        action = int(u < p)
        scores.append(action * logit - np.log1p(np.exp(logit)))
        slopes.append((action - p) * observed)
        observed, reward, *_ = env.step(action)
        rewards.append(reward)
    to_go = np.cumsum(rewards[::-1])[::-1]
    return -np.sum(scores * to_go), -(np.stack(slopes) * to_go[:, None]).sum(0)


def test_constant_actions_in_a_differentiated_loop_are_all_taken():
    counted, env = cartpole()

    def loss(scale):
        env.reset()

        def body(total, _):
            _, reward, *_ = env.step(1)
            return total + scale * reward, None

        return jax.lax.scan(body, 0.0, None, length=6)[0]

    assert 6.0 == jax.jit(jax.grad(loss))(2.0)
    assert (6, 1) == (counted.steps, counted.resets)


def test_episodes_in_a_differentiated_loop_are_all_played():
    counted, env = cartpole()

    def loss(weights):
        def step(observed, _):
            following, reward, *_ = env.step(lean(observed))
            return following, jnp.tanh(weights @ observed) * reward

        def episode(total, _):
            observed, _ = env.reset()  # nothing here changes from one to the next
            return total + jax.lax.scan(step, observed, length=4)[1].sum(), None

        return jax.lax.scan(episode, 0.0, length=3)[0]

    expected = jnp.zeros(4)
    env.reset(8)
    for _ in range(3):
        observed, _ = env.reset()
        for _ in range(4):
            expected += observed
            observed, *_ = env.step(lean(observed))
    env.reset(8)
    before = counted.resets, counted.steps

    gradient = jax.jit(jax.grad(loss))(jnp.zeros(4))

    agree(expected, gradient, 1e-5)
    assert (before[0] + 3, before[1] + 12) == (counted.resets, counted.steps)


def test_a_differentiated_action_says_what_to_do():
    env = pendulum()
    env.reset(0)

    with pytest.raises(
        HostGradError,
        match=r"Pendulum-v1 \(.*pendulum\.py:\d+\) is a live environment, which has no derivative: put jax\.lax\.stop_gradient around the action, .*, or simulate with purestate\.mujoco\.MujocoSim for gradients",
    ):
        jax.grad(lambda u: env.step(u)[1])(jnp.zeros(1))


def test_vmap_says_what_to_do():
    env = pendulum()
    env.reset(0)

    with pytest.raises(
        HostVmapError,
        match=r"Pendulum-v1 \(.*\) is one live environment, and vmap asks for many: make it with gymnasium\.vector, .* or simulate with purestate\.mujoco\.MujocoSim",
    ):
        jax.vmap(env.step)(jnp.zeros((3, 1)))
