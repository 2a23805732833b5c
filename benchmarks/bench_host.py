"""Host functions: what a call of numpy code costs from inside a jax program.

    python benchmarks/bench_host.py [--quick] [--out FILE]

Beside purestate, each row times the numpy function alone, `jax.pure_callback`, under
vmap with each of its methods, and the same in C++ through `jax.ffi`, the limit, where
there is a compiler. All wait for their result, so wall time counts.
"""

import argparse
import functools
import os
import sys
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
from benchmarks.harness import Case, Clock, machine, progress, versions
from benchmarks.samples import ratio

SIZES = {"8 B": 2, "4 KiB": 1 << 10, "1 MiB": 1 << 18, "64 MiB": 1 << 24}
LENGTH = 1000  # steps of the scan
BATCH = 256
METHODS = ("sequential", "expand_dims", "broadcast_all")
LEGEND = """\
Medians in microseconds of wall time: per call, scan of 1,000 calls, batch of 256.
numpy: the function alone, without jax; for scan and vmap, in a Python loop.
purestate: under jax.jit, in one of two lowerings. purestate, ps.jit: under ps.jit, in
the lowering that it chooses; an exception in the function leaves the call as it is.
"""


def main() -> None:
    """Measure, print the table and the budgets, write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a rough run")
    parser.add_argument("--out", type=Path, help="the result file")
    chosen = parser.parse_args()
    found = {"purestate": ps.__version__, **versions(["jax", "jaxlib", "numpy"])}
    about = {
        "what": "host",
        "quick": chosen.quick,
        "machine": f"{machine()}, jax on {jax.default_backend()}",
        "versions": found,
    }
    shown = ", ".join(f"{name} {version}" for name, version in found.items())
    print(f"{about['machine']}\n{shown}\n", flush=True)
    rounds, seconds = (15, 0.01) if chosen.quick else (101, 0.02)
    rows = [*(("jit", size) for size in SIZES), ("scan", "8 B"), ("vmap", "8 B")]
    rows += [("eager", "8 B")]
    with progress(len(rows)) as tell:
        clock = Clock(rounds, seconds, tell)
        for row, size in rows:
            clock.compare(row, size, ROWS[row](SIZES[size]))
    results = clock.results
    print(LEGEND)
    print(table(results, rows))
    for where, why in results.failed.items():
        print(f"not measured: {where}: {why}")
    if isinstance(in_cpp(), str):
        print(f"not measured: C++ through jax.ffi: {in_cpp()}")
    print(budgets(results))
    name = f"host-python{found['python']}-jax{found['jax']}"
    quick = "-quick" if chosen.quick else ""
    path = chosen.out or Path(__file__).parent / "results" / f"{name}{quick}.json"
    report.save(path, about, results)
    print(f"\n{path}")


def add_one(x: Any) -> Any:
    """Compute what is timed: the least that touches every number."""
    return x + np.float32(1)


def with_host_function(lowering: str = "", **options: Any) -> Callable[[Any], Any]:
    """Return the function as a host function, called in a way of its own."""
    made: Any = ps.host_function(lambda x: add_one(x), out=lambda x: x, **options)

    def call(x: Any) -> Any:
        # Read when the program is lowered, which is when this has been traced.
        os.environ["PURESTATE_HOST_LOWERING"] = lowering
        return made(x)

    return call


def with_pure_callback(method: str = "sequential") -> Callable[[Any], Any]:
    """Return the function as jax's own callback."""

    def call(x: Any) -> Any:
        spec = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(add_one, spec, x, vmap_method=method)

    return call


def rivals() -> dict[str, Callable[[Any], Any]]:
    """Return what is compared in single calls and in scans."""
    made = {f"purestate, {name}": with_host_function(name) for name in WAYS}
    return {**made, "pure_callback": with_pure_callback(), **limit()}


@functools.cache
def in_cpp() -> Callable[[Any], Any] | str:
    """Return the function in C++, or why there is none."""
    return native.compiled()


def limit() -> dict[str, Callable[[Any], Any]]:
    """Return the function in C++, if there is a compiler."""
    made = in_cpp()
    return {} if isinstance(made, str) else {"C++, jax.ffi": made}


WAYS = ("buffer", "pure")


def jit_cases(floats: int) -> list[Case]:
    """Return cases of one call from a compiled program."""
    made = {rival: jax.jit(fn) for rival, fn in rivals().items()}
    made["purestate, ps.jit"] = ps.jit(with_host_function())
    return waiting(made, lambda fn: fn, floats, lambda x: lambda: add_one(x))


def scan_cases(floats: int) -> list[Case]:
    """Return cases of a scan whose carry goes through the function at every step."""

    def scanned(fn: Callable[[Any], Any]) -> Any:
        return jax.jit(
            lambda x: jax.lax.scan(lambda c, _: (fn(c), None), x, None, length=LENGTH)[
                0
            ]
        )

    def alone(x: Any) -> Callable[[], Any]:
        def loop() -> Any:
            carry = x
            for _ in range(LENGTH):
                carry = add_one(carry)
            return carry

        return loop

    return waiting(rivals(), scanned, floats, alone)


def vmap_cases(floats: int) -> list[Case]:
    """Return cases of a batch, in each mode of purestate and each method of jax."""
    modes = ("loop", "threads", "vectorized", "batched")
    made = {f"purestate, {mode}": with_host_function(vmap=mode) for mode in modes}
    made |= {f"pure_callback, {m}": with_pure_callback(m) for m in METHODS} | limit()

    def alone(x: Any) -> Callable[[], Any]:
        return lambda: np.stack([add_one(row) for row in x])

    return waiting(made, lambda fn: jax.jit(jax.vmap(fn)), floats, alone, lead=(BATCH,))


def eager_cases(floats: int) -> list[Case]:
    """Return cases of calls outside of any program."""
    made = {"purestate": with_host_function(), "pure_callback": with_pure_callback()}
    made |= limit()
    return waiting(made, lambda fn: fn, floats, lambda x: lambda: add_one(x))


def waiting(
    made: dict[str, Callable[[Any], Any]],
    prepare: Callable[[Any], Any],
    floats: int,
    alone: Callable[[Any], Callable[[], Any]],
    lead: tuple[int, ...] = (),
) -> list[Case]:
    """Return a case per rival, and one for numpy alone."""
    x = jnp.ones((*lead, floats), jnp.float32)
    scope = {"x": x, "wait": jax.block_until_ready}
    cases = [
        Case(rival, "wait(f(x))", {**scope, "f": prepare(fn)}, waits=True)
        for rival, fn in made.items()
    ]
    return [*cases, Case("numpy", "f()", {"f": alone(np.asarray(x))}, waits=True)]


ROWS: dict[str, Callable[[int], list[Case]]] = {
    "jit": jit_cases,
    "scan": scan_cases,
    "vmap": vmap_cases,
    "eager": eager_cases,
}


def table(results: Any, rows: list[tuple[str, str]]) -> str:
    """Return a line per row and rival."""
    lines = [["", "", "us", "of numpy"]]
    for row, size in rows:
        floor = results.get(row, size, "numpy")
        for found in results.found:
            if (found.row, found.size) == (row, size):
                times = report.number(found.median / floor.median) if floor else "-"
                cells = [f"{row}, {size}", found.rival, report.number(found.median)]
                lines.append([*cells, times])
    return "\n".join(report.aligned(lines, left=2))


def show(results: Any) -> str:
    """Return the table and the budgets, for the page of all benchmarks."""
    return f"{LEGEND}\n{table(results, results.rows())}\n{budgets(results)}"


def budgets(results: Any) -> str:
    """Return what is promised beside what was measured."""
    lines = [["", "budget", "measured", ""]]
    for row, size, lowering, limit in (
        ("jit", "8 B", "pure", 0.4),
        ("scan", "8 B", "pure", 0.2),
        ("jit", "64 MiB", "buffer", 0.5),
    ):
        ours = results.get(row, size, f"purestate, {lowering}")
        found = ratio([ours], [results.get(row, size, "pure_callback")])
        if found is not None:
            verdict = "ok" if found[1] <= limit else "MISSED"
            what = f"of pure_callback, {row}, {size}"
            lines.append([what, f"{limit}", f"{found[1]:.3f}", verdict])
    ours, floor = (results.get("eager", "8 B", name) for name in ("purestate", "numpy"))
    if ours and floor:
        limit = 10 * floor.median + 20
        verdict = "ok" if ours.median <= limit else "MISSED"
        cells = [report.number(limit), report.number(ours.median), verdict]
        lines.append(["us of an eager call, 8 B", *cells])
    return "\n" + "\n".join(report.aligned(lines))


if __name__ == "__main__":
    main()
