"""docs/examples/train_sharded.py: over devices and processes, killed and gone on with."""

import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.helpers import ROOT
from tests.test_examples import load

SCRIPT = ROOT / "docs" / "examples" / "train_sharded.py"
STEPS = 4

for name in ("optax", "rich"):
    pytest.importorskip(name, reason="needs the extra `examples`")


def run(*options, stop=None, after=None):
    """Return what the script printed; all its processes get a signal after a line."""
    said = []
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), "--batch", "8", "--every", "2", *options],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        for line in process.stdout:
            said.append(line)
            if stop and line.startswith(after):
                os.killpg(process.pid, stop)
                stop = None
    code = process.returncode
    text = "".join(said)
    assert after or 0 == code, text
    return text


def bits(text):
    return {
        int(n): float(x) for n, x in re.findall(r"step (\d+) bits .* (\S+)\n", text)
    }


@pytest.fixture(scope="module")
def expected():
    """Return the bits per byte of each step on one device, without interruption."""
    state, found = load("examples/train_sharded.py").train(STEPS, 1, batch=8)
    assert STEPS == int(state.count)
    return dict(enumerate(found, start=1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("orbax.checkpoint", reason="needs the extra `interop`")
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def killed(folder):
    options = ("--processes", "2", "--steps", "400", "--folder", str(folder))
    return run(*options, stop=signal.SIGKILL, after="saved step 2")


def same(expected, found):
    steps = sorted(found.keys() & expected.keys())
    assert np.allclose([expected[i] for i in steps], [found[i] for i in steps], 1e-4)
    return steps


def test_two_processes_train_as_one_device_does(killed, expected):
    assert "2 processes, mesh {'data': 4, 'model': 2}" in killed
    assert [1, 2] == same(expected, bits(killed))[:2]


def test_another_number_of_processes_goes_on_from_the_checkpoint(
    killed, expected, folder
):
    found = run("--steps", str(STEPS), "--folder", str(folder))

    assert "1 processes, mesh {'data': 4, 'model': 2}\ngoing on from step " in found
    assert STEPS in same(expected, bits(found))
    assert 1 not in bits(found)


def test_all_processes_stop_at_one_step_when_a_machine_is_taken(tmp_path):
    pytest.importorskip("orbax.checkpoint", reason="needs the extra `interop`")
    options = ("--processes", "2", "--steps", "400", "--every", "1000")

    found = run(
        *options, "--folder", str(tmp_path), stop=signal.SIGTERM, after="step 1 "
    )

    (saved,) = re.findall(r"saved step (\d+)\n", found)
    assert "stopped: a machine is wanted for something else" in found
    assert int(saved) == max(bits(found))
    assert (tmp_path / saved).is_dir()
