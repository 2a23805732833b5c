"""Native functions over processes, threads, devices and lifetimes."""

import concurrent.futures
import gc
import os
import subprocess
import sys
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from tests.helpers import python
from tests.host.native.helpers import host, numba, triple

X = jnp.arange(6.0).reshape(2, 3)


def run(*code, devices=1, **environment):
    """Return what a fresh process prints."""
    done = python(*code, devices=devices, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


CACHED = """
    import jax, jax.numpy as jnp, numba, sys
    import purestate as ps

    jax.config.update("jax_compilation_cache_dir", sys.argv[1])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    hits = []
    jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))

    def make(factor):
        @numba.njit
        def scaled(x):
            return x * factor
        return ps.host_function(scaled, out=lambda x: x)

    fn = make(int(sys.argv[2]))
    assert fn.lowering == "native"
    x = jnp.arange(3.0)
    hits.clear()
    print(jax.jit(lambda x: fn(x) + 1)(x).tolist()[1])
    print("/jax/compilation_cache/cache_hits" in hits)
"""


def test_the_persistent_cache_is_shared_and_each_process_gets_its_own_result(tmp_path):
    def process(factor):
        code = CACHED.replace("sys.argv[1]", repr(str(tmp_path)))
        return run(code.replace("sys.argv[2]", repr(str(factor))))

    assert ["3.0", "False"] == process(2)
    assert ["6.0", "True"] == process(5)


SUMMED = """
    import jax, jax.numpy as jnp, numba, numpy as np
    import purestate as ps

    @numba.njit(parallel=True)
    def summed(x):
        total = np.zeros_like(x)
        for i in numba.prange(x.size):
            total[i] = x[i] + 1
        return total

    @numba.njit
    def outer(x):
        return summed(x)

    for code in (summed, outer):
        fn = ps.host_function(code, out=lambda x: x, vmap="threads")
        step = jax.jit(jax.vmap(fn))
        for _ in range(30):
            found = step(jnp.zeros((8, 100)))
        print(fn.lowering, bool((found == 1).all()))
"""


def test_loops_in_numbas_own_threads_do_not_end_the_process():
    loops = SUMMED.replace(', vmap="threads"', "")  # numba bears one thread of Python
    found = run(
        loops,
        """
        print(fn.why_not_native.replace(" ", "_"))
        """,
        NUMBA_THREADING_LAYER="workqueue",
        NUMBA_NUM_THREADS="2",
    )

    why = (
        "it has parallel=True, and numba's own pool of threads, workqueue, ends the "
        "process where two threads use it: install OpenMP or TBB for numba"
    )
    assert ["pure", "True", "pure", "True", why.replace(" ", "_")] == found


def test_loops_in_threads_that_bear_it_are_native():
    probe = python(
        """
        import numba, numpy as np
        numba.njit(parallel=True)(lambda x: x + 1)(np.zeros(9))
        print(numba.threading_layer())
        """,
        env={"NUMBA_THREADING_LAYER": "omp"},
    )
    if probe.stdout.strip() != "omp":
        pytest.skip("numba has no OpenMP here")

    assert ["native", "True"] * 2 == run(SUMMED, NUMBA_THREADING_LAYER="omp")


def test_numba_can_be_asked_to_look_at_bounds():
    found = run(
        """
        import jax, jax.numpy as jnp, numba
        import purestate as ps

        @numba.njit
        def beyond(x):
            return x[:1] + x[x.size + 2]

        @numba.njit
        def written(x):
            y = x.copy()
            y[x.size + 2] = 1
            return y

        for code in (beyond, written):
            fn = ps.host_function(code, out=lambda x: x)
            assert fn.lowering == "native"
            try:
                ps.jit(fn)(jnp.ones(3))
            except IndexError as error:
                print("IndexError")
        """,
        NUMBA_BOUNDSCHECK="1",
    )

    assert ["IndexError", "IndexError"] == found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_what_was_compiled_before_the_fork():
    # jax 0.10.2 hangs in any child that calls what was compiled; 0.12 does not.
    alone = FORK.format("step = jax.jit(lambda x: x * 3)")
    try:
        subprocess.run([sys.executable, "-c", alone], check=True, timeout=20)
    except subprocess.TimeoutExpired:
        pytest.skip("this jax hangs after a fork, without any host function")
    code = FORK.format(
        """
fn = ps.host_function(numba.njit(lambda x: x * 3), out=lambda x: x)
step = jax.jit(fn)
"""
    )
    assert ["0", "9.0"] == run(code)


FORK = """
import os, warnings
warnings.simplefilter("ignore")
import jax, jax.numpy as jnp, numba
import purestate as ps
{}
before = step(jnp.arange(3.0)).block_until_ready()
child = os.fork()
if child == 0:
    found = step(jnp.arange(3.0) + 1)
    os._exit(0 if found.tolist() == [3, 6, 9] else 1)
print(os.waitpid(child, 0)[1], step(before).tolist()[1])
"""


def test_threads_trace_and_call_at_once():
    def work(number):
        fn = host(numba.njit(lambda x: x * number), out=lambda x: x)
        step = jax.jit(jax.vmap(fn))
        return all((step(X + i) == number * (X + i)).all() for i in range(50))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(6)))


def test_another_thread_of_python_runs_during_a_call():
    @numba.njit
    def slow(x):
        y = x.copy()
        for _ in range(20_000_000):
            y = y * np.float32(1.0000001)
        return y

    fn = host(slow, out=lambda x: x)
    step = jax.jit(fn).lower(X[0]).compile()
    counts, done = [0], threading.Event()

    def count():
        while not done.is_set():
            counts[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = counts[0]
    step(X[0]).block_until_ready()
    after = counts[0]
    done.set()
    thread.join()

    assert after - before > 1000


EIGHT = """
    import jax, jax.numpy as jnp, numba, numpy as np
    from jax.sharding import NamedSharding, PartitionSpec as P
    import purestate as ps

    @numba.njit
    def scaled(x):
        if x[0, 0] == 99:
            raise ValueError("ninety-nine")
        return x * 3

    fn = ps.host_function(scaled, out=lambda x: x, grad="fd", upcast=True)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(jnp.arange(32.0).reshape(16, 2), NamedSharding(mesh, P("data")))
    print(bool((jax.jit(fn)(x) == 3 * x).all()))
    shard = jax.jit(jax.shard_map(fn, mesh=mesh, in_specs=P("data"), out_specs=P("data")))
    print(bool((shard(x) == 3 * x).all()), "purestate/" in shard.lower(x).as_text())
    print(np.allclose(jax.jit(jax.grad(lambda x: fn(x).sum()))(x), 3))
    print(np.allclose(jax.jit(jax.grad(lambda x: shard(x).sum()))(x), 3))
    try:
        jax.block_until_ready(shard(x.at[4, 0].set(99)))
    except jax.errors.JaxRuntimeError as error:
        print(ps.original_error(error))
    print(bool((shard(x) == 3 * x).all()))
"""


def test_eight_devices_call_it_together():
    found = run(EIGHT, devices=8)

    assert ["True", "True", "True", "True", "True", "ninety-nine", "True"] == found


def test_what_is_compiled_keeps_neither_the_function_nor_what_it_closes_over():
    table = np.arange(3.0, dtype=np.float32)

    def make():
        kept = np.arange(3.0, dtype=np.float32)

        @numba.njit
        def looked_up(x):
            return x + kept

        @numba.njit
        def rule(args, ct):
            return (ct + kept,)

        return host(looked_up, out=lambda x: x, vjp=rule), host(
            looked_up, out=lambda x: x, grad="fd"
        )

    functions = make()
    code = functions[0].options.fn.py_func
    followed = [weakref.ref(f) for f in (*functions, code, functions[0].options.vjp)]
    compiled = jax.jit(functions[0]).lower(table).compile()
    for fn in functions:
        jax.block_until_ready(jax.jit(jax.grad(lambda x, fn=fn: fn(x).sum()))(table))
    del functions, fn, code
    jax.clear_caches()
    gc.collect()

    assert [None] * 4 == [each() for each in followed]
    assert (compiled(table) == 2 * table).all()


def test_an_exception_can_be_raised_when_the_function_is_gone():
    def make():
        class Gone(Exception):
            pass

        @numba.njit
        def inner(x):
            if x[0] > 0:
                raise Gone("positive", x[0])
            return x

        @numba.njit
        def outer(x):
            return inner(x)

        return host(outer, out=lambda x: x), Gone

    fn, kind = make()
    compiled = jax.jit(fn).lower(X[0]).compile()
    del fn
    jax.clear_caches()
    gc.collect()

    with pytest.raises(kind, match="positive"), ps.surface_errors():
        compiled(X[0] + 1)


def test_without_numba_a_function_says_that_it_is_none_of_its():
    code = """
        import sys
        sys.modules["numba"] = None
        import jax, jax.numpy as jnp, numpy as np
        import purestate as ps

        fn = ps.host_function(np.sin, out=lambda x: x)
        print(fn.lowering, jax.jit(fn)(jnp.zeros(2)).tolist()[0])
        print(fn.why_not_native.replace(" ", "_"))
    """

    assert [
        *("pure", "0.0"),
        "numba_is_not_imported,_so_that_it_is_no_function_of_numba's",
    ] == run(code)


def test_a_program_does_not_import_numba_by_itself():
    code = """
        import sys
        import jax, jax.numpy as jnp, numpy as np
        import purestate as ps

        fn = ps.host_function(np.sin, out=lambda x: x, grad="fd")
        jax.jit(jax.grad(lambda x: fn(x).sum()))(jnp.zeros(2))
        repr(fn)
        print("numba" in sys.modules, "llvmlite" in sys.modules)
    """

    assert ["False", "False"] == run(code)


def test_calls_in_a_scan_agree_with_a_loop():
    fn = host(triple, out=lambda x: x)
    step = jax.jit(
        lambda x: jax.lax.scan(lambda c, _: (fn(c) / 3, None), x, None, 1000)[0]
    )

    assert np.allclose(step(X), X)
