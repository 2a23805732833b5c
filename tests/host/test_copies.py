"""Host functions and simulators, copied and pickled, before and after their first use."""

import copy
import pickle

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from tests.helpers import through_cloudpickle
from tests.host.pendulums import Pendulum, get, set_

COPIES = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}
OPTIONS = {
    "plain": {},
    "own thread": {"thread": "own"},
    "pool": {"vmap": "threads"},
    "cache": {"cache": 2},
    "scratch": {"scratch": dict},
    "effects": {"effects": True},
}


def double(*arrays):
    return arrays[-1] * 2


@ps.host_function(out=lambda x: x)
def decorated(x):
    return x * 3


class Scaled(ps.HostSim):
    """A simulator with something of its own."""

    def __init__(self, unit):
        self.unit = unit
        super().__init__(Pendulum, get, set_, Pendulum.step, thread="own")


def used(fn):
    jax.block_until_ready(jax.jit(lambda x: fn(x))(jnp.ones(2)))
    if not fn.options.has_effects:
        jax.block_until_ready(jax.jit(jax.vmap(fn))(jnp.ones((4, 2))))
    fn(jnp.ones(2))
    return fn


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_copy_of_a_used_host_function_works_in_a_program(options, way):
    spec = jax.ShapeDtypeStruct((2,), jnp.float32)
    fn = ps.host_function(double, out=spec, **OPTIONS[options])

    again = COPIES[way](fn)
    after = COPIES[way](used(fn))

    for made in (again, after):
        assert [2.0, 2.0] == jax.jit(lambda x, made=made: made(x))(jnp.ones(2)).tolist()
        assert fn.options.vmap == made.options.vmap
        assert fn.options.thread == made.options.thread
        assert made is not fn


@pytest.mark.parametrize("way", COPIES)
def test_a_decorated_function_is_known_by_its_name(way):
    assert decorated is COPIES[way](decorated)
    assert [3.0] == jax.jit(decorated)(jnp.ones(1)).tolist()
    assert decorated is COPIES[way](decorated)


def test_a_decorated_function_of_a_script_travels_by_cloudpickle():
    through_cloudpickle(
        """
        import jax, jax.numpy as jnp, purestate as ps
        @ps.host_function(out=lambda x: x)
        def made(x):
            return x * 3
        jax.jit(made)(jnp.ones(1)).block_until_ready()
        """,
        """
        import jax, jax.numpy as jnp
        assert [3.0] == jax.jit(made)(jnp.ones(1)).tolist()
        """,
    )


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_of_a_used_simulator_works_in_a_program(way):
    sim = Scaled("m")
    first = COPIES[way](sim)
    expected = jax.jit(lambda s: sim.step(s, jnp.array([0.25])))(sim.init())
    second = COPIES[way](sim)

    for made in (first, second):
        found = jax.jit(lambda s, m=made: m.step(s, jnp.array([0.25])))(made.init())
        assert expected["angle"].tolist() == found["angle"].tolist()
        assert "m" == made.unit
        assert repr(sim) == repr(made)
