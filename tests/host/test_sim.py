"""Simulators whose state is a value: set, step, get, with the simulator as scratch."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import HostSimError
from tests.helpers import in_threads
from tests.host.pendulums import TORQUES, Pendulum, get, pendulum, rolled, set_
from tests.hosts import agree, x64

pytestmark = pytest.mark.usefixtures("lowering")


# --- states ---------------------------------------------------------------------------


def test_the_first_state_is_that_of_a_new_simulator():
    state = pendulum().init()

    assert ["angle", "speed"] == sorted(state)
    assert isinstance(state["angle"], jax.Array)
    assert [0.5] == state["angle"].tolist()


def test_the_first_state_can_be_asked_for_while_jax_traces():
    assert 0.5 == jax.jit(lambda: pendulum().init()["angle"][0])()


def test_a_step_is_the_simulators_own_step():
    sim, native = pendulum(), Pendulum()
    native.step(0.25)

    state = sim.step(sim.init(), jnp.array([0.25]))

    assert np.float32(native.angle) == state["angle"]
    assert np.float32(native.speed) == state["speed"]


def test_an_old_state_can_be_stepped_again():
    sim = pendulum()
    start = sim.init()
    once = sim.step(start, TORQUES[0])
    sim.step(once, TORQUES[1])

    again = sim.step(start, TORQUES[0])

    assert (once["angle"] == again["angle"]).all()


def test_a_rollout_in_a_scan_equals_steps_one_by_one():
    sim = pendulum()
    state = sim.init()
    for torque in TORQUES:
        state = sim.step(state, torque)

    found, _ = jax.jit(lambda u: rolled(sim.step, sim.init(), u))(TORQUES)

    assert (state["angle"] == found["angle"]).all()
    assert (state["speed"] == found["speed"]).all()


def test_part_of_a_state_can_be_replaced():
    sim, native = pendulum(), Pendulum()
    native.angle[:] = 1.5
    native.step(0.0)

    found = jax.jit(lambda q: sim.step({**sim.init(), "angle": q}, jnp.zeros(1)))(
        jnp.array([1.5])
    )

    assert np.float32(native.angle) == found["angle"]


def test_a_state_can_be_a_State():
    class Moving(ps.State):
        angle: jax.Array
        speed: jax.Array

        def __check__(self):
            assert self.angle.shape == (1,)

    def set_fields(sim, state):
        sim.angle[:], sim.speed[:] = state.angle, state.speed

    sim = ps.HostSim(
        Pendulum, lambda s: Moving(s.angle, s.speed), set_fields, Pendulum.step
    )
    expected = pendulum().step(pendulum().init(), TORQUES[0])

    found = jax.jit(lambda u: sim.step(sim.init().replace(), u))(TORQUES[0])

    assert isinstance(found, Moving)
    assert (expected["angle"] == found.angle).all()


def test_what_step_returns_comes_after_the_state():
    def step(sim, torque):
        Pendulum.step(sim, torque)
        return {"energy": 0.5 * sim.speed[0] ** 2, "steps": 1}

    sim = ps.HostSim(Pendulum, get, set_, step)

    state, out = jax.jit(lambda u: sim.step(sim.init(), u))(TORQUES[0])

    assert jnp.float32 == out["energy"].dtype
    assert 1 == out["steps"]
    assert np.isclose(0.5 * state["speed"][0] ** 2, out["energy"])


class Field:
    """A simulator with so much memory that its next step is there before a slow copy."""

    def __init__(self):
        self.field = np.zeros(400_000)

    def step(self):
        self.field += 1
        return self.field


@pytest.mark.parametrize("part", [0, 1], ids=["state", "result"])
def test_what_is_the_simulators_memory_is_copied(part):
    def get(sim):
        return sim.field if part == 0 else sim.field[0]

    def set_field(sim, state):
        sim.field[:] = state

    sim = ps.HostSim(Field, get, set_field, Field.step, vmap="threads", threads=4)
    numbers = jnp.arange(48.0)
    starts = numbers[:, None] * jnp.ones(400_000) if part == 0 else numbers

    found = jax.jit(jax.vmap(sim.step))(starts)[part]

    assert (numbers[:, None] + 1 == found).all()


def test_inputs_can_go_by_name():
    sim = pendulum()

    found = jax.jit(lambda u: sim.step(sim.init(), torque=u))(TORQUES[0])

    assert found["angle"] == sim.step(sim.init(), TORQUES[0])["angle"]


def test_the_state_arrives_in_the_dtypes_that_it_was_given_out_with():
    seen = []

    def set_and_look(sim, state):
        seen.append((state["angle"].dtype, type(state["angle"])))
        set_(sim, state)

    sim = ps.HostSim(Pendulum, get, set_and_look, Pendulum.step)
    jax.block_until_ready(jax.jit(sim.step)(sim.init(), TORQUES[0]))

    assert {(np.dtype(np.float64), np.ndarray)} == set(seen)


def test_what_set_got_is_its_own_to_keep():
    def keep(sim, state):
        sim.angle, sim.speed = state["angle"], state["speed"]

    sim = ps.HostSim(Pendulum, get, keep, Pendulum.step)
    start = sim.init()

    found = jax.jit(sim.step)(start, TORQUES[0])

    assert pendulum().step(start, TORQUES[0])["angle"] == found["angle"]
    assert [0.5] == start["angle"].tolist()


def test_a_state_keeps_double_precision_where_jax_does():
    native = Pendulum()
    for torque in np.linspace(-1, 1, 7):
        native.step(torque)

    with x64():
        sim = pendulum()
        found, _ = jax.jit(lambda u: rolled(sim.step, sim.init(), u))(
            jnp.linspace(-1, 1, 7)[:, None]
        )
        assert native.angle[0] == float(found["angle"][0])


def test_one_simulator_serves_all_calls_that_follow_each_other():
    made = []

    class Counted(Pendulum):
        def __init__(self):
            super().__init__()
            made.append(self)

    sim = ps.HostSim(Counted, get, set_, Counted.step)
    jax.block_until_ready(
        jax.jit(lambda u: rolled(sim.step, sim.init(), u))(jnp.zeros((50, 1)))
    )
    sim.step(sim.init(), jnp.zeros(1))

    assert 1 == len(made)


# --- vmap -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["loop", "threads"])
def test_vmap_equals_the_loop_bit_for_bit(mode):
    sim = pendulum(vmap=mode, threads=2)
    starts = {"angle": jnp.linspace(0, 3, 6)[:, None], "speed": jnp.ones((6, 1))}
    torques = jnp.linspace(-1, 1, 6)[:, None]
    alone = [
        sim.step(jax.tree.map(lambda x, i=i: x[i], starts), torques[i])
        for i in range(6)
    ]

    found = jax.jit(jax.vmap(sim.step))(starts, torques)

    for i, one in enumerate(alone):
        assert (one["angle"] == found["angle"][i]).all()
        assert (one["speed"] == found["speed"][i]).all()


def test_a_whole_batch_is_one_call_of_batch():
    calls = []

    def batch(sim, states, torques):
        assert isinstance(sim, Pendulum)
        assert states["angle"].dtype == np.float64
        calls.append(torques.shape)
        speed = states["speed"] + 0.05 * (torques - np.sin(states["angle"]))
        return {"angle": states["angle"] + 0.05 * speed, "speed": speed}

    sim = pendulum(batch=batch, upcast=False)
    torques = jnp.arange(6.0).reshape(2, 3, 1)
    expected = jax.vmap(jax.vmap(lambda u: pendulum().step(pendulum().init(), u)))(
        torques
    )

    found = jax.jit(jax.vmap(jax.vmap(lambda u: sim.step(sim.init(), u))))(torques)

    agree(expected, found, 1e-6)
    assert [(6, 1)] == calls


def test_batch_returns_results_beside_the_states():
    def step(sim, torque):
        Pendulum.step(sim, torque)
        return torque

    def batch(sim, states, torques):
        return states, 2 * torques

    sim = ps.HostSim(Pendulum, get, set_, step, batch=batch)
    starts = {"angle": jnp.arange(3.0)[:, None], "speed": jnp.ones((3, 1))}

    states, doubled = jax.jit(jax.vmap(sim.step))(starts, jnp.ones((3, 1)))

    assert (starts["angle"] == states["angle"]).all()
    assert [2, 2, 2] == doubled[:, 0].tolist()


# --- memory ---------------------------------------------------------------------------


def forgetful():
    """Return a simulator with a memory that its state leaves out."""

    class Warm(Pendulum):
        def step(self, torque):
            super().step(torque + 0.1 * self.count)

    return ps.HostSim(Warm, get, set_, Warm.step)


def test_a_simulator_without_memory_passes_its_check():
    sim = pendulum()

    sim.check(sim.init(), TORQUES[0])


def test_a_memory_outside_of_the_state_is_found():
    sim = forgetful()

    with pytest.raises(
        HostSimError,
        match=r"(?s)the simulator .*Warm remembers what is not in its state: after the same step, state\['angle'\] is\n.*in a new simulator, and in one that made 10 steps before\n.*Have get= and set= carry all",
    ):
        sim.check(sim.init(), TORQUES[0])


def test_a_result_with_a_memory_is_found():
    def step(sim, torque):
        Pendulum.step(sim, torque)
        return sim.count

    sim = ps.HostSim(Pendulum, get, set_, step)

    with pytest.raises(HostSimError, match=r"after the same step, result is"):
        sim.check(sim.init(), TORQUES[0])


def test_a_step_that_draws_numbers_is_found():
    rng = np.random.default_rng(0)

    def step(sim, torque):
        Pendulum.step(sim, torque + rng.normal())

    sim = ps.HostSim(Pendulum, get, set_, step)

    with pytest.raises(HostSimError, match=r"and in another one\n"):
        sim.check(sim.init(), TORQUES[0])


def test_a_step_may_draw_numbers_from_a_key():
    def step(sim, rng):
        Pendulum.step(sim, rng.normal())

    sim = ps.HostSim(Pendulum, get, set_, step)
    key = jax.random.key(0)
    sim.check(sim.init(), key)

    found = jax.jit(sim.step)(sim.init(), key)

    assert (sim.step(sim.init(), key)["angle"] == found["angle"]).all()


# --- threads --------------------------------------------------------------------------


def test_programs_of_many_threads_do_not_meet_in_one_simulator():
    sim = pendulum()
    expected = [
        jax.jit(lambda s, u: rolled(sim.step, s, u))(sim.init(), k * TORQUES)[0]
        for k in range(6)
    ]
    run = jax.jit(lambda s, u: rolled(sim.step, s, u))

    found = in_threads(
        lambda k: jax.block_until_ready(run(sim.init(), k * TORQUES))[0], range(6)
    )

    for one, other in zip(expected, found, strict=True):
        assert (one["angle"] == other["angle"]).all()


def test_a_simulator_can_have_a_thread_of_its_own():
    idents = set()

    class Bound(Pendulum):
        def __init__(self):
            super().__init__()
            idents.add(threading.get_ident())

        def step(self, torque):
            idents.add(threading.get_ident())
            super().step(torque)

    sim = ps.HostSim(Bound, get, set_, Bound.step, thread="own")
    jax.block_until_ready(jax.jit(sim.step)(sim.init(), TORQUES[0]))
    sim.check(sim.init(), TORQUES[0])

    assert 1 == len(idents)
    assert threading.get_ident() not in idents
