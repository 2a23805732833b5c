"""What each mistake around a simulator says."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import HostGradError, HostSimError, HostSpecError
from tests.host import pendulums
from tests.host.pendulums import TORQUES, Pendulum, get, pendulum, set_, vjp

pytestmark = pytest.mark.usefixtures("lowering")


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
    place = re.escape(f"{pendulums.__file__}:{Pendulum.step.__code__.co_firstlineno}")

    with expecting(rf"Pendulum \({place}\) has no derivative", HostGradError):
        jax.grad(lambda u: pendulum().step(pendulum().init(), u)["angle"][0])(
            TORQUES[0]
        )
