"""The scripts in docs/ do what they say, and the pages say what is there."""

import builtins
import contextlib
import functools
import importlib.metadata
import importlib.util
import io
import itertools
import pathlib
import re
import signal
import struct
import sys
from xml.etree import ElementTree

import jax
import numpy as np
import pytest

import purestate as ps
from purestate import errors
from tests.helpers import ROOT

DOCS = ROOT / "docs"
EXAMPLES = DOCS / "examples"
EPOCHS = 3


def load(name):
    """Return a script of docs/ as a fresh module, which shares no compiled function."""
    spec = importlib.util.spec_from_file_location(pathlib.Path(name).stem, DOCS / name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)  # a script finds those beside it
        spec.loader.exec_module(module)
    return module


# --- box.py --------------------------------------------------------------------------


@pytest.fixture
def box_output(capsys):
    load("examples/box.py").main()
    return capsys.readouterr().out


def test_the_plain_box_ends_in_the_error(box_output):
    plain, _ = box_output.split("\n\n")

    assert "cache = TracerArrayConversionError: " in plain


def test_the_state_box_keeps_its_cache(box_output):
    _, state = box_output.split("\n\n")

    assert "cache = [0. 2. 4.]" in state


def test_importing_the_box_prints_nothing(capsys):
    load("examples/box.py")

    assert capsys.readouterr().out == ""


def test_the_box_fits_on_a_page():
    assert len((EXAMPLES / "box.py").read_text().splitlines()) < 60


# --- train_digits.py -----------------------------------------------------------------


class Run:
    """One short training run and what it left behind."""

    def __init__(self, folder):
        self.module = load("examples/train_digits.py")
        self.picture = folder / "out" / "digits.png"
        self.traces = 0
        self.inputs = []
        cls = self.module.TrainState
        update, epoch = cls.update, cls.epoch

        def counted(state, images, labels):
            self.traces += 1
            return update(state, images, labels)

        def watched(state, images, labels):
            self.inputs.append((state, jax.tree.leaves(state)))
            return epoch(state, images, labels)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cls, "update", counted)
            patch.setattr(cls, "epoch", watched)
            self.accuracy, self.state = self.module.main(EPOCHS, self.picture)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    for name in ("matplotlib", "optax", "rich", "sklearn"):
        pytest.importorskip(name, reason="needs the extra `examples`")
    return Run(tmp_path_factory.mktemp("digits"))


def test_few_epochs_read_most_digits(run):
    assert run.accuracy > 0.9


def test_accuracy_is_that_of_the_model_returned(run):
    images, labels = run.module.load_digits(return_X_y=True)

    predicted = run.state.model(np.float32(images / 16)).argmax(axis=-1)

    assert np.mean(predicted == labels) > 0.9


def test_a_run_can_be_repeated_exactly(run, tmp_path):
    again, state = run.module.main(epochs=EPOCHS, out=tmp_path / "again.png")

    assert run.accuracy == again
    assert run.state == state


def test_every_step_is_counted_in_an_int32(run):
    assert EPOCHS * (1347 // 32) == run.state.step
    assert run.state.step.dtype == np.int32
    assert not run.state.step.weak_type


def test_the_train_step_is_traced_once_for_all_epochs(run):
    assert EPOCHS == len(run.inputs)
    assert run.traces == 1


def test_every_epoch_consumes_the_state_that_it_was_given(run):
    if not donates():
        pytest.skip(f"{jax.default_backend()} does not donate buffers")

    assert all(leaf.is_deleted() for _, leaves in run.inputs for leaf in leaves)
    assert {"<TrainState, donated to TrainState.epoch()>"} == {
        repr(state) for state, _ in run.inputs
    }
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(run.state))


def donates():
    x = jax.numpy.zeros(3)
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    return x.is_deleted()


def test_the_picture_is_a_png_of_the_size_it_says(run):
    head = run.picture.read_bytes()[:24]

    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert (1800, 630) == struct.unpack(">II", head[16:24])


def test_nothing_but_the_picture_and_a_checkpoint_is_written(run):
    folder = run.picture.with_suffix(".run")

    assert {run.picture, folder} == set(run.picture.parent.iterdir())
    assert ["00000003.safetensors"] == [path.name for path in folder.iterdir()]


def test_a_run_that_was_interrupted_goes_on_and_ends_as_one_that_was_not(
    run, tmp_path, monkeypatch
):
    evaluate, epochs = run.module.evaluate, itertools.count(1)

    def interrupted(*args):
        if next(epochs) == 2:
            signal.raise_signal(signal.SIGINT)
        return evaluate(*args)

    monkeypatch.setattr(run.module, "evaluate", interrupted)
    out = tmp_path / "digits.png"
    with pytest.raises(KeyboardInterrupt, match=r"^stopped after step 2, saved as "):
        run.module.main(EPOCHS, out)
    assert not out.exists()
    accuracy, state = run.module.main(EPOCHS, out, resume=True)

    assert run.accuracy == accuracy
    assert not ps.diff(run.state, state, values=True)
    assert run.picture.read_bytes() == out.read_bytes()


def test_a_run_that_starts_anew_removes_the_checkpoints_of_the_one_before(tmp_path):
    showing = load("examples/showing.py")
    saves = ps.Checkpoints(tmp_path)
    saves.save(3, {"a": 3})

    showing.forget(saves)

    assert [] == list(tmp_path.iterdir())


def test_an_interrupted_picture_leaves_the_old_one(run, tmp_path):
    path = tmp_path / "digits.png"
    path.write_bytes(b"the old picture")

    class Interrupted:
        def savefig(self, part, **options):
            pathlib.Path(part).write_bytes(b"half a pict")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.module.save(Interrupted(), path)

    assert b"the old picture" == path.read_bytes()
    assert [path] == list(tmp_path.iterdir())


def test_a_log_gets_plain_lines(run, tmp_path, capsys):
    run.module.main(epochs=1, out=tmp_path / "digits.png")
    printed = capsys.readouterr().out

    assert "epoch   1/1  loss " in printed
    assert f"{ps.summary(run.state).numbers:,}" in printed
    assert "\x1b" not in printed
    assert "are misread" in printed


# --- charlm.py -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def charlm():
    for name in ("optax", "rich"):
        pytest.importorskip(name, reason="needs the extra `examples`")
    module = load("examples/charlm.py")
    module.docstrings = functools.cache(module.docstrings)  # a second of parsing
    return module


@pytest.fixture(scope="module")
def written(charlm, tmp_path_factory):
    """What a short run found, its state, and what it printed."""
    printed, out = io.StringIO(), tmp_path_factory.mktemp("charlm")
    with contextlib.redirect_stdout(printed):
        found, train = charlm.main(total=60, per_call=20, written=12, out=out)
    return found, train, printed.getvalue()


def test_a_transformer_that_was_interrupted_ends_as_one_that_was_not(
    charlm, written, tmp_path, monkeypatch
):
    steps, options = charlm.Train.steps, {"total": 60, "written": 12, "out": tmp_path}

    def interrupted(*args, **kwargs):
        signal.raise_signal(signal.SIGINT)
        return steps(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(charlm.Train, "steps", interrupted)
        with pytest.raises(
            KeyboardInterrupt, match=r"^stopped after step 20, saved as"
        ):
            charlm.main(**options)
    found, train = charlm.main(**options, resume=True)

    expected, uninterrupted, _ = written
    assert expected == found
    assert not ps.diff(uninterrupted, train, values=True)


def test_a_few_steps_teach_the_transformer_more_than_how_often_bytes_occur(written):
    found, _, _ = written

    assert found["this model"] < found["bytes, counted"]
    assert found["pairs of bytes, counted"] < found["bytes, counted"]


def test_the_transformer_prints_its_bits_per_byte_and_a_text(written):
    found, _, printed = written

    assert f"{found['this model']:8.3f}  this model\n" in printed
    assert 12 == len(printed.rpartition("|")[2].removesuffix("\n"))


def test_no_text_of_the_transformer_sees_what_comes_after(charlm):
    model = charlm.Transformer(jax.random.key(0))
    text = np.arange(32, dtype=np.uint8)[None]
    changed = text.copy()
    changed[0, 20:] = 7

    first, second = model(text), model(changed)

    assert np.allclose(first[:, :20], second[:, :20], atol=1e-6)
    assert not np.allclose(first[:, 20:], second[:, 20:], atol=1e-3)


def test_norms_and_embeddings_of_the_transformer_do_not_decay(charlm):
    model = charlm.Transformer(jax.random.key(0))

    decayed = [
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, flag in jax.tree_util.tree_leaves_with_path(charlm.DECAYED(model))
        if flag
    ]

    names = ("queries_keys_values", "mix", "up", "down")
    assert [f"blocks.{name}" for name in names] == decayed


def test_runs_of_the_transformer_share_one_program(charlm, written):
    _, train, _ = written

    assert not ps.diff(train, charlm.Train(jax.random.key(1), 60))


def test_the_page_shows_the_table_of_the_transformer(charlm):
    page = (DOCS / "looking.md").read_text()
    picture = ElementTree.parse(DOCS / "summary.svg").getroot()
    found = ps.summary(charlm.Train(jax.random.key(0), 1300))

    assert ps.summary(charlm.Train(jax.random.key(0), 1300), 1)._repr_html_() in page
    drawn = "".join(picture.itertext()).replace("\xa0", " ")
    assert all(line.rstrip() in drawn for line in str(found).split("\n"))


def test_held_out_modules_are_not_read(charlm):
    read, held_out = set(charlm.READ.split()), set(charlm.HELD_OUT.split())

    assert not read & held_out
    assert [] == [m for m in read | held_out if len(charlm.docstrings(m)) < 500]


# --- peers.py and the pages ----------------------------------------------------------


@pytest.fixture(scope="module")
def peers():
    return load("peers.py")


def readme_table():
    """Return the comparison of README.md: per library, its cells from the top."""
    lines = (ROOT / "README.md").read_text().splitlines()
    start = lines.index("## Next to others")
    rows = [line for line in lines[start:] if line.startswith("|")]
    cells = [[cell.strip() for cell in row[1:-1].split("|")] for row in rows]
    return {name: tuple(column) for name, _, *column in zip(*cells, strict=True)}


def test_readme_asks_every_question_of_the_script(peers):
    assert readme_table()[""] == tuple(probe.__doc__ for probe in peers.PROBES)


def test_readme_says_of_purestate_what_the_script_finds(peers):
    assert readme_table()["purestate"] == answers(peers, peers.Purestate())


def answers(peers, library):
    """Return what the script finds, or, without pyright, the page's word for that."""
    return tuple(
        peers.answer(probe, library)
        if peers.PYRIGHT or probe is not peers.typo
        else readme_table()[library.name][peers.PROBES.index(probe)]
        for probe in peers.PROBES
    )


@pytest.mark.parametrize(
    "name", ["Equinox", "FlaxStruct", "Chex", "JaxDataclasses", "Registered"]
)
def test_readme_says_of_a_peer_what_the_script_finds(peers, name):
    kind = getattr(peers, name)
    try:
        version = f"{kind.package} {importlib.metadata.version(kind.package)}"
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{kind.package} is not installed")
    if version not in (ROOT / "README.md").read_text():
        pytest.skip(f"the table was not made with {version}")
    peer = kind()

    assert readme_table()[kind.name] == answers(peers, peer)


def test_the_page_on_state_explains_errors_that_exist():
    named = set(re.findall(r"`(\w+Error)`", (DOCS / "state.md").read_text()))

    ours = {name for name in named if not hasattr(builtins, name)}

    assert "FrozenStateError" in ours
    assert ours <= set(errors.__all__)


def test_the_home_page_shows_the_error_as_it_is():
    class Box(ps.State):
        cache: jax.Array

        @jax.jit
        def apply(self, x):
            self.cache = x

    page = (DOCS / "index.md").read_text()
    shown = re.search(r"purestate\.errors\.FrozenStateError: (.*?)```", page, re.DOTALL)
    with pytest.raises(errors.FrozenStateError) as caught:
        Box(cache=np.zeros(3)).apply(np.ones(3))

    assert shown[1].split() == str(caught.value).split()


def test_the_menu_of_the_site_has_every_page():
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    names = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}

    assert [] == [name for name in sorted(names) if f" {name}\n" not in menu]


def test_a_page_links_every_script():
    pages = [(path, path.read_text()) for path in DOCS.rglob("*.md")]
    linked = {
        (path.parent / target).resolve()
        for path, text in pages
        for target in re.findall(r"\]\(([^)#]+\.py)\)", text)
    }

    assert [] == sorted(set(DOCS.rglob("*.py")) - linked)


def test_the_readme_can_be_read_at_once():
    assert len((ROOT / "README.md").read_text().splitlines()) < 250


@pytest.mark.parametrize("name", ["digits.png", "humanoid.png"])
def test_a_picture_of_the_readme_is_small(name):
    assert (DOCS / name).stat().st_size < 150_000


# --- host_numpy.py -------------------------------------------------------------------


def test_the_epidemic_is_fitted_and_its_gradient_is_right(capsys):
    pytest.importorskip("scipy", reason="needs the extra `examples`")

    error, found, truth = load("examples/host_numpy.py").main()

    assert error < 1e-4
    assert np.allclose(found, np.tile(truth, (4, 1)), atol=2e-3)
    assert 5 == len(capsys.readouterr().out.splitlines())


# --- lorenz96.py -----------------------------------------------------------------------


def test_the_weather_has_its_climate_and_is_estimated_better_than_it_is_measured(
    tmp_path,
):
    for name in ("numba", "matplotlib", "optax"):
        pytest.importorskip(name, reason="needs the extras `examples` and `numba`")
    module = load("examples/lorenz96.py")

    mean, spread, errors = module.main(steps=20_000, cycles=9, out=tmp_path)

    assert "native" == module.step.lowering
    assert abs(mean - 2.34) < 0.1  # of 10^8 steps: 2.34 and 3.64
    assert abs(spread - 3.64) < 0.1
    assert errors["estimate"] < 0.7 < 2 < errors["forecast"]
    assert (tmp_path / "lorenz96.png").stat().st_size > 20_000


def test_the_adjoint_of_a_step_of_the_weather_is_its_gradient():
    pytest.importorskip("numba", reason="needs the extra `numba`")
    module = load("examples/lorenz96.py")
    code = module.step.options.fn
    x = np.linspace(-5, 10, 40)
    cotangent = np.cos(np.arange(40.0))

    (found,) = module.step_adjoint((x,), cotangent)

    steps = 1e-5 * np.eye(40)
    expected = [cotangent @ (code(x + h) - code(x - h)) / 2e-5 for h in steps]
    assert np.allclose(found, expected, atol=1e-5)


# --- vae_humanoid.py -----------------------------------------------------------------


@pytest.fixture(scope="module")
def humanoid(tmp_path_factory):
    for name in ("gymnasium", "matplotlib", "mujoco", "optax", "rich"):
        pytest.importorskip(name, reason="needs the extras `examples` and `mujoco`")
    module = load("examples/vae_humanoid.py")
    picture = tmp_path_factory.mktemp("humanoid") / "out" / "humanoid.png"
    return module, module.main(short=True, out=picture), picture


def test_training_lowers_the_loss_of_the_poses(humanoid):
    _, history, _ = humanoid
    (first, _), *_, (last, _) = history["before"]

    assert last.vae < first.vae / 2


def test_the_simulator_in_the_loss_makes_poses_that_stay_down(humanoid):
    _, history, _ = humanoid
    start, without, simulated = (run[-1][1].physics for run in history.values())

    assert simulated < 0.8 * start
    assert simulated < 0.8 * without


def test_the_script_names_a_loss_that_did_not_go_down(humanoid):
    module, history, _ = humanoid
    backwards = {name: run[::-1] for name, run in history.items()}
    backwards["with"] = history["before"][:1]

    assert [] == module.failures(history)
    assert ["VAE loss", "physics loss"] == module.failures(backwards)


def test_the_picture_of_the_bodies_is_a_png_of_the_size_it_says(humanoid):
    *_, picture = humanoid
    head = picture.read_bytes()[:24]

    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert (1800, 960) == struct.unpack(">II", head[16:24])


def test_a_pose_knows_neither_place_nor_heading(humanoid):
    poses = sys.modules["poses"]
    model = poses.humanoid("EULER", 0.003)
    qpos = np.random.default_rng(0).normal(size=24)
    data = poses.mujoco.MjData(model)

    def heights():
        poses.mujoco.mj_kinematics(model, data)
        return data.geom_xpos[:, 2].copy()

    data.qpos[:] = qpos
    expected = heights()
    data.qpos[:] = poses.to_qpos(poses.to_pose(jax.numpy.asarray(qpos)))

    assert data.qpos[:2].tolist() == [0, 0]
    assert np.allclose(expected, heights(), atol=1e-5)


# --- gym_rollout.py ------------------------------------------------------------------


@pytest.fixture(scope="module")
def rollout():
    for name in ("gymnasium", "mujoco"):
        pytest.importorskip(name, reason="needs the extras `examples` and `mujoco`")
    return load("examples/gym_rollout.py").main(steps=60, count=4)


def test_a_scan_over_a_live_environment_earns_what_a_python_loop_earns(rollout):
    loop, scanned, *_ = rollout

    assert (60,) == loop.shape
    assert loop.tolist() == scanned.tolist()


def test_a_simulation_repeats_the_environment_bit_for_bit(rollout):
    _, scanned, replayed, qpos, replayed_qpos = rollout

    assert qpos.tolist() == replayed_qpos.tolist()
    assert np.allclose(scanned, replayed, atol=1e-4)


def test_the_rollouts_say_how_fast_they_are(rollout, capsys):
    load("examples/gym_rollout.py").main(steps=2, count=2)
    printed = capsys.readouterr().out

    assert 3 == printed.count(" steps per second")
    assert "DIFFER" not in printed
