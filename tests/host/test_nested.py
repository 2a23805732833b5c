"""Host functions and simulators inside of host functions, and States made there."""

import functools

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import HostSpecError, NumberError
from tests.host.pendulums import pendulum
from tests.hosts import agree, scalar, ways

pytestmark = [
    pytest.mark.usefixtures("lowering"),
    pytest.mark.skipif(
        not hasattr(jax.extend.core, "set_current_trace"),
        reason="this version of jax cannot tell what runs inside of a host function",
    ),
]
X = jnp.array([3.0, 4.0])


@ps.host_function
def norm(x):
    return np.linalg.norm(x)


# --- functions ------------------------------------------------------------------------


def test_a_host_function_may_call_another_one():
    twice = ps.host_function(lambda x: np.float32(2) * norm(x), out=scalar())

    for call in ways(twice):
        assert 10.0 == call(X)
    assert [10.0, 20.0] == jax.vmap(twice)(jnp.stack([X, 2 * X])).tolist()
    assert [10.0, 20.0] == jax.lax.map(twice, jnp.stack([X, 2 * X])).tolist()


@pytest.mark.parametrize("vmap", ["loop", "threads", "vectorized", "batched"])
def test_in_every_mode_of_vmap(vmap):
    row = ps.host_function(lambda x: x * 2, out=lambda x: x)
    fn = ps.host_function(lambda x: row(x) + 1, out=lambda x: x, vmap=vmap)

    assert (2 * jnp.arange(6.0) + 1 == jax.jit(jax.vmap(fn))(jnp.arange(6.0))).all()


def test_what_the_inner_one_takes_and_gives_is_numpy():
    seen = []

    @ps.host_function(out={"x": scalar(), "n": scalar(jnp.int32)})
    def inner(x, n):
        seen.append((type(x), type(n), x.flags.writeable, x.dtype))
        return {"x": x, "n": n}

    @ps.host_function(out=scalar())
    def outer(x):
        found = inner(x, 3)
        seen.append((type(found["x"]), type(found["n"]), found["n"].dtype))
        return found["x"]

    assert 1.5 == jax.jit(outer)(1.5)
    assert [
        (np.ndarray, np.ndarray, False, np.float32),
        (np.ndarray, np.ndarray, np.int32),
    ] == seen


@pytest.mark.parametrize("out", [None, scalar()], ids=["probe", "spec"])
def test_differences_of_the_outer_one_pass_the_inner_one_in_double_precision(out):
    inner = ps.host_function(lambda x: np.sqrt((x * x).sum()), out=out)
    outer = ps.host_function(lambda x: 2 * inner(x), out=out, grad="fd", upcast=True)

    for grad in (jax.grad(outer), jax.jit(jax.grad(outer))):
        np.testing.assert_allclose(grad(X), [1.2, 1.6], rtol=1e-6)


def test_a_complex_step_passes_the_inner_one():
    inner = ps.host_function(lambda x: np.sin(x), out=lambda x: x)
    outer = ps.host_function(
        lambda x: inner(x).sum(), out=scalar(), grad="complex", upcast=True
    )

    agree(jnp.cos(X), jax.jit(jax.grad(outer))(X), atol=1e-6)


def test_a_derivative_rule_may_call_a_host_function():
    slope = ps.host_function(lambda x: x / np.linalg.norm(x))
    fn = ps.host_function(
        lambda x: np.linalg.norm(x), vjp=lambda args, ct: (ct * slope(args[0]),)
    )

    agree(jnp.array([0.6, 0.8]), jax.jit(jax.grad(fn))(X), atol=1e-6)


def test_the_checks_of_the_inner_one_stay():
    inner = ps.host_function(lambda x: x[:1], out=lambda x: x, name="inner")
    outer = ps.host_function(lambda x: inner(x), out=lambda x: x, name="outer")

    for call in (outer, ps.jit(outer)):
        with pytest.raises(HostSpecError, match=r"inner \(.*returned another array"):
            call(X)


def test_an_effect_inside_runs_once():
    seen = []
    log = ps.host_function(lambda x: seen.append(float(x)), ordered=True)

    @ps.host_function(ordered=True, out=scalar())
    def outer(x):
        log(x)
        return x

    assert 2.0 == jax.jit(lambda x: outer(x))(2.0)
    jax.effects_barrier()
    assert [2.0] == seen


@pytest.mark.parametrize(
    "options", [{"thread": "own"}, {"cache": 4}, {"scratch": dict}]
)
def test_the_options_of_the_inner_one_hold(options):
    def add(*given):
        return given[-1] + 1

    inner = ps.host_function(add, out=lambda x: x, **options)
    outer = ps.host_function(lambda x: inner(inner(x)), out=lambda x: x)

    for call in (*ways(outer), jax.jit(jax.vmap(outer))):
        assert (call(jnp.arange(3.0)) == jnp.arange(3.0) + 2).all()


def test_a_key_that_comes_out_of_the_inner_one_is_a_generator():
    key = jax.random.key(3)
    same = ps.host_function(lambda: np.array([0, 3], np.uint32), out=key)
    draw = ps.host_function(lambda: same().normal(), out=scalar())

    assert np.float32(np.random.default_rng([0, 3]).normal()) == jax.jit(draw)()


# --- simulators -----------------------------------------------------------------------


def test_a_host_function_may_step_a_simulator():
    sim = pendulum()

    @ps.host_function(out=scalar())
    def simulate(torque):
        state = sim.init()
        for _ in range(3):
            state = sim.step(state, torque)
        return np.float32(state["angle"][0])

    def reference(torque):
        state = sim.init()
        for _ in range(3):
            state = sim.step(state, torque)
        return state["angle"][0]

    torque = jnp.array([0.5])
    for call in ways(simulate):
        agree(reference(torque), call(torque), atol=1e-6)


# --- States ---------------------------------------------------------------------------


class Body(ps.State):
    mass: jax.Array
    v: jax.Array
    count: jax.Array = 0
    half: jax.Array = ps.field(default=0, dtype=jnp.float16)

    @functools.cached_property
    def energy(self):
        return self.mass * (self.v**2).sum() / 2


def body():
    return Body(mass=2.0, v=X)


def test_a_state_may_be_made_of_numbers_in_a_host_function():
    fn = ps.host_function(lambda b: Body(mass=1.0, v=b.v * 2, half=3), out=lambda b: b)

    for call in ways(fn):
        found = call(body())

        assert 1.0 == found.mass
        assert [6.0, 8.0] == found.v.tolist()
        assert ["float32", "int32", "float16"] == [
            str(x.dtype) for x in (found.mass, found.count, found.half)
        ]


def test_the_numbers_are_numpy_arrays_there():
    kinds = []

    def look(b):
        made = [
            Body(mass=1.0, v=b.v),
            b.replace(mass=1, half=2),
            b.at(lambda b: b.mass).set(1.0),
        ]
        with b.draft() as draft:
            draft.mass = 1
        made.append(draft)
        kinds.extend((type(m.mass), m.mass.dtype.name) for m in made)
        return made[-1]

    jax.block_until_ready(jax.jit(ps.host_function(look, out=lambda b: b))(body()))

    assert [(np.ndarray, "float32")] * 4 == kinds


def test_a_number_that_no_dtype_holds_is_still_refused_there():
    fn = ps.host_function(lambda b: b.replace(count=2**40), out=lambda b: b)

    with pytest.raises(NumberError, match="count"):
        ps.jit(fn)(body())


def test_a_state_in_a_host_function_has_its_properties():
    fn = ps.host_function(lambda b: b.energy, out=scalar())

    for call in ways(fn):
        assert 25.0 == call(body())
