"""What a run has measured: a sample per round, by row, size and rival.

How it is measured is told in `harness`, how it is kept and shown in `report`.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Result:
    """What one rival scored in one comparison, a sample per round."""

    row: str
    size: str
    rival: str
    unit: str
    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle sample."""
        return statistics.median(self.samples)


@dataclass
class Results:
    """All results of a run, and what could not be measured."""

    found: list[Result] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def get(self, row: str, size: str, rival: str) -> Result | None:
        """Return one result, None if it was not measured."""
        wanted = row, size, rival
        return next((r for r in self.found if (r.row, r.size, r.rival) == wanted), None)

    def rows(self) -> list[tuple[str, str]]:
        """Return each comparison's row and size, in order."""
        return list(dict.fromkeys((r.row, r.size) for r in self.found))


def difference(
    above: Result | None, below: Result | None
) -> tuple[float, float, float] | None:
    """Return the quartiles, over the rounds, of above - below.

    None if one was not measured.
    """
    if above is None or below is None:
        return None
    pairs = zip(above.samples, below.samples, strict=False)
    return quartiles([a - b for a, b in pairs])


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(samples) < 2:
        return (samples[0],) * 3
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, middle, high


def ratio(
    above: Sequence[Result | None], below: Sequence[Result | None]
) -> tuple[float, float, float] | None:
    """Return the quartiles, over the rounds, of sum(above) / sum(below).

    None if a part was not measured.
    """
    sums = []
    for parts in (above, below):
        known = [part.samples for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        sums.append([sum(column) for column in zip(*known, strict=False)])
    return quartiles([a / b for a, b in zip(*sums, strict=False)])
