"""What a `MujocoSim` with `engine="native"` asks for."""

from typing import Any

import numpy as np

from purestate._host.call.batch import Batch
from purestate._host.native.frame import arrays_of
from purestate._host.native.handler import batch_attribute
from purestate._host.native.raising import keep
from purestate._host.native.trial import why_not_here
from purestate.errors import SimSpecError
from purestate.mujoco._native import library, table
from purestate.mujoco._native.steps import handler
from purestate.mujoco._package import mujoco


class NativeSteps:
    """Steps of a model as an operation, for `Options.native`.

    Args:
        calls: can take a step in Python; the model is stepped while it lives.
        model: the `mujoco.MjModel`, which nobody changes.
        limited: which elements of its state vector MuJoCo limits.
        size: of that vector.
        name: for messages.
        substeps: of a step.
        as_nan: whether a simulation that fails becomes NaN.
        threads: how many share a batch.

    Raises:
        SimSpecError: it cannot be had here.
    """

    def __init__(
        self,
        calls: Any,
        model: Any,
        limited: Any,
        size: int,
        *,
        name: str,
        substeps: int,
        as_nan: bool,
        threads: int,
    ) -> None:
        require()
        self._threads = threads
        self._key = table.number(model, name, substeps, as_nan)
        mask = np.zeros(size, np.uint8)
        mask[limited] = 1
        table.enter(self._key, calls, model, size, substeps, mask)

    def __call__(self, op: Any, derivative: Any, batch: Batch) -> Any:
        """Return name and attributes of the operation, None for a callback."""
        if derivative is not None:
            return None
        name = handler(op.ins[0].dtype == np.float64)
        threads = self._threads if batch.sizes else 1
        told = batch_attribute(batch.sizes, batch.masks, threads)
        return name, {"batch": np.append(told, self._key)}


def require() -> None:
    """Look whether there is what `engine="native"` needs.

    Raises:
        SimSpecError: there is not.
    """
    why = ""
    if absent := library.missing():
        why = f"this MuJoCo, {mujoco.__version__}, or this system has no {absent[0]}"
    elif found := why_not_here():
        why = f"native operations do not work here: {found}"
    if why:
        raise SimSpecError(f'engine="native" cannot be had: {why}. Leave engine= out.')


def again(frame: int) -> bytes:
    """Take a step in Python which failed; return what went wrong there too, or nothing.

    Args:
        frame: the address of the call frame.
    """
    try:
        (*operands,), (*results,), told = arrays_of(frame)
        axes, _, *bits, key = told.tolist()
        calls = table.owner(key)
        if calls is None:
            raise SimSpecError(
                "a program steps a MuJoCo model that this process does not have: make "
                "the MujocoSim that it was compiled for, and keep it."
            )
        sizes = results[0].shape[:axes]
        masks = tuple(tuple(bool(b >> a & 1) for a in range(axes)) for b in bits)
        batch = Batch(sizes, masks)
        if sizes:
            found = batch.unflattened(calls.many(*batch.flattened(operands)))
        else:
            found = calls.one(*operands)
        for into, value in zip(results, found, strict=True):
            into[...] = value
    except BaseException as error:  # noqa: BLE001  # it leaves the program by its number
        return keep(error)
    return b""
