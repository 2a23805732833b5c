"""What kind of model and options a `MujocoSim` takes."""

from typing import Any

from purestate.errors import SimSpecError
from purestate.mujoco._native import mujoco

__all__ = ["check", "title"]


def check(model: Any, substeps: Any, threads: Any, diverged: Any) -> None:
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
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
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


def title(model: Any) -> str:
    """Return the model's name, as in its file."""
    return repr(model.names.split(b"\0", 1)[0].decode())
