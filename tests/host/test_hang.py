"""Programs that could wait for themselves for ever, each in a process with a watchdog.

They run on one core, where jax has one thread to compute with, and on two.
"""

import os

import pytest

from tests.helpers import python

PATIENCE = 120  # seconds; each program takes about two

HEAD = """
import jax, jax.numpy as jnp, numpy as np, purestate as ps
"""

PROGRAMS = {
    "small and large payloads": """
        same = ps.host_function(lambda x: x + 1, out=lambda x: x)
        f = jax.jit(lambda x: same(x * 2) * 3)
        for size in (1, 1 << 10, 1 << 18, 1 << 24):
            x = jnp.ones(size)
            for _ in range(3):
                assert (f(x)[:3] == 9).all()
    """,
    "matrix products around numpy code": """
        dot = ps.host_function(lambda x: x @ x, out=lambda x: x)
        f = jax.jit(lambda x: jnp.dot(dot(jnp.dot(x, x)), x))
        x = jnp.eye(400)
        for _ in range(5):
            x = f(x)
        assert (x == jnp.eye(400)).all()
    """,
    "jax inside a host function": """
        inside = ps.host_function(lambda x: np.asarray(jnp.dot(x, x)), out=lambda x: x)
        f = ps.jit(lambda x: jnp.dot(inside(jnp.dot(x, x)), x))
        import jax.extend.core

        if hasattr(jax.extend.core, "set_current_trace"):
            try:
                f(jnp.eye(400))
            except ps.errors.JaxInHostError:
                pass
            else:
                raise AssertionError("not refused")
    """,
    "a pool inside its own pool": """
        def call(x):
            return inner(x) * 2
        inner = ps.host_function(lambda x: x + 1, out=lambda x: x, vmap="threads", threads=2)
        outer = ps.host_function(
            lambda x: np.float32(sum(nested([x, x]))), out=lambda x: x, vmap="threads", threads=2
        )
        def nested(items):
            found = []
            outer._options.pool.each(found.append, items)
            return found
        out = jax.jit(jax.vmap(outer))(jnp.arange(16.0))
        assert (out == 2 * jnp.arange(16.0)).all()
    """,
    "a function on its own thread that calls itself": """
        def count(n):
            return n if n <= 0 else np.int32(down(n - 1)) + 1
        down = ps.host_function(lambda n: count(n), out=lambda n: n, thread="own")
        assert 3 == down(3)
    """,
    "threads under scan and vmap": """
        f = ps.host_function(lambda x: x + 1, out=lambda x: x, vmap="threads", threads=4)
        step = jax.jit(jax.vmap(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=50)[0]))
        assert (step(jnp.zeros(64)) == 50).all()
    """,
    "many programs at once": """
        f = jax.jit(lambda x: ps.host_function(lambda x: x + 1, out=lambda x: x)(x @ x))
        outs = [f(jnp.eye(200)) for _ in range(20)]
        assert all((o == jnp.eye(200) + 1).all() for o in outs)
    """,
    "an array of jax that the function has at hand": """
        table = jnp.arange(10.0)
        look = ps.host_function(lambda i: np.asarray(table)[i], out=jax.ShapeDtypeStruct((), jnp.float32))
        assert 3.0 == jax.jit(look)(3)
    """,
    "gradients of large arrays": """
        f = ps.host_function(lambda x: x * 2, out=lambda x: x, vjp=lambda args, ct: (2 * ct,))
        g = jax.jit(jax.grad(lambda x: (f(x) * x).sum()))
        assert (g(jnp.ones(1 << 22)) == 4).all()
    """,
    "an exception while others run": """
        def fail(x):
            if x > 5:
                raise ValueError("late")
            return x
        f = ps.jit(jax.vmap(ps.host_function(fail, out=lambda x: x, vmap="threads", threads=2)))
        for _ in range(5):
            try:
                f(jnp.arange(8.0))
            except ValueError as error:
                assert "late" == str(error)
            else:
                raise AssertionError("lost")
    """,
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("cores", [1, 2])
def test_it_ends(cores, program, lowering):
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < cores:
        pytest.skip(f"needs a choice of {cores} cores")
    pin = f"import os; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{cores}])\n"

    done = python(pin, HEAD, PROGRAMS[program], timeout=PATIENCE)

    assert 0 == done.returncode, done.stderr
