"""Functional against mutable: five programs, each with its state held in ten ways.

    python benchmarks/bench_mutable.py [--quick] [--out FILE]

Each way is run beside the others until their states can be compared: they must agree.
First calls, traces and memory come from a process per way.
"""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks import mistakes, report, script
from benchmarks.harness import Clock, resident
from benchmarks.samples import Results
from benchmarks.ways import SCANNED, WAYS, timer
from benchmarks.workloads import WORKLOADS, Workload

STEPS = 4  # in a process of its own
SLOW = "object, static self"  # traces at every step: timed only there
COLUMNS = ("step", "first call", "traces", "memory")
LEGEND = """\
step: microseconds per step, waited for. first call: milliseconds, in a new process.
traces: in four steps. memory: MiB that four steps add to the process, compiler and
all.
"""


def main() -> None:
    """Measure, print the tables and write the result file."""
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(alone(*sys.argv[2:])))
        return
    script.run(
        "mutable",
        __doc__.splitlines()[0],
        ["flax"],
        ((41, 0.004), (7, 0.002)),
        lambda quick: len(sizes(quick)) + (0 if quick else len(WORKLOADS)),
        measure,
        show,
    )


def sizes(quick: bool) -> list[tuple[Workload, str, int]]:
    """Return every workload at each of its sizes."""
    return [
        (workload, title, size)
        for workload in WORKLOADS
        for title, size in workload.sizes.items()
        if not quick or size <= 1 << 20
    ]


def label(workload: Workload, title: str) -> str:
    """Return the title of a table."""
    return f"{workload.name}, {title}"


def measure(clock: Clock, quick: bool) -> dict[str, Any]:
    """Time the ways in turns, then each in its own process."""
    for workload, title, size in sizes(quick):
        compare(clock, workload, title, size, steps=100 if quick else SCANNED)
    if not quick:
        for workload in WORKLOADS:
            apart(clock, workload)
    return {"mistakes": mistakes.observed()}


def compare(
    clock: Clock, workload: Workload, title: str, size: int, steps: int
) -> None:
    """Time the steps of all ways in turns."""
    name = label(workload, title)
    timers: dict[str, Callable[[], float]] = {}
    expected = None
    for way, kind in WAYS.items():
        if way == SLOW:
            continue
        try:
            made = kind(workload, size)
            is_small = size <= 1 << 20
            for _ in range(max(1, steps // made.steps) if is_small else 3):
                made.step()
            if is_small and made.steps <= steps:  # all have made as many
                expected = expected or made.arrays()
                check(expected, made.arrays())
        except Exception as error:  # noqa: BLE001  # a peer that is absent or broken
            clock.note("step", name, way, error)
        else:
            timers[way] = timer(made, clock.seconds)
    rounds = clock.rounds if size <= 1 << 20 else max(5, clock.rounds // 4)
    clock.interleave("step", name, timers, rounds=rounds, unit="us", scale=1e6)


def check(expected: dict[str, Any], found: dict[str, Any]) -> None:
    """Compare two states.

    Raises:
        AssertionError: they differ by more than what float32 explains.
    """
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0.02, atol=0.002)


def apart(clock: Clock, workload: Workload) -> None:
    """Run each way in a process of its own, at the largest size."""
    title = list(workload.sizes)[-1]
    name = label(workload, title)
    for way in WAYS:
        command = [sys.executable, "-W", "ignore", __file__, "--child"]
        done = subprocess.run(
            [*command, workload.name, title, way],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:]
            clock.note("first call", name, way, RuntimeError(*last))
            continue
        found = json.loads(done.stdout)
        clock.add("first call", name, way, "ms", [found["first"]], 1e3)
        clock.add("traces", name, way, "in 4 steps", [found["traces"]])
        if found["memory"]:
            clock.add("memory", name, way, "MiB", [found["memory"]])
        if way == SLOW:
            clock.add("step", name, way, "us", found["later"], 1e6)
    clock.tell(f"processes ({name})")


def alone(name: str, title: str, way: str) -> dict[str, Any]:
    """Return what one way needs for its first steps, in this process."""
    import jax

    jax.config.update("jax_enable_compilation_cache", False)
    workload = next(w for w in WORKLOADS if w.name == name)
    made = WAYS[way](workload, workload.sizes[title])
    jax.block_until_ready(jax.jit(lambda x: x + 1)(1.0))  # jax itself is started
    times = []
    with peak_memory() as peak:
        for _ in range(STEPS):
            start = time.perf_counter()
            made.step()
            times.append((time.perf_counter() - start) / made.steps)
    return {
        "first": times[0] * made.steps,
        "later": times[1:],
        "traces": made.traces,
        "memory": peak() / 2**20,
    }


def budget(results: Results) -> str:
    """Return what a donated push into a large buffer costs beyond a jitted call."""
    large, small = (f"replay buffer, {title}" for title in ("256 MiB", "1 KiB"))
    found = [
        results.get("step", large, "State, donated"),
        results.get("step", large, "numpy in place"),
        results.get("step", small, "State, donated"),
    ]
    if not all(found):
        return ""
    ours, floor, call = (one.median for one in found if one is not None)
    return (
        f"A donated push into 256 MiB takes {report.number(ours)} us, in place with "
        f"numpy and a jitted call\n(the push into 1 KiB) {report.number(floor)} + "
        f"{report.number(call)} us: {ours / (floor + call):.2f} x, where 1.5 is the "
        f"budget.\nMost of the rest is the way to another thread and back: see "
        f"Asynchronous dispatch."
    )


@contextlib.contextmanager
def peak_memory() -> Iterator[Callable[[], float]]:
    """Give a function for the most bytes that were resident, beyond those of before.

    A thread looks every millisecond: not every system tells the peak itself.
    """
    seen, done = [resident()], threading.Event()

    def look() -> None:
        while not done.wait(0.001):
            seen.append(resident())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield lambda: max(seen) - seen[0]
    finally:
        done.set()
        thread.join()
        seen.append(resident())


def show(results: Results) -> str:
    """Return a table for each workload."""
    blocks = [LEGEND]
    for size in dict.fromkeys(size for _, size in results.rows()):
        blocks.append(size)
        blocks.append("\n".join(report.vertical(results, size, WAYS, COLUMNS)))
    blocks.append(budget(results))
    return "\n\n".join(blocks)


if __name__ == "__main__":
    main()
