"""Host functions with effects: once per logical step, used or not."""

import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from purestate.errors import HostGradError, HostVmapError

pytestmark = pytest.mark.usefixtures("lowering")


def counter(**options):
    """Return a list, and a host function that appends its argument to it."""
    seen = []

    @ps.host_function(out=jax.ShapeDtypeStruct((), jnp.int32), name="tick", **options)
    def tick(t):
        seen.append(int(t))
        return t

    return seen, tick


def test_an_unused_ordered_effect_runs_in_order_once_per_step():
    seen, tick = counter(ordered=True)

    @jax.jit
    def roll(k):
        def body(t, _):
            tick(t)
            return t + 1, None

        return jax.lax.scan(body, k, None, length=5)[0]

    assert 5 == roll(0)
    jax.effects_barrier()
    assert [0, 1, 2, 3, 4] == seen


@pytest.mark.parametrize(
    "options",
    [{"effects": True}, {"ordered": True}, {"effects": True, "ordered": True}],
)
def test_an_unused_effect_runs_once(options):
    seen, tick = counter(**options)

    for _ in range(3):
        jax.block_until_ready(jax.jit(lambda t: (tick(t), t + 1)[1])(7))
    jax.effects_barrier()

    assert [7, 7, 7] == seen


def test_effects_in_loops_and_branches_run_as_often_as_their_step():
    seen, tick = counter(ordered=True)

    @jax.jit
    def program(n):
        n = jax.lax.while_loop(lambda t: t < 3, lambda t: tick(t) + 1, n)
        return jax.lax.cond(n > 10, lambda t: tick(t), lambda t: tick(-t), n)

    assert -3 == program(0)
    jax.effects_barrier()
    assert [0, 1, 2, -3] == seen


def test_two_ordered_functions_keep_the_order_of_the_program():
    seen = []
    first = ps.host_function(lambda t: seen.append(("first", int(t))), ordered=True)
    second = ps.host_function(lambda t: seen.append(("second", int(t))), ordered=True)

    def body(t, _):
        first(t)
        second(t)
        return t + 1, None

    jax.block_until_ready(jax.jit(lambda: jax.lax.scan(body, 0, None, length=3))())
    jax.effects_barrier()
    assert [(name, t) for t in range(3) for name in ("first", "second")] == seen


def test_an_effect_without_a_spec_has_no_result_and_no_probe():
    seen = []
    save = ps.host_function(
        lambda x: seen.append(x.tolist()) or "ignored", effects=True
    )

    assert save(jnp.arange(2.0)) is None
    assert jax.jit(lambda x: save(x))(jnp.arange(2.0)) is None
    jax.effects_barrier()
    assert [[0, 1], [0, 1]] == seen


def test_an_effect_without_arguments_runs_once_per_step():
    seen = []
    tick = ps.host_function(lambda: seen.append(1), ordered=True)

    def body(c, _):
        tick()
        return c, None

    jax.block_until_ready(jax.jit(lambda: jax.lax.scan(body, 0, None, length=4))())
    jax.effects_barrier()
    assert 4 == len(seen)


def test_an_effect_under_vmap_says_what_to_do():
    _, tick = counter(effects=True)

    with pytest.raises(
        HostVmapError,
        match=r"tick \(.*\) has effects, whose order under vmap nobody has chosen\. Use jax\.lax\.scan or jax\.lax\.map",
    ):
        jax.jit(jax.vmap(tick))(jnp.arange(3))


def test_an_effect_of_a_differentiated_value_says_what_to_do():
    fn = ps.host_function(lambda x: x, effects=True, out=lambda x: x)

    with pytest.raises(
        HostGradError,
        match=r"has effects, and is differentiated, .* Put jax\.lax\.stop_gradient around",
    ):
        jax.jit(jax.grad(fn))(1.0)


@pytest.mark.parametrize("arguments", [1, 0])
@pytest.mark.parametrize("ordered", [True, False])
def test_an_effect_in_a_differentiated_loop_is_not_dropped_in_silence(
    ordered, arguments
):
    seen = []
    tick = ps.host_function(lambda *t: seen.append(t), effects=True, ordered=ordered)

    def roll(x):
        def body(t, _):
            tick(*[t] * arguments)
            return t + 1, t * x

        return jax.lax.scan(body, 0, None, length=10)[1].sum()

    jax.block_until_ready(jax.jit(roll)(1.0))
    jax.effects_barrier()
    assert 10 == len(seen)
    with pytest.raises(
        HostGradError, match="in a loop that is: jax would repeat or drop it"
    ):
        jax.jit(jax.grad(roll))(1.0)
    assert 10 == len(seen)


def test_an_effect_beside_what_is_differentiated_runs_once():
    seen, tick = counter(ordered=True)

    def loss(x, t):
        return x * tick(t)

    assert 3.0 == jax.jit(jax.grad(loss))(2.0, 3)
    jax.effects_barrier()
    assert [3] == seen


def test_an_exception_of_an_effect_leaves_the_call():
    @ps.host_function(ordered=True)
    def fail(x):
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        ps.jit(lambda x: (fail(x), x)[1])(1.0)


def run(code, lowering, **environment):
    import os

    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PURESTATE_HOST_LOWERING": lowering, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_pending_calls_run_before_the_process_ends(lowering):
    done = run(
        """
        import sys, jax, jax.numpy as jnp, purestate as ps

        @ps.host_function(effects=True, ordered=True)
        def p(x):
            sys.stdout.write("t%d\\n" % int(x))
            sys.stdout.flush()

        def body(c, x):
            p(x)
            return c + x, x

        jax.lax.scan(body, 0, jnp.arange(10))
        """,
        lowering,
    )

    assert 0 == done.returncode, done.stderr
    assert [f"t{i}" for i in range(10)] == done.stdout.split()


def test_an_effect_with_a_thread_of_its_own_stays_on_it(lowering):
    import threading

    idents = []

    @ps.host_function(ordered=True, thread="own")
    def where(t):
        idents.append(threading.get_ident())

    def body(t, _):
        where(t)
        return t + 1, None

    for _ in range(3):
        jax.block_until_ready(jax.jit(lambda: jax.lax.scan(body, 0, None, length=4))())
    jax.effects_barrier()
    assert 12 == len(idents)
    assert 1 == len(set(idents))


def test_a_pure_call_runs_as_the_page_says():
    """Unused: not at all. Constant in a loop: maybe once. Both branches under vmap."""
    calls = {"unused": 0, "branch": 0, "remat": 0}

    def counted(name):
        def fn(x):
            calls[name] += 1
            return x

        return ps.host_function(fn, out=lambda x: x, vjp=lambda args, ct: (ct,))

    unused, branch, remat = map(counted, calls)
    jax.block_until_ready(jax.jit(lambda x: (unused(x), x)[1])(1.0))
    jax.block_until_ready(
        jax.jit(
            jax.vmap(lambda x: jax.lax.cond(x > 0, branch, lambda x: branch(-x), x))
        )(jnp.array([1.0, -1.0]))
    )
    jax.block_until_ready(
        jax.jit(
            jax.grad(
                lambda x: jnp.sin(jax.checkpoint(lambda x: remat(jnp.sin(x)) ** 2)(x))
            )
        )(1.0)
    )

    assert calls["remat"] in (1, 2)
    assert (0, 4) == (calls["unused"], calls["branch"])
