"""The ways to step Gymnasium's humanoid that `bench_sim` compares."""

import copy
import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco.rollout import Rollout

import purestate as ps
from benchmarks import native_sim
from benchmarks.harness import Case
from purestate.mujoco import MujocoSim

WHOLE = int(mujoco.mjtState.mjSTATE_INTEGRATION)
STEPS = 10  # of a scan


def humanoid(integrator: str) -> Any:
    """Return Gymnasium's humanoid, integrated in this way."""
    assets = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
    model = mujoco.MjModel.from_xml_path(str(assets / "humanoid.xml"))
    model.opt.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{integrator}")
    return model


@functools.cache
def in_cpp() -> Any:
    """Return the step in C++ threads, or why there is none."""
    return native_sim.compiled()


def has_mjx() -> bool:
    """Return whether MJX can be imported."""
    try:
        return importlib.util.find_spec("mujoco.mjx") is not None
    except ModuleNotFoundError:
        return False


def step_cases(model: Any, substeps: int, count: int) -> list[Case]:
    """Return a case for each way to step `count` simulations ten times."""
    given = np.random.default_rng(0).uniform(-0.4, 0.4, (STEPS, count, model.nu))
    controls = np.float32(given)
    start = first_state(model)
    made: dict[str, Callable[[], Any]] = {}
    engines = ["threads"] if importlib.util.find_spec("mujoco.batch") is None else []
    for engine in engines or ["batch", "threads"]:
        if engine == "threads" and count == 1 and not engines:
            continue  # a single simulation has no engine
        made[f"purestate, {engine}"] = in_jax(model, substeps, count, engine, controls)
    if importlib.util.find_spec("numba") is not None:
        made["purestate, native"] = in_jax(model, substeps, count, "native", controls)
    made["MuJoCo, Python loop"] = in_a_loop(model, substeps, start, controls)
    made["mujoco.rollout"] = in_rollouts(model, substeps, start, controls)
    if not engines:
        made["mujoco.batch"] = in_a_batch(model, substeps, start, controls)
    made["pure_callback"] = with_pure_callback(model, substeps, start, controls)
    if not isinstance(in_cpp(), str):
        made["C++ threads, jax.ffi"] = in_threads(model, substeps, start, controls)
    if has_mjx() and substeps == 1 and count < 256:  # minutes each, and seconds a step
        made["MJX"] = with_mjx(model, count, controls)
    return [Case(name, "f()", {"f": run}, waits=True) for name, run in made.items()]


def first_state(model: Any) -> Any:
    """Return the state vector of a humanoid that has fallen on the floor."""
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data, nstep=200)
    state = np.empty(mujoco.mj_stateSize(model, WHOLE))
    mujoco.mj_getState(model, data, state, WHOLE)
    return state


def scanned(step: Callable[[Any, Any], Any], start: Any, controls: Any) -> Any:
    """Return a compiled scan of ten steps, ready to run."""
    run = jax.jit(lambda s, c: jax.lax.scan(lambda s, c: (step(s, c), None), s, c)[0])
    return lambda: jax.block_until_ready(run(start, controls))


def in_jax(model: Any, substeps: int, count: int, engine: str, controls: Any) -> Any:
    """Return purestate's steps; a single simulation without a batch axis."""
    sim = MujocoSim(model, substeps=substeps, engine=engine)
    data = mujoco.MjData(model)
    mujoco.mj_setState(model, data, first_state(model), WHOLE)
    state = sim.from_data(data)
    if count == 1:
        return scanned(sim.step, state, jnp.asarray(controls[:, 0]))
    states = ps.stack([state] * count)
    return scanned(jax.vmap(sim.step), states, jnp.asarray(controls))


def in_a_loop(model: Any, substeps: int, start: Any, controls: Any) -> Any:
    """Return what people write without jax: one MjData, a loop over everything."""
    datas = [mujoco.MjData(model) for _ in controls[0]]

    def run() -> None:
        for data in datas:
            mujoco.mj_setState(model, data, start, WHOLE)
        for given in controls:
            for data, control in zip(datas, given, strict=True):
                data.ctrl[:] = control
                mujoco.mj_step(model, data, nstep=substeps)

    return run


def in_rollouts(model: Any, substeps: int, start: Any, controls: Any) -> Any:
    """Return `mujoco.rollout` of all ten steps at once, all controls known before."""
    threads = os_threads()
    pool = Rollout(nthread=threads)
    datas = [mujoco.MjData(model) for _ in range(threads)]
    data = mujoco.MjData(model)
    mujoco.mj_setState(model, data, start, WHOLE)
    kind = int(mujoco.mjtState.mjSTATE_FULLPHYSICS)
    size, count = mujoco.mj_stateSize(model, kind), controls.shape[1]
    physics = np.empty(size)
    mujoco.mj_getState(model, data, physics, kind)
    states = np.repeat(physics[None], count, axis=0)
    given = np.repeat(np.float64(controls).transpose(1, 0, 2), substeps, axis=1)
    warm = np.repeat(data.qacc_warmstart[None], count, axis=0)
    out = np.empty((count, STEPS * substeps, size))

    def run() -> None:
        pool.rollout(
            [model] * count,
            datas,
            states,
            given,
            skip_checks=True,
            nstep=STEPS * substeps,
            initial_warmstart=warm,
            state=out,
        )

    return run


def in_a_batch(model: Any, substeps: int, start: Any, controls: Any) -> Any:
    """Return `mujoco.batch` without jax."""
    from mujoco.batch import Batch

    batch = Batch(model, controls.shape[1], os_threads())

    def run() -> None:
        batch.state[:] = start
        for given in controls:
            batch.ctrl = given
            batch.step(nstep=substeps)

    return run


def os_threads() -> int:
    """Return how many threads the pools of MuJoCo get."""
    return os.cpu_count() or 1


def with_pure_callback(model: Any, substeps: int, start: Any, controls: Any) -> Any:
    """Return what people write with jax: words in, words out, one callback each."""
    data = mujoco.MjData(model)

    def host(words: Any, control: Any) -> Any:
        state = np.array(words).view(np.float64)[:, 0]
        mujoco.mj_setState(model, data, state, WHOLE)
        data.ctrl[:] = control
        mujoco.mj_step(model, data, nstep=substeps)
        mujoco.mj_getState(model, data, state, WHOLE)
        return state.view(np.uint32).reshape(-1, 2)

    def step(words: Any, control: Any) -> Any:
        spec = jax.ShapeDtypeStruct(words.shape, words.dtype)
        return jax.pure_callback(host, spec, words, control, vmap_method="sequential")

    words = jnp.asarray(start.view(np.uint32).reshape(-1, 2))
    many = jnp.stack([words] * controls.shape[1])
    return scanned(jax.vmap(step), many, jnp.asarray(controls))


def in_threads(model: Any, substeps: int, start: Any, controls: Any) -> Any:
    """Return C++ threads through `jax.ffi`."""
    words = jnp.asarray(start.view(np.uint32).reshape(-1, 2))
    many = jnp.stack([words] * controls.shape[1])
    step = in_cpp()(model, substeps)
    keep = functools.partial(lambda model, step, *args: step(*args), model, step)
    return scanned(keep, many, jnp.asarray(controls))


def with_mjx(model: Any, count: int, controls: Any) -> Any:
    """Return MJX, MuJoCo rewritten in jax."""
    from mujoco import mjx

    device_model = mjx.put_model(model)
    data = mjx.put_data(model, mujoco.MjData(model))
    many = jax.tree.map(lambda leaf: jnp.stack([leaf] * count), data)
    step = jax.vmap(lambda d, c: mjx.step(device_model, d.replace(ctrl=c)))
    return scanned(step, many, jnp.asarray(controls))


def gradient_cases(model: Any) -> list[Case]:
    """Return a gradient of one step, beside MuJoCo's transition matrices alone."""
    sim = MujocoSim(copy.copy(model))
    data = mujoco.MjData(model)
    mujoco.mj_setState(model, data, first_state(model), WHOLE)
    state = sim.from_data(data)

    def loss(qpos: Any, ctrl: Any) -> Any:
        return sim.step(state.replace(qpos=qpos), ctrl).qpos.sum()

    gradient = jax.jit(jax.grad(loss, (0, 1)))
    jacobian = jax.jit(
        jax.jacrev(lambda q, c: sim.step(state.replace(qpos=q), c).values, (0, 1))
    )
    size = 2 * model.nv + model.na
    a, b = np.zeros((size, size)), np.zeros((size, model.nu))

    def direct() -> None:
        mujoco.mjd_transitionFD(model, data, 1e-6, True, a, b, None, None)

    def wait(fn: Any) -> Callable[[], Any]:
        return lambda: jax.block_until_ready(fn(state.qpos, state.ctrl))

    made = {
        "purestate, grad": wait(gradient),
        "purestate, whole Jacobian": wait(jacobian),
        "mjd_transitionFD": direct,
    }
    return [Case(name, "f()", {"f": run}, waits=True) for name, run in made.items()]
