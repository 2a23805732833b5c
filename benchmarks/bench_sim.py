"""MuJoCo inside of jax programs: what a simulation step and its gradient cost.

    python benchmarks/bench_sim.py [--quick] [--out FILE]

Gymnasium's humanoid, scans of ten steps with new controls at each. Beside purestate:
MuJoCo in a Python loop, its own thread pools (`mujoco.rollout`, `mujoco.batch`) and C++
threads through `jax.ffi`, without any Python in between; `jax.pure_callback`; and MJX
where it is installed. All wait for their result, so wall time counts.
"""

import sys
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from benchmarks.harness import Clock
from benchmarks.samples import Results, ratio
from benchmarks.script import run
from benchmarks.simulations import (
    STEPS,
    gradient_cases,
    has_mjx,
    humanoid,
    in_cpp,
    step_cases,
)

COUNTS = (1, 64, 256)
ROWS = {
    "Euler, 1 substep": ("EULER", 1),
    "RK4, 5 substeps": ("RK4", 5),
}


SECTION = (
    "Simulations",
    """\
Gymnasium's humanoid in [MujocoSim](mujoco.md), in scans of ten steps with new controls
at each, beside MuJoCo without jax and beside C++ threads without any Python. Medians in
microseconds per simulation and step; a gradient is that of one step, with respect to
positions and controls.""",
)


def main() -> None:
    """Measure, print the tables, write the result file."""
    run(
        "sim",
        (__doc__ or "").splitlines()[0],
        ["mujoco", "gymnasium"],
        ((41, 0.02), (9, 0.01)),
        lambda quick: len(ROWS) * len(COUNTS) + 1,
        measure,
        show,
    )


def measure(clock: Clock, quick: bool) -> dict[str, Any]:
    """Make all comparisons; say what could not be one."""
    for row, (integrator, substeps) in ROWS.items():
        for count in COUNTS:
            model = humanoid(integrator)
            clock.compare(row, str(count), step_cases(model, substeps, count))
    clock.compare("gradient", "1", gradient_cases(humanoid("EULER")))
    for name, why in absent().items():
        clock.results.failed[name] = why
    return {}


def absent() -> dict[str, str]:
    """Return the rivals that cannot run here, and why."""
    found = {} if has_mjx() else {"MJX": "it is not installed"}
    if isinstance(in_cpp(), str):
        found["C++ threads, jax.ffi"] = str(in_cpp())
    return found


def show(results: Results) -> str:
    """Return the table, and the budgets."""
    return f"{table(results)}\n{budgets(results)}"


def per_step(found: Any) -> float:
    """Return the microseconds per simulation and step."""
    many = 1 if found.row == "gradient" else STEPS * int(found.size)
    return float(found.median) / many


def table(results: Any) -> str:
    """Return a line per row, number of simulations and rival."""
    lines = [["", "", "us", "of the Python loop"]]
    for found in results.found:
        floor = results.get(found.row, found.size, "MuJoCo, Python loop")
        times = report.number(found.median / floor.median) if floor else "-"
        cells = [f"{found.row}, {found.size}", found.rival]
        lines.append([*cells, report.number(per_step(found)), times])
    return "\n".join(report.aligned(lines, left=2))


BUDGETS = (
    ("RK4, 5 substeps", "64", "purestate, batch", "mujoco.rollout", 1.1),
    ("Euler, 1 substep", "64", "purestate, batch", "C++ threads, jax.ffi", 1.35),
    ("Euler, 1 substep", "256", "purestate, batch", "C++ threads, jax.ffi", 1.2),
    ("RK4, 5 substeps", "1", "purestate, batch", "MuJoCo, Python loop", 2.0),
    ("Euler, 1 substep", "1", "purestate, native", "MuJoCo, Python loop", 1.4),
    ("gradient", "1", "purestate, grad", "mjd_transitionFD", 1.8),
)


def budgets(results: Any) -> str:
    """Return what is promised beside what was measured."""
    lines = [["", "budget", "measured", ""]]
    for row, size, ours, other, limit in BUDGETS:
        found = ratio([results.get(row, size, ours)], [results.get(row, size, other)])
        if found is not None:
            verdict = "ok" if found[1] <= limit else "MISSED"
            what = f"of {other}, {row}, {size}"
            lines.append([what, f"{limit}", f"{found[1]:.2f}", verdict])
    return "\n" + "\n".join(report.aligned(lines))


if __name__ == "__main__":
    main()
