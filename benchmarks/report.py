"""Result files and the tables made of them.

A result file is JSON: `about` says what ran where, `results` holds every sample by row,
size and rival, a sample per round, and `failed` says what was not measured and why.

    python -m benchmarks.report before.json after.json
"""

import argparse
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.samples import Result, Results, quartiles


def save(path: Path, about: dict[str, Any], results: Results) -> None:
    """Write a result file, whole or not at all."""
    content = {
        "about": about,
        "failed": results.failed,
        "results": [
            {
                "row": r.row,
                "size": r.size,
                "rival": r.rival,
                "unit": r.unit,
                "median": r.median,
                "samples": [float(f"{sample:.4g}") for sample in r.samples],
            }
            for r in results.found
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(json.dumps(content))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def load(path: Path) -> Results:
    """Read a result file."""
    content = json.loads(path.read_text())
    found = [
        Result(r["row"], r["size"], r["rival"], r["unit"], tuple(r["samples"]))
        for r in content["results"]
    ]
    return Results(found, content["failed"])


def about(path: Path) -> dict[str, Any]:
    """Return what a result file says of what ran where."""
    found: dict[str, Any] = json.loads(path.read_text())["about"]
    return found


def everything(results: Results) -> str:
    """Return a table for each size, with all rivals that have a result there."""
    rivals = list(dict.fromkeys(r.rival for r in results.found))
    return tables(results, rivals, list(dict.fromkeys(s for _, s in results.rows())))


def vertical(
    results: Results, size: str, rivals: Iterable[str], rows: Sequence[str]
) -> list[str]:
    """Return a table with a line per rival and a column per row, for one size."""
    units = {r.row: r.unit for r in results.found}
    shown = [row for row in rows if (row, size) in results.rows()]
    lines = [["", *(f"{row}, {units[row]}" for row in shown)]]
    for rival in rivals:
        found = [results.get(row, size, rival) for row in shown]
        if any(found):
            lines.append([rival, *(number(r.median) if r else "-" for r in found)])
    return aligned(lines)


def tables(results: Results, rivals: Sequence[str], sizes: Sequence[str]) -> str:
    """Return a table of medians per size, with the spread of each row.

    The spread is the half width between the quartiles in percent of the median: the
    middle one and the largest among the rivals of the row.
    """
    blocks = []
    for size in sizes:
        rows = [row for row, found in results.rows() if found == size]
        present = [r for r in rivals if any(results.get(row, size, r) for row in rows)]
        lines = [["", *present, "spread %"]]
        for row in rows:
            cells = [results.get(row, size, rival) for rival in present]
            known = [cell for cell in cells if cell is not None]
            label = row if known[0].unit == "us" else f"{row}, {known[0].unit}"
            spreads = sorted(map(_spread, known))
            spread = f"{spreads[len(spreads) // 2]:.0f}, {spreads[-1]:.0f}"
            values = ["-" if cell is None else number(cell.median) for cell in cells]
            lines.append([label, *values, spread])
        blocks.append("\n".join([size, "", *aligned(lines)]))
    return "\n\n".join(blocks)


def changes(before: Results, after: Results) -> str:
    """Return a table of what differs between two runs beyond their spread."""
    lines = [["", "", "", "before", "after", "ratio"]]
    for old in before.found:
        new = after.get(old.row, old.size, old.rival)
        if new is None:
            continue
        low, _, high = quartiles(old.samples)
        first, _, last = quartiles(new.samples)
        if last < low or high < first:
            times = f"{new.median / old.median:.2f}"
            cells = [number(old.median), number(new.median), times]
            lines.append([old.row, old.size, old.rival, *cells])
    return "\n".join(aligned(lines))


def slope(results: Results, row: str, rival: str) -> str:
    """Return by how much a rival's median grows per unit of a size that is a number.

    The fit is by least squares of relative distances, so that the large sizes do not
    decide alone.
    """
    found = [r for r in results.found if (r.row, r.rival) == (row, rival)]
    points = [(float(r.size), r.median) for r in found]
    if len(points) < 2:
        return "-"
    weights = [1 / y**2 for _, y in points]
    total = sum(weights)
    x0 = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    y0 = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    pairs = list(zip(weights, points, strict=True))
    above = sum(w * (x - x0) * (y - y0) for w, (x, y) in pairs)
    return f"{above / sum(w * (x - x0) ** 2 for w, (x, _) in pairs):.2g}"


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Return rows as lines with aligned columns, the first `left` ones flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def number(value: float) -> str:
    """Return a positive number with about three digits that mean something."""
    if value != value:
        return "-"
    if value == round(value) and value < 1000:
        return f"{value:.0f}"
    digits = (
        4
        if value < 0.1
        else 3
        if value < 1
        else 2
        if value < 10
        else 1
        if value < 100
        else 0
    )
    return f"{value:.{digits}f}"


def _spread(result: Result) -> float:
    low, middle, high = quartiles(result.samples)
    return 50 * (high - low) / middle


def main() -> None:
    """Print what differs between two result files beyond their spread."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    chosen = parser.parse_args()
    print(changes(load(chosen.before), load(chosen.after)))


if __name__ == "__main__":
    main()
