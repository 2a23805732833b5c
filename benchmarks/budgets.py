"""What a State may cost, held against one run; and where other libraries are ahead."""

from collections.abc import Sequence

from benchmarks.imports import NEEDED, SIZE
from benchmarks.report import aligned, number
from benchmarks.samples import Result, Results, difference, quartiles, ratio

# Row(s), who, beside whom, the largest ratio, and at which numbers of fields.
_RATIOS = (
    (("flatten", "unflatten"), "purestate", "NamedTuple", 1.4, (4, 16, 64)),
    (("construct",), "ps object", "dataclass", 3.0, (4, 16, 64)),
    (("construct",), "purestate", "dataclass", 4.0, (4, 16, 64)),
    (("construct",), "purestate", "flax.struct", 1.0, (4, 16, 64)),
    (("construct by keyword",), "ps object", "dataclass", 3.0, (4, 16, 64)),
    (("construct by keyword",), "purestate", "dataclass", 4.0, (4, 16, 64)),
    (("construct by keyword",), "purestate", "flax.struct", 1.0, (4, 16, 64)),
    (("replace one",), "purestate", "NamedTuple", 1.0, (16, 64)),
    # "Nothing", as far as timing can tell.
    (("flatten",), "ps 2 static", "purestate", 1.03, (4, 16, 64)),
    (("attribute read",), "purestate", "dataclass", 1.1, (4, 16, 64)),
    (("the same, unflattened",), "purestate", "register_dc", 1.1, (4, 16, 64)),
    (("jit call",), "purestate", "NamedTuple", 1.08, (4, 16, 64)),
)
_NESTED = (
    (("flatten", "unflatten"), "purestate", "register_dc", 1.5, "333 x 3 leaves"),
    (("jit call",), "purestate", "register_dc", 1.5, "333 x 3 leaves"),
    (("trace",), "ps of a dict", "dict", 1.05, "300 leaves"),
)
_LOOKUP = 0.3  # us
_IMPORT = 20.0  # ms after jax, beside the part of jax that purestate needs
_OURS = ("purestate", "ps object", "ps 2 static", "ps of a dict", "ps 300 fields")


def lines(results: Results, sizes: Sequence[str]) -> str:
    """Return the table of budgets, then where a rival of purestate is ahead of it."""
    rows = [["budget", "", "at most", "measured", "quartiles", ""]]
    ratios = [
        (names, who, rival, limit, f"{n} fields")
        for names, who, rival, limit, counts in _RATIOS
        for n in counts
        if f"{n} fields" in sizes
    ]
    for names, who, rival, limit, size in (*ratios, *_NESTED):
        what = f"{' + '.join(names)}: {who} / {rival}"
        found = ratio(
            [results.get(name, size, who) for name in names],
            [results.get(name, size, rival) for name in names],
        )
        rows.append([what, size, f"{limit:.2f} x", *_verdict(found, limit, " x")])
    for size in sizes:
        result = results.get("method lookup", size, "purestate")
        found = None if result is None else quartiles(result.samples)
        cells = [f"{number(_LOOKUP)} us", *_verdict(found, _LOOKUP, " us")]
        rows.append(["method lookup: purestate", size, *cells])
    row = "import after jax"
    found = difference(*(results.get(row, SIZE, who) for who in ("purestate", NEEDED)))
    cells = [f"{number(_IMPORT)} ms", *_verdict(found, _IMPORT, " ms")]
    rows.append([f"{row}: purestate - {NEEDED}", SIZE, *cells])
    ahead = "\n".join(_ahead(results)) or "nowhere"
    table = "\n".join(aligned(rows, left=2))
    title = "Where a rival is ahead (purestate's figure over the rival's):"
    return f"{table}\n\n{title}\n{ahead}"


def _verdict(
    found: tuple[float, float, float] | None, limit: float, unit: str
) -> list[str]:
    if found is None:
        return ["-", "", "not measured"]
    low, value, high = found
    over = 100 * (value / limit - 1)
    return [
        f"{value:.2f}{unit}",
        f"{low:.2f} to {high:.2f}",
        "ok" if value <= limit else f"MISSED by {over:.0f} %",
    ]


def _ahead(results: Results) -> list[str]:
    """Return a line for each row and rival, with the sizes at which it is ahead.

    Ahead is who took less in three rounds of four and 3 % less in the median round.
    """
    rows: dict[tuple[str, str], list[str]] = {}
    for row, size in results.rows():
        ours = results.get(row, size, "purestate") or results.get(
            row, size, "ps of a dict"
        )
        for result in results.found:
            if (result.row, result.size) != (row, size) or result.rival in _OURS:
                continue
            text = _lead(ours, result)
            if text and result.rival not in ("jax", NEEDED):
                rows.setdefault((row, result.rival), []).append(f"{size}: {text}")
    return aligned(
        [[row, rival, "; ".join(texts)] for (row, rival), texts in rows.items()], left=3
    )


def _lead(ours: Result | None, rival: Result) -> str | None:
    found = ratio([ours], [rival])
    if found is None or found[0] <= 1 or found[1] < 1.03:
        return None
    return f"{found[1]:.2f} x"
