"""How the cost of a step grows: with the leaves of a State, its bytes and its depth.

    python benchmarks/bench_scaling.py [--quick] [--out FILE]

Each step adds one to the first leaf. By leaves: 8 floats each, in one State. By bytes:
four leaves. By depth: 64 leaves, in a chain of nested States.
"""

import collections
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp

import purestate as ps
from benchmarks import report, script
from benchmarks.harness import Case, Clock
from benchmarks.samples import Results

LEAVES = 1, 4, 16, 64, 128, 256, 512
BYTES = 1 << 6, 1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26
DEPTHS = 1, 2, 4, 8, 16, 32
RIVALS = ("NamedTuple", "plain", "donated", "packed", "packed, donated")
LEGEND = """\
Medians in microseconds per step, waited for: processor time of the calling thread by
leaves and depth, wall time by bytes.
"""


def main() -> None:
    """Measure, print the tables, write the result file."""
    script.run(
        "scaling",
        __doc__.splitlines()[0],
        [],
        ((61, 0.003), (7, 0.001)),
        lambda quick: sum(len(sizes(row, quick)) for row in ROWS),
        measure,
        show,
    )


def sizes(row: str, quick: bool) -> tuple[int, ...]:
    """Return the sizes of one row, every other one in a quick run."""
    return ROWS[row][0][:: 2 if quick else 1]


def measure(clock: Clock, quick: bool) -> None:
    """Time a step at each size of each row."""
    for row, (_, make) in ROWS.items():
        for size in sizes(row, quick):
            cases = []
            for rival in RIVALS:
                state, step = make(size, rival)
                scope = {"s": state, "step": step, "wait": jax.block_until_ready}
                code = "global s; s = step(s); wait(s)"
                cases.append(Case(rival, code, scope, waits=row == "bytes"))
            clock.compare(row, str(size), cases)


def flat(leaves: list[Any], rival: str) -> Any:
    """Return one container of the leaves, and its step."""
    names = [f"f{i}" for i in range(len(leaves))]
    if rival == "NamedTuple":
        made = collections.namedtuple("N", names)(*leaves)
        return made, jax.jit(lambda s: s._replace(f0=s.f0 + 1))
    cls = type("S", (ps.State,), {"__annotations__": dict.fromkeys(names, jax.Array)})
    return held(cls(*leaves), lambda s: s.replace(f0=s.f0 + 1), rival)


def held(state: Any, step: Callable[[Any], Any], rival: str) -> Any:
    """Return a State as a rival holds it, and its jitted step."""
    packed = ps.pack(state) if rival.startswith("packed") else state
    return packed, ps.jit(step, donate="donated" in rival)


def by_leaves(count: int, rival: str) -> Any:
    """Return a State of `count` leaves."""
    return flat([jnp.full(8, i, jnp.float32) for i in range(count)], rival)


def by_bytes(size: int, rival: str) -> Any:
    """Return a State of four leaves of `size / 4` bytes."""
    return flat([jnp.full(size // 16, i, jnp.float32) for i in range(4)], rival)


def by_depth(depth: int, rival: str) -> Any:
    """Return 64 leaves in a chain of `depth` States, each inside of the one before."""
    per = 64 // depth
    names = [f"f{i}" for i in range(per)]
    if rival == "NamedTuple":
        tuples = collections.namedtuple("N", [*names, "inner"])
        make: Any = tuples
        replace: Any = tuples._replace
    else:
        types = dict.fromkeys(names, jax.Array) | {"inner": object}
        make = type("S", (ps.State,), {"__annotations__": types})
        replace = make.replace
    state = None
    for level in range(depth):
        leaves = [jnp.full(8, level * per + i, jnp.float32) for i in range(per)]
        state = make(*leaves, state)

    def step(s: Any) -> Any:
        return replace(s, f0=s.f0 + 1)

    if rival == "NamedTuple":
        return state, jax.jit(step)
    return held(state, step, rival)


ROWS: dict[str, tuple[tuple[int, ...], Callable[[int, str], Any]]] = {
    "leaves": (LEAVES, by_leaves),
    "bytes": (BYTES, by_bytes),
    "depth": (DEPTHS, by_depth),
}


def show(results: Results) -> str:
    """Return a table for each row, with the fitted slopes."""
    blocks = [LEGEND]
    for row in ROWS:
        lines = [[row, *RIVALS]]
        for size in [size for name, size in results.rows() if name == row]:
            found = [results.get(row, size, rival) for rival in RIVALS]
            cells = [report.number(r.median) if r else "-" for r in found]
            lines.append([size, *cells])
        lines.append(["slope", *(report.slope(results, row, r) for r in RIVALS)])
        blocks.append("\n".join(report.aligned(lines)))
    return "\n\n".join(blocks)


if __name__ == "__main__":
    main()
