"""`ps.Checkpoints`: a signal lets the step end, saves, and then stops the program."""

import contextlib
import os
import signal
import threading
import time

import jax.numpy as jnp
import pytest

import purestate as ps
from purestate._saving import file
from tests.helpers import exactly, in_threads

INT, TERM = signal.SIGINT, signal.SIGTERM
NOTE = "\nstopping after this step (again: at once)\n"


@pytest.fixture(autouse=True)
def handlers():
    """The handlers that a program starts with, and that each test must leave."""
    started = {INT: signal.default_int_handler, TERM: signal.SIG_DFL}
    before = {number: signal.signal(number, started[number]) for number in started}
    yield started
    found = {number: signal.getsignal(number) for number in started}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert started == found


def state(step):
    return {"step": jnp.int32(step)}


@contextlib.contextmanager
def ends(*blocks, by=KeyboardInterrupt, text=""):
    """Check that a block of checkpoints is left by an exception."""
    with contextlib.ExitStack() as stack:
        raised = stack.enter_context(pytest.raises(by, match=f"^{text}"))
        for block in blocks:
            stack.enter_context(block)
        yield raised


def run(saves, sent, last=9):
    """Run a loop in which a signal is sent in the middle of a step."""
    done = []
    with saves:
        for step in range(1, last + 1):
            if step in sent:
                signal.raise_signal(sent[step])
            done.append(step)
            saves.offer(step, state(step))
    return done


@pytest.mark.parametrize("background", [False, True])
def test_ctrl_c_lets_the_step_end_and_saves_it(tmp_path, background, capfd):
    saves = ps.Checkpoints(tmp_path, every=5, background=background)
    text = f"stopped after step 8, saved as {saves.path(8)}"

    with pytest.raises(KeyboardInterrupt, match=exactly(text)):
        run(saves, {8: INT})

    assert [5, 8] == saves.steps
    assert 8 == saves.resume(state(0))[0]["step"]
    assert NOTE == capfd.readouterr().err


def test_ctrl_c_is_heard_where_nothing_can_be_printed(tmp_path, monkeypatch):
    def closed(*_):
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(os, "write", closed)
    saves = ps.Checkpoints(tmp_path)

    with ends(saves, text="stopped after step 1, "):
        signal.raise_signal(INT)
        saves.offer(1, state(1))


@pytest.mark.parametrize("background", [False, True])
def test_a_program_does_not_stop_as_if_it_had_saved_what_it_could_not(
    tmp_path, monkeypatch, background
):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file, "sync", full)

    with pytest.raises(OSError, match="No space left on device"):
        run(ps.Checkpoints(tmp_path, background=background), {8: INT})

    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("background", [False, True])
def test_sigterm_saves_and_ends_with_the_code_of_the_signal(
    tmp_path, background, capfd
):
    saves = ps.Checkpoints(tmp_path, background=background)

    with pytest.raises(SystemExit) as raised:
        run(saves, {8: TERM})

    assert 143 == raised.value.code
    assert [8] == saves.steps
    assert "" == capfd.readouterr().err


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    saves = ps.Checkpoints(tmp_path)
    done = []

    with ends(saves, text="stopped at once, without saving$"):
        signal.raise_signal(INT)
        done.append("first")
        signal.raise_signal(INT)
        done.append("second")

    assert ["first"] == done
    assert [] == saves.steps


def test_a_second_sigterm_changes_nothing(tmp_path):
    saves = ps.Checkpoints(tmp_path)

    with ends(saves, by=SystemExit):
        signal.raise_signal(TERM)
        signal.raise_signal(TERM)
        saves.offer(1, state(1))

    assert [1] == saves.steps


def test_ctrl_c_after_sigterm_lets_the_step_end_too(tmp_path):
    saves = ps.Checkpoints(tmp_path)

    with ends(saves, by=SystemExit):
        signal.raise_signal(TERM)
        signal.raise_signal(INT)
        saves.offer(1, state(1))

    assert [1] == saves.steps


def test_a_save_that_was_asked_for_stops_too(tmp_path):
    saves = ps.Checkpoints(tmp_path)

    with ends(saves, text="stopped after step 3, "):
        signal.raise_signal(INT)
        saves.save(3, state(3))

    assert [3] == saves.steps


def test_ctrl_c_in_the_middle_of_a_save_lets_it_end(tmp_path, monkeypatch):
    sync = file.sync
    monkeypatch.setattr(file, "sync", lambda f: (signal.raise_signal(INT), sync(f)))
    saves = ps.Checkpoints(tmp_path, every=4)

    with ends(text="stopped after step 4, "):
        run(saves, {})

    assert [4] == saves.steps


def test_a_second_ctrl_c_in_the_middle_of_a_save_leaves_the_files_before_it(
    tmp_path, monkeypatch
):
    saves = ps.Checkpoints(tmp_path)
    saves.save(1, state(1))
    monkeypatch.setattr(file, "sync", lambda _: signal.raise_signal(INT))

    with ends(text="stopped at once"):
        run(saves, {8: INT})

    assert [saves.path(1)] == list(tmp_path.iterdir())


def test_a_program_that_goes_on_after_a_stop_can_be_stopped_again(tmp_path):
    with ps.Checkpoints(tmp_path) as saves:
        for step in (1, 2):
            signal.raise_signal(INT)
            with ends(text=f"stopped after step {step},"):
                saves.offer(step, state(step))
        saves.offer(3, state(3))

    assert [1, 2] == saves.steps


def test_a_signal_after_the_last_offer_stops_at_the_end_of_the_block(tmp_path):
    done = []

    for number, error in ((INT, KeyboardInterrupt), (TERM, SystemExit)):
        with ends(ps.Checkpoints(tmp_path), by=error):
            signal.raise_signal(number)
            done.append(number)

    assert [INT, TERM] == done


def test_an_exception_of_the_block_saves_nothing_and_comes_through(tmp_path):
    saves = ps.Checkpoints(tmp_path, every=1)

    with ends(saves, by=ZeroDivisionError):
        saves.offer(1, state(1))
        signal.raise_signal(INT)
        1 / 0  # noqa: B018

    assert [1] == saves.steps


def test_a_signal_of_one_block_is_forgotten_in_the_next(tmp_path):
    saves = ps.Checkpoints(tmp_path)
    with ends(saves, by=ZeroDivisionError):
        signal.raise_signal(INT)
        1 / 0  # noqa: B018

    assert [1, 2] == run(saves, {}, last=2)
    assert [] == saves.steps


def test_no_signal_is_taken_outside_of_a_block(tmp_path, handlers):
    saves = ps.Checkpoints(tmp_path, every=1)

    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(INT)

    saves.offer(1, state(1))
    assert [1] == saves.steps


def test_the_inner_of_two_blocks_is_asked_and_the_outer_one_after_it(tmp_path):
    outer = ps.Checkpoints(tmp_path / "outer")
    inner = ps.Checkpoints(tmp_path / "inner")

    with ends(outer, text="stopped after step 2, "):
        with inner:
            inner.offer(1, state(1))
        with inner:
            signal.raise_signal(INT)  # an evaluation that ends before its next offer
        outer.offer(2, state(2))

    assert ([], [2]) == (inner.steps, outer.steps)
    with ends(outer, inner, text="stopped after step 3, "):
        signal.raise_signal(INT)
        outer.offer(3, state(3))
        inner.offer(3, state(3))
    assert ([3], [2]) == (inner.steps, outer.steps)


def test_a_block_within_a_block_of_the_same_checkpoints(tmp_path):
    saves = ps.Checkpoints(tmp_path)

    with ends(saves, text="stopped after step 2, "):
        with saves:
            signal.raise_signal(INT)
        saves.offer(2, state(2))

    assert [2] == saves.steps


def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    signal.signal(INT, signal.SIG_IGN)
    try:
        assert [1, 2, 3] == run(ps.Checkpoints(tmp_path), {2: INT}, last=3)
        assert signal.SIG_IGN is signal.getsignal(INT)
    finally:
        signal.signal(INT, signal.default_int_handler)

    assert [] == ps.Checkpoints(tmp_path).steps


def test_another_thread_saves_and_takes_no_signals(tmp_path, handlers):
    found = []

    def loop(_):
        with ps.Checkpoints(tmp_path, every=2) as saves:
            found.append({number: signal.getsignal(number) for number in handlers})
            for step in range(1, 6):
                saves.offer(step, state(step))
        return saves.steps

    assert [[2, 4]] == in_threads(loop, [None])
    assert [handlers] == found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("order", ["a", "aa", "ab", "aba"])
def test_a_process_that_a_block_forked_ends_as_without_it(tmp_path, order):
    objects = {name: ps.Checkpoints(tmp_path / name) for name in order}
    read, write = os.pipe()
    with contextlib.ExitStack() as blocks:
        for name in order:
            blocks.enter_context(objects[name])
        saves = objects["a"]
        child = os.fork()
        if not child:
            try:
                os.write(write, b".")
                time.sleep(30)
            finally:
                os._exit(1)
        os.read(read, 1)  # a signal before this is lost, as Python clears it
        os.kill(child, TERM)
        _, status = os.waitpid(child, 0)
        saves.offer(1, state(1))

    os.close(read)
    os.close(write)
    assert TERM == os.WTERMSIG(status)
    assert [] == saves.steps


def test_a_signal_reaches_the_loop_while_a_file_is_written_on_a_thread(
    tmp_path, monkeypatch
):
    go, put_in_place = threading.Event(), file.put_in_place
    monkeypatch.setattr(
        file, "put_in_place", lambda *paths: (go.wait(30), put_in_place(*paths))
    )
    saves = ps.Checkpoints(tmp_path, every=2, background=True)

    with ends(saves, text="stopped after step 3, "):
        saves.offer(2, state(2))
        signal.raise_signal(INT)
        threading.Timer(0.05, go.set).start()
        saves.offer(3, state(3))

    assert [2, 3] == saves.steps
