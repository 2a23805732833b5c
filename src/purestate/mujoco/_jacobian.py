"""Derivatives of a step, and of what is observed, with respect to the state vector.

Those of a step come from `mjd_transitionFD`, MuJoCo's central differences in tangent
space, substep by substep. The parts of the state that it knows of are `qpos`, `qvel`,
`act` and `ctrl`; a step hands its inputs on as they are, and everything else counts as
constant.

Differences of whole steps, as any host function can have them, are as accurate, but
take twice as long: 3.1 against 1.6 ms for a step of a humanoid (MJX's `jacfwd`: 1040).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from purestate.mujoco._faults import RESETTING
from purestate.mujoco._package import mujoco
from purestate.mujoco._state_vector import INTEGRATION, StateVector, set_state
from purestate.mujoco._tangent import Tangent

Array = np.ndarray[Any, Any]
# Ten times smaller than MuJoCo's own choice: near contacts the error is a tenth, and
# rounding costs 1e-8.
EPS = 1e-7
# Parts of a state through which a step depends on earlier ones, by their sizes.
_NOT_DIFFERENTIATED = {
    "nhistory": "delayed actuators or sensors",
    "npluginstate": "plugins with a state",
    "nplastic": "plastic deformation",
}


def why_no_gradient(model: Any) -> str:
    """Return why steps of a model cannot be differentiated; empty if they can."""
    if int(model.opt.integrator) == int(mujoco.mjtIntegrator.mjINT_RK4):
        return (
            "cannot be differentiated: the model is integrated by RK4, which MuJoCo's "
            "mjd_transitionFD does not support. Choose another integrator, "
            "model.opt.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST, or cut "
            "the derivative off with jax.lax.stop_gradient(state)."
        )
    for size, what in _NOT_DIFFERENTIATED.items():
        if getattr(model, size, 0):
            return (
                f"cannot be differentiated: the model has {what}, which MuJoCo's "
                f"mjd_transitionFD does not differentiate. Leave them out, or cut the "
                f"derivative off with jax.lax.stop_gradient(state)."
            )
    return ""


class Jacobian:
    """The Jacobians of a model's steps and observations, in double precision."""

    def __init__(self, model: Any, vector: StateVector, substeps: int) -> None:
        self._model, self._vector, self._substeps = model, vector, substeps
        self._tangent = Tangent(model)
        self._nv, self._na = int(model.nv), int(model.na)
        self._parts = {n: vector.part(n) for n in ("qpos", "qvel", "act", "ctrl")}
        everything = np.arange(vector.size)
        moving = [everything[part] for part in self._parts.values()]
        user = int(mujoco.mjtState.mjSTATE_USER | mujoco.mjtState.mjSTATE_TIME)
        # Rows and columns of what `step` returns, and what a step hands on as it is.
        self.pattern = (
            np.concatenate(moving[:3]),
            np.concatenate(moving),
            vector.indices(user),
        )

    def step(self, data: Any, state: Array) -> tuple[Array, Array, bool]:
        """Return the derivative, the next state, and whether MuJoCo warned about it.

        Of the derivative, the part that `pattern` tells; `data` is scratch.
        """
        model, nv = self._model, self._nv
        size = 2 * nv + self._na
        chain = np.eye(size, size + int(model.nu))
        a, b = np.zeros((size, size)), np.zeros((size, int(model.nu)))
        set_state(model, data, state)
        data.warning.number[:] = 0
        for substep in range(self._substeps):
            if substep:
                mujoco.mj_step(model, data)
            mujoco.mjd_transitionFD(model, data, EPS, True, a, b, None, None)
            chain = a @ chain
            chain[:, size:] += b
        mujoco.mj_step(model, data)
        following = np.empty_like(state)
        mujoco.mj_getState(model, data, following, INTEGRATION)
        warned = bool(data.warning.number[RESETTING].any())
        found: Array = self._outward(data.qpos) @ chain @ self._inward(state)
        return found, following, warned

    def nothing(self) -> Array:
        """Return the derivative of what is constant."""
        return np.zeros((len(self.pattern[0]), len(self.pattern[1])))

    def observed(
        self, data: Any, state: Array, look: Callable[[Any, Array], Array]
    ) -> Array:
        """Return the derivative of what `look(data, state)` finds, `(m, n)`."""
        model, vector, nv = self._model, self._vector, self._nv
        n, columns = vector.size, self._inward(state)
        plain = [np.arange(n)[self._parts[p]] for p in ("qvel", "act", "ctrl")]
        others = np.concatenate(plain)
        made = []
        for k in range(nv + len(others)):
            pair = []
            for eps in (EPS, -EPS):
                near = state.copy()
                if k < nv:
                    velocity = np.zeros(nv)
                    velocity[k] = eps
                    qpos = near[self._parts["qpos"]]
                    mujoco.mj_integratePos(model, qpos, velocity, 1.0)
                else:
                    near[others[k - nv]] += eps
                pair.append(look(data, near))
            made.append((pair[0] - pair[1]) / (2 * EPS))
        found = np.zeros((len(made[0]), n))
        found[:, self.pattern[1]] = np.stack(made, axis=1) @ columns
        return found

    def _inward(self, state: Array) -> Array:
        """Return the map from (qpos, qvel, act, ctrl) to the tangent space."""
        to_velocities = self._tangent.to_velocities(state[self._parts["qpos"]])
        return _beside(to_velocities, self._nv + self._na + int(self._model.nu))

    def _outward(self, qpos: Array) -> Array:
        """Return the map from the tangent space to (qpos, qvel, act)."""
        return _beside(self._tangent.to_positions(qpos), self._nv + self._na)


def _beside(block: Array, size: int) -> Array:
    """Return a matrix with a block and, beside it, an identity."""
    found = np.zeros((block.shape[0] + size, block.shape[1] + size))
    found[: block.shape[0], : block.shape[1]] = block
    found[block.shape[0] :, block.shape[1] :] = np.eye(size)
    return found
