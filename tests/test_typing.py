"""What the static type checkers say about code that uses purestate.

The files in `typing/` are read by each checker for each target version of Python, and
never run. A line with an error carries a mark at its end:

    # error                        by every checker, for every target
    # error[3.13]                  for this target
    # error[mypy, ty]              by these checkers
    # error[not ty]                by all but these
    # error[3.11: ty; 3.13: mypy]  a combination

Exactly the marked lines must have errors. A mark that names checkers has the reason in a
comment above: when a checker learns better, the test says so, and both go.
"""

import itertools
import pathlib
import re
import sys

import pytest

from tests.checkers import CHECKERS, TARGETS, Run, require
from tests.helpers import ROOT

FILES = tuple(sorted((ROOT / "tests" / "typing").glob("*.py")))
MARK = re.compile(r"# error(?:\[([^\]]+)\])?$")

pytestmark = pytest.mark.types


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("checker", CHECKERS)
def test_errors_are_where_they_are_marked(checker, target, tmp_path):
    require(checker)
    expected = {
        (path.name, line)
        for path, line, text in lines()
        if (checker, target) in where(text)
    }

    messages = {}
    for file, line, message in CHECKERS[checker](Run(target, tmp_path, FILES)):
        place = pathlib.Path(file).name, line
        messages.setdefault(place, []).append(message)

    unmarked = [
        f"{file}:{line}: {text}"
        for (file, line), texts in sorted(messages.items())
        if (file, line) not in expected
        for text in texts
    ]
    missing = [
        f"{file}:{line}: marked, and {checker} says nothing"
        for file, line in sorted(expected - messages.keys())
    ]
    assert not unmarked + missing, "\n".join([checker, target, *unmarked, *missing])


def test_a_mark_that_names_checkers_has_a_reason_above():
    bare = []
    for path in FILES:
        explained = False
        for line, text in enumerate(path.read_text().splitlines(), 1):
            if "# error" not in text:  # a comment holds for all marks right below it
                explained = text.lstrip().startswith("#")
            elif any(name in mark(text) for name in CHECKERS) and not explained:
                bare.append(f"{path.name}:{line}")

    assert [] == bare


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# error", {(c, t) for c in CHECKERS for t in TARGETS}),
        ("# error[3.13]", {(c, "3.13") for c in CHECKERS}),
        ("# error[mypy, ty]", {(c, t) for c in ("mypy", "ty") for t in TARGETS}),
        ("# error[3.11: not mypy, ty]", {("pyright", "3.11"), ("pyrefly", "3.11")}),
        ("# error[3.11: ty; 3.13: mypy]", {("ty", "3.11"), ("mypy", "3.13")}),
    ],
)
def test_a_mark_says_which_checkers_and_targets(text, expected):
    assert expected == where(text)


@pytest.mark.parametrize("target", TARGETS)
def test_mypy_has_nothing_to_say_about_the_source(target, tmp_path):
    require("mypy")
    options = ["--python-version", target, "--cache-dir", tmp_path]

    said = Run(target, tmp_path).output("mypy", *options, cwd=ROOT)

    assert said.startswith("Success"), said


@pytest.mark.parametrize("target", TARGETS)
def test_pyright_has_nothing_to_say_about_the_source(target, tmp_path):
    require("pyright")
    options = ["--pythonpath", sys.executable, "--pythonversion", target]

    said = Run(target, tmp_path).output("pyright", *options, cwd=ROOT)

    assert "0 errors, 0 warnings" in said, said


def lines():
    """Yield file, number and text of every line that has a mark."""
    for path in FILES:
        for number, text in enumerate(path.read_text().splitlines(), 1):
            if "# error" in text:
                yield path, number, text


def mark(text):
    """Return what a mark says in brackets."""
    found = MARK.search(text)
    assert found, f"not a mark: {text}"
    return found[1] or ""


def where(text):
    """Return the pairs (checker, target) of a line's mark."""
    pairs = set()
    for part in mark(text).split(";"):
        head, _, tail = part.rpartition(":")
        names = tail.strip().removeprefix("not ")
        words = {word.strip() for word in names.split(",")} - {""}
        targets = {head.strip()} - {""} or words & set(TARGETS) or set(TARGETS)
        checkers = words - targets or set(CHECKERS)
        if names != tail.strip():
            checkers = set(CHECKERS) - checkers
        assert targets <= set(TARGETS), f"unknown target in {text}"
        assert checkers <= set(CHECKERS), f"unknown checker in {text}"
        pairs |= set(itertools.product(checkers, targets))
    return pairs
