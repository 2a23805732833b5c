"""The pytest plug-in: options, the line in the report, hypothesis' profile."""

import os
import subprocess
import sys
import types

import pytest

import purestate_pytest
from purestate.errors import BackendError
from purestate.testing import _backends
from tests.helpers import ROOT, python

TESTS = """
import hypothesis, jax, pytest, purestate as ps, purestate.testing as pst

class Counter(ps.State):
    count: jax.Array = 0

def test_counter():
    assert ("cpu",) == pst.check_state(Counter, examples=2, laws=["rebuild"]).backends

def test_deadline():
    assert hypothesis.settings.default.deadline is None
"""


def run(folder, *options, code=TESTS, **environment):
    (folder / "test_it.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "purestate_pytest", *options],
        cwd=folder,
        env=os.environ
        | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT / "src")}
        | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_report_of_all_workers_says_what_ran_and_what_was_absent(tmp_path):
    pytest.importorskip("xdist", reason="pytest-xdist runs the workers")

    code, text = run(tmp_path, "-n1", "--purestate-backends=cpu,gpu")

    assert 0 == code, text
    assert "purestate: laws looked at, by backend: cpu 2; absent: gpu" in text
    assert "2 passed" in text


class Reporter:
    """Stands for pytest's own, and keeps the lines."""

    def __init__(self):
        self.lines = []

    def write_line(self, line):
        self.lines.append(line)


def test_without_workers_the_report_is_made_from_this_process(
    pytestconfig, monkeypatch
):
    monkeypatch.setattr(_backends, "ran", {"cpu": 3, "gpu": 2})
    reporter = Reporter()

    purestate_pytest.pytest_terminal_summary(reporter, types.SimpleNamespace(stash={}))

    assert reporter.lines[0].startswith(
        "purestate: laws looked at, by backend: cpu 3, gpu 2; absent: "
    )


def test_nothing_is_reported_where_no_laws_were_looked_at(monkeypatch):
    monkeypatch.setattr(_backends, "ran", {})
    reporter = Reporter()

    purestate_pytest.pytest_terminal_summary(reporter, types.SimpleNamespace(stash={}))

    assert [] == reporter.lines


@pytest.fixture
def selection():
    yield
    _backends.select_backends(None)


def test_backends_that_are_all_absent_are_an_error(selection):
    missing = next(n for n in ("tpu", "gpu") if n not in _backends.backends())
    _backends.select_backends([missing])

    with pytest.raises(
        BackendError, match=rf"none of the backends {missing} is present; jax has .*cpu"
    ):
        _backends.selected_backends()


def test_an_unknown_backend_is_named():
    with pytest.raises(BackendError, match="no backend 'npu'; known are cpu, gpu, tpu"):
        _backends.select_backends(["npu"])


def test_an_unknown_backend_is_a_usage_error(tmp_path):
    code, text = run(tmp_path, "--purestate-backends=cpu,npu")

    assert 4 == code, text
    assert "--purestate-backends=cpu,npu: known are cpu, gpu, tpu." in text


def test_the_plug_in_imports_neither_jax_nor_hypothesis_by_itself(tmp_path):
    code, text = run(
        tmp_path,
        "-p",
        "no:hypothesispytest",
        code="import sys\ndef test(): assert not {'jax', 'purestate'} & set(sys.modules)",
    )

    assert 0 == code, text


@pytest.mark.parametrize("devices", [8])
def test_laws_about_several_devices_run_where_there_are_several(tmp_path, devices):
    code = """
import jax, jax.numpy as jnp, purestate as ps, purestate.testing as pst
from jaxtyping import Array, Float

class Ball(ps.State):
    x: Float[Array, "n"]
    key: jax.Array

    def step(self, dt: Float[Array, ""]):
        return self.replace(x=self.x * dt)

def test_sharded():
    assert 8 == jax.device_count()
    state = pst.check_state(Ball, laws=["sharded"], examples=5)
    method = pst.check_method(Ball.step, laws=["sharded", "vmap"], examples=5)
    assert 5 == state.examples["sharded"] == method.examples["sharded"]
    assert not method.skipped
"""
    flags = f"--xla_force_host_platform_device_count={devices}"

    done, text = run(tmp_path, code=code, XLA_FLAGS=flags)

    assert 0 == done, text


LEAKING = """
import jax, numpy as np, pytest

class Box:
    def apply(self, x):
        self.cache = x * 2
        return x

@pytest.fixture
def box():
    box = Box()
    jax.jit(box.apply)(1.0)
    return box

def test_read(box):
    np.asarray(box.cache)

def test_add(box):
    try:
        box.cache + 1
    except TypeError as error:
        raise ValueError("hidden") from error

def test_live():
    jax.jit(lambda x: np.asarray(x))(1.0)

def test_other(box):
    assert "trace" == 1

@pytest.mark.xfail(strict=True)
def test_expected(box):
    np.asarray(box.cache)
"""


@pytest.mark.parametrize("workers", [(), ("-n1",)], ids=["one process", "a worker"])
def test_a_failed_test_tells_who_kept_the_tracer(tmp_path, workers):
    if workers:
        pytest.importorskip("xdist", reason="pytest-xdist runs the workers")

    code, text = run(tmp_path, *workers, code=LEAKING)

    assert 1 == code, text
    assert "4 failed, 1 xfailed" in text
    assert 2 == text.count("purestate.explain")
    assert 2 == text.count("stored at test_it.py:6 in apply: self.cache = x * 2")
    for test, line in (
        ("test_read", "np.asarray(box.cache)  TracerArrayConversionError"),
        ("test_add", "box.cache + 1  UnexpectedTracerError"),
    ):
        assert f"\n{line}\n   {test}: box.cache   stored at" in text


def test_a_failed_test_without_jax_imports_nothing(tmp_path):
    code, text = run(
        tmp_path,
        code="""
import sys

def test_fails():
    raise TypeError("no tracer")

def test_after():
    assert not {"jax", "purestate"} & set(sys.modules)
""",
    )

    assert 1 == code, text
    assert "1 failed, 1 passed" in text


class Broken(Exception):
    def __str__(self):
        raise RuntimeError


def test_an_error_without_a_text_is_not_worth_a_search():
    error = Broken()
    error.__cause__ = Broken()

    assert not purestate_pytest._may_be_about_a_tracer(error)
    assert not purestate_pytest._may_be_about_a_tracer(None)


def test_an_error_or_a_key_that_ends_the_program_does_not_end_the_session(tmp_path):
    code, text = run(
        tmp_path,
        code="""
import jax, pytest

class Failing:
    def __repr__(self):
        pytest.fail("in a repr")

class Ending(Exception):
    def __str__(self):
        raise SystemExit

def test_key():
    kept = {}

    def f(x):
        kept[key] = x * 2
        return x

    key = Failing()
    jax.jit(f)(1.0)
    kept[key] + 1

def test_after():
    assert not purestate_pytest._may_be_about_a_tracer(Ending())

import purestate_pytest
""",
    )

    assert 1 == code, text
    assert "1 failed, 1 passed" in text
    assert "test_key: kept[<Failing>]" in text


@pytest.mark.parametrize("missing", ["hypothesis", "chex"])
def test_without_what_testing_needs_the_import_says_what_to_install(missing):
    done = python(
        f"import sys; sys.modules['{missing}'] = None; import purestate.testing"
    )

    assert (
        "ModuleNotFoundError: purestate.testing needs hypothesis and chex, the extra "
        "`testing`: pip install hypothesis chex." in done.stderr
    )
