"""jax's asynchronous dispatch on a CPU: steps that are waited for, with it and without.

    python benchmarks/bench_dispatch.py [--quick] [--out FILE]

jax reads `jax_cpu_enable_async_dispatch` when its backend starts, so each setting has
processes of its own. They take turns, and a process gives one sample: its median.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax

import purestate as ps
from benchmarks import report, script
from benchmarks.harness import Clock
from benchmarks.samples import Results, ratio
from benchmarks.small_leaves import adam, state_of
from benchmarks.ways import WAYS, Way, timer
from benchmarks.workloads import WORKLOADS

SECTION = (
    "Asynchronous dispatch",
    """\
On a CPU jax hands a program that is not tiny to another thread and returns. A loop that
waits for every step pays for the way there and back. Without asynchronous dispatch, see
[pack.md](pack.md#a-loop-that-waits), the calling thread runs the program itself.""",
)
SETTINGS = {"asynchronous": True, "inline": False}
UNWAITED = 100
PUSH = "push into {}, {}"
OURS, FLOOR = "State, donated", "numpy in place"
SMALL, LARGE = "1 KiB", "256 MiB"
LEGEND = f"""\
Medians in microseconds per step, each waited for, except in the last row: there only
the last of {UNWAITED} steps is. asynchronous: jax's default. inline: with
jax_cpu_enable_async_dispatch off. ratio: of the second to the first, with quartiles.
"""


class Adam:
    """Adam on 64 small leaves, as `bench_pack` has it; some steps before each wait."""

    def __init__(self, *, packed: bool, steps: int = 1) -> None:
        state = state_of(64)
        self.steps = steps
        self.state = ps.pack(state) if packed else state
        self.advance = ps.jit(lambda s: adam(s))

    def step(self) -> None:
        """Make the steps and wait for the last."""
        for _ in range(self.steps):
            self.state = self.advance(self.state)
        jax.block_until_ready(self.state)


def push(size: str, way: str) -> Way:
    """Return the replay buffer of `bench_mutable`."""
    workload = next(w for w in WORKLOADS if w.name == "replay buffer")
    return WAYS[way](workload, workload.sizes[size])


CASES: dict[str, Callable[[], Any]] = {
    PUSH.format(SMALL, OURS): lambda: push(SMALL, OURS),
    PUSH.format(LARGE, OURS): lambda: push(LARGE, OURS),
    PUSH.format(LARGE, FLOOR): lambda: push(LARGE, FLOOR),
    "Adam, 64 leaves, unpacked": lambda: Adam(packed=False),
    "Adam, 64 leaves, packed": lambda: Adam(packed=True),
    "Adam, 64 leaves, packed, not waited for": lambda: Adam(
        packed=True, steps=UNWAITED
    ),
}


def main() -> None:
    """Measure, print the table and write the result file."""
    if sys.argv[1:2] == ["--child"]:
        inline, rounds, seconds = json.loads(sys.argv[2])
        print(json.dumps(alone(inline, rounds, seconds)))
        return
    script.run(
        "dispatch",
        __doc__.splitlines()[0],
        [],
        ((15, 0.01), (5, 0.002)),
        lambda quick: processes(quick),
        measure,
        show,
    )


def processes(quick: bool) -> int:
    """Return how many processes each setting gets."""
    return 1 if quick else 9


def measure(clock: Clock, quick: bool) -> None:
    """Start the processes in turns and keep a sample of each."""
    found: dict[tuple[str, str], list[float]] = {}
    for i in range(processes(quick)):
        for name in list(SETTINGS)[:: -1 if i % 2 else 1]:
            given = json.dumps([not SETTINGS[name], clock.rounds, clock.seconds])
            command = [sys.executable, "-W", "ignore", __file__, "--child", given]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            for case, seconds in json.loads(done.stdout).items():
                found.setdefault((case, name), []).append(seconds)
        clock.tell(f"processes {i + 1}")
    for case in CASES:
        for name in SETTINGS:
            clock.add(case, "", name, "us", found[case, name], 1e6)


def alone(inline: bool, rounds: int, seconds: float) -> dict[str, float]:
    """Return what a step of each case takes in this process, in seconds."""
    jax.config.update("jax_cpu_enable_async_dispatch", not inline)
    found = {}
    for name, make in CASES.items():
        made = make()
        for _ in range(3):
            made.step()
        timed = timer(made, seconds)
        found[name] = statistics.median(timed() for _ in range(rounds))
    return found


def show(results: Results) -> str:
    """Return the table, and what a donated push costs beyond its parts."""
    lines = [["", *SETTINGS, "ratio", "quartiles"]]
    for case in CASES:
        pair = [results.get(case, "", name) for name in SETTINGS]
        change = ratio(pair[1:], pair[:1])
        if change is None:
            continue
        cells = [report.number(one.median) for one in pair if one is not None]
        low, middle, high = (f"{one:.2f}" for one in change)
        lines.append([case, *cells, middle, f"{low} to {high}"])
    return "\n\n".join([LEGEND, "\n".join(report.aligned(lines)), *budgets(results)])


def budgets(results: Results) -> list[str]:
    """Return a line for each setting: the push, over numpy and a jitted call."""
    lines = []
    for name in SETTINGS:
        names = (LARGE, OURS), (LARGE, FLOOR), (SMALL, OURS)
        ours, *parts = (results.get(PUSH.format(*of), "", name) for of in names)
        found = ratio([ours], parts)
        if found is not None:
            lines.append(
                f"{name}: a donated push into {LARGE} takes {found[1]:.2f} x numpy in "
                f"place and a jitted call"
            )
    return ["\n".join(lines)] if lines else []


if __name__ == "__main__":
    main()
