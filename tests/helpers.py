"""What tests of several folders do: pin whole texts, run threads, start a new Python."""

import concurrent.futures
import os
import pathlib
import re
import socket
import subprocess
import sys
import textwrap
import threading

import jax
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


def python(*code, devices=1, env=(), **options):
    """Return the finished process of a new Python that ran the code on CPU devices.

    Args:
        code: parts of the program, each with an indentation of its own.
        devices: how many devices JAX finds.
        env: what to add to this process's environment.
        options: further ones of `subprocess.run`.
    """
    environment = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    return subprocess.run(
        [sys.executable, "-c", "\n".join(map(textwrap.dedent, code))],
        env=os.environ | environment | dict(env),
        **{"capture_output": True, "text": True, "timeout": 300, "check": False}
        | options,
    )


def two_processes(*code):
    """Return what two processes of one JAX program printed; both must succeed.

    Args:
        code: parts of the program, as in `python`. `RANK` is there, the process's number.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = f"""
    import builtins, functools, sys, jax
    builtins.print = functools.partial(print, {_MARK!r})
    RANK = int(sys.argv[1])
    jax.distributed.initialize("127.0.0.1:{port}", 2, RANK)
    """
    program = "\n".join(map(textwrap.dedent, (start, *code)))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank)],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, said, strict=True):
        assert 0 == process.returncode, errors
    # gloo writes to the same pipe, and not always whole lines.
    own = re.compile(f"{_MARK} (.*\n)")
    return ["".join(own.findall(printed)) for printed, _ in said]


_MARK = "said:"


def through_cloudpickle(make, use):
    """Run `make`, carry what it named `made` to another process, and run `use` there."""
    pytest.importorskip("cloudpickle", reason="cloudpickle needs the interop extra")
    send = "import sys, cloudpickle; sys.stdout.buffer.write(cloudpickle.dumps(made))"
    receive = "import pickle, sys; made = pickle.loads(sys.stdin.buffer.read())"

    sent = python(make, send, text=False)
    assert 0 == sent.returncode, sent.stderr.decode()
    used = python(receive, use, "print('fine')", text=False, input=sent.stdout)

    assert "" == used.stderr.decode(), used.stderr.decode()
    assert b"fine\n" == used.stdout


def aux_of(state):
    """Return what jax is told of a State beside its leaves."""
    return jax.tree_util.default_registry.flatten_one_level(state)[1]
