"""Simulations that cannot go on: found, named, and raised or turned into NaN.

MuJoCo resets a simulation whose numbers are not finite or above `mjMAXVAL`, and goes
on. A result that belongs to another state would be wrong in silence.
"""

from typing import Any

import numpy as np

from purestate.errors import SimulationError
from purestate.mujoco._native import mujoco
from purestate.mujoco._state_vector import WHOLE, StateVector, put

Array = np.ndarray[Any, Any]
_LIMIT = float(mujoco.mjMAXVAL)
_LIMITED = ("qpos", "qvel", "ctrl")  # what MuJoCo compares with it


class Faults:
    """Looks at states before and after a step."""

    def __init__(
        self, name: str, model: Any, layout: StateVector, substeps: int, as_nan: bool
    ) -> None:
        self._name, self._model, self._layout = name, model, layout
        self._substeps, self._as_nan = substeps, as_nan
        everything = np.arange(layout.size)
        self._limited = np.concatenate([everything[layout.part(n)] for n in _LIMITED])
        self._start = np.empty(layout.size)
        mujoco.mj_getState(model, mujoco.MjData(model), self._start, WHOLE)

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
            wrong[self._limited] |= ~(np.abs(row[self._limited]) <= _LIMIT)
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
        large = ~(np.abs(states[..., self._limited]) <= _LIMIT)
        infinite = ~np.isfinite(states)
        return np.asarray(infinite.any(axis=-1) | large.any(axis=-1))

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
        put(self._model, data, state)
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


def _is_sound(states: Array) -> bool:
    """Return whether all numbers are below the limit, in most cases where they are."""
    if (
        states.ndim == 1
    ):  # the cheapest for a few hundred numbers; large ones use threads
        return bool(np.dot(states, states) < _LIMIT**2)
    return bool(states.max() <= _LIMIT and states.min() >= -_LIMIT)
