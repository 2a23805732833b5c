"""The benchmarks' own arithmetic, and that the pages quote what was measured."""

import json
import re

import numpy as np
import pytest

from tests.helpers import ROOT

RESULTS = ROOT / "benchmarks" / "results"

pytestmark = pytest.mark.skipif(
    not RESULTS.exists(), reason="the benchmarks are not part of every copy"
)


@pytest.fixture
def page():
    from benchmarks import page

    return page


def test_the_page_is_made_of_the_committed_results(page):
    expected = page.render(RESULTS)

    assert expected == (ROOT / "docs" / "benchmarks.md").read_text()


def test_the_readme_quotes_the_committed_results(page):
    text = (ROOT / "README.md").read_text()

    assert page.with_figures(text, page.figures(RESULTS)) == text


def test_no_other_page_quotes_a_time():
    figure = re.compile(r"\d\s?(µs|us\b|ms\b|microseconds|milliseconds)")
    pages = [p for p in ROOT.glob("docs/*.md") if p.stem != "benchmarks"]
    found = {p.name: figure.findall(p.read_text()) for p in pages}

    assert {} == {name: figures for name, figures in found.items() if figures}


def test_committed_results_are_of_a_full_run():
    quick = {
        path.name: json.loads(path.read_text())["about"]["quick"]
        for path in RESULTS.glob("*.json")
        if path.stem != "suite"
    }

    assert set(quick.values()) == {False}


def test_every_committed_result_has_its_script(page):
    scripts = {
        p.stem.removeprefix("bench_") for p in ROOT.glob("benchmarks/bench_*.py")
    }
    results = set(page.found(RESULTS))

    assert set() == results - scripts
    assert set() == {*page.FIRST, *page.LAST} - results


def test_all_ways_of_a_workload_end_in_one_state():
    from benchmarks.ways import WAYS
    from benchmarks.workloads import WORKLOADS

    peers = {"flax.nnx", "flax.nnx, donated", "State in a scan", "object, static self"}
    for workload in WORKLOADS:
        size = next(iter(workload.sizes.values()))
        ends = {}
        for name in WAYS.keys() - peers:
            way = WAYS[name](workload, size)
            for _ in range(5):
                way.step()
            ends[name] = way.arrays()

        expected = ends.pop("numpy in place")
        for found in ends.values():
            for field, value in expected.items():
                np.testing.assert_allclose(found[field], value, rtol=1e-3, atol=1e-5)


def test_a_static_self_traces_at_every_step():
    from benchmarks.ways import WAYS
    from benchmarks.workloads import WORKLOADS

    way = WAYS["object, static self"](WORKLOADS[0], 8)
    for _ in range(3):
        way.step()

    assert 3 == way.traces


def test_a_slope_is_fitted():
    from benchmarks import report
    from benchmarks.samples import Result, Results

    points = [Result("leaves", str(n), "a", "us", (5 + 2.0 * n,)) for n in (1, 10, 100)]

    assert "2" == report.slope(Results(points), "leaves", "a")


def test_changes_lists_what_differs_beyond_its_spread():
    from benchmarks import report
    from benchmarks.samples import Result, Results

    before = Results([Result("r", "s", "a", "us", (1.0, 1.1, 1.2))])
    after = Results([Result("r", "s", "a", "us", (2.0, 2.2, 2.4))])

    assert "2.00" in report.changes(before, after)
    assert "2.00" not in report.changes(before, before)


def test_a_result_file_comes_back_as_it_was(tmp_path):
    from benchmarks import report
    from benchmarks.samples import Result, Results

    results = Results([Result("r", "s", "a", "us", (1.0, 2.0))], {"b": "absent"})
    report.save(tmp_path / "x.json", {"what": "x"}, results)

    assert results == report.load(tmp_path / "x.json")
    assert ["x.json"] == [path.name for path in tmp_path.iterdir()]
