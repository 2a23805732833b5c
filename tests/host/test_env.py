"""Live gymnasium environments in jax programs: ordered effects, once per step."""

import threading

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import purestate as ps
from purestate.errors import HostEnvError, HostGradError, HostSpecError, HostVmapError
from tests.hosts import agree, x64

pytestmark = pytest.mark.usefixtures("lowering")


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


# --- calls ---------------------------------------------------------------------------


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


# --- seeds ---------------------------------------------------------------------------


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


# --- gradients -----------------------------------------------------------------------


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


def pendulum(**options):
    return ps.HostEnv(gymnasium.make("Pendulum-v1"), **options)


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


# --- episodes and info ---------------------------------------------------------------


def test_autoreset_starts_the_next_episode_in_the_same_step():
    counted, env = cartpole(autoreset=True)

    def body(_, __):
        observed, reward, terminated, *_ = env.step(1)
        return 0, (observed, reward, terminated)

    @jax.jit
    def program():
        env.reset(0)
        return jax.lax.scan(body, 0, None, length=40)[1]

    observed, rewards, terminated = program()

    ends = np.flatnonzero(terminated)
    assert len(ends) == counted.resets - 1 > 1
    assert (np.abs(observed[ends]) <= 0.05).all()  # where CartPole's episodes start
    assert (1.0 == rewards).all()


def test_named_infos_are_handed_out():
    env = ps.HostEnv(gymnasium.make("Hopper-v5"), info=("x_position", "x_velocity"))
    native = gymnasium.make("Hopper-v5")
    _, first = native.reset(seed=0)
    *_, expected = native.step(np.zeros(3, np.float32))

    _, at_reset = jax.jit(env.reset)(0)
    *_, found = jax.jit(env.step)(jnp.zeros(3))

    assert np.float32(expected["x_position"]) == found["x_position"]
    assert np.float32(expected["x_velocity"]) == found["x_velocity"]
    assert np.float32(first["x_position"]) == at_reset["x_position"]
    assert np.isnan(at_reset["x_velocity"])  # Hopper gives none at a reset


class Tools(gymnasium.Env):
    """An environment of nested spaces, with infos of other types than numbers."""

    observation_space = spaces.Dict(
        {
            "b": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2))),
            "a": spaces.Box(0, 255, (2,), np.uint8),
        }
    )
    action_space = spaces.Dict(
        {
            "grip": spaces.Discrete(2),
            "move": spaces.Box(-1, 1, (2,), np.float32),
            "keys": spaces.Tuple((spaces.MultiDiscrete([3, 3]), spaces.MultiBinary(1))),
        }
    )

    def _observed(self):
        return {
            "a": np.array([7, 8], np.uint8),
            "b": (2, np.array([0, 1], np.int8)),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observed(), {}

    def step(self, action):
        self.last = action
        return self._observed(), 1, False, False, {"at": np.arange(3), "count": 4}


ACTION = {
    "grip": jnp.int32(1),
    "move": jnp.array([0.5, -0.5]),
    "keys": (jnp.array([2, 1]), jnp.array([1])),
}


def test_nested_spaces_are_pytrees():
    tools = Tools()
    env = ps.HostEnv(tools)

    observed, _ = jax.jit(env.reset)(0)
    jax.block_until_ready(jax.jit(env.step)(ACTION))
    jax.effects_barrier()

    assert tools.action_space.contains(tools.last)
    assert 1 == tools.last["grip"]
    assert [0.5, -0.5] == tools.last["move"].tolist()
    assert [7, 8] == observed["a"].tolist()
    assert (2, [0, 1]) == (int(observed["b"][0]), observed["b"][1].tolist())
    assert (jnp.uint8, jnp.int8) == (observed["a"].dtype, observed["b"][1].dtype)


def test_infos_of_other_types_are_given_with_their_specs():
    env = ps.HostEnv(
        Tools(),
        info={
            "at": jax.ShapeDtypeStruct((3,), jnp.int32),
            "count": jax.ShapeDtypeStruct((), jnp.int32),
        },
    )

    _, at_reset = env.reset(0)
    *_, info = jax.jit(env.step)(ACTION)

    assert ([0, 0, 0], 0) == (at_reset["at"].tolist(), int(at_reset["count"]))
    assert ([0, 1, 2], 4) == (info["at"].tolist(), int(info["count"]))


def test_an_info_that_is_never_given_is_named():
    env = ps.HostEnv(Tools(), info=("cuont",))
    env.reset(0)

    with pytest.raises(
        HostEnvError,
        match=r"the environment Tools gave no info 'cuont' at a step; did you mean 'count'\?",
    ):
        ps.jit(env.step)(ACTION)


# --- vector environments -------------------------------------------------------------


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


# --- threads -------------------------------------------------------------------------


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


# --- errors --------------------------------------------------------------------------


def test_a_step_before_a_reset_is_gymnasiums_error():
    _, env = cartpole()

    with pytest.raises(gymnasium.error.ResetNeeded, match=r"before calling env\.reset"):
        ps.jit(env.step)(1)
    env.reset(0)
    ps.jit(env.step)(1)


@pytest.mark.parametrize(
    ("action", "found", "wanted"),
    [
        (jnp.zeros(2), r"float32\[2\]", r"float32\[1\]"),
        (jnp.zeros(1, complex), r"complex64\[1\]", r"float32\[1\]"),
        ("x", "str", r"float32\[1\]"),
    ],
)
def test_an_action_of_another_type_is_refused(action, found, wanted):
    env = pendulum()

    with pytest.raises(
        HostEnvError,
        match=rf"the environment Pendulum-v1 got {found} as action, which is {wanted}\.",
    ):
        env.step(action)


def test_a_float_is_no_discrete_action():
    _, env = cartpole()

    with pytest.raises(
        HostEnvError,
        match=r"the environment CartPole-v1 got float32\[\] as action, which is int64\[\]\.",
    ):
        jax.jit(env.step)(1.0)


def test_an_action_of_another_structure_is_refused():
    env = ps.HostEnv(Tools())

    with pytest.raises(
        HostEnvError,
        match=r"(?s)the environment Tools takes actions of another structure:\n  expected: PyTreeDef\(\{'grip'.*\n  received: PyTreeDef\(\*\)",
    ):
        env.step(0)


def test_a_part_of_an_action_is_named():
    env = ps.HostEnv(Tools())

    with pytest.raises(HostEnvError, match=r"got float32\[\] as action\['grip'\]"):
        env.step({**ACTION, "grip": 0.5})


@pytest.mark.parametrize(
    "space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2))], ids=repr
)
def test_a_space_without_a_fixed_size_is_named(space):
    class Odd(Tools):
        observation_space = spaces.Dict({"x": space})

    with pytest.raises(
        HostEnvError,
        match=r"the environment Odd has (Text|Sequence)\(.* in its observation_space, whose members are no arrays of one shape\. Wrap the environment so that it is a Box",
    ):
        ps.HostEnv(Odd())


def test_what_is_no_environment_is_refused():
    with pytest.raises(
        HostEnvError,
        match=r"the environment list has no reset and no step and no observation_space and no action_space: ps\.HostEnv takes an environment as gymnasium defines it\.",
    ):
        ps.HostEnv([])


def test_an_observation_of_another_shape_than_the_space_says_is_refused():
    class Wrong(Tools):
        def _observed(self):
            return {"a": np.zeros(3, np.uint8), "b": (2, np.zeros(2, np.int8))}

    env = ps.HostEnv(Wrong())

    with pytest.raises(
        HostSpecError,
        match=r"(?s)Wrong \(.*\) returned another array than declared at \[0\]\['a'\]:\n  expected: uint8\[2\]\n  received: uint8\[3\]",
    ):
        env.reset(0)


def test_an_environment_has_a_short_repr():
    assert "<host environment CartPole-v1>" == repr(cartpole()[1])
    assert "<host environment pole>" == repr(cartpole(name="pole")[1])
