"""Environments and policies for the tests of HostEnv."""

import gymnasium
import jax.numpy as jnp

import purestate as ps


class Counted(gymnasium.Wrapper):
    """Counts what is asked of an environment."""

    def __init__(self, env):
        super().__init__(env)
        self.steps = self.resets = 0
        self.actions = []

    def reset(self, **options):
        self.resets += 1
        return super().reset(**options)

    def step(self, action):
        self.steps += 1
        self.actions.append(action)
        return super().step(action)


def cartpole(**options):
    counted = Counted(gymnasium.make("CartPole-v1"))
    return counted, ps.HostEnv(counted, **options)


def lean(observed):
    """Return the action that pushes to where the pole leans."""
    return jnp.int32(observed[2] > 0)


def pendulum(**options):
    return ps.HostEnv(gymnasium.make("Pendulum-v1"), **options)
