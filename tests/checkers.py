"""How the tests run the static type checkers: each over some files, for one target.

The configuration of the project is kept out: a user has another one. Only the strictness
of mypy is not the default.
"""

import dataclasses
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.helpers import ROOT

SOURCE = ROOT / "src"
TARGETS = ("3.11", "3.13")
# Code with annotations everywhere. What has none is read with `READ`, in which a name may
# be given to values of several types, as the other three allow.
STRICT = "strict = True"
READ = "check_untyped_defs = True\nallow_redefinition = True"


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a checker over some files of one folder."""

    target: str
    folder: pathlib.Path  # for configuration and caches
    files: tuple[pathlib.Path, ...] = ()
    mypy: str = STRICT

    def output(self, name, *arguments, cwd=None):
        command = [sys.executable, "-m", name, *map(str, arguments)]
        environment = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
        done = subprocess.run(
            command,
            cwd=cwd or self.folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode not in (0, 1):  # 1: there were errors
            pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def config(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    @property
    def beside(self):
        """Where the files find one another."""
        return self.files[0].parent


def require(checker):
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed; the extra `dev` has it")


# Each yields (file, line, message) for every error.


def mypy(run):
    config = run.config(
        "mypy.ini",
        f"[mypy]\n{run.mypy}\nmypy_path = {SOURCE}\nfollow_imports = silent\n",
    )
    options = ["--config-file", config, "--cache-dir", run.folder / "cache"]
    options += ["--python-version", run.target, "--output", "json"]
    for line in run.output("mypy", *options, *run.files).splitlines():
        found = json.loads(line)
        if found["severity"] == "error":
            yield found["file"], found["line"], found["message"]


def pyright(run):
    settings = {
        "include": [os.path.relpath(path, run.folder) for path in run.files],
        "extraPaths": [str(SOURCE)],
        "pythonVersion": run.target,
    }
    config = run.config("pyrightconfig.json", json.dumps(settings))
    options = ["--project", config, "--pythonpath", sys.executable, "--outputjson"]
    for found in json.loads(run.output("pyright", *options))["generalDiagnostics"]:
        if found["severity"] == "error":
            line = found["range"]["start"]["line"] + 1
            yield found["file"], line, found["message"]


def ty(run):
    options = ["--project", run.folder, "--python", sys.prefix]
    options += ["--extra-search-path", SOURCE, "--extra-search-path", run.beside]
    options += ["--python-version", run.target, "--output-format", "gitlab"]
    for found in json.loads(run.output("ty", "check", *options, *run.files)):
        if found["severity"] in ("major", "critical", "blocker"):
            line = found["location"]["positions"]["begin"]["line"]
            yield found["location"]["path"], line, found["description"]


def pyrefly(run):
    config = run.config("pyrefly.toml", 'preset = "default"\n')
    options = ["--config", config, "--search-path", SOURCE]
    options += ["--search-path", run.beside]
    options += ["--python-interpreter-path", sys.executable]
    options += ["--python-version", run.target, "--output-format", "json"]
    found = json.loads(run.output("pyrefly", "check", *options, *run.files))
    for error in found["errors"]:
        if error["severity"] == "error":
            yield error["path"], error["line"], error["description"]


CHECKERS = {f.__name__: f for f in (mypy, pyright, ty, pyrefly)}
