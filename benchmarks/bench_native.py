"""Native host functions: numba's code inside of the program, beside all other ways.

    python benchmarks/bench_native.py [--quick] [--out FILE]

Each row times the same work in these ways: native; the same function as a callback; and
`jax.pure_callback`. Where it can be had, also: the function in C++ through `jax.ffi`,
the least that a call can cost; a Python loop over the compiled function, without jax;
and the work written in jax by hand. All wait for their result, so wall time counts.
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp
import numpy as np

import purestate as ps
from benchmarks import native, report
from benchmarks.harness import Clock, machine, progress, resident, versions
from benchmarks.samples import Results, ratio

SECTION = (
    "Native host functions",
    """\
[Functions of numba](native.md) inside of the program, beside callbacks, C++, a Python
loop and jax written by hand.""",
)
LENGTH = 1000  # steps of a scan
BATCH = 1000
NATIVE, CALLBACK, PURE = "native", "callback", "pure_callback"
CPP, LOOP, JAX = "C++, jax.ffi", "numba, Python loop", "jax by hand"
COST = "paid once"
# Row, who, beside whom (None: microseconds), the most that is promised.
BUDGETS = (
    ("jit, 8 B", NATIVE, CPP, 1.15),
    ("scan, 8 B", NATIVE, CPP, 1.3),
    ("vmap of 1,000, 8 B", NATIVE, None, 0.05),
    ("gradient in a scan, vjp", NATIVE, None, 0.3),
    ("gradient in a scan, fd of 8 floats", NATIVE, None, 2.0),
)
LEGEND = f"""\
Medians in microseconds of wall time: of a call, of one step of a scan of {LENGTH:,}, of
one item of a batch of {BATCH:,}. callback: the same host function, native turned off.
"""


# --- the ways -------------------------------------------------------------------------


def ways(fn: Any, **options: Any) -> dict[str, Callable[..., Any]]:
    """Return the function as a native host function, and as two kinds of callback.

    Args:
        fn: numba's; its results look like its leading arguments.
        **options: of `ps.host_function`.
    """
    made: Any = ps.host_function(fn, **options)

    def told(lowering: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            # Read when the program is lowered, which is when this has been traced.
            os.environ["PURESTATE_HOST_LOWERING"] = lowering
            return made(*args)

        return call

    return {NATIVE: told("native"), CALLBACK: told("pure")}


def plain(fn: Any, out: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Return the function as jax's own callback."""

    def call(*args: Any) -> Any:
        numbers = lambda *a: fn(*map(np.asarray, a))  # noqa: E731
        return jax.pure_callback(numbers, out(*args), *args, vmap_method="sequential")

    return {PURE: call}


def like(x: Any, *_: Any) -> Any:
    """Return the type of an argument."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def scanned(fn: Callable[..., Any], length: int = LENGTH) -> Callable[..., Any]:
    """Return a scan whose carry goes through the function at every step."""

    @jax.jit
    def run(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (fn(c), None), x, None, length=length)[0]

    return run


def descent(fn: Callable[..., Any], length: int) -> Callable[..., Any]:
    """Return a scan that walks down the gradient, one gradient in each step."""
    gradient = jax.grad(lambda x: jnp.sum(fn(x)))
    return scanned(lambda x: x - np.float32(1e-6) * gradient(x), length)


# --- the rows -------------------------------------------------------------------------


def rows(quick: bool) -> dict[str, tuple[int, dict[str, Callable[[], Any]]]]:
    """Return, by name, how many units a run has, and a run for each rival."""
    from benchmarks import kernels

    small = jnp.ones(2, jnp.float32)
    middle, large = (jnp.ones(1 << n, jnp.float32) for n in (15, 18))
    batch, eight = jnp.ones((BATCH, 2), jnp.float32), jnp.linspace(0, 1, 8)
    made = ways(kernels.add_one, out=like)
    both = made | plain(kernels.add_one, like)
    in_cpp = native.compiled()
    if isinstance(in_cpp, str):
        print(f"not measured: {CPP}: {in_cpp}")
    else:
        both |= {CPP: in_cpp}
    short = lambda fn: scanned(fn, LENGTH // 10)  # noqa: E731
    found = {
        "jit, 8 B": (1, runs(both, jax.jit, small)),
        "scan, 8 B": (LENGTH, runs(both, scanned, small)),
        "vmap of 1,000, 8 B": (
            BATCH,
            runs(both, lambda fn: jax.jit(jax.vmap(fn)), batch),
        ),
        "jit, 128 KiB": (1, runs(both | {JAX: lambda x: x + 1}, jax.jit, middle)),
        "scan, 1 MiB": (LENGTH // 10, runs(both, short, large)),
        "jit, 1 MiB": (1, runs(both | {JAX: lambda x: x + 1}, jax.jit, large)),
    }
    threads = {
        f"{name}, {mode}": fn
        for mode in ("loop", "threads")
        for name, fn in ways(kernels.slow, out=like, vmap=mode).items()
    }
    found["vmap of 256, 20 us"] = (
        256,
        runs(threads, lambda fn: jax.jit(jax.vmap(fn)), batch[:256]),
    )
    derived = ways(kernels.cubed, out=like, vjp=kernels.cubed_vjp) | {
        JAX: lambda x: x * x * x
    }
    found["gradient in a scan, vjp"] = (
        LENGTH,
        runs(derived, lambda fn: descent(fn, LENGTH), eight),
    )
    length = LENGTH // 10
    differences = ways(kernels.cubed, out=like, grad="fd")
    found["gradient in a scan, fd of 8 floats"] = (
        length,
        runs(differences, lambda fn: descent(fn, length), eight),
    )
    return found | weather() | sandpile(5_000 if quick else 20_000)


def weather() -> dict[str, tuple[int, dict[str, Callable[[], Any]]]]:
    """Return the rows of Lorenz's model."""
    from benchmarks import kernels

    x = jnp.linspace(-5, 10, kernels.lorenz96.SITES, dtype=jnp.float32)
    step = kernels.lorenz96.step.options.fn
    made = ways(step, out=like, vjp=kernels.lorenz96.step_adjoint) | {
        JAX: kernels.step_in_jax
    }
    stepped = runs(made | plain(step, like), scanned, x)
    stepped[LOOP] = looped(step, np.asarray(x))
    return {
        "Lorenz 96, a step": (LENGTH, stepped),
        "Lorenz 96, a gradient": (
            LENGTH,
            runs(made, lambda fn: descent(fn, LENGTH), x),
        ),
    }


def sandpile(
    grains: int,
) -> dict[str, tuple[int, dict[str, Callable[[], Any]]]]:
    """Return the row of the sandpile, which has taken many grains before."""
    from benchmarks import kernels

    random = np.random.default_rng(0)
    sand = random.integers(0, 4, (kernels.SIDE, kernels.SIDE)).astype(np.int32)
    for place in random.integers(0, kernels.SIDE * kernels.SIDE, grains).astype(
        np.int32
    ):
        sand, _ = kernels.drop(sand, place)
    places = random.integers(0, kernels.SIDE * kernels.SIDE, LENGTH).astype(np.int32)
    out = lambda sand, place: (like(sand), like(place))  # noqa: E731
    made = (
        ways(kernels.drop, out=out)
        | plain(kernels.drop, out)
        | {JAX: kernels.drop_in_jax}
    )

    def prepare(fn: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(lambda sand: jax.lax.scan(fn, sand, jnp.asarray(places)))

    def loop() -> Any:
        now = sand
        for place in places:
            now, _ = kernels.drop(now, place)
        return now

    return {
        "sandpile, a grain": (
            LENGTH,
            runs(made, prepare, jnp.asarray(sand)) | {LOOP: loop},
        )
    }


def costs(clock: Clock, count: int) -> None:
    """Measure once what is paid once: for a process, for a function, for a failure.

    Must come first: what numba has compiled before, nobody pays for again.
    """
    from benchmarks import kernels

    before, start = resident(), time.perf_counter()
    ways(kernels.add_one, out=like)[NATIVE](np.ones(2, np.float32))
    if (found := ps.host_function(kernels.add_one, out=like).lowering) != NATIVE:
        raise RuntimeError(f"not native, but {found}")
    clock.add("first use, seconds", "", COST, "s", [time.perf_counter() - start])
    clock.add("first use, MB", "", COST, "MB", [(resident() - before) / 1e6])
    x = jnp.ones(8, jnp.float32)
    for name, options in (("a function", {}), ("a gradient, fd", {"grad": "fd"})):
        seconds, memory = [], []
        for _ in range(count):
            made = ways(kernels.closure(), out=like, **options)[NATIVE]
            made(np.asarray(x))  # numba's own share
            wanted = jax.grad(lambda x, f=made: jnp.sum(f(x))) if options else made
            traced = jax.jit(wanted).trace(x)
            before, start = resident(), time.perf_counter()
            traced.lower()
            seconds.append(time.perf_counter() - start)
            memory.append((resident() - before) / 1e6)
        clock.add(f"{name}, seconds", "", COST, "s", seconds)
        clock.add(f"{name}, MB", "", COST, "MB", memory)
    failing = ps.jit(ways(kernels.fail, out=like)[NATIVE])
    seconds = []
    for _ in range(10 * count):
        start = time.perf_counter()
        with contextlib.suppress(ValueError):
            failing(x)
        seconds.append(time.perf_counter() - start)
    clock.add("a call that fails, us", "", COST, "us", seconds, 1e6)


def runs(
    made: dict[str, Callable[..., Any]],
    prepare: Callable[[Any], Callable[..., Any]],
    x: Any,
) -> dict[str, Callable[[], Any]]:
    """Return a run for each rival, compiled, with its result waited for."""
    found = {}
    for name, fn in made.items():
        compiled = prepare(fn)
        jax.block_until_ready(compiled(x))
        found[name] = lambda f=compiled: jax.block_until_ready(f(x))
    return found


def looped(fn: Any, x: Any) -> Callable[[], Any]:
    """Return a run of a Python loop, without jax."""

    def run() -> Any:
        now = x
        for _ in range(LENGTH):
            now = fn(now)
        return now

    run()
    return run


def sampler(run: Callable[[], Any], units: int, seconds: float) -> Callable[[], float]:
    """Return what times runs for about so long, and returns the seconds of a unit."""

    def timed(loops: int) -> float:
        start = time.perf_counter()
        for _ in range(loops):
            run()
        return time.perf_counter() - start

    loops = max(1, round(seconds / max(timed(3) / 3, 1e-7)))
    return lambda: timed(loops) / loops / units


def main() -> None:
    """Measure, print the table and the budgets, write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a rough run")
    parser.add_argument("--out", type=Path, help="the result file")
    chosen = parser.parse_args()
    packages = ["jax", "jaxlib", "numpy", "numba"]
    found = {"purestate": ps.__version__, **versions(packages)}
    about = {
        "what": "native",
        "quick": chosen.quick,
        "machine": f"{machine()}, jax on {jax.default_backend()}",
        "versions": found,
    }
    shown = ", ".join(f"{name} {version}" for name, version in found.items())
    print(f"{about['machine']}\n{shown}\n", flush=True)
    count, seconds = (9, 0.01) if chosen.quick else (51, 0.02)
    with progress(12) as tell:
        clock = Clock(count, seconds, tell)
        costs(clock, 5)
        for row, (units, made) in rows(chosen.quick).items():
            timers = {name: sampler(run, units, seconds) for name, run in made.items()}
            clock.interleave(row, "", timers, rounds=count, unit="us", scale=1e6)
    print(show(clock.results))
    default = f"native-python{found['python']}-jax{found['jax']}"
    quick = "-quick" if chosen.quick else ""
    path = chosen.out or Path(__file__).parent / "results" / f"{default}{quick}.json"
    report.save(path, about, clock.results)
    print(f"\n{path}")


def show(results: Results) -> str:
    """Return the table and the budgets, for the page of all benchmarks."""
    lines = [["", "", "us", "of native", "quartiles"]]
    for found in results.found:
        if found.rival == COST:
            continue
        ours = results.get(found.row, "", _first(results, found.row))
        low, middle, high = ratio([found], [ours]) or (0, 0, 0)
        spread = f"{report.number(low)} to {report.number(high)}"
        cells = [found.row, found.rival, report.number(found.median)]
        lines.append([*cells, report.number(middle), spread])
    table = "\n".join(report.aligned(lines, left=2))
    paid = [
        [found.row, report.number(found.median)]
        for found in results.found
        if found.rival == COST
    ]
    once = "\n".join(report.aligned([["what is paid once", ""], *paid]))
    return f"{LEGEND}\n{table}\n\n{budgets(results)}\n\n{once}"


def _first(results: Results, row: str) -> str:
    return next(found.rival for found in results.found if found.row == row)


def budgets(results: Results) -> str:
    """Return what is promised beside what was measured."""
    lines = [["budget", "at most", "measured", ""]]
    for row, who, rival, limit in BUDGETS:
        ours = results.get(row, "", who)
        if ours is None:
            continue
        value, unit = ours.median, " us"
        if rival is not None:
            pair = ratio([ours], [results.get(row, "", rival)])
            if pair is None:
                continue
            value, unit = pair[1], f" x {rival}"
        over = 100 * (value / limit - 1)
        verdict = "ok" if value <= limit else f"MISSED by {over:.0f} %"
        lines.append([row, f"{limit}{unit}", f"{value:.3f}", verdict])
    return "\n".join(report.aligned(lines))


if __name__ == "__main__":
    main()
