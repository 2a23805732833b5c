"""Episodes of a live environment, what it says in `info`, and its errors."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import purestate as ps
from purestate.errors import HostEnvError, HostSpecError
from tests.host.environments import cartpole, pendulum

pytestmark = pytest.mark.usefixtures("lowering")


# --- episodes and info ----------------------------------------------------------------


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


# --- errors ---------------------------------------------------------------------------


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
