"""One jitted step, state in and state out: what dispatch costs, plain and donated.

    python benchmarks/bench_step.py [--quick] [--out FILE]

Every step adds one to the first leaf and passes the others through, so that what is
timed is the call itself. The loop feeds each result into the next call, as training
does, and waits for it.
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
from benchmarks.samples import quartiles, ratio

PEERS = ["flax", "equinox"]
FEW = 4  # floats in a leaf so small that jax computes in the calling thread
# Leaves, and floats per leaf.
SIZES = {
    "6 leaves": (6, FEW),
    "100 leaves": (100, FEW),
    "1000 leaves": (1000, FEW),
    "6 leaves of 4 MiB": (6, 1 << 20),
}
LEGEND = """\
Medians in microseconds per step, waited for: processor time of the calling thread,
which leaves out what other processes take, and wall time for the large leaves.
donated: the state's buffers are given to the call, which writes into them.
spread: half the distance between the quartiles, for the middle and the worst rival.
"""
Maker = Callable[[int, list[Any]], tuple[Any, Callable[[Any], Any]]]


def main() -> None:
    """Measure, print the tables and the budgets, write the result file."""
    script.run(
        "step",
        __doc__.splitlines()[0],
        PEERS,
        ((201, 0.004), (15, 0.002)),
        lambda quick: len(SIZES) - quick,
        measure,
        show,
    )


def measure(clock: Clock, quick: bool) -> None:
    """Compare all rivals at each size."""
    for title, (leaves, floats) in SIZES.items():
        if quick and leaves > 100:
            continue
        clock.compare("step", title, cases(clock, title, leaves, floats))


def cases(clock: Clock, title: str, leaves: int, floats: int) -> list[Case]:
    """Return a case for each rival that is installed."""
    found = []
    for rival, make in RIVALS.items():
        values = [jnp.full(floats, float(i)) for i in range(leaves)]
        try:
            state, step = make(leaves, values)
        except Exception as error:  # noqa: BLE001  # a peer that is absent or broken
            clock.note("step", title, rival, error)
            continue
        scope = {"s": state, "step": step, "wait": jax.block_until_ready}
        # nnx changes its module in place and returns none.
        code = "s = step(s); wait(s.f0)"
        if rival == "nnx.jit":
            code = "step(s); wait(s.f0)"
        elif "packed" in rival:  # a field would be cut out of its buffer
            code = "s = step(s); wait(s)"
        found.append(Case(rival, f"global s; {code}", scope, waits=floats != FEW))
    return found


def names(count: int) -> list[str]:
    """Return the names of the fields."""
    return [f"f{i}" for i in range(count)]


def state_class(count: int) -> Any:
    """Return a State class with that many array fields."""
    body = {"__annotations__": dict.fromkeys(names(count), jax.Array)}
    return type("S", (ps.State,), body)


def purestate(jit: Callable[..., Any], **options: Any) -> Maker:
    """Return a maker for a State under the given jit."""

    def make(count: int, values: list[Any]) -> Any:
        step = jit(lambda s: s.replace(f0=s.f0 + 1), **options)
        return state_class(count)(*values), step

    return make


def packed(**options: Any) -> Maker:
    """Return a maker for a packed State under `ps.jit`."""

    def make(count: int, values: list[Any]) -> Any:
        state, step = purestate(ps.jit, **options)(count, values)
        return ps.pack(state), step

    return make


def named_tuple(**options: Any) -> Maker:
    """Return a maker for a NamedTuple, the floor of a container with names."""

    def make(count: int, values: list[Any]) -> Any:
        cls = collections.namedtuple("S", names(count))
        return cls(*values), jax.jit(lambda s: s._replace(f0=s.f0 + 1), **options)

    return make


def flax_struct(**options: Any) -> Maker:
    """Return a maker for flax.struct."""

    def make(count: int, values: list[Any]) -> Any:
        from flax import struct

        body = {"__annotations__": dict.fromkeys(names(count), jax.Array)}
        cls: Any = struct.dataclass(type("S", (), body))
        return cls(*values), jax.jit(lambda s: s.replace(f0=s.f0 + 1), **options)

    return make


def equinox_module(jit: str, **options: Any) -> Maker:
    """Return a maker for equinox, under its own jit or under jax's."""

    def make(count: int, values: list[Any]) -> Any:
        import equinox as eqx

        body = {"__annotations__": dict.fromkeys(names(count), jax.Array)}
        cls: Any = type(eqx.Module)("S", (eqx.Module,), body)
        compile_ = eqx.filter_jit if jit == "filter_jit" else jax.jit
        first = lambda s: s.f0  # noqa: E731  # what tree_at takes
        step = compile_(lambda s: eqx.tree_at(first, s, s.f0 + 1), **options)
        return cls(*values), step

    return make


def nnx_module(count: int, values: list[Any]) -> Any:
    """Make an nnx module, which its jitted step changes in place."""
    from flax import nnx

    class Module(nnx.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            for name, value in zip(names(count), values, strict=True):
                setattr(self, name, nnx.Variable(value))

    def step(module: Any) -> None:
        module.f0[...] = module.f0[...] + 1

    return Module(), nnx.jit(step)


RIVALS: dict[str, Maker] = {
    "ps.jit": purestate(ps.jit),
    "jax.jit on a State": purestate(jax.jit),
    "ps.jit, donated": purestate(ps.jit, donate=True),
    "jax.jit on a State, donated": purestate(jax.jit, donate_argnums=0),
    "ps.jit, packed": packed(),
    "ps.jit, packed, donated": packed(donate=True),
    "NamedTuple": named_tuple(),
    "NamedTuple, donated": named_tuple(donate_argnums=0),
    "flax.struct": flax_struct(),
    "flax.struct, donated": flax_struct(donate_argnums=0),
    "equinox, jax.jit": equinox_module("jit"),
    "equinox, jax.jit, donated": equinox_module("jit", donate_argnums=0),
    "equinox, filter_jit": equinox_module("filter_jit"),
    "equinox, filter_jit, donated": equinox_module("filter_jit", donate="all"),
    "nnx.jit": nnx_module,
}


def show(results: Any) -> str:
    """Return the table and the budgets."""
    return "\n".join([LEGEND, vertical(results), budgets(results)])


def vertical(results: Any) -> str:
    """Return a table with a line per rival and a column per size."""
    sizes = [size for row, size in results.rows() if row == "step"]
    rows = [["", *sizes]]
    for rival in RIVALS:
        found = [results.get("step", size, rival) for size in sizes]
        cells = [report.number(r.median) if r else "-" for r in found]
        rows.append([rival, *cells])
    spread = ["spread %"]
    for size in sizes:
        kept = [r for r in results.found if r.size == size]
        wide = sorted(
            50 * (q[2] - q[0]) / q[1] for q in (quartiles(r.samples) for r in kept)
        )
        spread.append(f"{wide[len(wide) // 2]:.0f}, {wide[-1]:.0f}")
    return "\n".join(report.aligned([*rows, spread]))


def budgets(results: Any) -> str:
    """Return what is promised beside what was measured."""
    lines = [["", "budget", "measured", ""]]

    def promise(text: str, limit: float, above: str, below: str, size: str) -> None:
        found = ratio(
            [results.get("step", size, above)], [results.get("step", size, below)]
        )
        if found is not None:
            verdict = "ok" if found[1] <= limit else "MISSED"
            lines.append([f"{text}, {size}", f"{limit}", f"{found[1]:.3f}", verdict])

    # With large leaves the call is all memory traffic, and its noise hides the rest.
    for size in [size for size, (_, floats) in SIZES.items() if floats == FEW]:
        promise("ps.jit / jax.jit", 1.05, "ps.jit", "jax.jit on a State", size)
        promise("State / NamedTuple", 1.08, "jax.jit on a State", "NamedTuple", size)
        given, plain = (
            results.get("step", size, name)
            for name in ("ps.jit, donated", "jax.jit on a State, donated")
        )
        if given and plain:
            more = given.median - plain.median
            verdict = "ok" if more <= 2 else "MISSED"
            text = f"donation by ps.jit, us more, {size}"
            lines.append([text, "2", f"{more:.2f}", verdict])
    gains = []
    for size in SIZES:
        found = ratio(
            [results.get("step", size, "ps.jit, donated")],
            [results.get("step", size, "ps.jit")],
        )
        if found is not None:
            gains.append([f"donated / plain, {size}", "", f"{found[1]:.2f}", ""])
    return "\n" + "\n".join(report.aligned([*lines, *gains]))


if __name__ == "__main__":
    main()
