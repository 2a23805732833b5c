"""What is published, and what publishes it, beside the code."""

import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

import purestate
from tests.helpers import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ADDRESS = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]


def test_the_version_is_written_once():
    source = (ROOT / "src" / "purestate" / "__init__.py").read_text()

    assert f'__version__ = "{purestate.__version__}"' in source
    assert "version" in PROJECT["project"]["dynamic"]
    assert "version" not in PROJECT["project"]
    assert f"\n## [{purestate.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_address_is_written_once():
    files = ["pyproject.toml", "README.md", "SECURITY.md", "CITATION.cff", "mkdocs.yml"]
    files += [path.relative_to(ROOT) for path in (ROOT / ".github").rglob("*.yml")]
    text = "".join((ROOT / file).read_text() for file in files)

    assert 1 == text.count(ADDRESS.partition("//")[2])


def test_a_release_is_refused_while_the_address_is_a_placeholder():
    if "example.org" not in ADDRESS:
        pytest.skip("the repository has an address")
    tool = [sys.executable, "tools/package.py", "--release"]
    done = subprocess.run(tool, cwd=ROOT, capture_output=True, text=True, check=False)

    assert 1 == done.returncode
    assert (
        "package.py: https://example.org/purestate is a placeholder, so the links of "
        "the README would lead nowhere. Give the repository's address in "
        "pyproject.toml, in [tool.hatch.metadata.hooks.custom].\n" == done.stderr
    )


def test_the_release_workflow_asks_for_the_address_before_it_publishes():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    build, publish = text.split("\n  publish:\n")

    assert "make package ARGS=--release\n" in build
    assert "RELEASE_TAG: ${{ github.ref_name }}\n" in build
    assert "id-token" not in build
    assert "needs: build" in publish
    assert "id-token: write" in publish


def test_the_workflow_runs_every_lane():
    script = (ROOT / ".ci" / "run").read_text()
    lanes = re.findall(r"(?m)^lane_(\w+)\(\)", script)
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()

    assert 5 == len(lanes)
    assert lanes == re.findall(r"lane: (\w+), python", workflow)
    assert f'lanes="${{*:-{" ".join(lanes)}}}"' in script


def test_a_lane_that_is_not_there_is_refused(tmp_path):
    # In a copy, since the script works beside itself.
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    done = subprocess.run(
        [tmp_path / ".ci" / "run", "nightly"],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )

    assert 2 == done.returncode
    assert (
        "ci: no lane nightly: there are default, newest, lowest, package and docs\n"
        in done.stdout
    )


def test_no_file_that_is_published_names_a_machine_or_a_person():
    text = "".join(
        (ROOT / name).read_text() for name in ("SECURITY.md", "CITATION.cff")
    )

    assert not re.search(r"[\w.]+@[\w.]+|https?://|family-names|orcid", text)
