"""What every `bench_*` script does around its measurements.

The suite, `python -m benchmarks`, runs each `benchmarks/bench_*.py` in a process of its
own. All that it asks of one: it takes `--quick` and `--out FILE`, prints its tables,
tells on stderr how far it is, and writes a result file with `report.save`. To join the
suite, put such a file here. For the page it may offer `show(results)`, which returns
its tables, and `SECTION`, a title and a paragraph; see `page`.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

import purestate as ps
from benchmarks import report
from benchmarks.harness import Clock, machine, progress, versions
from benchmarks.samples import Results

RESULTS = Path(__file__).parent / "results"


def run(
    what: str,
    description: str,
    packages: Sequence[str],
    effort: tuple[tuple[int, float], tuple[int, float]],
    total: Callable[[bool], int],
    measure: Callable[[Clock, bool], dict[str, Any] | None],
    show: Callable[[Results], str],
) -> None:
    """Measure, print the tables and write the result file.

    Args:
        what: the name of the result file.
        description: the first line of the help.
        packages: whose versions are noted beside those of jax and numpy.
        effort: rounds, and seconds in a round, in a full and in a quick run.
        total: how many comparisons there are, quick or not.
        measure: makes them; what it returns is kept in the result file.
        show: returns the tables.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a rough run")
    parser.add_argument("--out", type=Path, help="the result file")
    chosen = parser.parse_args()
    # A program from a cache of an earlier run would be no first call.
    jax.config.update("jax_enable_compilation_cache", False)
    about: dict[str, Any] = {
        "what": what,
        "quick": chosen.quick,
        "machine": f"{machine()}, jax on {jax.default_backend()}",
        "versions": {
            "purestate": ps.__version__,
            **versions(["jax", "jaxlib", "numpy", *packages]),
        },
    }
    shown = [f"{name} {version}" for name, version in about["versions"].items()]
    print(f"{about['machine']}\n{', '.join(shown)}\n", flush=True)
    with progress(total(chosen.quick)) as tell:
        clock = Clock(*effort[chosen.quick], tell)
        about |= measure(clock, chosen.quick) or {}
    results = clock.results
    print(show(results))
    for where, why in results.failed.items():
        print(f"not measured: {where}: {why}")
    quick = "-quick" if chosen.quick else ""
    path = chosen.out or RESULTS / f"{what}{quick}.json"
    report.save(path, about, results)
    print(f"\n{path}")
