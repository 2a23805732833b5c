"""Two sources against each other: what is measured, and what the table says of it."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").exists(),
    reason="the benchmarks are not part of every copy",
)


def told(old, new):
    """Return what the table says of a row with these samples."""
    from benchmarks import against
    from benchmarks.samples import Result

    made = {
        who: Result("flatten", "", who, "us", samples)
        for who, samples in {"old": old, "new": new}.items()
    }
    return " ".join(against.table({"flatten": made}).splitlines()[1].split())


def test_a_row_is_slower_if_it_is_in_most_rounds():
    assert "flatten 20 25 1.25 1.20 to 1.30 slower" == told((20,) * 3, (23, 25, 27))
    assert "flatten 25 20 0.80 0.77 to 0.83 faster" == told((25,) * 3, (18.5, 20, 21.5))


def test_a_row_is_the_same_within_its_spread_and_below_three_percent():
    assert "flatten 20 22 1.10 0.98 to 1.23" == told((20,) * 3, (17, 22, 27))
    assert "flatten 100 102 1.02 1.02 to 1.02" == told((100,) * 3, (102,) * 3)


def test_a_source_is_measured_against_itself():
    source = str(ROOT / "src")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.against", source, source, "--rounds", "1"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    from benchmarks import against

    rows = [against.IMPORT, *(row for row, _, _ in against.ROWS)]
    assert f"old: {source}\nnew: {source}\n" in done.stdout
    assert rows == [line.split("  ")[0] for line in done.stdout.splitlines()[-13:]]


def test_a_folder_without_purestate_cannot_be_measured(tmp_path):
    from benchmarks import against

    with pytest.raises(
        RuntimeError, match=r"cannot be measured: \w+Error: .*purestate"
    ):
        against.in_a_process(tmp_path)
