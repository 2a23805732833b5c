"""Simulations that cannot go on: found, named, and raised or turned into NaN.

MuJoCo resets a simulation whose numbers are not finite or above `mjMAXVAL`, and goes
on. A result that belongs to another state would be wrong in silence.
"""

from typing import Any

import numpy as np

from purestate.errors import SimulationError
from purestate.mujoco._package import mujoco
from purestate.mujoco._state_vector import INTEGRATION, StateVector, set_state

Array = np.ndarray[Any, Any]
LIMIT = float(mujoco.mjMAXVAL)
LIMITED = ("qpos", "qvel", "ctrl")  # what MuJoCo compares with it
# Of MuJoCo's warnings, those that a part was not finite or too large. It has reset the
# simulation then; for the controls it has computed with zeros instead.
_BAD = {
    name: int(getattr(mujoco.mjtWarning, f"mjWARN_BAD{name.upper()}"))
    for name in ("qpos", "qvel", "qacc", "ctrl")
}
RESETTING = list(_BAD.values())


class Faults:
    """Looks at states before and after a step."""

    def __init__(
        self, name: str, model: Any, vector: StateVector, substeps: int, as_nan: bool
    ) -> None:
        self._name, self._model, self._vector = name, model, vector
        self._substeps, self._as_nan = substeps, as_nan
        everything = np.arange(vector.size)
        self.limited = np.concatenate([everything[vector.part(n)] for n in LIMITED])
        self._start = np.empty(vector.size)
        mujoco.mj_getState(model, mujoco.MjData(model), self._start, INTEGRATION)

    def before(self, states: Array, verb: str = "step") -> tuple[Array, Array | None]:
        """Return states that MuJoCo can compute with, and which only stand in.

        Args:
            states: shape `(count, n)`, or `(n,)` for a single one.
            verb: what is done with them.

        Raises:
            SimulationError: states whose numbers are not finite or too large.
        """
        if _is_sound(states) or not (bad := self._bad(states)).any():
            return states, None
        if not self._as_nan:
            row = states[bad][0]
            wrong: Array = np.asarray(~np.isfinite(row))
            wrong[self.limited] |= ~(np.abs(row[self.limited]) <= LIMIT)
            element = int(np.flatnonzero(wrong)[0])
            raise SimulationError(
                self._name,
                f"cannot {verb} a state that is not finite, or too large,",
                f"{self._place(element)} is {row[element]}.",
                np.flatnonzero(bad).tolist(),
                bad.size,
            )
        return np.where(bad[..., None], self._start, states), bad

    def after(
        self, states: Array, following: Array, warned: Any, stand_ins: Array | None
    ) -> Array:
        """Return the next states, checked.

        Raises:
            SimulationError: MuJoCo reset some of them.
        """
        if stand_ins is None and not np.any(warned) and _is_sound(following):
            return following
        failed = self._bad(following) | warned
        if stand_ins is not None:
            failed |= stand_ins
        if not failed.any():
            return following
        if self._as_nan:
            return np.where(failed[..., None], np.nan, following)
        raise SimulationError(
            self._name,
            "diverged",
            f"{self._why(states[failed][0])} A smaller timestep, other solver options "
            f'or a less extreme state may help; MujocoSim(..., diverged="nan") goes on '
            f"with NaN for these.",
            np.flatnonzero(failed).tolist(),
            failed.size,
        )

    def _bad(self, states: Array) -> Array:
        large = ~(np.abs(states[..., self.limited]) <= LIMIT)
        infinite = ~np.isfinite(states)
        return np.asarray(infinite.any(axis=-1) | large.any(axis=-1))

    def _place(self, element: int) -> str:
        for name in self._vector.names:
            part = self._vector.part(name)
            if part.start <= element < part.stop:
                index = np.unravel_index(
                    element - part.start, self._vector.shape(name) or (1,)
                )
                shown = ", ".join(map(str, index))
                return f"{name}[{shown}]" if self._vector.shape(name) else name
        return f"element {element}"

    def _why(self, state: Array) -> str:
        """Return what MuJoCo says of a step that failed, by taking it again."""
        data = mujoco.MjData(self._model)
        set_state(self._model, data, state)
        try:
            mujoco.mj_step(self._model, data, nstep=self._substeps)
        except mujoco.FatalError as error:
            return f"MuJoCo raised: {error}."
        for name, which in _BAD.items():
            if data.warning.number[which]:
                place = f"{name}[{int(data.warning.lastinfo[which])}]"
                return f"MuJoCo found {place} not finite, or too large, and reset it."
        return "its next state is not finite, or too large."


def _is_sound(states: Array) -> bool:
    """Return whether all numbers are below the limit, in most cases where they are.

    This runs twice a step, so it may be wrong in one direction: a state that it doubts
    is looked at with care.
    """
    # Of one simulation, a few hundred numbers: 0.6 us, and 2.1 us for the largest and
    # the smallest. Not of a batch, for which BLAS would start threads of its own.
    if states.ndim == 1:
        return bool(np.dot(states, states) < LIMIT**2)
    return bool(states.max() <= LIMIT and states.min() >= -LIMIT)
