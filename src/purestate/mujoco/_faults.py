"""Simulations that cannot go on: found, named, and raised or turned into NaN.

MuJoCo resets a simulation whose numbers are not finite or above `mjMAXVAL`, and goes
on. A result that belongs to another state would be wrong in silence.
"""

from typing import Any

import numpy as np

from purestate.errors import SimulationError
from purestate.mujoco._layout import WHOLE, StateLayout
from purestate.mujoco._native import mujoco

__all__ = ["Faults"]

Array = np.ndarray[Any, Any]
_LIMIT = float(mujoco.mjMAXVAL)
_LIMITED = ("qpos", "qvel", "ctrl")  # what MuJoCo compares with it


class Faults:
    """Looks at states before and after a step."""

    def __init__(
        self, name: str, model: Any, layout: StateLayout, substeps: int, as_nan: bool
    ) -> None:
        self._name, self._model, self._layout = name, model, layout
        self._substeps, self._as_nan = substeps, as_nan
        everything = np.arange(layout.size)
        self._limited = np.concatenate([everything[layout.part(n)] for n in _LIMITED])
        self._start = np.empty(layout.size)
        mujoco.mj_getState(model, mujoco.MjData(model), self._start, WHOLE)

    def before(self, states: Array) -> tuple[Array, Array]:
        """Return states that can be stepped, and which of them only stand in.

        Raises:
            SimulationError: states whose numbers are not finite or too large.
        """
        bad = self._bad(states)
        if not bad.any():
            return states, bad
        if not self._as_nan:
            row = states[bad][0]
            wrong: Array = np.asarray(~np.isfinite(row))
            wrong[self._limited] |= ~(np.abs(row[self._limited]) <= _LIMIT)
            element = int(np.flatnonzero(wrong)[0])
            raise SimulationError(
                self._name,
                "cannot step a state that is not finite, or too large,",
                f"{self._place(element)} is {row[element]}.",
                np.flatnonzero(bad).tolist(),
                len(states),
            )
        return np.where(bad[:, None], self._start, states), bad

    def after(
        self, states: Array, following: Array, warned: Array, stand_ins: Array
    ) -> Array:
        """Return the next states, checked.

        Raises:
            SimulationError: MuJoCo reset some of them.
        """
        failed = self._bad(following)
        failed |= warned
        if not failed.any() and not stand_ins.any():
            return following
        if self._as_nan:
            return np.where((failed | stand_ins)[:, None], np.nan, following)
        raise SimulationError(
            self._name,
            "diverged",
            f"{self._why(states[failed][0])} A smaller timestep, other solver options "
            f'or a less extreme state may help; MujocoSim(..., diverged="nan") goes on '
            f"with NaN for these.",
            np.flatnonzero(failed).tolist(),
            len(states),
        )

    def _bad(self, states: Array) -> Array:
        flat = states.reshape(-1)
        # One pass instead of many: it is above the limit if any element is.
        if np.dot(flat, flat) < _LIMIT**2:
            return np.zeros(len(states), bool)
        large = ~(np.abs(states[:, self._limited]) <= _LIMIT)
        return np.asarray(~np.isfinite(states).all(axis=1) | large.any(axis=1))

    def _place(self, element: int) -> str:
        for name in self._layout.names:
            part = self._layout.part(name)
            if part.start <= element < part.stop:
                index = np.unravel_index(
                    element - part.start, self._layout.shape(name) or (1,)
                )
                shown = ", ".join(map(str, index))
                return f"{name}[{shown}]" if self._layout.shape(name) else name
        return f"element {element}"

    def _why(self, state: Array) -> str:
        """Return what MuJoCo says of a step that failed, by taking it again."""
        data = mujoco.MjData(self._model)
        mujoco.mj_setState(self._model, data, state, WHOLE)
        try:
            mujoco.mj_step(self._model, data, nstep=self._substeps)
        except mujoco.FatalError as error:
            return f"MuJoCo raised: {error}."
        for name in ("QPOS", "QVEL", "QACC", "CTRL"):
            which = int(getattr(mujoco.mjtWarning, f"mjWARN_BAD{name}"))
            if data.warning.number[which]:
                place = f"{name.lower()}[{int(data.warning.lastinfo[which])}]"
                return f"MuJoCo found {place} not finite, or too large, and reset it."
        return "its next state is not finite, or too large."
