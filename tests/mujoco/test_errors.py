"""What MujocoSim refuses, what it observes, and simulations that cannot go on."""

import os

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import purestate as ps
from purestate.errors import FieldError, PlaceError, SimSpecError, SimulationError
from purestate.mujoco import MujocoSim
from tests.helpers import ROOT, python
from tests.hosts import x64
from tests.simulators import ZOO, gym_model, random_state, zoo_model

# It falls faster and faster, and MuJoCo sees it only while it steps.
UNSTABLE = """
<mujoco model="unstable">
  <option timestep="1"/>
  <worldbody><body>
    <joint name="j" type="slide" axis="0 0 1" damping="-1000"/>
    <geom type="sphere" size=".1"/>
  </body></worldbody>
</mujoco>
"""


@pytest.fixture(autouse=True)
def no_log_in_the_tree(tmp_path, monkeypatch):
    """MuJoCo writes its warnings into the working directory."""
    monkeypatch.chdir(tmp_path)


def unstable():
    return mujoco.MjModel.from_xml_string(UNSTABLE.replace('damping="-1000"', ""))


def batch_of(sim, count):
    return ps.stack([sim.init(*random_state(sim.model, seed)) for seed in range(count)])


def state_in_double_precision():
    with x64():
        return MujocoSim(zoo_model()).init()


def roomy_model():
    return mujoco.MjModel.from_xml_string(
        ZOO.replace("<worldbody>", "<size nuserdata='3'/><worldbody>")
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: MujocoSim("humanoid.xml"),
            (
                r"MujocoSim takes a mujoco\.MjModel, and got a str: "
                r"mujoco\.MjModel\.from_xml_path\(\.\.\.\) makes one\."
            ),
        ),
        (
            lambda: MujocoSim(zoo_model(), substeps=0),
            r"substeps=0 of MujocoSim is no positive integer\.",
        ),
        (
            lambda: MujocoSim(zoo_model(), substeps=True),
            r"substeps=True of MujocoSim is no positive integer\.",
        ),
        (
            lambda: MujocoSim(zoo_model(), threads=0),
            r"threads=0 of MujocoSim is no positive integer\.",
        ),
        (
            lambda: MujocoSim(zoo_model(), diverged="ignore"),
            r'diverged=\'ignore\' is neither "error" nor "nan"\.',
        ),
        (
            lambda: MujocoSim(zoo_model(), engine="gpu"),
            r"engine='gpu' is none of batch, native, threads\.",
        ),
        (
            lambda: MujocoSim(zoo_model(), observe=("xpoz",)),
            (
                r"MujocoSim\('zoo'\) cannot observe 'xpoz', which is no field of "
                r"mujoco\.MjData; did you mean 'xpos'\?"
            ),
        ),
        (
            lambda: MujocoSim(zoo_model(), observe="contact"),
            (
                r"MujocoSim\('zoo'\) cannot observe contact: it is not an array whose size "
                r"is the same in every state\. Such are xpos, geom_xpos, sensordata or ncon\."
            ),
        ),
        (
            lambda: MujocoSim(zoo_model(), observe="efc_force"),
            r"cannot observe efc_force: it is not an array whose size is the same",
        ),
        (
            lambda: MujocoSim(zoo_model()).observe(None),
            (
                r"MujocoSim\('zoo'\) observes nothing: name fields of MjData where it is "
                r'made, MujocoSim\(model, observe=\("xpos", "sensordata"\)\)\.'
            ),
        ),
        (
            lambda: MujocoSim(zoo_model()).init(keyframe="low"),
            r"MujocoSim\('zoo'\) has no keyframe 'low'; it has 1\.",
        ),
        (
            lambda: MujocoSim(zoo_model()).init(keyframe=1),
            r"MujocoSim\('zoo'\) has no keyframe 1; it has 1\.",
        ),
        (
            lambda: MujocoSim(zoo_model()).init(qpos=np.zeros(12)),
            r"SimState\.qpos has shape \(13,\), and got \(12,\)\.",
        ),
        (
            lambda: MujocoSim(zoo_model()).init(
                qpos=np.zeros((2, 13)), qvel=np.zeros((3, 11))
            ),
            r"the axes in front of qpos and qvel, \(2,\) and \(3,\), do not broadcast\.",
        ),
        (
            lambda: MujocoSim(zoo_model()).init().replace(qvel=np.zeros(12)),
            r"SimState\.qvel has shape \(11,\), and got \(12,\)\.",
        ),
        (
            lambda: MujocoSim(zoo_model()).init().replace(qpos="high"),
            r"SimState\.qpos takes numbers, and got a str: ",
        ),
        (
            lambda: MujocoSim(zoo_model()).init().replace(qvel=None),
            r"SimState\.qvel takes numbers, and got a NoneType: ",
        ),
        (
            lambda: MujocoSim(zoo_model()).init().replace(qpos=np.zeros((4, 13))),
            (
                r"SimState\.qpos has shape \(13,\), and got \(4, 13\)\. For a batch of "
                r"states, write sim\.init\(qpos=\.\.\.\) or jax\.vmap\(lambda x: "
                r"state\.replace\(qpos=x\)\)\(\.\.\.\)\."
            ),
        ),
        (
            lambda: (
                MujocoSim(zoo_model())
                .init(qpos=np.zeros((4, 13)))
                .replace(ctrl=np.zeros(2))
            ),
            r"SimState\.ctrl of this batch of \(4,\) has shape \(4, 2\), and got \(2,\)\.",
        ),
        (
            lambda: MujocoSim(zoo_model()).step(
                MujocoSim(zoo_model()).init(), np.zeros(3)
            ),
            r"SimState\.ctrl has shape \(2,\), and got \(3,\)\.",
        ),
        (
            lambda: MujocoSim(zoo_model()).step(np.zeros(13)),
            (
                r"MujocoSim\('zoo'\)\.step takes a SimState, from sim\.init\(\), and got a "
                r"ndarray\."
            ),
        ),
        (
            lambda: MujocoSim(zoo_model()).step(MujocoSim(gym_model("ant")).init()),
            (
                r"MujocoSim\('zoo'\)\.step got the state of another model: its qpos has "
                r"shape \(15,\), this model's \(13,\)\."
            ),
        ),
        (
            lambda: MujocoSim(zoo_model()).step(
                jax.tree.map(lambda x: x.astype("f2"), MujocoSim(zoo_model()).init())
            ),
            (
                r"MujocoSim\('zoo'\)\.step got a state whose values are float16: they must "
                r"stay float32, or float64\."
            ),
        ),
        (
            lambda: MujocoSim(zoo_model()).step(
                MujocoSim(zoo_model()).init(qpos=np.zeros((4, 13)))
            ),
            (
                r"MujocoSim\('zoo'\)\.step takes the state of one simulation, and got a "
                r"batch of \(4,\): write jax\.vmap\(sim\.step\)\(\.\.\.\)\."
            ),
        ),
        (
            lambda: MujocoSim(zoo_model()).step(
                jax.tree.map(lambda x: x / 2, MujocoSim(zoo_model()).init())
            ),
            (
                r"MujocoSim\('zoo'\)\.step got a state whose float32 values come with "
                r"words float32\[\d+, 2\], not uint32\[\d+, 2\]: they are bits, not to be "
                r"computed with or left out\. Change the numbers alone, in a state of "
                r"sim\.init\(\): state\.replace\(values=\.\.\.\)\."
            ),
        ),
        (
            lambda: MujocoSim(zoo_model()).step(
                MujocoSim(zoo_model()).init().replace(words=None)
            ),
            r"float32 values come with words None, not uint32\[\d+, 2\]: they are bits",
        ),
        (
            lambda: MujocoSim(zoo_model()).step(
                jax.tree.map(lambda x: x[:-1], MujocoSim(zoo_model()).init())
            ),
            (
                r"MujocoSim\('zoo'\)\.step got a state whose values have shape "
                r"\(\d+,\): they must keep their \d+ elements\."
            ),
        ),
        (
            lambda: MujocoSim(zoo_model()).step(state_in_double_precision()),
            (
                r"MujocoSim\('zoo'\)\.step got a state in double precision, and "
                r"jax_enable_x64 is off, so jax would round it: turn it on, or go through "
                r"a mujoco\.MjData, sim\.from_data\(sim\.to_data\(state\)\)\."
            ),
        ),
        (
            lambda: MujocoSim(zoo_model()).step(MujocoSim(roomy_model()).init()),
            r"another model: its userdata has shape \(3,\), this model's \(0,\)\.",
        ),
        (
            lambda: MujocoSim(zoo_model()).to_data(
                MujocoSim(zoo_model()).init(qpos=np.zeros((4, 13)))
            ),
            (
                r"MujocoSim\('zoo'\)\.to_data takes the state of one simulation, and got "
                r"a batch of \(4,\): write sim\.to_data\(ps\.unstack\(states\)\[0\]\)\."
            ),
        ),
        (
            lambda: MujocoSim(zoo_model()).from_data(mujoco.MjData(gym_model("ant"))),
            (
                r"MujocoSim\('zoo'\)\.from_data got the MjData of another model: its nq "
                r"is 15, this model's 13\."
            ),
        ),
        (
            lambda: MujocoSim(zoo_model()).to_data(
                MujocoSim(zoo_model()).init(), mujoco.MjData(gym_model("ant"))
            ),
            r"to_data got the MjData of another model: its nq is 15, this model's 13\.",
        ),
        (
            lambda: MujocoSim(zoo_model()).from_data(mujoco.MjData(roomy_model())),
            (
                r"from_data got the MjData of another model: its nuserdata is 3, this "
                r"model's 0\."
            ),
        ),
        (
            lambda: MujocoSim(zoo_model()).from_data(np.zeros(3)),
            r"\.from_data takes a mujoco\.MjData, and got a ndarray\.",
        ),
        (
            lambda: MujocoSim(zoo_model()).init(keyframe=True),
            r"MujocoSim\('zoo'\) has no keyframe True; it has 1\.",
        ),
        (
            lambda: MujocoSim(zoo_model()).init(keyframe=b"high"),
            r"MujocoSim\('zoo'\) has no keyframe b'high'; it has 1\.",
        ),
        (
            lambda: jax.jit(MujocoSim(zoo_model()).to_data)(
                MujocoSim(zoo_model()).init()
            ),
            (
                r"MujocoSim\('zoo'\)\.to_data needs the numbers of a state, and this one is "
                r"traced: return it from the jitted function, or name the fields in "
                r"MujocoSim\(model, observe=\.\.\.\)\."
            ),
        ),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(SimSpecError, match=message):
        call()


def test_numbers_of_numpy_are_as_good_as_python_s():
    sim = MujocoSim(zoo_model(), substeps=np.int64(2), threads=np.int64(1))

    assert sim.step(sim.init()) == MujocoSim(zoo_model(), substeps=2).step(sim.init())
    assert sim.init(keyframe=np.int64(0)) == sim.init(keyframe=0)


def test_a_state_in_double_precision_goes_through_mjdata():
    sim, state = MujocoSim(zoo_model()), state_in_double_precision()

    assert sim.init() == sim.from_data(sim.to_data(state))


def test_without_mujoco_the_import_says_what_to_install():
    code = "import sys; sys.modules['mujoco'] = None; import purestate.mujoco"
    done = python(code)

    assert (
        "ModuleNotFoundError: purestate.mujoco needs mujoco, the extra `mujoco`: pip "
        "install mujoco." in done.stderr
    )


def test_an_unknown_part_names_the_nearest_one():
    state = MujocoSim(zoo_model()).init()

    with pytest.raises(FieldError, match=r"has no field 'qpo'; did you mean 'qpos'\?"):
        state.replace(qpo=1)
    with pytest.raises(PlaceError, match=r"has no field 'qpo'; did you mean 'qpos'\?"):
        state.at(lambda s: s.qpo)
    with (
        pytest.raises(FieldError, match=r"has no field 'qpo'; did you mean 'qpos'\?"),
        state.draft() as new,
    ):
        new.qpo = 1


def test_a_part_cannot_be_assigned():
    state = MujocoSim(zoo_model()).init()

    with pytest.raises(
        AttributeError, match=r"cannot assign SimState\.qpos\.[^|]*self\.replace\(qpos="
    ):
        state.qpos = jnp.zeros(13)


@pytest.mark.skipif(
    not hasattr(mujoco.mjtEnableBit, "mjENBL_SLEEP"), reason="MuJoCo 3.3 has no sleep"
)
def test_models_with_sleep_are_refused():
    model = zoo_model()
    model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_SLEEP

    with pytest.raises(
        SimSpecError,
        match=r"MujocoSim does not support models with sleep enabled: MuJoCo keeps its "
        r"bookkeeping outside of the state\. Turn it off: model\.opt\.enableflags &= "
        r"~mujoco\.mjtEnableBit\.mjENBL_SLEEP\.",
    ):
        MujocoSim(model)


@pytest.mark.parametrize("jit", [ps.jit, lambda fn: fn], ids=["jit", "eager"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 2e10])
def test_a_state_that_is_not_finite_is_an_error(value, jit):
    sim = MujocoSim(zoo_model())
    state = sim.init().draft()
    with state as new:
        new.qvel = new.qvel.at[3].set(value)

    with pytest.raises(
        SimulationError,
        match=rf"^MujocoSim\('zoo'\) cannot step a state that is not finite, or too "
        rf"large,: qvel\[3\] is {value}\.$".replace("+", r"\+"),
    ) as caught:
        jit(sim.step)(new)
    assert () == caught.value.indices


@pytest.mark.parametrize("engine", ["threads", None])
def test_states_of_a_batch_that_are_not_finite_are_named(engine):
    sim = MujocoSim(zoo_model(), engine=engine)
    states = batch_of(sim, 6)
    states = states.replace(qpos=states.qpos.at[jnp.array([1, 4]), 12].set(jnp.nan))

    with pytest.raises(
        SimulationError,
        match=r"cannot step a state that is not finite, or too large, in 2 of 6 "
        r"simulations \(1, 4\): qpos\[12\] is nan\.",
    ) as caught:
        ps.jit(jax.vmap(sim.step))(states)
    assert (1, 4) == caught.value.indices


def diverging(sim, count=5, bad=(0, 3)):
    """Return a batch of which some will be reset by MuJoCo within a few steps."""
    states = ps.stack([sim.init()] * count)
    speeds = jnp.zeros((count, 1)).at[jnp.array(bad)].set(9.9e9)
    forces = jnp.zeros((count, 1)).at[jnp.array(bad)].set(1e10)
    return states.replace(qvel=speeds, qfrc_applied=forces)


@pytest.mark.parametrize("engine", ["threads", None])
def test_simulations_that_mujoco_resets_are_named(engine, capfd):
    sim = MujocoSim(unstable(), substeps=3, engine=engine)

    with pytest.raises(
        SimulationError,
        match=r"MujocoSim\('unstable'\) diverged in 2 of 5 simulations \(0, 3\): MuJoCo "
        r"found q\w+\[0\] not finite, or too large, and reset it\. A smaller timestep, "
        r"other solver options or a less extreme state may help; "
        r'MujocoSim\(\.\.\., diverged="nan"\) goes on with NaN for these\.',
    ) as caught:
        ps.jit(jax.vmap(sim.step))(diverging(sim))
    assert (0, 3) == caught.value.indices


def test_a_single_simulation_that_mujoco_resets_is_an_error(capfd):
    sim = MujocoSim(unstable(), substeps=3)
    state = ps.unstack(diverging(sim))[0]

    with pytest.raises(
        SimulationError, match=r"MujocoSim\('unstable'\) diverged: MuJoCo found"
    ):
        sim.step(state)
    assert sim.step(sim.init()) == MujocoSim(unstable(), substeps=3).step(sim.init())


@pytest.mark.parametrize("engine", ["threads", None])
def test_nan_marks_the_simulations_that_cannot_go_on(engine, capfd):
    sim = MujocoSim(unstable(), substeps=3, engine=engine, diverged="nan")
    good = sim.step(sim.init())

    once = jax.jit(jax.vmap(sim.step))(diverging(sim))
    twice = jax.jit(jax.vmap(sim.step))(once)

    for found in (once, twice):
        lost = np.isnan(found.qpos[:, 0])
        assert [True, False, False, True, False] == lost.tolist()
    assert good.qpos.tolist() == once.qpos[1].tolist()
    assert jnp.isnan(sim.step(ps.unstack(once)[0]).qpos).all()


def test_what_is_observed_is_what_mj_forward_finds():
    names = ("xpos", "geom_xmat", "sensordata", "ncon", "cfrc_ext", "qpos", "time")
    sim = MujocoSim(zoo_model(), observe=names)
    state = sim.step(sim.init(*random_state(sim.model)))
    data = sim.to_data(state)
    mujoco.mj_rnePostConstraint(sim.model, data)

    seen = jax.jit(sim.observe)(state)
    batch = jax.jit(jax.vmap(sim.observe))(ps.stack([state] * 3))

    assert set(names) == set(seen)
    for name in names:
        expected = np.asarray(getattr(data, name))
        assert expected.shape == seen[name].shape
        assert np.array_equal(expected.astype(seen[name].dtype), seen[name]), name
        assert all(np.array_equal(row, seen[name]) for row in batch[name])
    assert jnp.int32 == seen["ncon"].dtype


@pytest.mark.parametrize("engine", ["threads", None])
def test_observing_a_batch_is_observing_each(engine):
    sim = MujocoSim(gym_model("humanoid"), engine=engine, observe=("xpos", "cvel"))
    states = jax.vmap(sim.step)(batch_of(sim, 5))

    together = jax.jit(jax.vmap(sim.observe))(states)

    for row, state in enumerate(ps.unstack(states)):
        alone = sim.observe(state)
        for name in ("xpos", "cvel"):
            assert np.array_equal(alone[name], together[name][row])


def test_a_sharded_batch_steps_on_every_device():
    code = """
    import jax, jax.numpy as jnp, numpy as np, mujoco, purestate as ps
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from purestate.mujoco import MujocoSim
    from tests.simulators import zoo_model, random_state

    assert 4 == jax.device_count()
    mesh = Mesh(np.array(jax.devices()), ("d",))
    sim = MujocoSim(zoo_model(), substeps=2)
    states = ps.stack([sim.init(*random_state(sim.model, seed)) for seed in range(8)])
    expected = jax.vmap(sim.step)(states)
    placed = jax.device_put(states, NamedSharding(mesh, P("d")))
    step = jax.jit(
        jax.shard_map(jax.vmap(sim.step), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    )
    assert expected == jax.device_get(step(placed))
    height = lambda s: jax.vmap(sim.step)(s).qpos[:, 2].sum()
    together = jax.shard_map(
        lambda s: jax.lax.psum(height(s), "d"), mesh=mesh, in_specs=P("d"), out_specs=P()
    )
    expected, found = ps.grad(height)(states), ps.grad(together)(placed)
    assert np.abs(expected.qpos).max() > 0.5
    assert np.array_equal(expected.values, found.values)
    """
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

    done = python(code, devices=4, env={"PYTHONPATH": path})

    assert 0 == done.returncode, done.stderr
