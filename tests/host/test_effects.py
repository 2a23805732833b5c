"""Host functions with effects: once per logical step, used or not."""

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from purestate.errors import HostGradError, HostVmapError
from tests.helpers import python
from tests.hosts import agree

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
        match=r"has effects, and is differentiated: put jax\.lax\.stop_gradient around",
    ):
        jax.jit(jax.grad(fn))(1.0)


def looped(use, steps=4):
    """Return a function of x with `use(step, x)` in each step of a scan."""

    def roll(x):
        def body(t, _):
            return t + 1, use(t, x) * x

        return jax.lax.scan(body, 0, None, length=steps)[1].sum()

    return roll


def effects():
    """Return what effects see, one that takes anything, and one with a result."""
    seen = []
    log = ps.host_function(
        lambda *t: seen.append(int(t[0]) if t else -1), ordered=True, name="log"
    )
    tick = ps.host_function(
        lambda t: (seen.append(int(t)), t)[1], ordered=True, out=lambda t: t
    )
    return seen, log, tick


IN_A_LOOP = {
    "used": (lambda log, tick, t, x: tick(t), [0, 1, 2, 3]),
    "unused": (lambda log, tick, t, x: (tick(t), t)[1], [0, 1, 2, 3]),
    "without a result": (lambda log, tick, t, x: (log(t), t)[1], [0, 1, 2, 3]),
    "constant": (lambda log, tick, t, x: (log(jnp.int32(7)), t)[1], [7] * 4),
    "constant, used": (lambda log, tick, t, x: tick(jnp.int32(7)), [7] * 4),
    "no argument": (lambda log, tick, t, x: (log(), t)[1], [-1] * 4),
    "the differentiated value": (lambda log, tick, t, x: (log(x), t)[1], [2] * 4),
    "in jit": (
        lambda log, tick, t, x: (jax.jit(log)(jnp.int32(7)), t)[1],
        [7] * 4,
    ),
    "in a branch": (
        lambda log, tick, t, x: (jax.lax.cond(t > 1, log, lambda t: None, t), t)[1],
        [2, 3],
    ),
    "in a branch that is always taken": (
        lambda log, tick, t, x: (jax.lax.cond(x > 1, log, lambda t: None, t), t)[1],
        [0, 1, 2, 3],
    ),
    "in a constant inner loop": (
        lambda log, tick, t, x: (
            jax.lax.scan(lambda c, i: (log(i), (c, None))[1], 0, jnp.arange(2)),
            t,
        )[1],
        [0, 1] * 4,
    ),
    "in a differentiated inner loop": (
        lambda log, tick, t, x: jax.lax.fori_loop(
            0, 2, lambda i, c: (log(i), c + x)[1], 0.0
        ),
        [0, 1] * 4,
    ),
    "in a while loop": (
        lambda log, tick, t, x: (
            jax.lax.while_loop(lambda i: i < 2, lambda i: (log(i), i + 1)[1], 0),
            t,
        )[1],
        [0, 1] * 4,
    ),
    "in a while loop that changes": (
        lambda log, tick, t, x: (
            jax.lax.while_loop(
                lambda c: c[0] < 2,
                lambda c: (log(c[1]), (c[0] + 1, c[1]))[1],
                (0, t),
            ),
            t,
        )[1],
        [0, 0, 1, 1, 2, 2, 3, 3],
    ),
    "in order with another": (
        lambda log, tick, t, x: (log(t), tick(9 + t * 0))[1],
        [0, 9, 1, 9, 2, 9, 3, 9],
    ),
}
DIFFERENTIATED = {
    "jit of value_and_grad": lambda fn: jax.jit(jax.value_and_grad(fn))(2.0),
    "grad": lambda fn: jax.grad(fn)(2.0),
    "grad of jit": lambda fn: jax.grad(jax.jit(fn))(2.0),
    "linearize": lambda fn: jax.linearize(fn, 2.0)[1](1.0),
    "jvp": lambda fn: jax.jvp(fn, (2.0,), (1.0,)),
    "grad of grad": lambda fn: jax.jit(jax.grad(jax.grad(fn)))(2.0),
}


@pytest.mark.parametrize("transform", DIFFERENTIATED)
@pytest.mark.parametrize("use", IN_A_LOOP)
def test_an_effect_in_a_differentiated_loop_runs_once_per_step(use, transform):
    seen, log, tick = effects()
    body, expected = IN_A_LOOP[use]

    found = DIFFERENTIATED[transform](looped(lambda t, x: body(log, tick, t, x)))

    jax.block_until_ready(found)
    jax.effects_barrier()
    assert expected == seen


def test_an_effect_in_a_differentiated_loop_leaves_the_gradient_right():
    _, log, tick = effects()

    def loss(tick):
        return looped(lambda t, x: jnp.sin(x) ** 2 * tick(t))

    expected = jax.value_and_grad(loss(lambda t: t))(2.0)
    found = jax.jit(jax.value_and_grad(loss(lambda t: (log(t), tick(t))[1])))(2.0)

    agree(expected, found, 1e-6)


def test_an_unordered_effect_in_a_differentiated_loop_runs_once_per_step():
    seen, tick = counter(effects=True)

    roll = looped(lambda t, x: (tick(t), t)[1])
    jax.block_until_ready(jax.jit(jax.grad(roll))(2.0))

    jax.effects_barrier()
    assert [0, 1, 2, 3] == sorted(seen)


def test_an_effect_in_two_differentiated_loops_runs_once_per_step():
    seen, log, _ = effects()

    def outer(x):
        inner = looped(lambda t, x: (log(t), t)[1], 2)
        return jax.lax.scan(lambda c, _: (c + inner(x), None), x, None, length=3)[0]

    jax.block_until_ready(jax.jit(jax.grad(outer))(2.0))

    jax.effects_barrier()
    assert [0, 1] * 3 == seen


def test_an_effect_in_what_jax_would_run_again_is_refused():
    _, log, _ = effects()

    with pytest.raises(NotImplementedError, match=r"Effects not supported in .*remat"):
        jax.grad(jax.checkpoint(lambda x: (log(1), x * x)[1]))(1.0)


def test_an_effect_in_a_while_loop_that_is_linearized_is_refused():
    """jax would run the loop twice: for its value, and in the linear function."""
    seen, log, _ = effects()

    def doubled(x):
        return jax.lax.while_loop(
            lambda c: c[0] < 3, lambda c: (log(c[0]), (c[0] + 1, 2 * c[1]))[1], (0, x)
        )[1]

    with pytest.raises(ValueError, match="failed to produce known values"):
        jax.linearize(doubled, 1.0)
    assert [] == seen


def test_an_effect_beside_what_is_differentiated_runs_once():
    seen, tick = counter(ordered=True)

    def loss(x, t):
        return x * tick(t)

    assert 3.0 == jax.jit(jax.grad(loss))(2.0, 3)
    jax.effects_barrier()
    assert [3] == seen


def test_an_effect_may_make_a_whole_number_of_what_is_differentiated():
    seen = []
    floor = ps.host_function(
        lambda x: seen.append(float(x)) or int(x),
        out=jax.ShapeDtypeStruct((), jnp.int32),
        ordered=True,
    )

    assert 2.0 == jax.jit(jax.grad(lambda x: x * floor(x)))(2.5)
    jax.effects_barrier()
    assert [2.5] == seen


def test_an_exception_of_an_effect_leaves_the_call():
    @ps.host_function(ordered=True)
    def fail(x):
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        ps.jit(lambda x: (fail(x), x)[1])(1.0)


def test_pending_calls_run_before_the_process_ends(lowering):
    done = python(
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
        """
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
