"""What a host function holds is let go of when its programs are gone."""

import gc
import threading
import weakref

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps

pytestmark = pytest.mark.usefixtures("lowering")

KEPT = """\
jax keeps the parameter `operation` of the primitive for ever. Until now it referred to
functions only weakly, in the cache of the types of results. Find what it refers to
weakly today, and return that from `Operation.as_parameter`.
"""


class Data:
    """Something large that a host function uses."""

    scale = np.float32(2)


def scan(f):
    return lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]


PROGRAMS = {
    "jit": jax.jit,
    "ps.jit": ps.jit,
    "vmap": lambda f: jax.jit(jax.vmap(f)),
    "scan": lambda f: jax.jit(scan(f)),
    "grad": lambda f: jax.jit(jax.grad(lambda x: f(x).sum())),
    "vmap of grad of scan": lambda f: jax.jit(jax.vmap(jax.grad(scan(f)))),
    "grad without jit": lambda f: jax.grad(lambda x: f(x).sum()),
    "eager": lambda f: f,
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_host_function_is_collected_with_its_program(program):
    alive = []

    def use_once():
        data = Data()
        alive.append(weakref.ref(data))
        fn = ps.host_function(lambda x: x * data.scale, out=lambda x: x, grad="fd")
        jax.block_until_ready(PROGRAMS[program](fn)(jnp.ones(3)))

    for _ in range(10):
        use_once()
    jax.effects_barrier()
    gc.collect()

    assert sum(ref() is not None for ref in alive) <= 1, KEPT


@pytest.mark.parametrize("options", [{"effects": True}, {"ordered": True}])
def test_an_effect_is_collected_with_its_program(options):
    data = Data()
    alive = weakref.ref(data)
    fn = ps.host_function(
        lambda x, data=data: x * data.scale, out=lambda x: x, **options
    )
    jax.block_until_ready(jax.jit(lambda x: fn(x))(jnp.ones(3)))
    jax.effects_barrier()
    del fn, data
    gc.collect()

    assert alive() is None


def test_a_program_outlives_the_name_of_its_function():
    fn = ps.host_function(lambda x: x * 2, out=lambda x: x, grad="fd")
    slope = jax.make_jaxpr(jax.grad(lambda x: fn(x).sum()))(jnp.ones(3))
    del fn
    gc.collect()

    (found,) = jax.jit(jax.extend.core.jaxpr_as_fun(slope))(jnp.ones(3))
    assert np.allclose(2, found, atol=1e-2)


@pytest.mark.parametrize("options", [{"thread": "own"}, {"vmap": "threads"}])
def test_threads_end_with_their_function(options):
    before = set(threading.enumerate())
    fn = ps.host_function(lambda x: x * 2, out=lambda x: x, **options)
    jax.block_until_ready(jax.jit(jax.vmap(fn))(jnp.ones(4)))
    started = set(threading.enumerate()) - before
    started = [t for t in started if t.name.startswith("purestate-")]
    del fn
    gc.collect()
    for thread in started:
        thread.join(10)

    assert started != []
    assert [False] * len(started) == [thread.is_alive() for thread in started]


def test_a_simulator_is_collected_with_its_program():
    def make():
        return Data()

    def use_once():
        sim = ps.HostSim(
            make,
            lambda sim: sim.scale,
            lambda sim, scale: setattr(sim, "scale", scale),
            lambda sim: None,
            thread="own",
        )
        jax.block_until_ready(jax.jit(lambda x: sim.step(x))(sim.init()))
        return weakref.ref(sim)

    alive = [use_once() for _ in range(10)]
    jax.effects_barrier()
    gc.collect()

    assert sum(ref() is not None for ref in alive) <= 1, KEPT
