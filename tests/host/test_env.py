"""Live gymnasium environments in jax programs: ordered effects, once per step."""

import threading

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import HostEnvError
from tests.host.environments import cartpole, lean
from tests.hosts import agree, x64

pytestmark = pytest.mark.usefixtures("lowering")


def plain_rollout(name, policy, steps, seed):
    """Return observations and rewards of the plain Python loop."""
    env = gymnasium.make(name)
    observed, _ = env.reset(seed=seed)
    seen, rewards = [observed], []
    for _ in range(steps):
        observed, reward, *_ = env.step(policy(observed))
        seen.append(observed)
        rewards.append(reward)
    return np.stack(seen), np.array(rewards)


def rollout(env, policy, steps):
    def run(seed):
        def body(observed, _):
            following, reward, *_ = env.step(policy(observed))
            return following, (observed, reward)

        observed, _ = env.reset(seed)
        last, (seen, rewards) = jax.lax.scan(body, observed, length=steps)
        return jnp.concatenate([seen, last[None]]), rewards

    return run


# --- calls ----------------------------------------------------------------------------


def test_an_eager_call_is_the_environments_own():
    native = gymnasium.make("CartPole-v1")
    env = ps.HostEnv(gymnasium.make("CartPole-v1"))
    first, _ = native.reset(seed=3)
    expected = native.step(1)

    observed, info = env.reset(3)
    found = env.step(1)

    assert {} == info
    assert (first == observed).all()
    assert (expected[0] == found[0]).all()
    assert expected[1:] == (float(found[1]), bool(found[2]), bool(found[3]), found[4])


@pytest.mark.parametrize("transform", [lambda fn: fn, jax.jit])
def test_a_rollout_in_a_scan_is_that_of_the_plain_loop(transform):
    observed, rewards = plain_rollout("CartPole-v1", lambda x: int(x[2] > 0), 25, 7)
    counted, env = cartpole()

    found = transform(rollout(env, lean, 25))(7)

    assert (observed == found[0]).all()
    assert (rewards == found[1]).all()
    assert (25, 1) == (counted.steps, counted.resets)


def test_a_rollout_of_mujoco_is_that_of_the_plain_loop():
    def gait(x):
        return np.float32(np.sin(np.arange(3) + 5 * np.float32(x[:3])))

    observed, rewards = plain_rollout("Hopper-v5", gait, 20, 1)
    env = ps.HostEnv(gymnasium.make("Hopper-v5"))

    def policy(x):
        return jax.pure_callback(
            gait, jax.ShapeDtypeStruct((3,), jnp.float32), x, vmap_method="sequential"
        )

    found = jax.jit(rollout(env, policy, 20))(1)

    assert jnp.float32 == found[0].dtype
    agree(np.float32(observed), found[0], 1e-4)
    agree(np.float32(rewards), found[1], 1e-4)


def test_numbers_keep_double_precision_where_jax_does():
    native = gymnasium.make("Hopper-v5")
    observed, _ = native.reset(seed=0)
    action = np.float32([0.5, -0.5, 0.2])
    following, reward, *_ = native.step(action)

    with x64():
        env = ps.HostEnv(gymnasium.make("Hopper-v5"))
        found, _ = env.reset(0)
        stepped = jax.jit(env.step)(action)

        assert (observed == found).all()
        assert (following == stepped[0]).all()
        assert reward == float(stepped[1])


def test_tracing_leaves_the_environment_alone():
    counted, env = cartpole()

    observed, _ = jax.eval_shape(env.reset, 0)
    jax.eval_shape(env.step, 0)

    assert ((4,), jnp.float32) == (observed.shape, observed.dtype)
    assert (0, 0) == (counted.steps, counted.resets)


def test_a_step_whose_result_nobody_uses_is_made():
    counted, env = cartpole()

    @jax.jit
    def program():
        env.reset(0)
        env.step(1)
        env.step(0)
        return 3

    jax.block_until_ready(program())
    jax.effects_barrier()
    assert [1, 0] == counted.actions


def test_steps_in_branches_and_loops_are_made_as_often_as_they_are_taken():
    counted, env = cartpole()

    @jax.jit
    def program(n):
        env.reset(0)
        jax.lax.fori_loop(0, n, lambda i, c: (env.step(i % 2), c)[1], 0)
        jax.lax.cond(n > 10, lambda: env.step(0), lambda: env.step(1))
        return n

    jax.block_until_ready(program(3))
    jax.effects_barrier()
    assert [0, 1, 0, 1] == counted.actions


def test_two_environments_keep_the_order_of_the_program():
    seen = []

    class Named(gymnasium.Wrapper):
        def step(self, action):
            seen.append((self.name, int(action)))
            return super().step(action)

    envs = []
    for name in "ab":
        wrapped = Named(gymnasium.make("CartPole-v1"))
        wrapped.name = name
        envs.append(ps.HostEnv(wrapped))
        envs[-1].reset(0)

    def body(t, _):
        envs[0].step(t % 2)
        envs[1].step(t % 2)
        return t + 1, None

    jax.block_until_ready(jax.jit(lambda: jax.lax.scan(body, 0, None, length=3))())
    jax.effects_barrier()
    assert [(name, t % 2) for t in range(3) for name in "ab"] == seen


def test_an_eager_step_waits_for_the_programs_before_it(monkeypatch):
    """On a GPU these may still run; on a CPU jax itself waits for ordered effects."""
    counted, env = cartpole()
    env.reset(0)
    waited = []
    monkeypatch.setattr(jax, "effects_barrier", lambda: waited.append(counted.steps))

    env.step(1)
    jax.jit(env.step).lower(1)

    assert [0] == waited


def test_a_discrete_action_arrives_as_a_number():
    counted, env = cartpole()
    env.reset(0)

    jax.block_until_ready(jax.jit(env.step)(jnp.int32(1)))
    jax.effects_barrier()

    assert [1] == counted.actions
    assert hash(1) == hash(counted.actions[0])


# --- seeds ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 12345, 2**32 - 1])
def test_a_seed_is_the_environments_seed(seed):
    expected, _ = gymnasium.make("CartPole-v1").reset(seed=seed)
    _, env = cartpole()

    assert (expected == env.reset(seed)[0]).all()
    assert (expected == jax.jit(lambda: env.reset(seed)[0])()).all()


def test_a_traced_seed_is_a_seed():
    expected, _ = gymnasium.make("CartPole-v1").reset(seed=5)
    _, env = cartpole()

    assert (expected == jax.jit(lambda seed: env.reset(seed)[0])(5)).all()


def test_a_key_is_a_seed():
    _, env = cartpole()
    reset = jax.jit(lambda key: env.reset(key)[0])

    first, second = reset(jax.random.key(0)), reset(jax.random.key(1))

    assert (first == reset(jax.random.key(0))).all()
    assert (first == env.reset(jax.random.key(0))[0]).all()
    assert (first != second).any()


def test_no_seed_goes_on_with_the_environments_numbers():
    native = gymnasium.make("CartPole-v1")
    native.reset(seed=0)
    expected, _ = native.reset()
    _, env = cartpole()
    env.reset(0)

    assert (expected == jax.jit(lambda: env.reset()[0])()).all()


@pytest.mark.parametrize(
    ("seed", "text"),
    [
        (-1, r"got -1 as seed, which is a number from 0 to 2\*\*32 - 1\."),
        (2**32, r"got 4294967296 as seed, which is a number from 0 to"),
        (1.5, r"got float32\[\] as seed, which is an integer or a typed key\."),
        ("x", "got str as seed, which is an integer or a typed key"),
        (np.arange(3), r"got int32\[3\] as seed"),
    ],
)
def test_what_is_no_seed_is_refused(seed, text):
    _, env = cartpole()

    with pytest.raises(HostEnvError, match=f"the environment CartPole-v1 {text}"):
        env.reset(seed)


# --- vector environments --------------------------------------------------------------


def vector(count):
    return gymnasium.make_vec("CartPole-v1", num_envs=count, vectorization_mode="sync")


def test_a_vector_environment_has_its_batch_in_front():
    native = vector(3)
    expected, _ = native.reset(seed=2)
    following, rewards, *_ = native.step(np.array([0, 1, 0]))
    env = ps.HostEnv(vector(3))

    observed, _ = jax.jit(env.reset)(2)
    found = jax.jit(env.step)(jnp.array([0, 1, 0]))

    assert (expected == observed).all()
    assert (following == found[0]).all()
    assert (rewards == found[1]).all()
    assert ((3,), (3,)) == (found[2].shape, found[3].shape)


def test_a_vector_environment_takes_a_seed_for_each():
    expected, _ = vector(2).reset(seed=[5, 9])
    env = ps.HostEnv(vector(2))

    assert (expected == jax.jit(env.reset)(jnp.array([5, 9]))[0]).all()
    assert (expected == env.reset([5, 9])[0]).all()


def test_a_vector_environment_resets_by_itself():
    with pytest.raises(
        HostEnvError,
        match=r"is one of gymnasium\.vector, which resets by itself: leave autoreset out\.",
    ):
        ps.HostEnv(vector(2), autoreset=True)


# --- threads --------------------------------------------------------------------------


def test_an_environment_can_have_a_thread_of_its_own():
    idents = set()

    class Bound(gymnasium.Wrapper):
        def reset(self, **options):
            idents.add(threading.get_ident())
            return super().reset(**options)

        def step(self, action):
            idents.add(threading.get_ident())
            return super().step(action)

    env = ps.HostEnv(Bound(gymnasium.make("CartPole-v1")), thread="own")
    jax.block_until_ready(jax.jit(rollout(env, lean, 3))(0))
    env.reset(1)
    env.step(0)

    assert 1 == len(idents)
    assert threading.get_ident() not in idents


class Lever(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-128, 127, (2,), np.int8)
    action_space = gymnasium.spaces.Box(-128, 127, (2,), np.int8)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.int8), {}

    def step(self, action):
        return action, 0.0, False, False, {}


def test_an_action_that_the_space_cannot_hold_is_refused():
    env = ps.HostEnv(Lever())
    env.reset()

    assert [-128, 127] == env.step(jnp.array([-128, 127]))[0].tolist()
    for step in (env.step, ps.jit(env.step)):
        with pytest.raises(
            HostEnvError, match="got 128 in an action, which int8 cannot hold"
        ):
            step(jnp.array([1, 128]))
