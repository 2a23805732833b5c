"""The plots beside docs/benchmarks.md, made of the result files."""

from pathlib import Path
from typing import Any

from benchmarks import report

FILES = {
    "scaling": ("benchmarks-scaling.png",),
    "mutable": ("benchmarks-mutable.png",),
}
UNITS = {"leaves": "arrays in the state", "bytes": "bytes", "depth": "levels"}


def write(results: Path, folder: Path) -> list[Path]:
    """Write every plot whose results are there; return the files."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("agg")
    written = []
    for name, draw in (("scaling", scaling), ("mutable", mutable)):
        source = results / f"{name}.json"
        if source.exists():
            path = folder / FILES[name][0]
            figure = draw(report.load(source))
            unfinished = path.with_name(f"{path.stem}.new.png")
            # Without the date and the version, so that equal results are equal files.
            figure.savefig(unfinished, dpi=110, metadata={"Software": None})
            unfinished.replace(path)
            written.append(path)
    return written


def scaling(results: Any) -> Any:
    """Draw the cost of a step against leaves, bytes and depth."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4), layout="constrained")
    for axes, row in zip(figure.subplots(1, 3), UNITS, strict=True):
        for rival in dict.fromkeys(r.rival for r in results.found):
            found = [r for r in results.found if (r.row, r.rival) == (row, rival)]
            xs = [float(r.size) for r in found]
            axes.plot(xs, [r.median for r in found], ".-", label=rival, lw=1)
        axes.set(xscale="log", yscale="log", xlabel=UNITS[row])
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("µs per step")
    figure.axes[0].legend(fontsize=7)
    return figure


def mutable(results: Any) -> Any:
    """Draw the time per step of each way, workload by workload."""
    from matplotlib.figure import Figure

    sizes = [size for row, size in results.rows() if row == "step"]
    figure = Figure(figsize=(10, 2.6 * -(-len(sizes) // 3)), layout="constrained")
    grid = figure.subplots(-(-len(sizes) // 3), 3, squeeze=False).ravel()
    for axes, size in zip(grid, sizes, strict=False):
        found = [r for r in results.found if (r.row, r.size) == ("step", size)][::-1]
        colours = ["C0" if r.rival.startswith("State") else "0.6" for r in found]
        medians = [r.median for r in found]
        axes.barh([r.rival for r in found], medians, color=colours)
        axes.set(xscale="log", title=size)
        axes.title.set_fontsize(8)
        axes.tick_params(labelsize=6)
    for axes in grid[len(sizes) :]:
        axes.remove()
    figure.supxlabel("µs per step", fontsize=8)
    return figure
