"""Host functions on several devices: one call per shard, or one for the whole array.

The programs run in one process, each with names of its own, on four or eight devices
that share one processor.
"""

import functools
import json
import textwrap

import pytest

from tests.helpers import python

HEAD = """
import jax, jax.numpy as jnp, numpy as np, purestate as ps
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

assert DEVICES == jax.device_count()
mesh = Mesh(np.array(jax.devices()), ("d",))
shapes = []

def look(x):
    shapes.append(x.shape)
    return np.sin(x)

def cos(args, ct):
    return (ct * np.cos(args[0]),)

sin = ps.host_function(look, out=lambda x: x, vjp=cos)
x = jnp.arange(float(4 * DEVICES))
sharded = jax.device_put(x, NamedSharding(mesh, P("d")))

def shard_map(f, **specs):
    return jax.jit(jax.shard_map(f, mesh=mesh, **specs))
"""

PROGRAMS = {
    "one call per shard": """
        f = shard_map(sin, in_specs=P("d"), out_specs=P("d"))
        out = f(sharded)
        assert np.allclose(out, np.sin(x), atol=1e-6)
        assert [(4,)] * DEVICES == shapes, shapes
    """,
    "a simulator per shard": """
        class Decay:
            x = np.zeros(())
            def step(self, rate):
                self.x = self.x * rate

        sim = ps.HostSim(Decay, lambda sim: sim.x, lambda sim, x: setattr(sim, "x", x), Decay.step, grad="fd")
        f = shard_map(jax.vmap(sim.step), in_specs=P("d"), out_specs=P("d"))
        assert np.allclose(f(sharded, sharded), x * x)
        total = shard_map(lambda x: jax.lax.psum(jax.vmap(sim.step)(x, x).sum(), "d"), in_specs=P("d"), out_specs=P())
        assert np.allclose(jax.grad(total)(sharded), 2 * x, atol=1e-5)
    """,
    "gradients per shard": """
        f = shard_map(lambda x: jax.lax.psum(sin(x).sum(), "d"), in_specs=P("d"), out_specs=P())
        assert np.allclose(jax.grad(f)(sharded), np.cos(x), atol=1e-6)
        inner = shard_map(lambda x: jax.grad(lambda x: sin(x).sum())(x), in_specs=P("d"), out_specs=P("d"))
        assert np.allclose(inner(sharded), np.cos(x), atol=1e-6)
    """,
    "a replicated argument beside a sharded one": """
        scale = ps.host_function(lambda a, x: a * x, out=lambda a, x: x, grad="fd", upcast=True)
        f = shard_map(lambda a, x: jax.lax.psum(scale(a, x).sum(), "d"), in_specs=(P(), P("d")), out_specs=P())
        da, dx = jax.grad(f, (0, 1))(2.0, sharded)
        assert np.allclose(da, x.sum(), rtol=1e-4)
        assert np.allclose(dx, 2.0, rtol=1e-4)
    """,
    "a result that differs between shards is not replicated": """
        try:
            shard_map(sin, in_specs=P("d"), out_specs=P())(sharded)
        except Exception as error:
            assert "out_specs" in str(error), error
        else:
            raise AssertionError("accepted")
    """,
    "jvp and vmap per shard": """
        f = lambda x: jax.jvp(jax.vmap(ps.host_function(np.sin, jvp=lambda a, t: np.cos(a[0]) * t[0])), (x,), (x,))[1]
        out = shard_map(f, in_specs=P("d"), out_specs=P("d"))(sharded)
        assert np.allclose(out, np.cos(x) * x, atol=1e-5)
    """,
    "the whole array under plain jit": """
        f = jax.jit(lambda x: sin(x) * 2)
        out = f(sharded)
        assert np.allclose(out, 2 * np.sin(x), atol=1e-6)
        assert [x.shape] == shapes, shapes
        assert np.allclose(jax.jit(jax.grad(lambda x: (sin(x) * x).sum()))(sharded), np.cos(x) * x + np.sin(x), atol=1e-5)
        assert np.allclose(jax.jit(lambda x: sin(x) + x)(sharded), np.sin(x) + x, atol=1e-5)
    """,
    "the whole result is on every device": """
        slope = jax.grad(lambda x: sin(x).sum())
        for f, expected in ((sin, np.sin(x)), (jax.vmap(sin), np.sin(x)), (slope, np.cos(x))):
            out = jax.jit(f)(sharded)
            for shard in out.addressable_shards:
                assert np.allclose(shard.data, expected[shard.index], atol=1e-6), shard
            assert np.allclose(out + sharded, expected + x, atol=1e-5)
            assert np.allclose(jax.jit(jnp.add)(out, sharded), expected + x, atol=1e-5)
    """,
    "a mesh whose axes are part of types": """
        explicit = jax.make_mesh((DEVICES,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
        with jax.set_mesh(explicit):
            xs = jax.device_put(x, NamedSharding(explicit, P("d")))
            assert np.allclose(jax.jit(lambda x: sin(x) * x)(xs), np.sin(x) * x, atol=1e-5)
            slope = jax.jit(jax.grad(lambda x: (sin(x) * x).sum()))(xs)
            assert P("d") == slope.sharding.spec, slope.sharding
            assert np.allclose(slope, np.cos(x) * x + np.sin(x), atol=1e-5)
    """,
    "an effect gets the whole array once": """
        got = []
        for ordered in (False,):
            save = ps.host_function(lambda a: got.append(a.shape), effects=True, ordered=ordered)
            f = jax.jit(lambda x: (save(x), x * 2)[1])
            f(sharded).block_until_ready()
            jax.effects_barrier()
        assert [x.shape] == got, got
    """,
    "an eager call gets the whole array": """
        assert np.allclose(sin(sharded), np.sin(x), atol=1e-6)
        assert [x.shape] == shapes, shapes
    """,
    "an exception of one shard leaves the call": """
        def fail(x):
            if x[0] > 0:
                raise ValueError("shard")
            return x
        f = ps.jit(jax.shard_map(ps.host_function(fail, out=lambda x: x), mesh=mesh, in_specs=P("d"), out_specs=P("d")))
        try:
            f(sharded)
        except ValueError as error:
            assert "shard" == str(error)
        else:
            raise AssertionError("lost")
    """,
    "one of several devices": """
        one = jax.device_put(x, jax.devices()[2])
        out = jax.jit(sin)(one)
        assert np.allclose(out, np.sin(x), atol=1e-6)
        assert {jax.devices()[2]} == out.devices()
    """,
}


RUN = """
import json, traceback

failures = {}
for name, program in PROGRAMS.items():
    try:
        exec(compile(program, name, "exec"), {})
    except Exception:
        failures[name] = traceback.format_exc()
print(json.dumps(failures))
"""


@functools.cache
def failures(devices):
    """Run all programs; return the traceback of each that failed, by its name."""
    programs = {
        name: (HEAD + textwrap.dedent(program)).replace("DEVICES", str(devices))
        for name, program in PROGRAMS.items()
    }

    done = python(f"PROGRAMS = {programs!r}", RUN, devices=devices)

    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("devices", [4, 8])
def test_on_several_devices(devices, program):
    failure = failures(devices).get(program)

    assert failure is None, failure
