"""Roll a policy out in a live gymnasium environment, and in 64 simulations at once.

    python docs/examples/gym_rollout.py

Both rollouts are scans in jitted functions. The live environment is acted on by ordered
effects (`ps.HostEnv`), and its rewards are those of a plain Python loop, one by one.
The simulations (`MujocoSim`) are values of the same model, so they can be vmapped. One
that starts in the state of the environment and takes the same actions ends in the same
state, bit for bit.
"""

import argparse
import time
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

import purestate as ps
from purestate.mujoco import MujocoSim


class Policy(ps.State):
    """Two dense layers, from what is observed to torques between -1 and 1."""

    hidden: jax.Array
    out: jax.Array

    def __init__(self, key, observed=11, width=32, torques=3):
        keys = jax.random.split(key)
        self.hidden = jax.random.normal(keys[0], (observed, width)) / np.sqrt(observed)
        self.out = jax.random.normal(keys[1], (width, torques)) / np.sqrt(width)

    @jax.jit
    def __call__(self, obs):
        return jnp.tanh(jnp.tanh(obs @ self.hidden) @ self.out)


# --- one live environment ------------------------------------------------------------


def python_loop(env, policy, seed, steps):
    """Return the rewards, by a loop as in gymnasium's own documentation."""
    rewards = []
    obs, _ = env.reset(seed=seed)
    for _ in range(steps):
        obs, reward, *_ = env.step(np.asarray(policy(jnp.float32(obs))))
        rewards.append(reward)
    return np.array(rewards, np.float32)


def live(env):
    """Return the same as one jitted program, for `env`, a `ps.HostEnv`."""

    @ps.jit(static_argnames="steps")
    def rollout(policy, seed, steps):
        def body(obs, _):
            action = policy(obs)
            obs, reward, *_ = env.step(action)
            return obs, (action, reward)

        obs, _ = env.reset(seed)
        return jax.lax.scan(body, obs, length=steps)[1]

    return rollout


# --- many simulations ----------------------------------------------------------------


class Hopper(ps.State):
    """The task of Hopper-v5, as functions of a state."""

    sim: MujocoSim = ps.static()
    dt: float = ps.static()

    def __init__(self, env):
        inner: Any = env.unwrapped
        self.sim = MujocoSim(inner.model, substeps=inner.frame_skip)
        self.dt = inner.dt

    def observe(self, state):
        return jnp.concatenate([state.qpos[1:], jnp.clip(state.qvel, -10, 10)])

    def step(self, state, action):
        """Return the next state, and the reward for speed and an upright torso."""
        following = self.sim.step(state, action)
        speed = (following.qpos[0] - state.qpos[0]) / self.dt
        _, height, angle, *_ = following.qpos
        is_healthy = (height > 0.7) & (jnp.abs(angle) < 0.2)
        return following, speed + is_healthy - 1e-3 * jnp.sum(action**2)

    @ps.jit
    def replay(self, start, actions):
        """Return the last state and the rewards, from `start` on."""
        return jax.lax.scan(self.step, start, actions)

    @ps.jit(static_argnames=("count", "steps"))
    def rollouts(self, policy, start, key, count, steps):
        """Return the rewards, shape `(count, steps)`, from states near `start`."""

        def body(state, _):
            return self.step(state, policy(self.observe(state)))

        def run(key):
            noise = 5e-3 * jax.random.normal(key, start.qvel.shape)
            state = start.replace(qvel=start.qvel + noise)
            return jax.lax.scan(body, state, length=steps)[1]

        return jax.vmap(run)(jax.random.split(key, count))


# --- the run -------------------------------------------------------------------------


def timed(fn, *args, **kwargs):
    """Return the result of a second call, and how many seconds that took."""
    jax.block_until_ready(fn(*args, **kwargs))
    start = time.perf_counter()
    result = jax.block_until_ready(fn(*args, **kwargs))
    return result, time.perf_counter() - start


def main(steps=1000, count=64, seed=0):
    """Compare the three, print how fast they are, and return what they found.

    Returns:
        The rewards of the loop, of the scan and of the replay, and the last positions
        of the environment and of the replay.
    """
    # The episode goes on after a fall, so that all rollouts are equally long.
    env = gymnasium.make(
        "Hopper-v5", terminate_when_unhealthy=False, max_episode_steps=steps + 1
    )
    policy = Policy(jax.random.key(seed))
    loop, loop_time = timed(python_loop, env, policy, seed, steps)
    rollout = live(ps.HostEnv(env))
    (actions, rewards), live_time = timed(rollout, policy, seed, steps=steps)
    inner: Any = env.unwrapped  # gymnasium does not say that it has MuJoCo's data
    qpos = inner.data.qpos.copy()

    hopper = Hopper(env)
    env.reset(seed=seed)
    start = hopper.sim.from_data(inner.data)
    end, replayed = hopper.replay(start, actions)
    replayed_qpos = hopper.sim.to_data(end).qpos
    key = jax.random.key(seed)
    _, many_time = timed(hopper.rollouts, policy, start, key, count=count, steps=steps)

    speeds = {
        "a Python loop": steps / loop_time,
        "ps.HostEnv in a scan": steps / live_time,
        f"MujocoSim, {count} under vmap": steps * count / many_time,
    }
    for label, speed in speeds.items():
        print(f"{label:28} {speed:8,.0f} steps per second")
    are = {True: "are equal", False: "DIFFER"}
    same = np.array_equal(loop, rewards)
    print(f"the {steps} rewards of loop and scan {are[same]}")
    same = np.array_equal(qpos, replayed_qpos)
    print(f"the last positions of environment and simulation {are[same]}, bit for bit")
    error = np.abs(replayed - rewards).max()
    print(f"their rewards differ by {error:.0e} at most: speeds from float32 positions")
    return loop, np.asarray(rewards), np.asarray(replayed), qpos, replayed_qpos


def parse():
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--count", type=int, default=64, help="of simulations")
    parser.add_argument("--seed", type=int, default=0)
    return vars(parser.parse_args())


if __name__ == "__main__":
    main(**parse())
