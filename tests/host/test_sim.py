"""Simulators whose state is a value: set, step, get, with the simulator as scratch."""

import re
import threading

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import purestate as ps
from purestate.errors import HostGradError, HostSimError, HostSpecError
from tests.host.test_mujoco import BOX, WHOLE, first_state, stepped
from tests.hosts import agree, x64

pytestmark = pytest.mark.usefixtures("lowering")


class Pendulum:
    """A pendulum in double precision, pushed by a torque."""

    def __init__(self):
        self.angle = np.array([0.5])
        self.speed = np.zeros(1)
        self.count = 0

    def step(self, torque):
        self.count += 1
        self.speed += 0.05 * (torque - np.sin(self.angle))
        self.angle += 0.05 * self.speed


def get(sim):
    return {"angle": sim.angle, "speed": sim.speed}


def set_(sim, state):
    sim.angle[:] = state["angle"]
    sim.speed[:] = state["speed"]


def reference(state, torque):
    speed = state["speed"] + 0.05 * (torque - jnp.sin(state["angle"]))
    return {"angle": state["angle"] + 0.05 * speed, "speed": speed}


def vjp(sim, args, cotangent):
    assert isinstance(sim, Pendulum)
    state, _ = args
    assert state["angle"].dtype == np.float64
    on_speed = cotangent["speed"] + 0.05 * cotangent["angle"]
    return (
        {
            "angle": cotangent["angle"] - 0.05 * np.cos(state["angle"]) * on_speed,
            "speed": on_speed,
        },
        0.05 * on_speed,
    )


def jvp(sim, args, tangents):
    (state, _), (moved, push) = args, tangents
    speed = moved["speed"] + 0.05 * (push - np.cos(state["angle"]) * moved["angle"])
    return {"angle": moved["angle"] + 0.05 * speed, "speed": speed}


def jac(sim, state, torque):
    columns = [
        jvp(
            sim,
            (state, torque),
            ({"angle": np.array([a]), "speed": np.array([b])}, np.array([c])),
        )
        for a, b, c in np.eye(3)
    ]
    return {
        name: (
            {"angle": columns[0][name][:, None], "speed": columns[1][name][:, None]},
            columns[2][name][:, None],
        )
        for name in ("angle", "speed")
    }


def pendulum(**options):
    return ps.HostSim(Pendulum, get, set_, Pendulum.step, **options)


def rolled(step, state, torques):
    return jax.lax.scan(lambda s, u: (step(s, u), s["angle"]), state, torques)


TORQUES = jnp.linspace(-1, 1, 7).reshape(7, 1)


# --- states --------------------------------------------------------------------------


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


# --- vmap ----------------------------------------------------------------------------


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


# --- derivatives ---------------------------------------------------------------------

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


# --- memory --------------------------------------------------------------------------


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


# --- MuJoCo --------------------------------------------------------------------------


def box(names=None, **options):
    """Return MuJoCo as a HostSim, its state as 32-bit words, or float by float."""
    model = mujoco.MjModel.from_xml_string(BOX)

    def get_words(data):
        state = np.empty(mujoco.mj_stateSize(model, WHOLE))
        mujoco.mj_getState(model, data, state, WHOLE)
        return state.view(np.uint32)

    def set_words(data, state):
        mujoco.mj_setState(model, data, state.view(np.float64), WHOLE)

    def get_names(data):
        return {name: getattr(data, name) for name in names}

    def set_names(data, state):
        for name, value in state.items():
            getattr(data, name)[:] = value

    functions = (get_names, set_names) if names else (get_words, set_words)
    sim = ps.HostSim(
        lambda: mujoco.MjData(model),
        *functions,
        lambda data: mujoco.mj_step(model, data),
        name="box",
        **options,
    )
    return model, sim


def test_200_steps_in_a_scan_are_those_of_mujoco_bit_for_bit():
    model, sim = box()
    expected = first_state(model)
    start = jnp.asarray(expected.view(np.uint32))
    data = mujoco.MjData(model)
    for _ in range(200):
        expected = stepped(model, data, expected)

    found = jax.jit(
        lambda s: jax.lax.scan(lambda s, _: (sim.step(s), None), s, None, 200)[0]
    )(start)

    assert (np.asarray(found).view(np.float64) == expected).all()


@pytest.mark.parametrize("mode", ["loop", "threads"])
def test_simulations_under_vmap_are_those_of_mujoco_bit_for_bit(mode):
    model, sim = box(vmap=mode, threads=2)
    state, states = first_state(model), []
    for _ in range(4):
        for _ in range(20):
            state = stepped(model, mujoco.MjData(model), state)
        states.append(state)
    expected = [stepped(model, mujoco.MjData(model), state) for state in states]

    found = jax.jit(jax.vmap(sim.step))(np.stack(states).view(np.uint32))

    assert (np.asarray(found).view(np.float64) == np.stack(expected)).all()


def test_a_state_with_the_warm_start_of_the_solver_is_all_of_it():
    model, sim = box()
    state = first_state(model)
    for _ in range(70):
        state = stepped(model, mujoco.MjData(model), state)

    sim.check(jnp.asarray(state.view(np.uint32)))


def test_a_state_without_the_warm_start_of_the_solver_is_not_all_of_it():
    model, sim = box(["qpos", "qvel"])
    data = mujoco.MjData(model)
    mujoco.mj_setState(model, data, first_state(model), WHOLE)
    mujoco.mj_step(model, data, 70)
    state = {"qpos": jnp.asarray(data.qpos), "qvel": jnp.asarray(data.qvel)}

    with pytest.raises(HostSimError, match=r"the simulator box remembers"):
        sim.check(state)


def test_a_simulation_has_a_gradient():
    model, sim = box(["qpos", "qvel"], grad="fd")
    start = sim.init()

    def height(v):
        state = {**start, "qvel": start["qvel"].at[2].set(v)}
        return jax.lax.scan(lambda s, _: (sim.step(s), None), state, None, 5)[0][
            "qpos"
        ][2]

    # In free flight the height is linear in the speed: five steps of 5 ms.
    assert np.isclose(5 * model.opt.timestep, jax.jit(jax.grad(height))(1.0), rtol=1e-5)


# --- threads -------------------------------------------------------------------------


def test_programs_of_many_threads_do_not_meet_in_one_simulator():
    sim = pendulum()
    expected = [
        jax.jit(lambda s, u: rolled(sim.step, s, u))(sim.init(), k * TORQUES)[0]
        for k in range(6)
    ]
    run = jax.jit(lambda s, u: rolled(sim.step, s, u))
    found = [None] * 6

    def work(k):
        found[k] = jax.block_until_ready(run(sim.init(), k * TORQUES))[0]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

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


# --- errors --------------------------------------------------------------------------


def expecting(text, error=HostSimError):
    return pytest.raises(error, match="(?s)" + text)


@pytest.mark.parametrize("which", ["make", "get", "set", "step", "vjp", "batch"])
def test_what_is_no_function_is_named(which):
    functions = {"make": Pendulum, "get": get, "set": set_, "step": Pendulum.step}

    with expecting(rf"the simulator .* got int as {which}, which is no function\."):
        ps.HostSim(**{**functions, which: 3})


def test_a_batch_mode_says_to_give_the_batch_version():
    with expecting(
        r"the simulator Pendulum has vmap='batched', and a simulator makes one step at a time: give its whole-batch version as batch=, or use \"loop\" or \"threads\"\."
    ):
        pendulum(vmap="batched")


def test_a_complex_step_is_refused():
    with expecting(
        r'the simulator Pendulum has grad="complex", and a simulator takes no complex numbers: use "fd"\.'
    ):
        pendulum(grad="complex")


def test_two_rules_are_one_too_many():
    with expecting(r"Pendulum \(.*\) has grad and vjp: one source", HostSpecError):
        pendulum(grad="fd", vjp=vjp)


def test_a_state_of_things_that_are_no_arrays_is_refused():
    sim = ps.HostSim(Pendulum, lambda s: {"name": "x"}, set_, Pendulum.step)

    with expecting(
        r"the simulator Pendulum has 'x' as state\['name'\]: get= returns numpy arrays and numbers\."
    ):
        sim.init()


@pytest.mark.parametrize("transform", [lambda fn: fn, jax.jit])
def test_a_state_of_another_structure_is_refused(transform):
    sim = pendulum()

    with expecting(
        r"the simulator Pendulum got a state of another structure than its own:\n  expected: PyTreeDef\(\{'angle': \*, 'speed': \*\}\)\n  received: PyTreeDef\(\{'angle': \*\}\)\nStart from init\(\)"
    ):
        transform(lambda q: sim.step({"angle": q}, q))(jnp.zeros(1))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (jnp.zeros(2), r"float32\[2\]"),
        (jnp.zeros(1, jnp.int32), r"int32\[1\]"),
        ("x", "str"),
    ],
)
def test_a_state_of_another_type_is_refused(value, found):
    sim = pendulum()

    with expecting(
        rf"the simulator Pendulum got {found} as state\['angle'\], which is float32\[1\] in its own state\."
    ):
        sim.step({**sim.init(), "angle": value}, TORQUES[0])


def test_a_state_that_changes_its_structure_is_refused():
    def growing(sim):
        return get(sim) | ({"more": 1.0} if sim.count else {})

    sim = ps.HostSim(Pendulum, growing, set_, Pendulum.step)

    with expecting(
        r"the simulator Pendulum changed the structure of its state: get= returned at first\n  PyTreeDef.*\nand after a step\n.*'more'"
    ):
        sim.step(sim.init(), TORQUES[0])


def test_a_state_that_changes_its_type_is_refused():
    def drifting(sim):
        return {
            "angle": sim.angle.copy(),
            "speed": np.zeros(1, int) if not sim.count else sim.speed,
        }

    sim = ps.HostSim(Pendulum, drifting, set_, Pendulum.step)

    with expecting(
        r"the simulator Pendulum changed the type of its state: get= returned at first int64\[1\] as state\['speed'\], and after a step float64\[1\]\."
    ):
        sim.step(sim.init(), TORQUES[0])


def test_a_step_that_fails_with_zeros_says_how_to_go_without():
    def step(sim, torque):
        if not torque.all():
            raise ValueError("no torque")
        return torque

    sim = ps.HostSim(Pendulum, get, set_, step)
    told = ps.HostSim(
        Pendulum, get, set_, step, out=jax.ShapeDtypeStruct((1,), jnp.float32)
    )

    with expecting(
        r"the simulator Pendulum made one step with zeros from its first state, to see what step= returns, and raised ValueError: no torque\. Say it with out=, for example out=jax\.ShapeDtypeStruct\(shape, dtype\), or out=\(\) for nothing\."
    ):
        jax.jit(sim.step)(sim.init(), TORQUES[0])
    assert TORQUES[0] == jax.jit(told.step)(told.init(), TORQUES[0])[1]


def test_no_result_can_be_said_too():
    def step(sim, torque):
        assert torque.all()

    sim = ps.HostSim(Pendulum, get, set_, step, out=())

    assert ["angle", "speed"] == sorted(jax.jit(sim.step)(sim.init(), TORQUES[0]))


def test_an_exception_of_the_simulator_leaves_the_call():
    def checked(sim, state):
        if state["angle"][0] > 1:
            raise OverflowError("angle beyond its limit")
        set_(sim, state)

    sim = ps.HostSim(Pendulum, get, checked, Pendulum.step)
    step = ps.jit(lambda q: sim.step({**sim.init(), "angle": q}, jnp.zeros(1)))

    step(jnp.zeros(1))
    with pytest.raises(OverflowError, match="angle beyond its limit"):
        step(jnp.full(1, 2.0))
    step(jnp.zeros(1))  # with another simulator, and as if nothing had happened


def test_a_simulator_has_a_short_repr():
    assert "<host simulator Pendulum>" == repr(pendulum())
    assert "<host simulator arm>" == repr(pendulum(name="arm"))


def test_messages_say_where_the_step_was_written():
    place = re.escape(f"{__file__}:{Pendulum.step.__code__.co_firstlineno}")

    with expecting(rf"Pendulum \({place}\) has no derivative", HostGradError):
        jax.grad(lambda u: pendulum().step(pendulum().init(), u)["angle"][0])(
            TORQUES[0]
        )
