"""The page docs/benchmarks.md, its plots, and the figures in README.md.

Everything here is made of the result files alone, so a test can make it again and
compare. A benchmark `bench_NAME.py` that offers `show(results)` decides how its tables
look, and may offer `SECTION`, its title and a paragraph.
"""

import importlib
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import plots, report
from benchmarks.samples import Result, Results, ratio

FIRST = ("state", "step", "pack", "mutable", "scaling", "host")
LAST = ("floor",)
SECTIONS = {
    "state": (
        "Containers",
        """\
What an object costs, whatever it holds, beside named tuples, dataclasses and other
libraries. At the end: the budgets, and every row in which somebody is faster.""",
    ),
    "step": (
        "A jitted step",
        """\
State in, state out: one leaf gets one added, the others pass through, so what is timed
is the call.""",
    ),
    "pack": (
        "Packed states",
        """\
[ps.pack](pack.md) against the same State as it is. The gain is in the dispatch: the
work on the leaves stays, and XLA spends its own time on each.""",
    ),
    "mutable": (
        "Functional against mutable",
        """\
Five programs, each with its state held in these ways; their states agree after a
thousand steps. `benchmarks/workloads.py` has the programs, `benchmarks/ways.py` the
ways.""",
    ),
    "scaling": (
        "Scaling",
        """\
A step that changes one leaf. The slope is the fitted cost per leaf, per byte and per
level, in microseconds.""",
    ),
    "host": ("Host functions", "[ps.host_function](host.md) against JAX's callback."),
}
INTRODUCTION = """\
This page is made by `make bench`; do not edit it. What is quoted are medians. Rivals
take turns within each round, every statement waits for its result, and ratios are taken
within a round. `python -m benchmarks.report OLD NEW` compares two of the files in
`benchmarks/results/`, and `python -m benchmarks.against OLD/src NEW/src` two versions
of purestate."""
# What is done, where the figures are, and the two rivals.
PURE = (
    (
        "read a field; beside a dataclass",
        ("state", "attribute read", "16 fields"),
        ("purestate", "dataclass"),
    ),
    (
        "a jitted step on 6 small arrays; beside a NamedTuple",
        ("step", "step", "6 leaves"),
        ("ps.jit", "NamedTuple"),
    ),
    (
        "update running statistics; beside an object that is assigned outside of jit",
        ("mutable", "step", "running statistics, 8 floats"),
        ("State, replace", "object, assigned outside"),
    ),
    (
        "push into 256 MiB and sample, donated; beside numpy in place",
        ("mutable", "step", "replay buffer, 256 MiB"),
        ("State, donated", "numpy in place"),
    ),
    (
        "a step of 256 particles in a scan; beside numpy in place",
        ("mutable", "step", "particles, 256 of them"),
        ("State in a scan", "numpy in place"),
    ),
)
STEP = """\
On two cores of a CPU, with Python {python} and jax {jax}, a step that changes one of
100 small leaves takes {plain:.0f} µs, {donated:.0f} µs when the state is donated and
{packed:.0f} µs when it is packed; with six leaves of 4 MiB it takes {large:.1f} ms, and
{given:.1f} ms donated. `ps.jit` itself adds {more:.0f} % to `jax.jit` at six leaves.
[docs/benchmarks.md](docs/benchmarks.md) has the tables, next to a `NamedTuple`, flax,
equinox and mutable objects; `make bench` makes them."""
HOST = """\
A call takes {jit:.0f} % of the time of one through `jax.pure_callback`, in a scan
{scan:.0f} % (`make bench`)."""
SIM = """\
A batch of 64 humanoids, five RK4 substeps each, takes {threads:.2f} times what MuJoCo
takes in C++ threads and {loop:.2f} times what it takes in a Python loop; a gradient
takes {gradient:.1f} times what MuJoCo's own differences take
([benchmarks](docs/benchmarks.md#simulations))."""


def write(results: Path, folder: Path, readme: Path | None) -> list[Path]:
    """Write the page and the plots into a folder, and the figures into README.md."""
    written = plots.write(results, folder)
    page = folder / "benchmarks.md"
    _replace(page, render(results))
    written.append(page)
    if readme is not None:
        _replace(readme, with_figures(readme.read_text(), figures(results)))
        written.append(readme)
    return written


def render(results: Path) -> str:
    """Return the page."""
    names = found(results)
    parts = [
        "# Benchmarks",
        INTRODUCTION,
        ran_on(results, names),
        "## What does it cost me to be pure?",
        pure(results),
    ]
    for name in names:
        parts += section(results, name)
    return "\n\n".join(parts) + "\n"


def found(results: Path) -> list[str]:
    """Return the names of the result files, in the order of the page."""
    names = {path.stem for path in results.glob("*.json")} - {"suite"}
    middle = sorted(names - {*FIRST, *LAST})
    return [name for name in (*FIRST, *middle, *LAST) if name in names]


def ran_on(results: Path, names: list[str]) -> str:
    """Return what ran where, and how busy the machine was."""
    about = [report.about(results / f"{name}.json") for name in names]
    versions: dict[str, str] = {}
    for one in about:
        versions |= one["versions"]
    shown = ", ".join(f"{name} {version}" for name, version in versions.items())
    told = results / "suite.json"
    suite = json.loads(told.read_text()) if told.exists() else {}
    loads = [suite[name]["load before"] for name in names if name in suite]
    load = (
        f" Load average before the scripts: {min(loads)} to {max(loads)}."
        if loads
        else ""
    )
    return f"{about[0]['machine']}. {shown}.{load}"


def section(results: Path, name: str) -> list[str]:
    """Return the parts of the page about one result file."""
    module: Any = None
    if Path(__file__).with_name(f"bench_{name}.py").exists():
        module = importlib.import_module(f"benchmarks.bench_{name}")
    loaded = report.load(results / f"{name}.json")
    title, text = getattr(module, "SECTION", SECTIONS.get(name, (name, "")))
    show: Callable[[Results], str] = getattr(module, "show", report.everything)
    parts = [f"## {title}", *([text] if text else [])]
    parts += [f"![{title}]({file})" for file in plots.FILES.get(name, ())]
    parts.append(f"```text\n{show(loaded).strip()}\n```")
    about = report.about(results / f"{name}.json")
    if about.get("mistakes"):
        parts += [
            "What goes wrong with each way, as it happened in this run:",
            markdown([["way", "what was done", "what happened"], *about["mistakes"]]),
        ]
    return parts


def markdown(rows: list[list[str]]) -> str:
    """Return a table of Markdown."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


class _Figures:
    """Reads single results out of result files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loaded: dict[str, Results] = {}

    def result(self, name: str, row: str, size: str, rival: str) -> Result | None:
        """Return one result, None if there is none."""
        if name not in self.loaded:
            path = self.folder / f"{name}.json"
            self.loaded[name] = report.load(path) if path.exists() else Results()
        return self.loaded[name].get(row, size, rival)

    def __call__(self, name: str, row: str, size: str, rival: str) -> float:
        result = self.result(name, row, size, rival)
        return float("nan") if result is None else result.median


def pure(folder: Path) -> str:
    """Return the five rows that answer the first question."""
    get = _Figures(folder)
    lines = [["what", "purestate, µs", "the other, µs", "ratio", "quartiles"]]
    for what, (name, row, size), rivals in PURE:
        pair = [get.result(name, row, size, rival) for rival in rivals]
        found = ratio(pair[:1], pair[1:])
        if found is None:
            lines.append([what, "-", "-", "-", "-"])
            continue
        medians = [report.number(one.median) for one in pair if one is not None]
        low, middle, high = map(report.number, found)
        lines.append([what, *medians, middle, f"{low} to {high}"])
    return markdown(lines)


def figures(folder: Path) -> dict[str, str]:
    """Return the sentences with numbers that README.md quotes, by name."""
    get = _Figures(folder)
    few, many, large = "6 leaves", "100 leaves", "6 leaves of 4 MiB"
    versions = report.about(folder / "step.json")["versions"]
    plain = "step", "step"
    share = get(*plain, few, "ps.jit") / get(*plain, few, "jax.jit on a State")
    step = STEP.format(
        python=versions["python"].rpartition(".")[0],
        jax=versions["jax"],
        plain=get(*plain, many, "ps.jit"),
        donated=get(*plain, many, "ps.jit, donated"),
        packed=get(*plain, many, "ps.jit, packed"),
        large=get(*plain, large, "ps.jit") / 1e3,
        given=get(*plain, large, "ps.jit, donated") / 1e3,
        more=100 * (share - 1),
    )
    shares = {
        row: 100
        * get("host", row, "8 B", "purestate, pure")
        / get("host", row, "8 B", "pure_callback")
        for row in ("jit", "scan")
    }
    batch = [
        get("sim", "RK4, 5 substeps", "64", rival)
        for rival in ("purestate, batch", "C++ threads, jax.ffi", "MuJoCo, Python loop")
    ]
    gradients = [
        get("sim", "gradient", "1", rival)
        for rival in ("purestate, grad", "mjd_transitionFD")
    ]
    sim = SIM.format(
        threads=batch[0] / batch[1],
        loop=batch[0] / batch[2],
        gradient=gradients[0] / gradients[1],
    )
    return {"step": step, "host": HOST.format(**shares), "sim": sim}


def with_figures(text: str, made: dict[str, str]) -> str:
    """Return a page with each marked place filled."""
    for name, figure in made.items():
        begin, end = f"<!-- figures: {name} -->", "<!-- end of figures -->"
        filled = textwrap.fill(
            figure, 88, break_long_words=False, break_on_hyphens=False
        )
        pattern = re.escape(begin) + r".*?" + re.escape(end)
        body = f"{begin}\n{filled}\n{end}"
        text = re.sub(pattern, lambda _, body=body: body, text, flags=re.DOTALL)
    return text


def _replace(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.write_text(text)
    unfinished.replace(path)
