"""What MujocoSim observes: what MuJoCo would find in this state, or an error."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import purestate as ps
from purestate.errors import SimSpecError, SimulationError
from purestate.mujoco import MujocoSim
from tests.hosts import x64
from tests.simulators import WHOLE, random_state, zoo_model

ENGINES = ["threads", None]


def on_the_floor(model):
    data = mujoco.MjData(model)
    data.qvel[:] = random_state(model)[1]
    mujoco.mj_step(model, data, nstep=250)
    assert data.ncon
    return data


def arrays(data):
    """Return the names of all fields that are numbers."""
    values = {n: getattr(data, n) for n in dir(data) if not n.startswith("_")}
    kinds = np.ndarray | int | float
    return [n for n, v in values.items() if isinstance(v, kinds)]


@pytest.mark.parametrize("engine", ENGINES)
def test_each_field_is_that_of_a_new_mjdata_whatever_was_observed_before(engine):
    model = zoo_model()
    data, names = on_the_floor(model), []
    for name in arrays(data):
        try:
            MujocoSim(model, observe=name)
        except SimSpecError:
            continue
        names.append(name)
    assert len(names) > 100
    with x64():
        sim = MujocoSim(model, observe=names, engine=engine)
        touching, flying = sim.from_data(data), sim.init(*random_state(model))
        sim.observe(touching)
        alone = sim.observe(flying)
        for state, found in (
            (flying, alone),
            (touching, ps.unstack(jax.vmap(sim.observe)(ps.stack([touching] * 2)))[0]),
        ):
            new = mujoco.MjData(model)
            mujoco.mj_setState(model, new, np.array(state.values), WHOLE)
            mujoco.mj_forward(model, new)
            mujoco.mj_rnePostConstraint(model, new)
            mujoco.mj_subtreeVel(model, new)
            mujoco.mj_energyPos(model, new)
            mujoco.mj_energyVel(model, new)
            for name in names:
                assert np.array_equal(getattr(new, name), found[name]), name


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["solver_niter", "solver_nnz"])
def test_counters_of_the_solver_are_those_of_this_state(name, engine):
    model = zoo_model()
    sim = MujocoSim(model, observe=name, engine=engine)
    touching, flying = sim.from_data(on_the_floor(model)), sim.init()
    several = jax.vmap(sim.observe)

    assert sim.observe(touching)[name].any()
    assert not sim.observe(flying)[name].any()
    assert several(ps.stack([touching] * 2))[name].any()
    assert not several(ps.stack([flying] * 2))[name].any()


def test_velocities_of_subtrees_need_no_sensor():
    sim = MujocoSim(zoo_model(), observe=("subtree_linvel", "subtree_angmom"))

    seen = sim.observe(sim.init(qvel=np.eye(11)[0]))

    assert 1.0 == seen["subtree_linvel"][1, 0]
    assert np.abs(sim.observe(sim.init(qvel=np.ones(11)))["subtree_angmom"]).max() > 0


def test_the_energy_needs_no_flag_of_the_model():
    sim = MujocoSim(zoo_model(), observe="energy")

    still, moving = sim.init(), sim.init(qvel=np.eye(11)[0])

    assert 0.0 == sim.observe(still)["energy"][1]
    mass = float(sim.model.body_subtreemass[1])
    assert np.isclose(mass / 2, sim.observe(moving)["energy"][1], rtol=1e-6)
    assert sim.observe(still)["energy"][0] > 0


@pytest.mark.parametrize("name", ["qfrc_inverse", "solver_fwdinv", "qLU", "qH"])
def test_what_mj_forward_does_not_compute_is_refused(name):
    with pytest.raises(
        SimSpecError,
        match=rf"MujocoSim\('zoo'\) cannot observe {name}: mj_forward does not compute "
        rf"it\. Apply MuJoCo's own functions to the MjData that sim\.to_data\(state\) "
        rf"returns\.",
    ):
        MujocoSim(zoo_model(), observe=name)


def test_what_has_another_size_with_each_contact_is_refused():
    model = zoo_model()
    before, after = mujoco.MjData(model), on_the_floor(model)
    mujoco.mj_forward(model, before)
    varying = [
        n
        for n in arrays(before)
        if np.shape(getattr(before, n)) != np.shape(getattr(after, n))
    ]

    assert "efc_force" in varying
    for name in [*varying, "maxuse_con", "narena"]:
        with pytest.raises(
            SimSpecError, match=f"{name}: it is not an array whose size"
        ):
            MujocoSim(model, observe=name)


@pytest.mark.parametrize(
    ("given", "shown"), [(5, "5"), (("xpos", 3), r"\('xpos', 3\)")]
)
def test_only_names_can_be_observed(given, shown):
    with pytest.raises(
        SimSpecError,
        match=rf"observe={shown} of MujocoSim is no name of a field of mujoco\.MjData, "
        rf'nor several: observe=\("xpos", "sensordata"\)\.',
    ):
        MujocoSim(zoo_model(), observe=given)


def test_a_name_that_is_given_twice_is_observed_once():
    once, twice = (
        MujocoSim(zoo_model(), observe=names)
        for names in (("xpos", "cvel"), ("xpos", "xpos", "cvel"))
    )
    speed = jnp.asarray(random_state(once.model)[1], jnp.float32)

    def slope(sim):
        return jax.jacrev(lambda v: sim.observe(sim.init(qvel=v))["cvel"])(speed)

    assert np.abs(slope(once)).max() > 0.1
    assert np.array_equal(slope(once), slope(twice))


def spoilt(state, part, value):
    """Return the state with one number of a part replaced."""
    old = jnp.asarray(getattr(state, part))
    return state.replace(**{part: old.reshape(-1).at[0].set(value).reshape(old.shape)})


@pytest.mark.parametrize("part", ["qpos", "ctrl", "time", "xfrc_applied"])
def test_a_state_that_is_not_finite_cannot_be_observed(part):
    sim = MujocoSim(zoo_model(), observe=("xpos", "actuator_force"))
    bad = spoilt(sim.init(), part, np.nan)

    with pytest.raises(
        SimulationError,
        match=r"^MujocoSim\('zoo'\) cannot observe a state that is not finite, or too "
        rf"large,: {part}[\[\]0, ]* is nan\.$",
    ):
        sim.observe(bad)
    with pytest.raises(SimulationError, match=r"in 1 of 2 simulations \(1\)") as caught:
        ps.jit(jax.vmap(sim.observe))(ps.stack([sim.init(), bad]))
    assert (1,) == caught.value.indices


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("value", [np.nan, np.inf, 2e10])
def test_what_is_observed_of_a_lost_simulation_is_nan(value, engine):
    names = ("xpos", "actuator_force", "ncon")
    sim = MujocoSim(zoo_model(), observe=names, diverged="nan", engine=engine)
    good = sim.init()
    bad = spoilt(good, "ctrl", value)

    alone = sim.observe(bad)
    together = jax.jit(jax.vmap(sim.observe))(ps.stack([bad, good]))

    for name in ("xpos", "actuator_force"):
        assert jnp.isnan(alone[name]).all()
        assert jnp.isnan(together[name][0]).all()
        assert np.array_equal(sim.observe(good)[name], together[name][1])
    assert jnp.int32 == alone["ncon"].dtype


def test_a_part_of_the_state_that_is_observed_is_handed_on_as_it_is():
    """Positions as they are, not as a rotation: the length of a quaternion is seen."""
    sim = MujocoSim(zoo_model(), observe=("qpos", "time", "mocap_pos"))
    state = sim.init(*random_state(sim.model))

    def look(qpos, time, place):
        seen = sim.observe(state.replace(qpos=qpos, time=time, mocap_pos=place))
        return seen["qpos"], seen["time"], seen["mocap_pos"]

    given = 1.5 * state.qpos, jnp.float32(0.5), state.mocap_pos
    found = jax.jacrev(look, (0, 1, 2))(*given)

    assert np.array_equal(np.eye(13), found[0][0])
    assert 1.0 == found[1][1]
    assert np.array_equal(np.eye(3), found[2][2].reshape(3, 3))
    assert 0.0 == np.abs(found[0][2]).max()
