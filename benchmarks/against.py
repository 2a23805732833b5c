"""Two versions of purestate against each other: has a change made anything slower?

    python -m benchmarks.against OLD/src NEW/src [--rounds 9]

Each folder is measured in processes of its own, by turns, and a ratio is the median,
over the rounds, of what the new one took over what the old one took. Only public names
are used, so that the sources may differ in all else.
"""

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import imports
from benchmarks.harness import Case, Clock, machine, progress, versions
from benchmarks.report import aligned, number
from benchmarks.samples import Result, ratio

ROOT = Path(__file__).resolve().parent.parent
NAMES = [f"f{i}" for i in range(256)]
IMPORT = "import after jax.extend"
LENGTH = 1000  # steps of the scan
SCAN = "host call of 8 B, in a scan"
# What is timed, and whether it waits for a device.
ROWS = (
    ("class creation", "type('S', (State,), dict(body))", False),
    ("construct", f"S({', '.join(NAMES[:16])})", False),
    ("flatten", "flatten(s)", False),
    ("unflatten", "unflatten(leaves)", False),
    ("replace one", "s.replace(f8=v)", False),
    ("replace one, checked, of 256", "checked.replace(f8=v)", False),
    ("replace static, beside 256", "static.replace(g='b')", False),
    ("copy.copy of 256", "copy(static)", False),
    ("ps.jit call", "step(s).f0.block_until_ready()", True),
    ("host call of 8 B, jitted", "jitted(x).block_until_ready()", True),
    (SCAN, "scanned(x).block_until_ready()", True),
    ("host call of 8 B, eager", "eager(x)", True),
)


def main() -> None:
    """Measure both sources, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="the folder that holds purestate/")
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=9, help="processes of each")
    chosen = parser.parse_args()
    sources = {"old": chosen.old.resolve(), "new": chosen.new.resolve()}
    for source in sources.values():
        if not (source / "purestate").is_dir():
            parser.error(f"there is no purestate/ in {source}")
    print(f"{machine()}\n{about(sources)}\n", flush=True)
    print(table(measured(sources, chosen.rounds)))


def measured(sources: dict[str, Path], rounds: int) -> dict[str, dict[str, Result]]:
    """Return the result of each source by row, a sample per process."""
    taken: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as cache, progress(2 * rounds) as tell:
        for source in sources.values():
            importing(source, cache)  # writes the bytecode
        for turn in range(rounds):
            for who, source in sources.items():
                found = {IMPORT: importing(source, cache)}
                for row, us in (found | in_a_process(source)).items():
                    taken.setdefault(row, {}).setdefault(who, []).append(us)
                tell(f"{who}, round {turn + 1}")
    return {
        row: {who: Result(row, "", who, "us", tuple(us)) for who, us in found.items()}
        for row, found in taken.items()
    }


def importing(source: Path, cache: str) -> float:
    """Return what an import takes, in microseconds, beside what it needs of jax."""
    before, env = "import jax, jax.extend.core", environment(source)
    return 1e6 * imports.seconds(cache, "import purestate", before, env)[1]


def environment(source: Path) -> dict[str, str]:
    """Return an environment in which purestate is that of a folder."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(source), str(ROOT)])}


def in_a_process(source: Path) -> dict[str, float]:
    """Return what each row takes with one source, in microseconds.

    Raises:
        RuntimeError: the process failed; its last line says why.
    """
    code = "import sys; from benchmarks import against; against.child(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(source)],
        env=environment(source),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise RuntimeError(f"{source} cannot be measured: {why}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def child(source: str) -> None:
    """Measure the purestate of this process, print microseconds by row."""
    import jax

    import purestate as ps

    jax.config.update("jax_enable_compilation_cache", False)
    if not Path(ps.__file__).is_relative_to(source):
        raise ImportError(f"purestate came from {ps.__file__}")
    clock = Clock(21, 0.002, lambda text: None)
    names = scope(ps)
    for row, statement, waits in ROWS:
        clock.compare(row, "", [Case("", statement, names, waits=waits)])
    if clock.results.failed:
        raise RuntimeError(clock.results.failed)
    medians = {result.row: result.median for result in clock.results.found}
    medians[SCAN] /= LENGTH
    print(json.dumps(medians))


def scope(ps: Any) -> dict[str, Any]:
    """Return the names that the statements use."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def body(count: int, **more: Any) -> dict[str, Any]:
        fields = dict.fromkeys(NAMES[:count], jax.Array)
        annotations = fields | ({"g": str} if "g" in more else {})
        return {"__module__": __name__, "__annotations__": annotations, **more}

    few, values = body(16), {name: jnp.float32(i) for i, name in enumerate(NAMES)}
    some = type("S", (ps.State,), dict(few))
    checked = type("S", (ps.State,), body(256, __check__=lambda self: None))
    static = type("S", (ps.State,), body(256, g=ps.static(default="a")))
    s: Any = some(**{name: values[name] for name in few["__annotations__"]})
    leaves, treedef = jax.tree.flatten(s)
    host = ps.host_function(lambda x: x + np.float32(1), out=lambda x: x)
    return values | {
        "State": ps.State,
        "body": few,
        "S": some,
        "s": s,
        "v": jnp.float32(-1),
        "flatten": jax.tree.flatten,
        "leaves": leaves,
        "unflatten": treedef.unflatten,
        "checked": checked(**values),
        "static": static(**values),
        "copy": copy.copy,
        "x": jnp.ones(2, jnp.float32),
        "step": ps.jit(lambda s: s.replace(f0=s.f0 + 1)),
        "jitted": jax.jit(host),
        "scanned": jax.jit(
            lambda x: jax.lax.scan(lambda c, _: (host(c), None), x, length=LENGTH)[0]
        ),
        "eager": host,
    }


def about(sources: dict[str, Path]) -> str:
    """Return the versions, and where the sources are."""
    found = versions(["jax", "jaxlib", "numpy"])
    shown = ", ".join(f"{name} {version}" for name, version in found.items())
    return "\n".join([shown, *(f"{who}: {path}" for who, path in sources.items())])


def table(results: dict[str, dict[str, Result]]) -> str:
    """Return a line per row; slower is what took 3 % more, in three rounds of four."""
    lines = [["us, medians", "old", "new", "new / old", "quartiles", ""]]
    for row, of in results.items():
        low, middle, high = ratio([of["new"]], [of["old"]]) or (float("nan"),) * 3
        slower, faster = low > 1 and middle > 1.03, high < 1 and middle < 1 / 1.03
        verdict = "slower" if slower else "faster" if faster else ""
        medians = [number(of[who].median) for who in ("old", "new")]
        spread = f"{low:.2f} to {high:.2f}"
        lines.append([row, *medians, f"{middle:.2f}", spread, verdict])
    return "\n".join(aligned(lines))


if __name__ == "__main__":
    main()
