"""What tests of several folders do: pin whole texts, run threads, start a new Python."""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def exactly(text):
    """Return the pattern that matches this text and no other."""
    return f"^{re.escape(text)}$"


def in_threads(work, arguments):
    """Return `work` of each argument; each has a thread, and all start at once.

    Raises:
        Exception: what `work` raised, in the thread of the first such argument.
    """
    start = threading.Barrier(len(arguments))

    def run(argument):
        start.wait()
        return work(argument)

    with concurrent.futures.ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(run, arguments))


def python(code, *arguments, devices=1, timeout=300, **options):
    """Return the finished process of a new Python on so many CPU devices.

    Further options are those of `subprocess.run`; `env` adds to this environment.
    """
    environment = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env=os.environ | environment | options.pop("env", {}),
        capture_output=True,
        timeout=timeout,
        check=False,
        **{"text": True} | options,
    )


def through_cloudpickle(make, use):
    """Run `make`; carry its `made` to another process; run `use` there."""
    pytest.importorskip("cloudpickle", reason="cloudpickle needs the interop extra")
    send = "\nimport sys, cloudpickle\nsys.stdout.buffer.write(cloudpickle.dumps(made))"
    receive = "import pickle, sys\nmade = pickle.loads(sys.stdin.buffer.read())\n"

    made = python(textwrap.dedent(make) + send, text=False)
    assert 0 == made.returncode, made.stderr.decode()
    used = python(receive + textwrap.dedent(use), text=False, input=made.stdout)

    assert (0, b"") == (used.returncode, used.stderr), used.stderr.decode()
