"""How laws are run: many examples, the first law that breaks, its smallest example."""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
from hypothesis import HealthCheck, Phase
from hypothesis.database import ReadOnlyDatabase
from hypothesis.errors import HypothesisException

from purestate.errors import LawError
from purestate.errors._text import error_text
from purestate.testing._backends import ran
from purestate.testing._laws.law import Broken, Law, Skip

_HEALTH = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
)


@dataclasses.dataclass
class Report:
    """What a check did.

    Attributes:
        subject: what was checked.
        examples: how many examples each law looked at, by law.
        skipped: laws that did not apply to any example, with the reason.
        backends: where they ran.
    """

    subject: str
    examples: dict[str, int] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    backends: tuple[str, ...] = ()


@dataclasses.dataclass
class Run:
    """One search for broken laws.

    Attributes:
        subject: what is checked, for messages.
        backend: where, by name.
        device: its first device.
        case: makes a case from hypothesis' draw.
        report: filled on the way.
        examples: how many, None for as many as the profile says.
    """

    subject: str
    backend: str
    device: Any
    case: Callable[[Any], Any]
    report: Report
    examples: int | None = None


def search(run: Run, laws: Iterable[Law]) -> None:
    """Look for an example that breaks a law; shrink it for the first law that breaks.

    Raises:
        LawError: for the smallest example.
        StrategyError: no examples can be drawn.
    """
    laws = list(laws)
    if not laws:
        return
    try:
        _given(run, laws, shrink=False)
    except LawError as error:
        found = error
    else:
        for name in run.report.examples:
            run.report.skipped.pop(name, None)
        return
    _given(run, [law for law in laws if law.name == found.law], shrink=True)
    raise found  # it did not happen again


def _given(run: Run, laws: list[Law], shrink: bool) -> None:
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    count = hypothesis.settings.default.max_examples  # type: ignore[union-attr]
    if run.examples is not None:
        count = run.examples

    def look(data: Any) -> None:
        with jax.default_device(run.device), _raising(run) as now:
            now.case = run.case(data.draw)
            for law in laws:
                now.law = law
                try:
                    law.check(now.case)
                except Skip as skip:
                    run.report.skipped.setdefault(law.name, str(skip))
                else:
                    tried = run.report.examples
                    tried[law.name] = tried.get(law.name, 0) + 1
                    ran[run.backend] = ran.get(run.backend, 0) + 1

    # hypothesis keeps failures by the name of the test function.
    database = hypothesis.settings.default.database  # type: ignore[union-attr]
    if database is not None and not shrink:
        # What is not the smallest must not be kept: it would be taken for it next time.
        database = ReadOnlyDatabase(database)
    look.__name__ = re.sub(r"\W", "_", f"{run.subject}_{laws[0].kind}_{run.backend}")
    test: Any = hypothesis.given(data=st.data())(look)
    hypothesis.settings(
        max_examples=count,
        deadline=None,
        phases=[*phases, Phase.shrink] if shrink else phases,
        database=database,
        report_multiple_bugs=False,
        verbosity=hypothesis.Verbosity.quiet,
        print_blob=False,
        suppress_health_check=_HEALTH,
    )(test)()


@dataclasses.dataclass
class _Now:
    """What is being looked at, for the message if it fails."""

    law: Law | None = None
    case: Any = None


@contextlib.contextmanager
def _raising(run: Run) -> Iterator[_Now]:
    """Turn what breaks a law into a `LawError`."""
    now = _Now()
    try:
        yield now
    except Exception as error:
        if now.law is None or isinstance(error, HypothesisException):
            raise
        if isinstance(error, Broken):
            broken = error
        else:
            broken = Broken("", f"it raised {error_text(error)}")
        raise LawError(
            now.law.name,
            now.law.promise,
            run.subject,
            broken.path,
            run.backend,
            broken.what,
            now.case.example,
        ) from (error.__cause__ if isinstance(error, Broken) else error)
