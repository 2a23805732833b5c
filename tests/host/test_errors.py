"""Exceptions of host functions, as they leave a compiled program."""

import contextlib
import logging
import pickle
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate import errors
from tests.helpers import in_threads

pytestmark = pytest.mark.usefixtures("lowering")


@pytest.fixture(autouse=True)
def _quiet(lowering):
    """`jax.pure_callback` logs what it cannot pass on."""
    logger = logging.getLogger("jax")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


class Diverged(ValueError):
    """An error of the user."""


def simulator(**options):
    @ps.host_function(out=lambda x: x, grad="fd", **options)
    def simulate(x):
        if (x < 0).any():
            inner_frame_of_the_simulator(x)
        return x * 2

    return simulate


def inner_frame_of_the_simulator(x):
    raise Diverged("diverged at step 7")


def frames(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


PROGRAMS = {
    "jit": lambda f: f,
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([-x, x])),
    "scan": lambda f: (
        lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]
    ),
    "grad": lambda f: jax.grad(lambda x: f(x).sum()),
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(lambda x: f(x)))(x),
    "cond": lambda f: lambda x: jax.lax.cond(x.sum() < 0, f, lambda x: x, x),
    "remat": lambda f: jax.grad(lambda x: jax.checkpoint(f)(x).sum()),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_exception_itself_leaves_a_jitted_function(program):
    step = ps.jit(PROGRAMS[program](simulator()))

    with pytest.raises(Diverged, match=r"^diverged at step 7$") as caught:
        step(jnp.array([-1.0]))

    assert Diverged is type(caught.value)
    assert "inner_frame_of_the_simulator" == frames(caught.value)[-1]
    assert caught.value.__context__ is None


@pytest.mark.parametrize("program", PROGRAMS)
def test_plain_jit_is_covered_by_surface_errors(program):
    step = jax.jit(PROGRAMS[program](simulator()))

    with (
        pytest.raises(Diverged, match=r"^diverged at step 7$") as caught,
        ps.surface_errors(),
    ):
        step(jnp.array([-1.0]))

    assert "inner_frame_of_the_simulator" == frames(caught.value)[-1]


def test_a_result_that_nobody_keeps_still_surfaces():
    large = jnp.full(1 << 16, -1.0)

    with pytest.raises(Diverged), ps.surface_errors():
        jax.jit(lambda x: simulator()(x) + 1)(large)


def test_surface_errors_leaves_other_errors_alone():
    with pytest.raises(ZeroDivisionError), ps.surface_errors():
        raise ZeroDivisionError
    with ps.surface_errors():
        assert 2.0 == jax.jit(simulator())(1.0)


def handled(call, x):
    """Call a function, and handle its exception."""
    with contextlib.suppress(Diverged, jax.errors.JaxRuntimeError):
        call(x).block_until_ready()
        raise AssertionError(UNSEEN)


UNSEEN = "no error came out"
HOOK = """\
jax no longer makes a `jax.errors.JaxRuntimeError` by its `__init__` where the error of a
program comes out, or makes another exception. `surface_errors` then raises again what
was handled: find where they are made, and change `note_runtime_errors` in _compat.py.
"""


@pytest.mark.parametrize("call", [ps.jit, jax.jit], ids=["ps", "jax"])
def test_what_was_handled_in_the_block_stays_handled(call):
    step = call(simulator())

    try:
        with ps.surface_errors():
            handled(step, -1.0)
    except Diverged:
        pytest.fail(HOOK)

    assert 2.0 == step(1.0)


def test_an_error_after_one_that_was_handled_surfaces():
    step = jax.jit(simulator())

    def both():
        handled(step, -1.0)
        step(jnp.float32(-2.0))

    with pytest.raises(Diverged), ps.surface_errors():
        both()


def test_an_error_that_another_thread_handled_is_its_own():
    step = jax.jit(simulator())

    with ps.surface_errors():
        in_threads(lambda x: handled(step, x), [-1.0, -2.0])


def test_an_error_of_before_the_block_is_not_raised_in_it():
    failed = []
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        failed.append(jax.jit(simulator())(-1.0))

    with ps.surface_errors():
        assert 2.0 == jax.jit(simulator())(1.0)


def test_the_original_error_can_be_asked_for():
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(jax.jit(simulator())(-1.0))

    found = ps.original_error(caught.value)
    assert Diverged is type(found)
    assert found is ps.original_error(caught.value)
    assert ps.original_error(ValueError("mine")) is None


@pytest.mark.parametrize("call", [ps.jit, jax.jit], ids=["ps", "jax"])
def test_a_crashed_call_leaves_the_next_one_working(call):
    step = call(jax.vmap(simulator(vmap="threads")))

    for _ in range(3):
        with pytest.raises(Diverged), ps.surface_errors():
            step(jnp.array([-1.0, 1.0]))
        assert [2.0, 4.0] == step(jnp.array([1.0, 2.0])).tolist()


def test_an_eager_call_is_a_plain_python_call():
    with pytest.raises(Diverged) as caught:
        simulator()(-1.0)

    assert [
        "__call__",
        "direct_call",
        "simulate",
        "inner_frame_of_the_simulator",
    ] == frames(caught.value)[1:]


def test_an_outer_function_that_reuses_an_inner_trace_waits_too():
    simulate = simulator()
    inner = ps.jit(lambda x: simulate(x))
    inner(1.0)
    outer = ps.jit(lambda x: inner(x) + 1)

    with pytest.raises(Diverged):
        outer(-1.0)


@pytest.mark.parametrize(("wait", "expected"), [(True, 1), (False, 0)])
def test_the_wait_can_be_turned_off(monkeypatch, wait, expected):
    waits = []
    monkeypatch.setattr(jax, "block_until_ready", lambda x: waits.append(1))
    step = ps.jit(simulator(), wait=wait)

    assert 2.0 == step(1.0)
    assert expected == len(waits)


def test_a_donating_function_passes_the_exception_on():
    class Body(ps.State):
        x: jax.Array

        @ps.jit(donate=True)
        def step(self):
            return self.replace(x=simulate(self.x))

    simulate = simulator()

    with pytest.raises(Diverged):
        Body(x=jnp.float32(-1)).step()
    assert 2.0 == Body(x=jnp.float32(1)).step().x


def test_functions_without_host_calls_are_not_waited_for(monkeypatch):
    waits = []
    monkeypatch.setattr(jax, "effects_barrier", lambda: waits.append(1))

    assert 2.0 == ps.jit(lambda x: x + 1)(1.0)
    assert [] == waits


def test_an_exception_that_is_no_error_passes_too():
    def stop(x):
        raise StopIteration("end of data")

    with pytest.raises(StopIteration, match="end of data"):
        ps.jit(lambda x: ps.host_function(stop, out=lambda x: x)(x))(1.0)


def test_jax_inside_a_running_program_is_refused():
    x = np.ones((400, 400), np.float32)

    @ps.host_function(out=lambda x: x, name="inside")
    def inside(x):
        return np.asarray(jnp.dot(x, x))

    if not hasattr(jax.extend.core, "set_current_trace"):
        pytest.skip("this version of jax has no public way to refuse")
    with pytest.raises(
        errors.JaxInHostError,
        match=r"^inside \(.*\) uses jax while a jax program waits for its result",
    ):
        ps.jit(inside)(x)


def test_jax_inside_an_eager_call_works():
    fn = ps.host_function(lambda x: np.asarray(jnp.sin(x)), out=lambda x: x)

    assert 0.0 == fn(0.0)


@pytest.mark.parametrize(
    "error",
    [
        errors.HostSpecError("text"),
        errors.HostGradError("sim", "a.py:1"),
        errors.HostVmapError("sim", "a.py:1", "is wrong"),
        errors.JaxInHostError("sim", "a.py:1"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_host_errors_survive_pickling(error):
    again = pickle.loads(pickle.dumps(error))

    assert type(error) is type(again)
    assert str(error) == str(again)
    assert isinstance(error, errors.PurestateError)


@pytest.mark.parametrize(
    "result", [lambda x: x, lambda x: x + 1, lambda x: None], ids=["given", "new", "no"]
)
def test_a_call_for_an_effect_of_jax_fails_where_it_was_made(result):
    simulate = simulator()

    def step(x):
        jax.debug.callback(lambda y: None, simulate(x))
        return result(x)

    compiled = ps.jit(step)
    for _ in range(3):  # from the second call on, jax takes a shorter way
        with pytest.raises(Diverged):
            compiled(-1.0)
        compiled(1.0)


def test_a_call_without_effects_waits_for_its_result_alone(monkeypatch):
    log = ps.jit(ps.host_function(lambda x: x, out=lambda x: x, effects=True))
    step = ps.jit(simulator())
    step(1.0), log(1.0)
    waited = []
    monkeypatch.setattr(jax, "effects_barrier", lambda: waited.append(1))

    step(1.0)
    assert [] == waited
    log(1.0)
    assert [1] == waited
