"""States in checkpoints of orbax, through `ps.to_dict` and `ps.from_dict`."""

import os
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import purestate as ps
from purestate.errors import LoadError, LoadWarning
from tests.helpers import ROOT, exactly, python
from tests.saving import orbax_processes

ocp = pytest.importorskip(
    "orbax.checkpoint.experimental.v1",
    reason="orbax-checkpoint needs the interop extra",
)


class Net(ps.State):
    w: jax.Array
    act: str = ps.static(default="relu")


class Train(ps.State):
    net: Net
    opt: optax.OptState
    key: jax.Array
    count: ps.Array = 0
    empty: jax.Array = ps.field(default_factory=lambda: jnp.zeros((0, 3)))

    @ps.jit(donate=True)
    def step(self):
        return jax.tree.map(
            lambda x: x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x + 1, self
        )


def train(width=4, dtype=jnp.float32):
    net = Net(w=jnp.arange(width * 3, dtype=dtype).reshape(width, 3))
    opt = optax.adam(1e-3).init(net)
    return Train(net=net, opt=opt, key=jax.random.key(7))


def save(path, state):
    leaves, manifest = ps.to_dict(state)
    ocp.save(path, leaves, custom_metadata={"purestate": manifest})


def load(path, like, **options):
    manifest = ocp.metadata(path).custom_metadata["purestate"]
    return ps.from_dict(
        manifest, like, lambda wanted: ocp.load(path, wanted), **options
    )


@pytest.mark.parametrize(
    "like",
    [lambda: Train, train, lambda: jax.eval_shape(train)],
    ids=["class", "instance", "abstract"],
)
def test_a_state_comes_back_as_it_was(tmp_path, like):
    state = train()
    save(tmp_path / "c", state)

    again = load(tmp_path / "c", like())

    assert state == again
    assert jax.tree.structure(state) == jax.tree.structure(again)
    assert (0, 3) == again.empty.shape  # orbax refuses arrays of size zero


class Position(ps.State):
    index: np.ndarray
    w: jax.Array


def test_an_array_of_numpy_keeps_its_64_bits(tmp_path):
    state = Position(index=np.arange(3) + 2**40, w=jnp.ones(3))
    save(tmp_path / "c", state)

    for like in (Position, state):
        again = load(tmp_path / "c", like)
        assert state == again
        assert type(again.index) is np.ndarray


def test_what_came_back_is_stepped_without_another_trace(tmp_path):
    save(tmp_path / "c", train().step())
    before = Train.step.__purestate_jitted__.run._cache_size()

    load(tmp_path / "c", Train).step()

    assert before == Train.step.__purestate_jitted__.run._cache_size()


def test_what_does_not_fit_is_told_before_anything_is_read(tmp_path):
    save(tmp_path / "c", train())
    manifest = ocp.metadata(tmp_path / "c").custom_metadata["purestate"]
    like = train(width=5).replace(count=jnp.int16(0))

    def read(wanted):
        raise AssertionError("read")

    with pytest.raises(LoadError) as caught:
        ps.from_dict(manifest, like, read)

    text = str(caught.value)
    assert text.startswith("the manifest does not fit Train:\n")
    assert "  Train.net.w: shape (4, 3) in the file, (5, 3) expected" in text
    assert "  Train.count: int32 in the file, int16 expected (allow='cast'" in text


def test_a_static_value_is_compared_as_orbax_does_not(tmp_path):
    state = train()
    save(tmp_path / "c", state)
    like = state.at(lambda s: s.net).set(state.net.replace(act="tanh"))

    with pytest.raises(LoadError, match=r"static value 'relu' in the file, 'tanh' exp"):
        load(tmp_path / "c", like)

    assert "tanh" == load(tmp_path / "c", like, allow="static").net.act


def test_a_class_may_have_changed(tmp_path):
    save(tmp_path / "c", train())

    class Model(ps.State, was="Net"):
        weight: jax.Array = ps.field(was="w")
        act: str = ps.static(default="relu")

    class Run(ps.State, was="Train"):
        net: Model
        key: jax.Array
        opt: optax.OptState
        count: ps.Array = 0
        empty: jax.Array = None
        lr: float = 0.5

    told = exactly("the manifest has no Run.lr: the defaults of the class are used.")
    with pytest.warns(LoadWarning, match=told):
        again = load(tmp_path / "c", Run)

    assert train().net.w.tolist() == again.net.weight.tolist()
    assert {Model} == {type(m) for m in (again.opt[0].mu, again.opt[0].nu)}
    assert 0.5 == again.lr


def test_a_save_in_the_background_survives_a_donation(tmp_path):
    state = train()
    expected = np.asarray(state.net.w).copy()
    leaves, manifest = ps.to_dict(state)

    response = ocp.save_async(
        tmp_path / "c", leaves, custom_metadata={"purestate": manifest}
    )
    del leaves
    newer = state.step()
    response.result()

    np.testing.assert_array_equal(expected, load(tmp_path / "c", Train).net.w)
    np.testing.assert_array_equal(expected + 1, newer.net.w)


def test_a_checkpointer_that_is_told_to_saves_every_step(tmp_path):
    state, steps = train(), range(1, 4)
    with ocp.training.Checkpointer(tmp_path) as saves:
        for step in steps:
            state = state.step()
            leaves, manifest = ps.to_dict(state)
            saves.save_async(
                step, leaves, custom_metadata={"purestate": manifest}, force=True
            )

    with ocp.training.Checkpointer(tmp_path) as saves:
        assert [*steps] == [c.step for c in saves.checkpoints]
        manifest = saves.metadata(3).custom_metadata["purestate"]
        again = ps.from_dict(manifest, Train, lambda want: saves.load(3, want))

    assert state == again


def test_part_of_a_checkpoint_is_read(tmp_path):
    save(tmp_path / "c", train())

    class Train(ps.State):  # of a program that only evaluates
        net: Net

    manifest = ocp.metadata(tmp_path / "c").custom_metadata["purestate"]
    loading = ocp.options.PyTreeOptions.Loading(partial_load=True)
    with ocp.Context(pytree_options=ocp.options.PyTreeOptions(loading=loading)):
        again = ps.from_dict(
            manifest, Train, lambda want: ocp.load(tmp_path / "c", want), allow="drop"
        )

    assert train().net == again.net


def test_a_checkpoint_is_read_onto_another_mesh(tmp_path):
    done = python(
        f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        from tests.saving import orbax_processes as program

        path = {str(tmp_path / "c")!r}
        state = program.sharded(program.make, program.mesh(8, 1))
        program.save(path, state)
        for shape in ((2, 4), (4, 2), (1, 1)):
            mesh = program.mesh(*shape)
            again = program.load(path, mesh)
            assert again == program.make(), shape
            assert again.w.sharding.mesh == mesh, shape
            assert again.w.sharding.spec == program.SPEC, shape
        """,
        devices=8,
    )

    assert 0 == done.returncode, done.stderr


@pytest.mark.parametrize("order", [(2, 1), (1, 2)], ids=["2 to 1", "1 to 2"])
def test_processes_save_and_another_number_of_them_continues(tmp_path, order):
    """Two processes of two devices each over gloo, and one of two."""
    for count, first in zip(order, (True, False), strict=True):
        told = run_processes(count, str(tmp_path / "c"), "save" if first else "load")
        assert all(f"{count} fine" in one for one in told), "\n".join(told)


def run_processes(count, path, what):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    started = [
        subprocess.Popen(
            [sys.executable, orbax_processes.__file__]
            + [str(x) for x in (port, count, index, path, what)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(count)
    ]
    try:
        return [process.communicate(timeout=200)[0] for process in started]
    finally:
        for process in started:
            process.kill()
