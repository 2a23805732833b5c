"""Saving a State to a file and loading it, beside what else writes arrays.

    python benchmarks/bench_save.py [--quick] [--out FILE]

Each rival saves the same float32 arrays and loads them as jax arrays. purestate alone
waits until the file is on the disk, and compares checksums when it loads. Memory is
measured in processes of their own.
"""

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import equinox
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.flax
from orbax.checkpoint.experimental import v1 as ocp

import purestate as ps
from benchmarks import report, script
from benchmarks.harness import Clock
from benchmarks.samples import Results, ratio

SECTION = (
    "Saving and loading",
    """\
[Files](saving.md) of the same arrays, written and read again. purestate waits until the
file is on the disk and compares checksums at loading; nobody else here does either. The
row without that wait tells what it costs.""",
)
MIB = 2**20
SIZES = {
    "1 MiB in 10": (1, 10),
    "1 MiB in 1,000": (1, 1000),
    "100 MiB in 10": (100, 10),
    "100 MiB in 1,000": (100, 1000),
}
SMALL = ("1 MiB in 10", "1 MiB in 1,000")
LARGE = ("100 MiB in 10", "100 MiB in 1,000")
MEMORY = 256, 8  # MiB, arrays
LEGEND = """\
Medians in milliseconds. Every load ends when all arrays are there.
"""
PEAKS = f"""\
Peak of resident memory above what was there before, in MiB, in a process of its own:
{MEMORY[0]} MiB of float32 in {MEMORY[1]} arrays. After a load that includes the arrays.
"""


class Arrays(ps.State):
    """The arrays, by name."""

    arrays: dict[str, jax.Array]


@dataclass(frozen=True)
class Rival:
    """Something that saves a dict of arrays.

    Attributes:
        save: gets a path and the arrays.
        load: gets a path and the arrays, as a template; returns arrays.
    """

    save: Callable[[str, dict[str, Any]], object]
    load: Callable[[str, dict[str, Any]], Any] | None


def synced(save: Callable[[str, Any], object]) -> Callable[[str, Any], object]:
    """Return a `save` that waits until the file is on the disk."""

    def save_and_wait(path: str, arrays: Any) -> None:
        save(path, arrays)
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    return save_and_wait


def unsynced(path: str, arrays: Any) -> None:
    """Save as purestate does, without the wait."""
    with mock.patch.object(os, "fsync", return_value=None):
        ps.save(path, Arrays(arrays))


def _with_pickle(path: str, arrays: Any) -> None:
    with open(path, "wb") as file:
        pickle.dump(arrays, file, protocol=5)


def _from_pickle(path: str, arrays: Any) -> Any:
    return pickle.loads(Path(path).read_bytes())


def _as_npz(path: str, arrays: Any) -> None:
    with open(path, "wb") as file:
        np.savez(file, **arrays)


def _from_npz(path: str, arrays: Any) -> Any:
    with np.load(path) as file:
        return {name: jnp.asarray(file[name]) for name in file.files}


def _from_flax(path: str, arrays: Any) -> Any:
    found = flax.serialization.from_bytes(arrays, Path(path).read_bytes())
    return jax.tree.map(jnp.asarray, found)


def _to_flax(path: str, arrays: Any) -> object:
    return Path(path).write_bytes(flax.serialization.to_bytes(arrays))


SAFETENSORS = "safetensors"
SYNCED = "safetensors, synced"
OURS, BY_CLASS, UNSYNCED = "purestate", "purestate, by class", "purestate, no fsync"
ORBAX = "orbax v1"
RIVALS = {
    OURS: Rival(
        lambda path, arrays: ps.save(path, Arrays(arrays)),
        lambda path, arrays: ps.load(path, Arrays(arrays)),
    ),
    BY_CLASS: Rival(
        lambda path, arrays: ps.save(path, Arrays(arrays)),
        lambda path, arrays: ps.load(path, Arrays),
    ),
    UNSYNCED: Rival(unsynced, None),
    SAFETENSORS: Rival(
        lambda path, arrays: safetensors.flax.save_file(arrays, path),
        lambda path, arrays: safetensors.flax.load_file(path),
    ),
    SYNCED: Rival(
        synced(lambda path, arrays: safetensors.flax.save_file(arrays, path)), None
    ),
    ORBAX: Rival(
        lambda path, arrays: ocp.save(path, arrays, overwrite=True),
        lambda path, arrays: ocp.load(path, arrays),
    ),
    "flax": Rival(_to_flax, _from_flax),
    "equinox": Rival(equinox.tree_serialise_leaves, equinox.tree_deserialise_leaves),
    "pickle": Rival(_with_pickle, _from_pickle),
    "np.savez": Rival(_as_npz, _from_npz),
}
# Where, what, who, beside whom, and the largest ratio.
BUDGETS = (
    *((size, "save", OURS, SYNCED, 2.3) for size in LARGE),
    *((size, "save", OURS, ORBAX, 0.4) for size in LARGE),
    ("1 MiB in 1,000", "save", UNSYNCED, SAFETENSORS, 2.2),
    *((size, "load", OURS, SAFETENSORS, 1.7) for size in LARGE),
    *((size, "load", OURS, ORBAX, 0.4) for size in LARGE),
    *((size, "load", OURS, "flax", 1.0) for size in LARGE),
)
# Of the process that is measured: the largest MiB above what was there.
PEAK_BUDGETS = (
    ("save", MEMORY[0] / MEMORY[1] + 16),
    ("load", MEMORY[0] * (1 + 2 / MEMORY[1]) + 64),
    ("load and donate", MEMORY[0] * (1 + 2 / MEMORY[1]) + 64),
)


def main() -> None:
    """Measure, print the tables and the budgets, write the result file."""
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(peaks(sys.argv[2], *json.loads(sys.argv[3]))))
        return
    script.run(
        "save",
        __doc__.splitlines()[0],
        ["safetensors", "orbax-checkpoint", "flax", "equinox"],
        ((15, 0.0), (3, 0.0)),
        lambda quick: 2 * len(SMALL if quick else SIZES) + len(_measured(quick)),
        measure,
        show,
    )


def arrays_of(mebibytes: int, count: int) -> dict[str, jax.Array]:
    """Return `count` arrays of random numbers."""
    size = mebibytes * MIB // 4 // count
    key = jax.random.key(0)
    made = jax.random.normal(key, (count, size))
    return {f"layer{i}.weight": jnp.array(made[i]) for i in range(count)}


def _measured(quick: bool) -> tuple[str, ...]:
    """Return whose memory is measured."""
    return (OURS,) if quick else (OURS, SAFETENSORS, ORBAX, "flax", "pickle")


def measure(clock: Clock, quick: bool) -> None:
    """Time every rival at every size, in turns; then measure memory."""
    for size in SMALL if quick else SIZES:
        arrays = jax.block_until_ready(arrays_of(*SIZES[size]))
        with tempfile.TemporaryDirectory() as folder:
            for what in ("save", "load"):
                timed = {
                    name: timer(rival, what, str(Path(folder) / str(i)), arrays)
                    for i, (name, rival) in enumerate(RIVALS.items())
                    if getattr(rival, what) is not None
                }
                clock.interleave(
                    what, size, timed, rounds=clock.rounds, unit="ms", scale=1e3
                )
    for name in _measured(quick):
        command = [sys.executable, "-W", "ignore", __file__, "--child", name]
        command.append(json.dumps((16, 4) if quick else MEMORY))
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        for what, peak in json.loads(done.stdout.splitlines()[-1]).items():
            clock.add("peak", what, name, "MiB", [peak])
        clock.tell(f"memory of {name}")


def timer(
    rival: Rival, what: str, path: str, arrays: dict[str, Any]
) -> Callable[[], float]:
    """Return a function that saves or loads once and tells how long it took."""
    act: Any = getattr(rival, what)

    def timed() -> float:
        start = time.perf_counter()
        jax.block_until_ready(act(path, arrays))
        return time.perf_counter() - start

    rival.save(path, arrays)
    act(path, arrays)  # the first time imports and compiles
    return timed


def peaks(name: str, mebibytes: int, count: int) -> dict[str, float]:
    """Return peaks of this process' memory, above what was there, in MiB."""
    rival, small = RIVALS[name], arrays_of(1, count)
    folder = tempfile.mkdtemp()
    path = str(Path(folder) / "file")
    try:
        found = {}
        # All is imported and compiled by then.
        rival.save(path, small)
        jax.block_until_ready(rival.load(path, small))
        arrays = jax.block_until_ready(arrays_of(mebibytes, count))
        before = _reset()
        rival.save(path, arrays)
        found["save"] = _status("VmHWM") - before
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arrays)
        del arrays
        before = _reset()
        loaded = jax.block_until_ready(rival.load(path, like))
        found["load"] = _status("VmHWM") - before
        step = jax.jit(lambda x: jax.tree.map(lambda a: a + 1, x), donate_argnums=0)
        jax.block_until_ready(step(loaded))
        found["load and donate"] = _status("VmHWM") - before
    finally:
        shutil.rmtree(folder)
    return found


def _reset() -> float:
    """Forget the peak so far; return what memory is there, in MiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise KeyError(name)


def show(results: Results) -> str:
    """Return a table for saving, one for loading, one of memory, and the budgets."""
    sizes = [size for size in SIZES if results.get("save", size, OURS) is not None]
    peak = [what for what, _ in PEAK_BUDGETS]
    parts = [LEGEND.strip()]
    parts += [_table(results, what, what, sizes) for what in ("save", "load")]
    parts += [PEAKS.strip(), _table(results, "peak", "peak memory", peak)]
    return "\n\n".join([*parts, budgets(results)])


def _table(results: Results, row: str, title: str, columns: list[str]) -> str:
    lines = [[title, *columns]]
    for name in RIVALS:
        found = [results.get(row, column, name) for column in columns]
        if any(found):
            cells = (report.number(one.median) if one else "-" for one in found)
            lines.append([name, *cells])
    return "\n".join(report.aligned(lines))


def budgets(results: Results) -> str:
    """Return a line for each budget."""
    lines = [["budget", "", "at most", "measured", ""]]
    for size, what, who, rival, limit in BUDGETS:
        pair = [results.get(what, size, name) for name in (who, rival)]
        found = ratio(pair[:1], pair[1:])
        if found is not None:
            verdict = "ok" if found[1] <= limit else "MISSED"
            cells = [f"{limit:.1f} x", f"{found[1]:.2f} x", verdict]
            lines.append([f"{what}: {who} / {rival}", size, *cells])
    for what, limit in PEAK_BUDGETS:
        peak = results.get("peak", what, OURS)
        if peak is not None:
            verdict = "ok" if peak.median <= limit else "MISSED"
            cells = [f"{limit:.0f} MiB", f"{peak.median:.0f} MiB", verdict]
            lines.append([f"peak: {what}", "", *cells])
    return "\n".join(report.aligned(lines, left=2))


if __name__ == "__main__":
    main()
