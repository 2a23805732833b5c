"""`ps.Checkpoints`: which files there are, and what comes back from them."""

import inspect
import os
import platform
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate._saving import file
from purestate.errors import LoadError, LoadWarning, PersistError, SaveError
from tests.helpers import exactly


class Train(ps.State):
    w: jax.Array
    key: jax.Array
    step: ps.Array = 0
    rate: float = ps.static(default=0.1)

    def next(self):
        key, draw = jax.random.split(self.key)
        w = self.w + jax.random.normal(draw, self.w.shape)
        return self.replace(w=w, key=key, step=self.step + 1)


def make(seed=0):
    return Train(w=jnp.zeros(3), key=jax.random.key(seed))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def steps_saved(saves, offered):
    """Return which of the offered steps were saved."""
    found = []
    for step in offered:
        saves.offer(step, make(), extra=lambda step=step: found.append(step))
    saves.wait()
    return found


# --- resume ---------------------------------------------------------------------------


def test_a_run_that_starts_gets_its_own_state_and_step_0(tmp_path):
    saves, state = ps.Checkpoints(tmp_path / "run"), make()

    assert (state, 0) == saves.resume(state)
    assert state is saves.resume(state)[0]
    assert saves.extra is None
    assert [] == saves.steps
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_from_its_newest_file(tmp_path):
    states = [make().next(), make().next().next()]
    saves = ps.Checkpoints(tmp_path)
    saves.save(1, states[0], extra={"loss": 1.0})
    saves.save(2, states[1], extra={"loss": 0.5})

    again = ps.Checkpoints(tmp_path)
    state, step = again.resume(make(seed=1))

    assert 2 == step
    assert states[1] == state
    assert {"loss": 0.5} == again.extra


@pytest.mark.parametrize("background", [False, True])
def test_a_run_that_went_on_ends_as_one_that_was_not_interrupted(tmp_path, background):
    whole = make()
    for _ in range(9):
        whole = whole.next()

    for last in (4, 6, 9):
        with ps.Checkpoints(tmp_path, every=2, background=background) as saves:
            state, start = saves.resume(make())
            for step in range(start + 1, last + 1):
                state = state.next()
                saves.offer(step, state)

    assert whole == state
    assert [4, 6, 8] == saves.steps


def test_the_class_or_an_abstract_state_is_enough_where_there_is_a_file(tmp_path):
    saves = ps.Checkpoints(tmp_path)
    saves.save(3, make())

    assert (make(), 3) == saves.resume(Train)
    assert (make(), 3) == saves.resume(jax.eval_shape(make))


def test_a_state_may_be_a_container_or_packed(tmp_path):
    states = {"list": [make(), 3], "dict": {"a": make()}, "pack": ps.pack(make())}
    for name, state in states.items():
        saves = ps.Checkpoints(tmp_path / name)
        saves.save(1, state, extra=name)

        found, _ = saves.resume(state)

        assert not ps.diff(state, found, values=True)
        assert name == saves.extra


NO_STARTS = {
    "a class": Train,
    "an abstract state": jax.eval_shape(make),
    "a function": make,
    "a list of classes": [Train],
    "a dict of classes": {"a": Train},
}


@pytest.mark.parametrize("like", NO_STARTS.values(), ids=NO_STARTS)
def test_nothing_starts_with_what_is_no_state(tmp_path, like):
    text = f"{tmp_path} holds no checkpoint: give resume the state to start with."

    with pytest.raises(LoadError, match=exactly(text)):
        ps.Checkpoints(tmp_path).resume(like)


@pytest.mark.parametrize("has_files", [False, True])
def test_resume_checks_its_arguments_where_there_is_no_file_too(tmp_path, has_files):
    saves = ps.Checkpoints(tmp_path)
    if has_files:
        saves.save(1, make())

    text = "resume(None): give the state to start with."
    with pytest.raises(TypeError, match=exactly(text)):
        saves.resume(None)
    with pytest.raises(ValueError, match="allow='foo': give 'cast', "):
        saves.resume(make(), allow="foo")
    with pytest.raises(ValueError, match="allow=None: give 'cast', "):
        saves.resume(make(), allow=None)


def test_extra_is_none_when_no_file_was_found(tmp_path):
    saves = ps.Checkpoints(tmp_path)
    saves.save(1, make(), extra={"at": 1})
    saves.resume(make())
    saves.path(1).unlink()

    saves.resume(make())

    assert saves.extra is None


def test_the_warning_of_a_default_names_the_line_that_resumes(tmp_path):
    class Train(ps.State):
        w: jax.Array

    saves = ps.Checkpoints(tmp_path)
    saves.save(1, Train(w=jnp.zeros(3)))

    class Train(ps.State):
        w: jax.Array
        n: int = 1

    with pytest.warns(LoadWarning, match=r"has no Train\.n") as warned:
        saves.resume(Train)

    assert [__file__] == [warning.filename for warning in warned]


def test_a_file_that_another_program_removes_meanwhile_is_passed_over(
    tmp_path, monkeypatch
):
    saves = ps.Checkpoints(tmp_path)
    saves.save(1, make(seed=1))
    listdir = os.listdir
    gone = "00000002.safetensors"
    monkeypatch.setattr(os, "listdir", lambda folder: [*listdir(folder), gone])

    assert (make(seed=1), 1) == saves.resume(make())


def test_a_file_that_a_migration_misses_is_an_error(tmp_path):
    class Train(ps.State):
        w: jax.Array

    saves = ps.Checkpoints(tmp_path)
    saves.save(1, Train(w=jnp.zeros(3)))

    class Train(ps.State, version=1):
        w: jax.Array

        @staticmethod
        def __migrate__(saved, version):
            raise FileNotFoundError("a table")

    with pytest.raises(FileNotFoundError, match="a table"):
        saves.resume(Train)


def test_a_program_may_change_its_folder(tmp_path, monkeypatch):
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path)
    saves = ps.Checkpoints("run")
    saves.save(1, make())

    monkeypatch.chdir("else")
    saves.save(2, make())

    assert [1, 2] == saves.steps
    assert tmp_path / "run" == saves.directory


def test_a_file_that_does_not_fit_is_not_passed_over(tmp_path):
    saves = ps.Checkpoints(tmp_path)
    saves.save(1, make())
    saves.save(2, make().replace(w=jnp.zeros(4)))

    with pytest.raises(
        LoadError, match=r"Train\.w: shape \(4,\) in the file, \(3,\) e"
    ) as error:
        saves.resume(make())
    frames = inspect.getinnerframes(error.tb)
    (saved,) = (f.frame.f_locals["saved"] for f in frames if f.function == "resume")
    with pytest.raises(ValueError, match="was closed"):
        np.asarray(saved["w"])


def test_resume_takes_the_options_of_load(tmp_path):
    saves = ps.Checkpoints(tmp_path)
    saves.save(1, make())
    like = make().replace(w=jnp.zeros(3, jnp.bfloat16))
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    state, _ = saves.resume(like, allow="cast", sharding=sharding)

    assert jnp.bfloat16 == state.w.dtype
    assert state.w.committed


def damage(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_damaged_file_is_passed_over_with_a_warning(tmp_path):
    saves = ps.Checkpoints(tmp_path)
    for step in (1, 2, 3):
        saves.save(step, make(seed=step), extra=step)
    damage(saves.path(3))
    saves.path(2).write_bytes(b"")

    with pytest.warns(LoadWarning) as warned:
        state, step = saves.resume(make())

    newest, second = (str(warning.message) for warning in warned)
    assert newest.startswith(f"{saves.path(3)} is damaged: the bytes of ")
    assert newest.endswith(
        " Use an earlier file. Going back to the checkpoint before it."
    )
    assert (
        f"{saves.path(2)} is shorter than a header. Going back to the checkpoint "
        "before it." == second
    )
    assert {__file__} == {warning.filename for warning in warned}
    assert (make(seed=1), 1, 1) == (state, step, saves.extra)


def test_a_run_whose_files_are_all_damaged_starts_again_with_a_warning(tmp_path):
    saves = ps.Checkpoints(tmp_path)
    saves.save(1, make())
    damage(saves.path(1))

    with pytest.warns(LoadWarning, match=r"There is none before it\.$"):
        state, step = saves.resume(make(seed=1))

    assert (make(seed=1), 0) == (state, step)


def test_a_damaged_file_takes_the_place_of_none_that_is_whole(tmp_path):
    saves = ps.Checkpoints(tmp_path, keep=1)
    saves.save(10, make())
    damage(saves.path(10))

    saves.save(8, make(seed=8))
    saves.save(9, make(seed=9))

    with pytest.warns(LoadWarning, match="Going back"):
        assert (make(seed=9), 9) == saves.resume(make())
    saves.save(10, make(seed=10))
    assert (make(seed=10), 10) == saves.resume(make())
    assert [10] == saves.steps


# --- which files there are ------------------------------------------------------------


def test_files_are_named_by_their_steps(tmp_path):
    saves = ps.Checkpoints(tmp_path / "deep" / "run", keep=None)
    for step in (123456789, 20, np.int64(3), jnp.int32(0)):
        saves.save(step, make())

    written = ["00000000", "00000003", "00000020", "123456789"]
    assert [f"{name}.safetensors" for name in written] == names(saves.directory)
    assert [0, 3, 20, 123456789] == saves.steps
    assert saves.directory / "00000003.safetensors" == saves.path(3)
    assert make() == ps.load(saves.path(123456789), Train)


def test_other_files_of_the_folder_are_left_alone(tmp_path):
    others = ["best.safetensors", "00000001.json", "1.safetensors"]
    others += ["000000001.safetensors", ".00000001.safetensors.tmp-else-1-01234567"]
    for name in others:
        (tmp_path / name).write_text("mine")
    saves = ps.Checkpoints(tmp_path, keep=1)

    saves.save(5, make())

    assert [5] == saves.steps
    assert sorted([*others, "00000005.safetensors"]) == names(tmp_path)


def test_the_newest_files_are_kept(tmp_path):
    saves = ps.Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3, 10):
        saves.save(step, make())

    assert [3, 10] == saves.steps


def test_all_files_are_kept_if_asked_for(tmp_path):
    saves = ps.Checkpoints(tmp_path, keep=None)
    for step in range(6):
        saves.save(step, make())

    assert [0, 1, 2, 3, 4, 5] == saves.steps


def test_old_files_stay_if_the_new_one_cannot_be_written(tmp_path):
    saves = ps.Checkpoints(tmp_path, keep=1)
    saves.save(1, make())

    with pytest.raises(SaveError, match="w holds a function"):
        saves.save(2, {"w": lambda: 0})

    assert [1] == saves.steps


def test_saving_a_step_again_replaces_its_file(tmp_path):
    saves = ps.Checkpoints(tmp_path)
    saves.save(1, make())
    saves.save(1, make(seed=1))

    assert (make(seed=1), 1) == saves.resume(make())
    assert ["00000001.safetensors"] == names(tmp_path)


def test_what_a_killed_run_left_is_removed(tmp_path):
    stray = (
        tmp_path / f".00000007.safetensors.tmp-{platform.node()}-{2**22 + 1}-01234567"
    )
    stray.write_bytes(b"half")

    ps.Checkpoints(tmp_path).save(8, make())

    assert ["00000008.safetensors"] == names(tmp_path)


def test_a_step_has_a_number_from_0_up(tmp_path):
    saves = ps.Checkpoints(tmp_path)

    with pytest.raises(
        ValueError, match=r"^step=-1: a checkpoint has a step from 0 up"
    ):
        saves.save(-1, make())
    with pytest.raises(TypeError, match="float"):
        saves.save(1.0, make())


# --- when offer saves -----------------------------------------------------------------


def test_offer_saves_at_multiples_of_the_steps(tmp_path):
    saves = ps.Checkpoints(tmp_path, every=3)

    assert [3, 6, 9] == steps_saved(saves, range(10))


def test_offer_saves_at_the_first_step_after_a_multiple(tmp_path):
    saves = ps.Checkpoints(tmp_path, every=50)

    assert [60, 100, 160] == steps_saved(saves, range(20, 181, 20))


def test_offer_goes_on_where_the_run_was_resumed(tmp_path):
    ps.Checkpoints(tmp_path).save(7, make())
    saves = ps.Checkpoints(tmp_path, every=3)
    saves.resume(make())

    assert [9, 12] == steps_saved(saves, range(8, 14))


def test_offer_does_not_save_what_was_just_saved(tmp_path):
    saves = ps.Checkpoints(tmp_path, every=3)
    saves.save(6, make())

    assert [9] == steps_saved(saves, range(6, 10))


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test turns."""

    class Clock:
        now = 1000.0

    monkeypatch.setattr("time.monotonic", lambda: Clock.now)
    return Clock


@pytest.mark.parametrize(
    ("every", "seconds"),
    [("30 s", 30), ("30s", 30), ("5 min", 300), ("2 h", 7200), ("0.5 h", 1800)],
)
def test_offer_saves_when_the_time_is_over(tmp_path, clock, every, seconds):
    saves = ps.Checkpoints(tmp_path, every=every)

    found = []
    for passed in (seconds - 1, 1, seconds - 1, 1, 1):
        clock.now += passed
        found.append(steps_saved(saves, [1]))

    assert [[], [1], [], [1], []] == found


def test_offer_saves_nothing_if_it_was_not_told_when(tmp_path):
    assert [] == steps_saved(ps.Checkpoints(tmp_path), range(100))


def test_extra_may_be_a_function_that_is_called_when_saving(tmp_path):
    calls = []

    def position():
        calls.append(None)
        return {"next_index": len(calls)}

    saves = ps.Checkpoints(tmp_path, every=2)
    for step in range(1, 6):
        saves.offer(step, make(), extra=position)
    saves.resume(make())

    assert 2 == len(calls)
    assert {"next_index": 2} == saves.extra


@pytest.mark.parametrize("every", ["5 mins", "5", "", "-1 s", "0 s", 0, -1, True, 2.5])
def test_every_is_a_number_of_steps_or_a_time(tmp_path, every):
    text = (
        f"every={every!r}: give a number of steps, or a time as '30 s', '5 min', '2 h'."
    )

    with pytest.raises(ValueError, match=exactly(text)):
        ps.Checkpoints(tmp_path, every=every)


@pytest.mark.parametrize("keep", [0, -1, True, 2.5, "3"])
def test_keep_is_a_number_of_files(tmp_path, keep):
    text = f"keep={keep!r}: give how many files to keep, 1 or more, or None for all."

    with pytest.raises(ValueError, match=exactly(text)):
        ps.Checkpoints(tmp_path, keep=keep)


def test_one_process_writes_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    text = (
        "Checkpoints is for one process: signals reach processes at different steps. "
        "Use orbax's training.Checkpointer with ps.to_dict, see docs/saving.md."
    )

    with pytest.raises(PersistError, match=exactly(text)):
        ps.Checkpoints(tmp_path)


def test_an_address_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SaveError, match=r"'gs://bucket/run' is an address"):
        ps.Checkpoints("gs://bucket/run")

    assert [] == names(tmp_path)


# --- background -----------------------------------------------------------------------


def test_a_state_may_be_donated_while_it_is_written(tmp_path):
    class Big(ps.State):
        w: jax.Array
        host: np.ndarray

        @ps.jit(donate=True)
        def next(self):
            return self.replace(w=self.w + 1)

    host = np.zeros(4)
    big = Big(w=jnp.zeros(1 << 20), host=host)
    with ps.Checkpoints(tmp_path, keep=None, background=True) as saves:
        for step in range(4):
            saves.save(step, big)
            host += 1
            big = big.next().replace(host=host)

    found = [ps.load(saves.path(step), Big) for step in saves.steps]
    assert [0, 1, 2, 3] == [float(f.w.min()) for f in found]
    assert [0, 1, 2, 3] == [float(f.w.max()) for f in found]
    assert [0, 1, 2, 3] == [f.host.tolist()[0] for f in found]


def test_arrays_in_two_places_are_written_once_in_the_background_too(tmp_path):
    w = jnp.zeros(1000)
    state = {"a": w, "b": w, "key": jax.random.key(0)}
    with ps.Checkpoints(tmp_path, background=True) as saves:
        saves.save(1, state)
    ps.save(tmp_path / "fore.safetensors", state)

    assert saves.path(1).read_bytes() == (tmp_path / "fore.safetensors").read_bytes()


def join_writers():
    """Wait for the threads, as no call of `Checkpoints` does without raising errors."""
    for thread in threading.enumerate():
        if thread.name == "ps.Checkpoints":
            thread.join()


class Held:
    """Background writes that wait until they may go on."""

    def __init__(self, monkeypatch):
        self.go = threading.Event()
        original = file.put_in_place

        def put_in_place(*args):
            assert self.go.wait(30)
            original(*args)

        monkeypatch.setattr(file, "put_in_place", put_in_place)


def test_the_loop_goes_on_while_a_file_is_written(tmp_path, monkeypatch):
    held = Held(monkeypatch)
    saves = ps.Checkpoints(tmp_path, every=2, background=True)
    saves.save(2, make())
    saves.offer(3, make())

    assert [] == saves.steps
    held.go.set()
    saves.wait()
    assert [2] == saves.steps


def test_resume_waits_for_the_file_that_is_being_written(tmp_path, monkeypatch):
    held = Held(monkeypatch)
    saves = ps.Checkpoints(tmp_path, background=True)
    saves.save(2, make())
    threading.Timer(0.05, held.go.set).start()

    assert (make(), 2) == saves.resume(make(seed=1))


@pytest.fixture
def full(monkeypatch):
    """A disk without space."""

    def sync(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file, "sync", sync)


ENDS = {
    "offer": lambda saves: saves.offer(2, make()),
    "save": lambda saves: saves.save(2, make()),
    "wait": lambda saves: saves.wait(),
    "resume": lambda saves: saves.resume(make()),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_next_call_raises_what_writing_in_the_background_raised(
    tmp_path, full, end
):
    saves = ps.Checkpoints(tmp_path, background=True)
    saves.save(1, make())
    join_writers()

    with pytest.raises(OSError, match="No space left on device"):
        ENDS[end](saves)

    saves.wait()  # it is raised once
    assert [] == names(tmp_path)


def test_the_end_of_the_block_raises_what_writing_in_the_background_raised(
    tmp_path, full
):
    def run():
        with ps.Checkpoints(tmp_path, background=True) as saves:
            saves.save(1, make())

    with pytest.raises(OSError, match="No space left on device"):
        run()


def test_what_cannot_be_saved_is_found_before_the_thread_starts(tmp_path):
    saves = ps.Checkpoints(tmp_path, background=True)

    with pytest.raises(SaveError, match="w holds a function"):
        saves.save(1, {"w": lambda: 0})


def test_the_error_of_the_block_tells_of_the_one_in_the_background(tmp_path, full):
    def fail():
        with ps.Checkpoints(tmp_path, background=True) as saves:
            saves.save(1, make())
            join_writers()
            1 / 0  # noqa: B018

    with pytest.raises(ZeroDivisionError) as raised:
        fail()

    (note,) = raised.value.__notes__
    assert (
        "A checkpoint was not written: OSError: [Errno 28] No space left on device"
        == note
    )


def test_an_error_that_no_call_raised_is_shown(tmp_path, full, capsys):
    saves = ps.Checkpoints(tmp_path, background=True)
    saves.save(1, make())
    join_writers()
    assert "" == capsys.readouterr().err

    del saves

    assert capsys.readouterr().err.endswith(
        "OSError: [Errno 28] No space left on device\n"
    )
