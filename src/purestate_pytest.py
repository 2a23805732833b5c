"""The pytest plug-in: where the laws of `purestate.testing` run, and who kept a tracer.

It imports neither purestate nor JAX when pytest loads it: JAX reads its environment
when it is first imported, and a project's conftest.py must still have its say. It
stands beside the package for that reason: to import a part of it is to import all.
"""

import sys
from typing import Any

import pytest

__all__: list[str] = []
_KNOWN = ("cpu", "gpu", "tpu")
_PROFILE = "purestate"


def pytest_addoption(parser: Any) -> None:
    """Add `--purestate-backends`."""
    group = parser.getgroup("purestate")
    group.addoption(
        "--purestate-backends",
        metavar="NAMES",
        help="backends that purestate.testing checks laws on, such as cpu,gpu; "
        "by default those that JAX finds",
    )


def pytest_configure(config: Any) -> None:
    """Choose the backends, and a profile of hypothesis without a deadline."""
    given = config.getoption("--purestate-backends")
    if given is not None:
        names = [name.strip() for name in given.split(",") if name.strip()]
        unknown = [name for name in names if name not in _KNOWN]
        if unknown or not names:
            raise pytest.UsageError(
                f"--purestate-backends={given}: known are {', '.join(_KNOWN)}."
            )
        config.stash[_chosen] = names
    _set_profile(config)


_chosen = pytest.StashKey[list[str]]()


def _set_profile(config: Any) -> None:
    """Turn off the deadline, unless the user chose a profile.

    Compiling takes longer than the 200 ms that hypothesis allows, once.
    """
    if config.getoption("--hypothesis-profile", None):
        return
    try:
        from hypothesis import HealthCheck, settings
    except ImportError:
        return
    current: Any = settings.default
    if current.deadline is None:
        return
    checks = {*current.suppress_health_check, HealthCheck.too_slow}
    settings.register_profile(
        _PROFILE, current, deadline=None, suppress_health_check=list(checks)
    )
    settings.load_profile(_PROFILE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    """Add to the report of a failed test who kept the tracer that it is about."""
    report = yield
    error = getattr(call.excinfo, "value", None)
    if report.failed and _may_be_about_a_tracer(error):
        import purestate

        found = purestate.explain(error)
        if found:
            report.sections.append(("purestate.explain", str(found)))
    return report


def _may_be_about_a_tracer(error: Any) -> bool:
    """Return whether an error, or one before it, is worth a search; imports nothing."""
    for _ in range(10):
        if error is None or "jax" not in sys.modules:
            return False
        try:
            text = str(error).lower()
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001  # pytest.fail, too, would end the session
            text = ""
        if type(error).__module__ == "jax.errors" or "trace" in text:
            return True
        error = error.__cause__ or error.__context__
    return False


def pytest_collection_finish(session: Any) -> None:
    """Hand the choice on, once the test files have imported what they need."""
    names = session.config.stash.get(_chosen, None)
    if names is not None:
        from purestate.testing._backends import select_backends

        select_backends(names)


def pytest_sessionfinish(session: Any) -> None:
    """Send what ran from a worker of pytest-xdist to the process that reports."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["purestate"] = _what_ran()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Collect what a worker sent."""
    sent = getattr(node, "workeroutput", {}).get("purestate")
    if sent:
        node.config.stash.setdefault(_sent, []).append(sent)


_sent = pytest.StashKey[list[dict[str, Any]]]()


def _what_ran() -> dict[str, Any]:
    module = sys.modules.get("purestate.testing._backends")
    if module is None or not module.ran:
        return {}
    return {"ran": dict(module.ran), "present": list(module.backends())}


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    """Say on which backends laws were checked, and which were absent."""
    found = [*config.stash.get(_sent, []), _what_ran()]
    counts: dict[str, int] = {}
    present: set[str] = set()
    for part in filter(None, found):
        present.update(part["present"])
        for name, count in part["ran"].items():
            counts[name] = counts.get(name, 0) + count
    if not counts:
        return
    wanted = config.stash.get(_chosen, _KNOWN)
    line = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    absent = [name for name in wanted if name not in present]
    if absent:
        line += f"; absent: {', '.join(absent)}"
    terminalreporter.write_line(f"purestate: laws looked at, by backend: {line}")
