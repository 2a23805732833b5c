"""How laws are run: many examples, the first law that breaks, its smallest example."""

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
from hypothesis import HealthCheck, Phase
from hypothesis.database import ReadOnlyDatabase
from hypothesis.errors import Flaky, HypothesisException

from purestate.errors import LawError, StrategyError
from purestate.errors._text import error_text
from purestate.testing._backends import ran
from purestate.testing._cases.outside import KEPT, LEAK, Places, is_leak, tracers_of
from purestate.testing._laws.law import LAWS, Broken, Law, Skip

_HEALTH = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
)
# What is kept outside of an instance breaks one of these, whoever meets it first: that
# nothing traced is left behind, or that the same arguments do the same again.
_LEAKS = {"state": "constructs_in_jit", "method": "leaks", "host": "leaks"}
_REPEATS = {"state": "equal_structures", "method": "repeats", "host": "repeats"}


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
        kind: "state", "method" or "host".
        subject: what is checked, for messages.
        backend: where, by name.
        device: its first device.
        case: makes a case from hypothesis' draw.
        report: filled on the way.
        outside: where what is checked may keep things; objects with their names.
        examples: how many, None for as many as the profile says.
        earlier: the first case that could be drawn.
    """

    kind: str
    subject: str
    backend: str
    device: Any
    case: Callable[[Any], Any]
    report: Report
    outside: Callable[[], Places]
    examples: int | None = None
    earlier: Any = None

    def draw(self, draw: Any) -> Any:
        """Draw a case.

        Raises:
            LawError: what gave the first case raises now.
            StrategyError: it cannot be drawn.
        """
        try:
            case = self.case(draw)
        except StrategyError as error:
            if self.earlier is not None and not is_leak(error, self.outside):
                self._ask_again()
            raise
        self.earlier = self.earlier or case
        return case

    def _ask_again(self) -> None:
        try:
            self.earlier.again()
        except Exception as error:
            what = f"it gave a result before, and then raised {error_text(error)}"
            raise self.error(
                LAWS[self.kind][_REPEATS[self.kind]],
                Broken("", f"{what}\n{KEPT}"),
                self.earlier.example,
            ) from error

    def error(self, law: Law, broken: Broken, example: str) -> LawError:
        """Return the error for a law that does not hold."""
        facts = broken.path, self.backend, broken.what, example
        return LawError(law.name, law.promise, self.subject, *facts)


def search(run: Run, laws: Iterable[Law]) -> None:
    """Look for an example that breaks a law; shrink it for the first law that breaks.

    Raises:
        LawError: for the smallest example.
        StrategyError: no examples can be drawn.
    """
    laws = list(laws)
    if not laws:
        return
    found = _broken(run, laws, shrink=False)
    if found is None:
        for name in run.report.examples:
            run.report.skipped.pop(name, None)
        return
    # The first law of the list that breaks at all says most: jit, and not vmap of it.
    while (before := _before(found, laws)) and (first := _again(run, before, False)):
        if first.law not in [law.name for law in before]:
            break
        found = first
    same = [law for law in laws if law.name == found.law]
    raise _again(run, same or laws, True) or found


def _before(found: LawError, laws: list[Law]) -> list[Law]:
    return list(itertools.takewhile(lambda law: law.name != found.law, laws))


def _again(run: Run, laws: list[Law], shrink: bool) -> LawError | None:
    # What is kept from one example to the next may raise elsewhere now, or not again.
    with contextlib.suppress(StrategyError, Flaky):
        return _broken(run, laws, shrink)
    return None


def _broken(run: Run, laws: list[Law], shrink: bool) -> LawError | None:
    """Return the first law that breaks, or None."""
    seen: list[LawError] = []
    try:
        _given(run, laws, shrink, seen)
    except LawError as error:
        return error
    except Flaky:
        if not seen:
            raise
        return min(seen, key=lambda error: len(error.example))
    return None


def _given(run: Run, laws: list[Law], shrink: bool, seen: list[LawError]) -> None:
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    count = hypothesis.settings.default.max_examples  # type: ignore[union-attr]
    if run.examples is not None:
        count = run.examples

    def look(data: Any) -> None:
        with jax.default_device(run.device), _raising(run, laws, seen) as now:
            now.case = run.draw(data.draw)
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
    look.__name__ = re.sub(r"\W", "_", f"{run.subject}_{run.kind}_{run.backend}")
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
def _raising(run: Run, laws: list[Law], seen: list[LawError]) -> Iterator[_Now]:
    """Turn what breaks a law into a `LawError`, and note it down."""
    now = _Now()
    try:
        yield now
    except HypothesisException:
        raise
    except LawError as error:
        seen.append(error)
        raise
    except Exception as error:
        law = now.law
        if is_leak(error, run.outside if law is None else None):
            law = LAWS[run.kind][_LEAKS[run.kind]]
            broken = Broken(next(iter(tracers_of(run.outside())), ""), LEAK)
        elif law is None or isinstance(error, StrategyError):
            raise
        else:
            broken = Broken("", f"it raised {error_text(error)}")
            broken = error if isinstance(error, Broken) else broken
            law, broken = _first_cause(run, laws, now.case) or (law, broken)
        example = getattr(now.case or error, "example", "")
        seen.append(run.error(law, broken, example))
        raise seen[-1] from (error.__cause__ if isinstance(error, Broken) else error)


def _first_cause(run: Run, laws: list[Law], case: Any) -> tuple[Law, Broken] | None:
    """Return how the same arguments do something else by now, if that is looked at."""
    for law in laws:
        if law.name == _REPEATS[run.kind]:
            try:
                law.check(case)
            except Broken as broken:
                return law, broken
            except Exception:  # noqa: BLE001  # then it is something else
                return None
    return None
