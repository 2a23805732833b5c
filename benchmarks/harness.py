"""Timing that compares: rivals take turns, and what is quoted are medians and ratios.

A machine is never quiet, so no rival is timed alone. Each round times every rival once,
in an order drawn anew per round, and a ratio is the median over the rounds of the
ratios within one round. This file knows nothing of what is measured.
"""

import contextlib
import importlib.util
import os
import platform
import random
import sys
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.samples import Result, Results


@dataclass(frozen=True)
class Case:
    """One rival in one comparison: a statement and the names that it uses.

    A statement that dispatches to a device must itself wait for the result.

    Attributes:
        rival: who runs it.
        statement: source, timed as it stands, without a call around it.
        scope: its globals.
        repeats: how often the statement is written out, for what takes nanoseconds.
        waits: whether it waits, for a device. Then wall time counts, else the time that
            the thread had a processor for, which other processes do not add to.
    """

    rival: str
    statement: str
    scope: dict[str, Any]
    repeats: int = 1
    waits: bool = False


class Clock:
    """Runs comparisons and shows how far it is.

    Args:
        rounds: how often each rival is timed, fewer times where one run is long.
        seconds: how long a rival runs within one round. Short, so that most runs fall
            between two interruptions by another process.
        tell: called with a line of text after each comparison.
    """

    def __init__(
        self, rounds: int, seconds: float, tell: Callable[[str], None]
    ) -> None:
        self.rounds, self.seconds, self.tell = rounds, seconds, tell
        self.results = Results()
        self._order = random.Random(0)

    def compare(self, row: str, size: str, cases: Sequence[Case]) -> None:
        """Time the cases against each other; one that raises is noted as failed."""
        ready, slowest = [], 0.0
        for case in cases:
            statement = "\n".join([case.statement] * case.repeats)
            watch = time.perf_counter if case.waits else time.thread_time
            # timeit turns the garbage collector off while it runs.
            timer = timeit.Timer(statement, timer=watch, globals=case.scope)
            try:
                loops, taken = self._calibrated(timer)
            except Exception as error:  # noqa: BLE001  # whatever a peer raises
                self.note(row, size, case.rival, error)
            else:
                ready.append((case, timer, loops))
                slowest = max(slowest, taken)
        rounds = min(self.rounds, max(11, round(self.rounds * self.seconds / slowest)))
        samples: dict[str, list[float]] = {case.rival: [] for case, _, _ in ready}
        for _ in range(rounds):
            self._order.shuffle(ready)
            for case, timer, loops in ready:
                taken = timer.timeit(loops) / loops / case.repeats
                samples[case.rival].append(taken)
        for case in cases:
            if case.rival in samples:
                self.add(row, size, case.rival, "us", samples[case.rival], 1e6)
        self.tell(f"{row} ({size})")

    def interleave(
        self,
        row: str,
        size: str,
        rivals: dict[str, Callable[[], float]],
        *,
        rounds: int,
        unit: str,
        scale: float,
    ) -> None:
        """Collect samples from functions that measure themselves."""
        samples: dict[str, list[float]] = {rival: [] for rival in rivals}
        order = list(rivals)
        for _ in range(rounds):
            self._order.shuffle(order)
            for rival in order:
                samples[rival].append(rivals[rival]())
        for rival, found in samples.items():
            self.add(row, size, rival, unit, found, scale)
        self.tell(row)

    def add(
        self,
        row: str,
        size: str,
        rival: str,
        unit: str,
        samples: Sequence[float],
        scale: float = 1.0,
    ) -> None:
        """Keep what was measured, in `unit`."""
        scaled = tuple(sample * scale for sample in samples)
        self.results.found.append(Result(row, size, rival, unit, scaled))

    def note(self, row: str, size: str, rival: str, error: Exception) -> None:
        """Keep why a rival could not be measured."""
        text = str(error).splitlines()[:1] or [""]
        where = " ".join(part for part in (rival, row, size) if part)
        self.results.failed[where] = f"{type(error).__name__}: {text[0]}"

    def _calibrated(self, timer: timeit.Timer) -> tuple[int, float]:
        """Return how many loops fill the time of a round, and what they take."""
        timer.timeit(3)  # the warm-up; some compile at the second call
        loops = 1
        while (taken := timer.timeit(loops)) < self.seconds / 4:
            loops = max(2 * loops, int(loops * self.seconds / 4 / max(taken, 1e-7)))
        chosen = max(1, round(loops * self.seconds / taken))
        return chosen, taken * chosen / loops


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the version of Python and of each package, "absent" if not installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def machine() -> str:
    """Return the processor and the number of cores, and no name of the host."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return f"{model}, {os.cpu_count()} cores, {platform.system()}"


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    told = Path("/proc/self/statm")
    if not told.exists():  # not on Linux: nothing is reported
        return 0
    return int(told.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Give a function that shows one more step done: a bar, or lines on stderr."""
    if sys.stderr.isatty() and importlib.util.find_spec("rich"):
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True)) as bar:
            task = bar.add_task("", total=total)
            yield lambda text: bar.update(task, advance=1, description=text)
        return
    done = 0

    def tell(text: str) -> None:
        nonlocal done
        done += 1
        print(f"[{done}/{total}] {text}", file=sys.stderr, flush=True)

    yield tell
