"""Steps of MuJoCo inside of programs: what only the native engine can get wrong."""

import contextlib
import gc
import importlib
import importlib.resources
import os
import types
import weakref

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import purestate as ps
from purestate.errors import SimSpecError, SimulationError
from purestate.mujoco import MujocoSim
from tests.helpers import python
from tests.mujoco.test_models import crowded

pytest.importorskip("numba", reason="needs the extra `numba`")
table = pytest.importorskip("purestate.mujoco._native.table")
library = pytest.importorskip("purestate.mujoco._native.library")

MODELS = (
    *("ant", "half_cheetah", "hopper", "humanoid", "humanoidstandup"),
    *("inverted_pendulum", "reacher", "walker2d"),
)
SLIDE = """
<mujoco model='{name}'><worldbody><body><joint name='j' type='slide' axis='1 0 0'/>
<geom size='{size}'/></body></worldbody>
<actuator><motor joint='j'/></actuator></mujoco>"""


def slide(size=0.1, name="slide"):
    return mujoco.MjModel.from_xml_string(SLIDE.format(size=size, name=name))


def same(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


@pytest.mark.parametrize("name", MODELS)
def test_two_hundred_steps_end_on_the_bits_of_mj_step(name):
    pytest.importorskip("gymnasium", reason="needs the extra `examples`")
    assets = importlib.resources.files("gymnasium") / "envs" / "mujoco" / "assets"
    model = mujoco.MjModel.from_xml_path(str(assets / f"{name}.xml"))
    controls = np.random.default_rng(0).uniform(-0.4, 0.4, (200, model.nu))
    controls = controls.astype(np.float32)
    sim = MujocoSim(model, engine="native")
    data = mujoco.MjData(model)
    step = jax.jit(
        lambda s, c: jax.lax.scan(lambda s, c: (sim.step(s, c), None), s, c)[0]
    )

    found = step(sim.init(), controls)

    assert "purestate.mujoco/step" in step.lower(sim.init(), controls).as_text()
    for control in controls:
        data.ctrl[:] = control
        mujoco.mj_step(model, data)
    expected = np.empty(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(model, data, expected, mujoco.mjtState.mjSTATE_INTEGRATION)
    bits = np.asarray(found.words).view(np.float64).reshape(-1)
    assert expected.tobytes() == bits.tobytes()


def test_in_double_precision_steps_are_native_too():
    with jax.enable_x64(True):
        fast, usual = MujocoSim(slide(), engine="native"), MujocoSim(slide())
        start = fast.init().replace(ctrl=jnp.array([0.3]))
        step = jax.jit(fast.step)

        assert "purestate.mujoco/step/float64" in step.lower(start).as_text()
        assert same(step(start), jax.jit(usual.step)(start))
        many = ps.stack([start, start.replace(ctrl=jnp.array([0.5]))])
        assert same(jax.jit(jax.vmap(fast.step))(many), jax.vmap(usual.step)(many))


def test_controls_alone_may_have_a_batch_axis():
    fast, usual = MujocoSim(slide(), engine="native"), MujocoSim(slide())
    controls = jnp.arange(6.0).reshape(2, 3, 1)

    found, expected = (
        jax.jit(jax.vmap(jax.vmap(lambda c, s=sim: s.step(s.init(), c))))(controls)
        for sim in (fast, usual)
    )

    assert same(found, expected)


def test_two_hundred_fatal_errors_leave_nothing_behind_and_neighbours_right(capfd):
    sim = MujocoSim(crowded(), engine="native")
    crowd = sim.init()
    apart = sim.init(qpos=crowd.qpos.at[2::7].set(jnp.arange(12.0) + 1))
    step = ps.jit(jax.vmap(sim.step))
    both, good = ps.stack([apart, crowd]), ps.stack([apart, apart])
    expected = jax.vmap(MujocoSim(sim.model).step)(good)

    def run(count):
        for _ in range(count):
            with pytest.raises(SimulationError, match="out of memory"):
                step(both)
            assert same(step(good), expected)

    run(20)
    kept, before = table.count_data(), resident()
    run(200)

    assert table.count_data() <= kept + (os.cpu_count() or 1)  # one for each thread
    assert resident() - before < 8 * 2**20


def resident():
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    pytest.skip("only Linux tells here how much memory a process has")


def test_a_process_with_a_callback_of_mujoco_steps_in_python():
    fast, usual = MujocoSim(slide(), engine="native"), MujocoSim(slide())
    start = fast.init()
    step = ps.jit(fast.step)
    without = step(start)

    def push(model, data):
        data.ctrl[0] = 1.0

    def fail(model, data):
        raise ValueError("from the callback")

    try:
        mujoco.set_mjcb_control(push)
        pushed, expected = step(start), ps.jit(usual.step)(start)
        mujoco.set_mjcb_control(fail)
        with pytest.raises(ValueError, match="from the callback"):
            step(start)
    finally:
        mujoco.set_mjcb_control(None)

    assert same(pushed, expected)
    assert not same(pushed, without)
    assert same(step(start), without)


def test_what_nobody_steps_any_more_is_freed():
    fast = MujocoSim(slide(0.37, "freed"), engine="native")
    key = table.number(fast._model, "MujocoSim('freed')", 1, False)
    start = fast.init()
    compiled = jax.jit(fast.step).lower(start).compile()
    assert 0.002 == pytest.approx(float(compiled(start).time))
    assert table.owner(key) is not None
    followed = weakref.ref(fast)

    del fast
    jax.clear_caches()
    gc.collect()
    assert followed() is None
    # The program holds what it steps.
    assert 0.002 == pytest.approx(float(compiled(start).time))
    kept = table.count_data()
    del compiled
    gc.collect()

    assert table.owner(key) is None
    assert table.count_data() < kept
    again = MujocoSim(slide(0.37, "freed"), engine="native")
    assert 0.002 == pytest.approx(float(jax.jit(again.step)(start).time))


def test_more_than_a_thousand_models_are_kept_apart():
    sims = [
        MujocoSim(slide(0.1 + i * 1e-4, f"m{i}"), engine="native") for i in range(1100)
    ]
    chosen = [sims[0], sims[550], sims[1099]]
    start = sims[0].init().replace(ctrl=jnp.array([1.0]))

    found = [float(jax.jit(sim.step)(start).qvel[0]) for sim in chosen]

    usual = [MujocoSim(sim.model) for sim in chosen]
    assert [float(jax.jit(sim.step)(start).qvel[0]) for sim in usual] == found
    assert len(set(found)) == 3


def test_a_number_that_no_model_has_is_a_clean_error():
    sim = MujocoSim(slide(0.21, "unknown"), engine="native")
    start = sim.init()
    sim._calls.step.options.native._key += 1

    with pytest.raises(
        SimSpecError,
        match=r"^a program steps a MuJoCo model that this process does not have: make the "
        r"MujocoSim that it was compiled for, and keep it\.$",
    ):
        ps.jit(sim.step)(start)


def test_the_persistent_cache_is_shared(tmp_path):
    code = f"""
        import jax, mujoco
        from purestate.mujoco import MujocoSim

        jax.config.update("jax_compilation_cache_dir", {str(tmp_path)!r})
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        sim = MujocoSim(mujoco.MjModel.from_xml_string('''{slide_text()}'''),
                        engine="native")
        start = sim.init()
        hits = []
        jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
        print(float(jax.jit(sim.step)(start).time))
        print("/jax/compilation_cache/cache_hits" in hits)
    """
    found = []
    for _ in range(2):
        done = python(code)
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(done.stdout.split()[-1])

    assert ["False", "True"] == found


def slide_text():
    return SLIDE.format(size=0.1, name="cached").strip().replace("\n", " ")


def test_where_the_guard_is_missing_the_engine_is_refused(monkeypatch):
    monkeypatch.setattr(library, "missing", lambda: ("_mjPRIVATE_setTlsLogHandler",))

    with pytest.raises(
        SimSpecError,
        match=r'^engine="native" cannot be had: this MuJoCo, .*, or this system has no '
        r"_mjPRIVATE_setTlsLogHandler\. Leave engine= out\.$",
    ):
        MujocoSim(slide(), engine="native")


def test_where_native_operations_do_not_work_the_engine_is_refused(monkeypatch):
    engine = importlib.import_module("purestate.mujoco._native.engine")
    monkeypatch.setattr(engine, "why_not_here", lambda: "a sum was [1, 2]")

    with pytest.raises(
        SimSpecError,
        match=r'^engine="native" cannot be had: native operations do not work here: a sum '
        r"was \[1, 2\]\. Leave engine= out\.$",
    ):
        MujocoSim(slide(), engine="native")


def test_where_no_key_of_threads_is_left_the_engine_is_refused(monkeypatch):
    guard = importlib.import_module("purestate.mujoco._native.guard")
    library = types.SimpleNamespace(pthread_key_create=lambda key, destroy: 11)
    monkeypatch.setattr(guard.ctypes, "CDLL", lambda name: library)

    with pytest.raises(
        SimSpecError,
        match=r'^engine="native" cannot be had: the process has no key left for memory of '
        r"its threads\. Leave engine= out\.$",
    ):
        guard.prepare.__wrapped__(0)


def test_without_numba_the_engine_is_refused():
    code = f"""
        import sys
        sys.modules["numba"] = None
        sys.modules["llvmlite"] = None
        import mujoco
        from purestate.errors import SimSpecError
        from purestate.mujoco import MujocoSim

        model = mujoco.MjModel.from_xml_string('''{slide_text()}''')
        MujocoSim(model).init()
        try:
            MujocoSim(model, engine="native")
        except SimSpecError as error:
            print(error)
    """
    done = python(code, check=True)

    assert done.stdout.startswith('engine="native" needs numba, the extra `numba` (')
    assert done.stdout.strip().endswith("pip install numba, or leave engine= out.")


# --- what it leans on in MuJoCo ----------------------------------------------------------


@pytest.mark.parametrize("name", [*library.NAMES, *library.CALLBACKS])
def test_mujoco_still_exports(name):
    assert hasattr(library.loaded(), name)


def test_mujoco_still_calls_the_handler_of_the_thread_at_a_fatal_error(capfd):
    # Were it not so, MuJoCo would have ended this process.
    with pytest.raises(SimulationError, match="out of memory"):
        ps.jit(MujocoSim(crowded(), engine="native").step)(
            MujocoSim(crowded(), engine="native").init()
        )


def test_warnings_of_mujoco_still_are_pairs_of_integers():
    data = mujoco.MjData(slide())

    assert (8,) == data.warning.number.strides
    assert np.int32 == data.warning.number.dtype
    assert int(mujoco.mjtWarning.mjNWARNING) == data.warning.number.size
    inside = data.warning.number.ctypes.data - data._address
    assert 4 == data.warning.number.ctypes.data - data.warning.lastinfo.ctypes.data
    assert inside > 0
