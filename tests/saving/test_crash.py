"""A save that ends too early: the file is the old one or the new one, and whole."""

import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import purestate as ps
from purestate._saving import file
from tests.helpers import ROOT, in_threads, python
from tests.saving.killed import STEPS

KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def killed():
    """What the program `killed` found."""
    if not hasattr(os, "fork"):
        pytest.skip("this system does not fork")
    seed = int.from_bytes(os.urandom(4), "little")
    done = subprocess.run(
        [sys.executable, "-m", "tests.saving.killed", str(seed)],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert 0 == done.returncode, f"seed {seed}: {done.stderr}"
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", STEPS)
def test_a_kill_at_any_step_leaves_a_whole_file(killed, name):
    found = [row for row in killed["at every step"] if row[0] == name]

    last = STEPS.index("put_in_place")
    for _, count, after, code, (version, strays), swept in found:
        is_new = (STEPS.index(name), after) >= (last, True)
        is_open = (STEPS.index(name), after) >= (STEPS.index("open_temporary"), True)
        assert KILLED == code
        assert (2 if is_new else 1) == version, (count, after)
        assert (1 if is_open and not is_new else 0) == strays, (count, after)
        assert [0, 2, 0] == swept, (count, after)
    assert len(found) == (6 if name == "write_array" else 2)


def test_a_kill_at_any_moment_leaves_a_whole_file(killed):
    found = killed["at random"]

    assert [KILLED] * 10 == [code for code, _, _ in found]
    assert {version for _, version, _ in found} <= {1, 2}
    assert {strays for _, _, strays in found} <= {0, 1}


@pytest.mark.parametrize("cause", ["full disk", "no permission"])
def test_a_file_that_cannot_be_written_leaves_the_old_one(killed, cause):
    assert [7, 1, 0] == killed[cause]


def test_a_process_forked_in_the_middle_of_a_save_saves_too(killed):
    assert [0, 2, 0] == killed["fork"]


MODES = ["checkpoints", "checkpoints in the background"]


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_was_killed_five_times_ends_as_one_that_was_not(killed, mode):
    (codes, left), (killed_codes, killed_left), _ = killed[mode]

    assert [0] == codes
    assert [*[KILLED] * 5, 0] == killed_codes
    assert [f"000000{step}.safetensors" for step in (56, 58, 60)] == [*left]
    assert left == killed_left


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_was_stopped_four_times_ends_as_one_that_was_not(killed, mode):
    (_, left), _, (codes, stopped_left) = killed[mode]

    assert [1, 143, 1, 143, 0] == codes
    assert left == stopped_left


# --- in this process ------------------------------------------------------------------


class Box(ps.State):
    a: np.ndarray
    b: np.ndarray


def box(version):
    return Box(a=np.full(1000, version, np.int32), b=np.full(50_000, version, np.int16))


def version_of(path):
    """Return the version of a file, all of whose arrays must be of one."""
    found = ps.load(path, Box)
    (version,) = {*found.a.tolist(), *found.b.tolist()}
    return version


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "box.safetensors"
    ps.save(path, box(1))
    return path


@pytest.mark.parametrize("name", STEPS)
def test_ctrl_c_at_any_step_leaves_a_whole_file_and_no_other(path, monkeypatch, name):
    original = getattr(file, name)

    def interrupted(*args):
        monkeypatch.setattr(file, name, original)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(file, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        ps.save(path, box(2))

    is_new = STEPS.index(name) > STEPS.index("put_in_place")
    assert (2 if is_new else 1) == version_of(path)
    assert [path] == list(path.parent.iterdir())


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ps.save(tmp_path / "nowhere" / "box.safetensors", box(1))


def test_a_folder_that_is_removed_during_a_save_is_named(path, monkeypatch):
    monkeypatch.setattr(file, "sync", lambda _: shutil.rmtree(path.parent))

    with pytest.raises(FileNotFoundError, match=path.name):
        ps.save(path, box(2))

    assert not path.parent.exists()


def test_checkpoints_make_a_folder_again_that_was_removed(tmp_path):
    saves = ps.Checkpoints(tmp_path / "run")
    saves.save(1, box(1))
    shutil.rmtree(tmp_path / "run")

    saves.save(2, box(2))

    assert [2] == saves.steps


def test_a_program_that_ends_at_once_ends_when_its_file_is_in_place(tmp_path):
    done = python(
        f"""
        import numpy as np, purestate as ps
        saves = ps.Checkpoints({str(tmp_path)!r}, background=True)
        saves.save(1, [np.ones(1 << 20) for _ in range(8)])
        """
    )

    assert ("", 0) == (done.stderr, done.returncode)
    assert ["00000001.safetensors"] == os.listdir(tmp_path)


@pytest.mark.parametrize("by", ["save", "checkpoints"])
def test_files_of_living_processes_and_of_other_machines_stay(tmp_path, by):
    host, name = platform.node(), "00000001.safetensors"
    dead = 2**22 + 1  # more than the system gives to a process
    stays = [
        f".{name}.tmp-{host}-{os.getppid()}-01234567",
        f".{name}.tmp-{host}2-{dead}-01234567",
        f".{name}.tmp-{host}-{dead}",
        f".mine-{name}.tmp-{host}-{dead}-01234567",
        f".best.safetensors.tmp-{host}-{dead}-01234567",
        f"{name}.tmp-{host}-{dead}-01234567",
    ]
    goes = [f".{name}.tmp-{host}-{dead}-89abcdef"]
    for stray in (*stays, *goes):
        tmp_path.joinpath(stray).touch()

    if by == "save":
        ps.save(tmp_path / name, box(1))
    else:
        ps.Checkpoints(tmp_path).save(1, box(1))

    assert sorted([*stays, name]) == sorted(os.listdir(tmp_path))


def of_another_container(path):
    """Return a temporary path of a process that is alive where we cannot see it."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.tmp-{platform.node()}-{2**22 + 1}-01234567")


def test_a_file_that_another_container_writes_is_not_swept(path):
    temporary = of_another_container(path)

    with file.open_temporary(temporary):
        ps.save(path, box(2))
        assert os.path.exists(temporary)
    ps.save(path, box(3))

    assert [path] == list(path.parent.iterdir())


def test_a_file_is_locked_until_it_is_in_place(path, monkeypatch):
    put_in_place = file.put_in_place

    def swept_before(*paths):
        file.sweep(os.fspath(path.parent), ".*")
        put_in_place(*paths)

    monkeypatch.setattr(file, "temporary_path", of_another_container)
    monkeypatch.setattr(file, "put_in_place", swept_before)
    ps.save(path, box(2))

    assert 2 == version_of(path)


def test_a_file_that_is_swept_before_it_is_locked_is_made_again(path, monkeypatch):
    lock, calls = file._lock, []

    def late(descriptor):
        if not calls:
            (stray,) = path.parent.glob(".*")
            stray.unlink()
        calls.append(descriptor)
        return lock(descriptor)

    monkeypatch.setattr(file, "_lock", late)
    ps.save(path, box(2))

    assert 2 == len(calls)
    assert 2 == version_of(path)


def test_where_no_file_can_be_locked_saves_go_on_and_none_is_swept(path, monkeypatch):
    class Locks:
        LOCK_EX = LOCK_NB = 0

        def flock(self, *_):
            raise OSError(95, "Operation not supported")

    stray = pathlib.Path(of_another_container(path))
    stray.touch()
    monkeypatch.setattr(file, "_fcntl", Locks())

    ps.save(path, box(2))

    assert 2 == version_of(path)
    assert {path, stray} == {*path.parent.iterdir()}


def test_readers_see_whole_files_while_they_are_replaced(path):
    is_over = threading.Event()

    def write():
        for version in range(2, 32):
            ps.save(path, box(version))
        is_over.set()

    def read():
        found = []
        while not is_over.is_set():
            found.append(version_of(path))
        return found

    _, *found = in_threads(lambda work: work(), [write, read, read])

    assert all(versions == sorted(versions) for versions in found)
    assert all(len(versions) > 2 for versions in found)
    assert 31 == version_of(path)


def test_two_writers_leave_a_file_of_one_of_them(path):
    def write(versions):
        for version in versions:
            ps.save(path, box(version))

    in_threads(write, [range(2, 32, 2), range(3, 32, 2)])

    assert version_of(path) in (30, 31)
    assert [path] == list(path.parent.iterdir())


def test_the_error_of_a_save_is_the_one_that_stopped_it(path, monkeypatch):
    def fail(_):
        shutil.rmtree(path.parent)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file, "sync", fail)

    with pytest.raises(OSError, match="No space left on device"):
        ps.save(path, box(2))
