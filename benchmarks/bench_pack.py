"""Packed States: a step with many small arrays, unpacked and packed.

    python benchmarks/bench_pack.py [--quick] [--out FILE]

Four steps: one leaf changes and the others pass through; every leaf is scaled; every
leaf is scaled by the norm of all; Adam, where a quarter are parameters. `first call` is
trace, lowering and compilation.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax

import purestate as ps
from benchmarks import report, script
from benchmarks.harness import Case, Clock
from benchmarks.samples import Results, ratio
from benchmarks.small_leaves import adam, every, normed, one, state_of

SIZES = 4, 64, 256
RIVALS = ("unpacked", "packed", "unpacked, donated", "packed, donated")
LEGEND = """\
Medians in microseconds per step, and in milliseconds per first call: processor time of
the calling thread with 4 leaves or where one changes, wall time for the other steps.
"""
BUDGETS = ((4, 1 / 1.1), (64, 2.0), (256, 5.0))


STEPS: dict[str, Callable[[Any], Any]] = {
    "one leaf changes": one,
    "all leaves change": every,
    "all, by their norm": normed,
    "Adam": adam,
}
COMPILED = ("one leaf changes", "all leaves change", "Adam")


def main() -> None:
    """Measure, print the tables and the budgets, write the result file."""
    script.run(
        "pack",
        __doc__.splitlines()[0],
        [],
        ((101, 0.004), (11, 0.002)),
        lambda quick: (
            sum(len(chosen(n, quick)) for n in SIZES)
            + len(SIZES) * (1 if quick else len(COMPILED))
        ),
        measure,
        show,
    )


def chosen(count: int, quick: bool) -> list[str]:
    """Return the steps to time at a size; some take seconds to compile."""
    return [name for name in STEPS if not quick or name == COMPILED[0] or count < 64]


def measure(clock: Clock, quick: bool) -> None:
    """Time steps and first calls at each size."""
    for count in SIZES:
        title = f"{count} leaves"
        for name in chosen(count, quick):
            cases = [made(count, STEPS[name], rival) for rival in RIVALS]
            clock.compare(name, title, cases)
        for name in COMPILED[: 1 if quick else None]:
            rivals = {r: first_call(count, STEPS[name], r) for r in RIVALS[:2]}
            clock.interleave(
                f"first call, {name}",
                title,
                rivals,
                rounds=1 if quick else 5,
                unit="ms",
                scale=1e3,
            )


def made(count: int, step: Callable[[Any], Any], rival: str) -> Case:
    """Return the case of one rival."""
    state = state_of(count)
    scope = {
        "s": ps.pack(state) if rival.startswith("packed") else state,
        "step": ps.jit(lambda s: step(s), donate="donated" in rival),
        "wait": jax.block_until_ready,
    }
    # Only then do other threads work for it.
    shared = count > SIZES[0] and step is not one
    return Case(rival, "global s; s = step(s); wait(s)", scope, waits=shared)


def first_call(
    count: int, step: Callable[[Any], Any], rival: str
) -> Callable[[], float]:
    """Return a function that traces and compiles anew."""
    state = state_of(count)
    given = ps.pack(state) if rival == "packed" else state

    def timed() -> float:
        jitted: Any = ps.jit(lambda s: step(s))
        start = time.perf_counter()
        jitted.lower(given).compile()
        return time.perf_counter() - start

    return timed


def show(results: Results) -> str:
    """Return the tables and the budgets."""
    blocks = [LEGEND, report.tables(results, RIVALS, [f"{n} leaves" for n in SIZES])]
    lines = [["unpacked over packed", "budget", *STEPS]]
    for count, limit in BUDGETS:
        size, cells = f"{count} leaves", []
        for name in STEPS:
            pair = [results.get(name, size, rival) for rival in RIVALS[:2]]
            found = ratio(pair[:1], pair[1:])
            cells.append(f"{found[1]:.1f} x" if found else "-")
        lines.append([size, f"{limit:.1f} x", *cells])
    return "\n\n".join([*blocks, "\n".join(report.aligned(lines))])


if __name__ == "__main__":
    main()
