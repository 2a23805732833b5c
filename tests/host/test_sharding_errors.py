"""Exceptions of host functions in programs of several devices.

Each program runs in a process of its own: one that goes wrong waits for ever, or takes
the process with it.
"""

import pytest

from tests.helpers import python

HEAD = """
import threading, jax, jax.numpy as jnp, numpy as np, purestate as ps
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("d",))
sharded = jax.device_put(jnp.arange(4.0), NamedSharding(mesh, P("d")))
replicated = jax.device_put(jnp.arange(4.0), NamedSharding(mesh, P()))

def picky(x):
    if (x >= 0).all():
        raise ValueError("all positive")
    return x * 2

def mapped(f):
    return jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"))

def error_of(call, *args):
    try:
        jax.block_until_ready(call(*args))
        jax.effects_barrier()
    except Exception as error:
        return error

def raises(kind, text, call, *args):
    error = error_of(call, *args)
    assert type(error) is kind and text in str(error), repr(error)
"""

PROGRAMS = {
    "the exception leaves the call, and the next one works": """
        step = ps.jit(ps.host_function(picky, out=lambda x: x))
        for x in (sharded, replicated, sharded):
            raises(ValueError, "all positive", step, x)
            assert [-2.0, -4.0, -6.0, -8.0] == step(-x - 1).tolist()
    """,
    "plain jit": """
        step = jax.jit(ps.host_function(picky, out=lambda x: x))
        error = error_of(step, sharded)
        assert "all positive" in str(error), error
        assert ValueError is type(ps.original_error(error))
        assert [-2.0, -4.0, -6.0, -8.0] == step(-sharded - 1).tolist()
        def inside(x):
            with ps.surface_errors():
                return step(x)
        raises(ValueError, "all positive", inside, sharded)
    """,
    "collectives around the call": """
        host = ps.host_function(picky, out=lambda x: x)
        step = ps.jit(lambda x: jnp.cumsum(host(x + x.sum()))[::-1] + x.max())
        raises(ValueError, "all positive", step, sharded)
        assert step(-sharded - 1).shape == (4,)
    """,
    "two calls, and a loop": """
        host = ps.host_function(picky, out=lambda x: x)
        step = ps.jit(lambda x: host(x) + host(x + 1))
        raises(ValueError, "all positive", step, sharded)
        body = lambda x, _: (-host(x) - 1, None)
        loop = ps.jit(lambda x: jax.lax.scan(body, x, None, length=3)[0])
        raises(ValueError, "all positive", loop, -sharded - 1)
    """,
    "no later function is called": """
        seen = []
        host = ps.host_function(picky, out=lambda x: x)
        then = ps.host_function(lambda x: seen.append(x.copy()), effects=True)
        step = ps.jit(lambda x: (then(host(x)), x)[1])
        raises(ValueError, "all positive", step, sharded)
        assert [] == seen
        step(-sharded - 1)
        assert [-2.0, -4.0, -6.0, -8.0] == seen[0].tolist()
    """,
    "a result that is not what was declared": """
        wrong = ps.host_function(lambda x: x[:2], out=lambda x: x)
        raises(ps.errors.HostSpecError, "returned another array", ps.jit(wrong), sharded)
        class Sim:
            x = np.zeros(4, np.float32)
        def step(sim):
            if (sim.x > 0).any():
                sim.x = np.zeros(3, np.float32)
        sim = ps.HostSim(Sim, lambda sim: sim.x, lambda sim, x: setattr(sim, "x", x), step)
        raises(ps.errors.HostSimError, "changed the type", ps.jit(sim.step), sharded)
        assert [-1.0] * 4 == ps.jit(sim.step)(sharded * 0 - 1).tolist()
    """,
    "an effect, with a result and without": """
        for out in (lambda x: x, None):
            effect = ps.host_function(picky, out=out, effects=True)
            step = ps.jit(lambda x: (effect(x), x + 1)[1])
            raises(ValueError, "all positive", step, sharded)
            assert [0.0, -1.0, -2.0, -3.0] == step(-sharded - 1).tolist()
        effect = ps.host_function(picky, out=lambda x: x, effects=True)
        raises(ValueError, "all positive", ps.jit(effect), replicated)
        assert [-2.0, -4.0, -6.0, -8.0] == ps.jit(effect)(-replicated - 1).tolist()
    """,
    "an ordered effect of each shard": """
        def ordered(text):
            def strict(x):
                if (x == 2).any():
                    raise ValueError(text)
                return x
            return ps.jit(mapped(ps.host_function(strict, out=lambda x: x, ordered=True)))
        one, other = ordered("one"), ordered("other")
        raises(ValueError, "one", one, sharded)
        error = error_of(other, sharded * 0)
        assert error is None or "an error of an earlier program" in str(error), error
        thread = threading.Thread(target=lambda: print(other(sharded * 0).tolist()))
        thread.start()
        thread.join()
    """,
    "a gradient": """
        host = ps.host_function(picky, out=lambda x: x, grad="fd")
        slope = ps.jit(jax.grad(lambda x: host(x).sum()))
        raises(ValueError, "all positive", slope, sharded)
        assert np.allclose(2.0, slope(-sharded - 1), atol=1e-2)
    """,
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_exception_on_several_devices(program):
    done = python(HEAD, PROGRAMS[program], devices=4, timeout=100)

    assert 0 == done.returncode, done.stderr
    assert "" == done.stdout or "[0.0, 0.0, 0.0, 0.0]\n" == done.stdout
