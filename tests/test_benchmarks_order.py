"""The order of the benchmarks' files: none imports what is built on it."""

import ast
import graphlib
import pathlib

import pytest

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "benchmarks"
FILES = sorted(FOLDER.glob("*.py"))
# From the bottom up: how anything is measured, kept and shown; what is measured, which
# is all that is not named here; the scripts; and what runs them all.
MEASURING = {"__init__", "samples", "harness", "report", "plots", "script"}
SUITE = {"page", "__main__", "against"}

pytestmark = pytest.mark.skipif(
    not FILES, reason="the benchmarks are not part of every copy"
)


def floor(name):
    if name in MEASURING:
        return 0
    return 3 if name in SUITE else 2 if name.startswith("bench_") else 1


def imported(path):
    """Return which of the benchmarks' files a file imports, inside of functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    parts = [name.split(".") for name in found]
    return {part[1] for part in parts if part[0] == "benchmarks"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_imports_only_from_its_floor_and_those_below(path):
    upward = {name for name in imported(path) if floor(name) > floor(path.stem)}

    assert not upward


def test_no_script_is_imported_by_another_file():
    users = {
        path.stem: {name for name in imported(path) if name.startswith("bench_")}
        for path in FILES
    }

    assert {} == {user: scripts for user, scripts in users.items() if scripts}


def test_no_file_is_imported_by_what_it_imports():
    graph = {path.stem: imported(path) for path in FILES}

    assert list(graphlib.TopologicalSorter(graph).static_order())
    assert {path.stem for path in FILES} >= set().union(*graph.values())
