"""What models, options, states and data a `MujocoSim` takes."""

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np

from purestate.errors import SimSpecError
from purestate.mujoco._package import mujoco
from purestate.mujoco._state import SimState
from purestate.mujoco._state_vector import StateVector

# By which two models differ whose data MuJoCo must not mix: it looks at no sizes.
_SIZES = (
    *("nq", "nv", "na", "nu", "nbody", "ngeom", "nsite", "ntendon", "nsensordata"),
    *("neq", "nmocap", "nuserdata", "nhistory", "nplugin", "npluginstate", "nplastic"),
    *("ncam", "nlight", "nM", "nC", "nD", "nJmom", "nwrap", "ntree", "nbvh"),
    *("nflexvert", "nflexedge", "nflexelem"),
)


def check_options(model: Any, substeps: Any, threads: Any, diverged: Any) -> None:
    """Look at what `MujocoSim` was given.

    Raises:
        SimSpecError: something that it does not take.
    """
    if not isinstance(model, mujoco.MjModel):
        raise SimSpecError(
            f"MujocoSim takes a mujoco.MjModel, and got a {type(model).__name__}: "
            f"mujoco.MjModel.from_xml_path(...) makes one."
        )
    for name, value in (("substeps", substeps), ("threads", threads)):
        if value is None and name == "threads":
            continue
        is_integer = isinstance(value, int | np.integer)
        if not is_integer or isinstance(value, bool) or value < 1:
            raise SimSpecError(f"{name}={value!r} of MujocoSim is no positive integer.")
    if diverged not in ("error", "nan"):
        raise SimSpecError(f'diverged={diverged!r} is neither "error" nor "nan".')
    for name in ("SLEEP", "IPC"):
        bit = int(getattr(mujoco.mjtEnableBit, f"mjENBL_{name}", 0))
        if model.opt.enableflags & bit:
            raise SimSpecError(
                f"MujocoSim does not support models with {name.lower()} enabled: "
                f"MuJoCo keeps its bookkeeping outside of the state. Turn it off: "
                f"model.opt.enableflags &= ~mujoco.mjtEnableBit.mjENBL_{name}."
            )


def names_of_fields(observe: Any) -> tuple[str, ...]:
    """Return the names in `observe=`.

    Raises:
        SimSpecError: it is neither a name nor several.
    """
    if isinstance(observe, str):
        return (observe,)
    names = tuple(observe) if isinstance(observe, Iterable) else (observe,)
    if all(isinstance(name, str) for name in names):
        return tuple(dict.fromkeys(names))  # each once
    raise SimSpecError(
        f"observe={observe!r} of MujocoSim is no name of a field of mujoco.MjData, "
        f'nor several: observe=("xpos", "sensordata").'
    )


def check_data(owner: str, model: Any, data: Any, method: str) -> None:
    """Look at a `mujoco.MjData` that a method got.

    Raises:
        SimSpecError: it is no `MjData`, or belongs to another model.
    """
    if not isinstance(data, mujoco.MjData):
        raise SimSpecError(
            f"{owner}.{method} takes a mujoco.MjData, and got a {type(data).__name__}."
        )
    for name in _SIZES:
        # Some came with later versions of MuJoCo.
        theirs, ours = (getattr(m, name, 0) for m in (data.model, model))
        if theirs != ours:
            raise SimSpecError(
                f"{owner}.{method} got the MjData of another model: its {name} is "
                f"{theirs}, this model's {ours}."
            )


def check_sim_state(owner: str, vector: StateVector, state: Any, method: str) -> None:
    """Look at the state that a method got: one simulation, of this model, unspoilt.

    Raises:
        SimSpecError: something else.
    """
    where = f"{owner}.{method}"
    if not isinstance(state, SimState):
        raise SimSpecError(
            f"{where} takes a SimState, from sim.init(), and got a "
            f"{type(state).__name__}."
        )
    if state.layout != vector:
        raise SimSpecError(
            f"{where} got the state of another model: {_other(state.layout, vector)}"
        )
    values, words = state.values, state.words
    dtype, shape = jnp.result_type(values), jnp.shape(values)
    if dtype not in (jnp.float32, jnp.float64):
        raise SimSpecError(
            f"{where} got a state whose values are {dtype.name}: they must stay "
            f"float32, or float64."
        )
    if method != "to_data" and dtype == jnp.float64 != jnp.result_type(float):
        raise SimSpecError(
            f"{where} got a state in double precision, and jax_enable_x64 is off, so "
            f"jax would round it: turn it on, or go through a mujoco.MjData, "
            f"sim.from_data(sim.to_data(state))."
        )
    if shape[-1:] != (vector.size,):
        raise SimSpecError(
            f"{where} got a state whose values have shape {shape}: they must keep "
            f"their {vector.size} elements."
        )
    if shape[:-1]:
        way_out = f"jax.vmap(sim.{method})(...)"
        if method == "to_data":
            way_out = "sim.to_data(ps.unstack(states)[0])"
        raise SimSpecError(
            f"{where} takes the state of one simulation, and got a batch of "
            f"{shape[:-1]}: write {way_out}."
        )
    wanted = None if dtype == jnp.float64 else f"uint32{[vector.size, 2]}"
    found = None
    if words is not None:
        found = f"{jnp.result_type(words).name}{[*jnp.shape(words)]}"
    if wanted != found:
        raise SimSpecError(
            f"{where} got a state whose {dtype.name} values come with words {found}, "
            f"not {wanted}: they are bits, not to be computed with or left out. Change "
            f"the numbers alone, in a state of sim.init(): state.replace(values=...)."
        )


def title(model: Any) -> str:
    """Return the model's name, as in its file."""
    return repr(model.names.split(b"\0", 1)[0].decode())


def _other(theirs: StateVector, ours: StateVector) -> str:
    """Return in which part the state vectors of two models differ."""
    for name in ours.names:
        shape = theirs.shape(name) if name in theirs.names else None
        if shape != ours.shape(name):
            return f"its {name} has shape {shape}, this model's {ours.shape(name)}."
    return "of another version of MuJoCo, which has other parts."
