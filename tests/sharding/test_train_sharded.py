"""docs/examples/train_sharded.py: over devices and processes, killed and gone on with."""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.helpers import ROOT, python
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


# The compiled step of eight devices, as it is and without the line that gathers.
COUNTED = """
import json, re, sys
import jax, numpy as np, purestate as ps
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from tests.test_examples import load

module = load("examples/train_sharded.py")
text = np.arange(1000) % 128
KINDS = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"

def counted(shape, rules, in_use):
    module.IN_USE = in_use
    mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    places = ps.shardings(jax.eval_shape(module.start), mesh, rules=rules)
    step = jax.jit(lambda train, x: module.Train.step(train, x), donate_argnums=0, out_shardings=(places, None))
    with jax.set_mesh(mesh):
        state = ps.jit(module.start, out_shardings=places)()
        given = module.windows(text, 0, 32, 65, NamedSharding(mesh, P("data")))
        program = step.lower(state, given).compile()
    here = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state))
    memory = program.memory_analysis()
    found = re.findall(rf"= (?:\\S+|\\([^=]*?\\)) (?:{KINDS})(?:-start)?\\(", program.as_text())
    return {
        "share": here / sum(x.nbytes for x in jax.tree.leaves(state)),
        "reused": memory.alias_size_in_bytes / here,
        "scratch": memory.temp_size_in_bytes,
        "collectives": len(found),
    }

rules, alone = module.RULES, dict.fromkeys(module.RULES)
print(json.dumps({
    "copies": counted((8, 1), alone, alone),
    "gathered": counted((4, 2), rules, module.IN_USE),
    "left to XLA": counted((4, 2), rules, rules),
}))
"""


def test_what_the_page_says_that_splitting_costs():
    done = python(COUNTED, devices=8, cwd=ROOT)
    assert 0 == done.returncode, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])

    assert {1.0} == {row["reused"] for row in found.values()}
    assert [1, 0.149, 0.149] == [round(row["share"], 3) for row in found.values()]
    # These are XLA's, and differ between its versions.
    copies, gathered, left = (row["collectives"] for row in found.values())
    assert 1 == copies
    assert gathered <= left / 2
    assert found["gathered"]["scratch"] <= 0.7 * found["left to XLA"]["scratch"]
