"""The whole suite: every `bench_*.py`, then the page that is made of the results.

    python -m benchmarks [--quick] [--only state,step] [--page]

A full run writes `benchmarks/results/`, `docs/benchmarks.md`, its plots, and the
figures in README.md. A quick one, too rough to be quoted, writes to `out/benchmarks/`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import page

ROOT = Path(__file__).resolve().parent.parent
FIRST = ("state", "step", "pack", "mutable", "scaling", "host")


def main() -> int:
    """Run what is asked for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a rough run")
    parser.add_argument("--only", default="", help="names of scripts, with commas")
    parser.add_argument("--page", action="store_true", help="measure nothing")
    chosen = parser.parse_args()
    results = ROOT / "benchmarks" / "results"
    if chosen.quick:
        results = ROOT / "out" / "benchmarks"
    results.mkdir(parents=True, exist_ok=True)
    failed = [] if chosen.page else run(results, chosen.quick, chosen.only)
    if chosen.quick:
        written = page.write(results, results, None)
    else:
        written = page.write(results, ROOT / "docs", ROOT / "README.md")
    print("\n".join(["", "written:", *(f"  {path}" for path in written)]))
    for name in failed:
        print(f"FAILED: {name}", file=sys.stderr)
    return 1 if failed else 0


def scripts(only: str) -> dict[str, Path]:
    """Return the scripts by name, those that the page starts with first."""
    folder = ROOT / "benchmarks"
    found = {p.stem.removeprefix("bench_"): p for p in folder.glob("bench_*.py")}
    order = [n for n in FIRST if n in found] + sorted(found.keys() - set(FIRST))
    wanted = only.split(",") if only else order
    return {name: found[name] for name in order if name in wanted}


def run(results: Path, quick: bool, only: str) -> list[str]:
    """Run the scripts, each in its own process; return those that failed."""
    told = results / "suite.json"
    about = json.loads(told.read_text()) if only and told.exists() else {}
    failed, todo = [], scripts(only)
    for i, (name, path) in enumerate(todo.items(), start=1):
        print(f"\n== {name} ({i} of {len(todo)})", flush=True)
        start, load = time.perf_counter(), os.getloadavg()[0]
        command = [sys.executable, "-W", "ignore", str(path)]
        command += ["--out", str(results / f"{name}.json")]
        done = subprocess.run([*command, *(["--quick"] if quick else [])], check=False)
        seconds = time.perf_counter() - start
        if done.returncode:
            failed.append(name)
        about[name] = {"seconds": round(seconds), "load before": round(load, 1)}
    unfinished = told.with_suffix(".new")
    unfinished.write_text(json.dumps(about, indent=1))
    unfinished.replace(told)
    return failed


if __name__ == "__main__":
    sys.exit(main())
