"""Saves that are killed: run as a program, which prints as JSON what was left.

The program forks before jax has a backend, and each child makes its own. So a child costs
a tenth of a new Python, and dies without an effect on the tests.
"""

import errno
import functools
import hashlib
import itertools
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import sys
import tempfile
import time

import numpy as np

import purestate as ps
from purestate._saving import file

STEPS = (
    "sweep",
    "open_temporary",
    "write_header",
    "write_array",
    "write_checksums",
    "sync",
    "put_in_place",
    "remove_temporary",
    "sync_folder",
)
ARRAYS = 3


class Box(ps.State):
    a: np.ndarray
    b: np.ndarray
    c: np.ndarray

    def __init__(self, version):
        self.a = np.full(100_000, version, np.float32)
        self.b = np.full(1000, version, np.int64)
        self.c = np.full(10, version, np.uint8)


class Counter(ps.State):
    """A sum that depends on every step and on their order."""

    total: np.ndarray

    def next(self, step):
        with np.errstate(over="ignore"):
            return self.replace(total=self.total * 6364136223846793005 + step)


# --- processes ------------------------------------------------------------------------


def fork(work):
    """Start a process that does the work and ends, with 0 if all went well."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)


def end(child):
    """Return how a process ended: its code, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def do(work):
    return end(fork(work))


# --- files ----------------------------------------------------------------------------


class Folder:
    """A folder with a file of version 1, and what files of both versions look like."""

    def __init__(self, root):
        self.root, self.path = root, root / "box.safetensors"
        self.versions = {}
        for version in (1, 2):
            assert 0 == do(lambda version=version: ps.save(self.path, Box(version)))
            self.versions[self.path.read_bytes()] = version
        self.reset()

    def reset(self):
        (first, *_) = self.versions
        self.path.write_bytes(first)

    def left(self):
        """Return which version the file is, None for neither, and how many strays."""
        found = self.versions.get(self.path.read_bytes())
        return found, len(list(self.root.iterdir())) - 1


def kill_at(name, count, *, after):
    """Make this process die at a step of a save."""
    calls, original = itertools.count(1), getattr(file, name)

    def killing(*args):
        is_it = next(calls) == count
        if is_it and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        found = original(*args)
        if is_it:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(file, name, killing)


# --- what is done to them -------------------------------------------------------------


def at_every_step(root):
    folder, found = Folder(root), []
    for name, after in itertools.product(STEPS, (False, True)):
        for count in range(1, 1 + (ARRAYS if name == "write_array" else 1)):
            folder.reset()

            def work(name=name, after=after, count=count):
                kill_at(name, count, after=after)
                ps.save(folder.path, Box(2))

            code = do(work)
            left = folder.left()
            swept = do(lambda: ps.save(folder.path, Box(2))), *folder.left()
            found.append([name, count, after, code, left, swept])
    return found


def at_random(root):
    folder, found = Folder(root), []

    def work(write):
        for version in itertools.cycle((2, 1)):
            ps.save(folder.path, Box(version))
            os.write(write, b".")

    for _ in range(10):
        read, write = os.pipe()
        child = fork(functools.partial(work, write))
        os.read(read, 1)
        time.sleep(random.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        found.append([end(child), *folder.left()])
        os.close(read)
        os.close(write)
    return found


def with_a_full_disk(root):
    folder = Folder(root)

    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        try:
            ps.save(folder.path, Box(2))
        except OSError as error:
            os._exit(7 if error.errno == errno.EFBIG else 1)

    return [do(work), *folder.left()]


def in_a_folder_without_permission(root):
    folder = Folder(root)

    def work():
        ps.save(folder.path, Box(1))  # imports what a save needs
        os.chmod(folder.root, 0o555)
        if os.getuid() == 0:  # whom no permission keeps out
            os.setuid(65534)
        try:
            ps.save(folder.path, Box(2))
        except PermissionError:
            os._exit(7)

    return [do(work), *folder.left()]


def while_a_fork_writes_too(root):
    folder = Folder(root)

    def work():
        sync, codes = file.sync, []

        def forking(opened):
            file.sync = sync
            codes.append(do(lambda: ps.save(folder.path, Box(1))))
            sync(opened)

        file.sync = forking
        ps.save(folder.path, Box(2))
        assert codes == [0]

    return [do(work), *folder.left()]


def run_of_checkpoints(root, signals, *, background):
    """Run a loop to its end, with a signal to each run before the last.

    Returns:
        How the runs ended, and the files with a hash of what is in them.
    """
    last = 60

    def loop(to_its_end):
        options = {"every": 2, "background": background}
        with ps.Checkpoints(root, **options) as saves:
            state, start = saves.resume(Counter(total=np.zeros(1000, np.uint64)))
            for step in range(start + 1, last + 1):
                state = state.next(step)
                saves.offer(step, state)
                time.sleep(0.001)
                while step == start + 10 and not to_its_end:  # a signal will come
                    saves.offer(step, state)
            saves.save(last, state)

    def work():
        try:
            loop(to_its_end=False)
        except KeyboardInterrupt as stop:
            os._exit(int(str(stop).startswith("stopped after step")))
        except SystemExit as stop:
            os._exit(stop.code)

    def newest():
        return max((path.name for path in root.glob("0*")), default="")

    codes = []
    for sent in signals:
        before, child = newest(), fork(work)
        while newest() == before:
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.005))
        os.kill(child, sent)
        codes.append(end(child))
    codes.append(do(functools.partial(loop, to_its_end=True)))
    left = {path.name: path.read_bytes() for path in root.iterdir()}
    return codes, {k: hashlib.sha256(v).hexdigest() for k, v in sorted(left.items())}


def runs_of_checkpoints(root, *, background):
    kill, stop = signal.SIGKILL, [signal.SIGINT, signal.SIGTERM]
    found = []
    for number, signals in enumerate([[], [kill] * 5, stop * 2]):
        folder = root / str(number)
        folder.mkdir()
        found.append(run_of_checkpoints(folder, signals, background=background))
    return found


SCENES = {
    "at every step": at_every_step,
    "at random": at_random,
    "full disk": with_a_full_disk,
    "no permission": in_a_folder_without_permission,
    "fork": while_a_fork_writes_too,
    "checkpoints": functools.partial(runs_of_checkpoints, background=False),
    "checkpoints in the background": functools.partial(
        runs_of_checkpoints, background=True
    ),
}


def main():
    found = {}
    random.seed(int(sys.argv[1]))
    for name, scene in SCENES.items():
        root = pathlib.Path(tempfile.mkdtemp())
        root.chmod(0o755)
        try:
            found[name] = scene(root)
        finally:
            root.chmod(0o755)
            shutil.rmtree(root)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
