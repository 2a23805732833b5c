"""What the errors of host functions advise, followed to the letter."""

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import HostGradError, HostVmapError, JaxInHostError
from tests.hosts import agree

pytestmark = pytest.mark.usefixtures("lowering")
ITEMS = jnp.arange(3.0)


# --- effects --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"vmap": "batched"}, {"vmap": "vectorized"}, {"vmap": "threads"}],
    ids=str,
)
def test_an_effect_under_vmap_names_ways_that_work(options):
    seen = []
    log = ps.host_function(
        lambda x: seen.append(np.array(x).tolist()), ordered=True, **options
    )

    with pytest.raises(
        HostVmapError,
        match=r"Use jax\.lax\.scan or jax\.lax\.map over the batch, or call it outside "
        r"of vmap, with the array of all items; vmap= has no say here\.",
    ):
        jax.vmap(log)(ITEMS)
    jax.lax.map(log, ITEMS)
    jax.lax.scan(lambda c, x: (c, log(x)), 0, ITEMS)
    jax.jit(lambda x: log(x))(ITEMS)
    jax.effects_barrier()

    assert [0, 1, 2, 0, 1, 2, [0, 1, 2]] == seen


def test_an_effect_under_grad_names_a_way_that_works():
    fn = ps.host_function(lambda x: x, effects=True, out=lambda x: x)

    with pytest.raises(
        HostGradError, match=r"put jax\.lax\.stop_gradient around its arguments"
    ):
        jax.grad(lambda x: fn(x) * x)(2.0)

    assert 2.0 == jax.grad(lambda x: fn(jax.lax.stop_gradient(x)) * x)(2.0)


# --- vmap -----------------------------------------------------------------------------


def test_a_function_without_vmap_names_ways_that_work():
    def fn(x):
        return x * 2

    with pytest.raises(HostVmapError) as caught:
        jax.vmap(ps.host_function(fn, out=lambda x: x, vmap="error"))(ITEMS)
    for mode in ("loop", "threads", "vectorized", "batched"):
        assert f'"{mode}"' in str(caught.value)
        allowed = ps.host_function(fn, out=lambda x: x, vmap=mode)
        assert [0, 2, 4] == jax.vmap(allowed)(ITEMS).tolist()
    assert "give its whole-batch version as batch_fn=" in str(caught.value)
    # The mode is still the one of single calls, and goes.
    allowed = ps.host_function(fn, out=lambda x: x, batch_fn=fn)
    assert [0, 2, 4] == jax.vmap(allowed)(ITEMS).tolist()


# --- derivatives ----------------------------------------------------------------------


def test_a_function_without_a_derivative_names_ways_that_work():
    rules = {
        "vjp=rule": {"vjp": lambda args, ct: (2 * args[0] * ct,)},
        "jvp=rule": {"jvp": lambda args, tangents: 2 * args[0] * tangents[0]},
        "jac=rule": {"jac": lambda x: 2 * x},
        'grad="fd"': {"grad": "fd"},
        '"fd-forward"': {"grad": "fd-forward"},
        '"complex"': {"grad": "complex"},
    }
    plain = ps.host_function(lambda x: x * x, out=lambda x: x)

    with pytest.raises(HostGradError) as caught:
        jax.grad(plain)(3.0)

    for text, options in rules.items():
        assert text in str(caught.value)
        fn = ps.host_function(lambda x: x * x, out=lambda x: x, **options)
        agree(6.0, float(jax.grad(fn)(3.0)))
    assert 0.0 == jax.grad(ps.host_function(lambda x: x * x, grad="zero"))(3.0)
    assert 9.0 == jax.grad(lambda x: x * plain(jax.lax.stop_gradient(x)))(3.0)


def test_a_second_derivative_names_a_way_that_works():
    cube = ps.host_function(lambda x: x**3, out=lambda x: x, grad="complex")
    slope = ps.host_function(lambda x: 3 * x**2, out=lambda x: x, grad="complex")

    with pytest.raises(
        HostGradError,
        match=r"give it by jax\.custom_jvp a derivative that is a host function with a "
        r"derivative of its own",
    ):
        jax.grad(jax.grad(cube))(2.0)

    smooth = jax.custom_jvp(cube)
    smooth.defjvps(lambda dx, _, x: slope(x) * dx)
    for second in (jax.grad(jax.grad(smooth)), jax.jit(jax.hessian(smooth))):
        agree(12.0, float(second(2.0)))


# --- jax inside -----------------------------------------------------------------------


def cost(x, np=np):
    return ((x - 1.5) ** 2).sum() + np.exp(x[0])


def solver(cost):
    optimize = pytest.importorskip("scipy.optimize")

    @ps.host_function(out=lambda x: x)
    def solve(start):
        found = optimize.minimize(lambda x: float(cost(x)), start, method="Nelder-Mead")
        return found.x.astype(np.float32)

    return solve


def test_a_solver_over_a_cost_in_jax_names_ways_that_work():
    start = jnp.zeros(2)
    in_jax = jax.jit(lambda x: cost(x, jnp))

    if hasattr(jax.extend.core, "set_current_trace"):
        with pytest.raises(
            JaxInHostError,
            match=r"needs the cost in numpy; or write both in jax, as with "
            r"jax\.scipy\.optimize, without a host function; or call the function "
            r"outside of jit, grad and vmap, where it is plain Python",
        ):
            ps.jit(solver(in_jax))(start)

    @jax.jit
    def all_in_jax(start):
        from jax.scipy.optimize import minimize

        return minimize(lambda x: cost(x, jnp), start, method="BFGS").x

    in_numpy = jax.jit(solver(cost))(start)
    agree(in_numpy, all_in_jax(start), atol=1e-2)
    agree(in_numpy, solver(in_jax)(start), atol=1e-2)
