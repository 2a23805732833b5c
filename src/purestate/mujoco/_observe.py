"""What a user wants to see of a simulation besides its state."""

import functools
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from purestate._host.call.workers import Pool, Scratch
from purestate.errors import SimSpecError
from purestate.errors._text import nearest
from purestate.mujoco._engines import Batches
from purestate.mujoco._package import DATA_FIELDS, mujoco
from purestate.mujoco._state_vector import StateVector, set_state

Array = np.ndarray[Any, Any]
# What `mj_forward` leaves out, or computes only for a sensor or behind a flag.
_FUNCTIONS = {
    "mj_rnePostConstraint": ("cacc", "cfrc_int", "cfrc_ext"),
    "mj_subtreeVel": ("subtree_linvel", "subtree_angmom"),
    "mj_energyPos": ("energy",),
    "mj_energyVel": ("energy",),
}
_NOT_COMPUTED = {
    *("qDeriv", "qH", "qHDiagInv", "qLU"),  # an integrator's, of the step before
    *("qfrc_inverse", "solver_fwdinv"),  # mj_inverse's
}
# In the arena, as long as there are constraints, or about MuJoCo's own memory.
_VARYING = (
    *("contact", "efc_", "iefc_", "iacc", "ifrc_"),
    *("island_", "tree_island", "dof_island", "map_"),
    *("maxuse_", "plugin_data", "signature", "narena", "nbuffer", "parena", "pbase"),
    "pstack",
)
# Written only where there are constraints.
_COUNTERS = ("solver_niter", "solver_nnz", "solver_nisland")


class Observer:
    """Reads fields of `MjData` that belong to a state.

    Args:
        model: the model.
        vector: the parts of its states.
        owner: the simulator's name, for messages.
        names: the fields.
        batches: None where `mujoco.batch` is not used.
        threads: how many share a batch otherwise.
    """

    def __init__(
        self,
        model: Any,
        vector: StateVector,
        owner: str,
        names: Iterable[str],
        batches: Batches | None,
        threads: int | None,
    ) -> None:
        self.names = tuple(names)
        self._model = model
        self._after = [
            getattr(mujoco, function)
            for function, fields in _FUNCTIONS.items()
            if not set(fields).isdisjoint(self.names)
        ]
        data = mujoco.MjData(model)
        self._like = {name: _value(owner, model, data, name) for name in self.names}
        # In a batch, parts of the state are views of it, and some fields are missing.
        self._vector = vector
        fields = frozenset() if batches is None else DATA_FIELDS
        fields -= {*self._vector.names, *_COUNTERS}
        whole = not self._after and fields >= set(self.names)
        self._counters = {
            name: np.zeros_like(getattr(data, name))
            for name in _COUNTERS
            if hasattr(data, name)
        }
        self._batches = batches if whole else None
        self._free = Scratch(functools.partial(mujoco.MjData, model))
        self._pool = Pool(threads, "purestate-mujoco")

    def specs(self, dtype: Any) -> dict[str, Any]:
        """Return shapes and dtypes, floating-point ones in `dtype`."""
        make: Any = jax.ShapeDtypeStruct
        return {
            name: make(like.shape, dtype if like.dtype.kind == "f" else like.dtype)
            for name, like in self._like.items()
        }

    def look(self, data: Any, state: Array) -> dict[str, Array]:
        """Return the fields in a state; `data` is scratch."""
        set_state(self._model, data, state)
        for name, zero in self._counters.items():
            setattr(data, name, zero)
        mujoco.mj_forward(self._model, data)
        for function in self._after:
            function(self._model, data)
        return {name: _numbers(getattr(data, name)) for name in self.names}

    def look_at_all(self, states: Array) -> dict[str, Array]:
        """Return the fields in each of the states, by one native call if possible."""
        if self._batches is None:
            return self._look_in_threads(states)
        with self._batches.lent(len(states)) as batch:
            bound = {name: batch.bind(name) for name in self.names}
            batch.state[:] = states
            batch.forward()
            return {name: _numbers(value) for name, value in bound.items()}

    def _look_in_threads(self, states: Array) -> dict[str, Array]:
        found = {
            name: np.empty((len(states), *like.shape), like.dtype)
            for name, like in self._like.items()
        }

        def run(row: int) -> None:
            with self._free.lent() as data:
                for name, value in self.look(data, states[row]).items():
                    found[name][row] = value

        self._pool.each(run, list(range(len(states))))
        return found

    def flat(self, data: Any, state: Array) -> Array:
        """Return the floating-point fields in a state, in one array."""
        found = self.look(data, state)
        floats = [found[n].ravel() for n in self.names if found[n].dtype.kind == "f"]
        return np.concatenate(floats) if floats else np.zeros(0)

    def rows(self, flat: Array) -> dict[str, Any]:
        """Return rows of the Jacobian, by name, from those of `flat`."""
        rows: dict[str, Any] = {}
        start = 0
        for name, like in self._like.items():
            if like.dtype.kind != "f":
                rows[name] = None
                continue
            part = flat[start : start + like.size]
            if name in self._vector.names and name != "qacc_warmstart":
                part = np.eye(flat.shape[1])[self._vector.part(name)]  # it is handed on
            rows[name] = (part.reshape(*like.shape, flat.shape[1]), None)
            start += like.size
        return rows


def _value(owner: str, model: Any, data: Any, name: str) -> Array:
    """Return the field, which must be numbers, as many in every state.

    Raises:
        SimSpecError: it is not.
    """
    known = [n for n in dir(data) if not n.startswith("_")]
    if name not in known:
        raise SimSpecError(
            f"{owner} cannot observe {name!r}, which is no field of mujoco.MjData; "
            f"{nearest(name, known).partition('its fields')[0] or 'see its fields.'}"
        )
    value = getattr(data, name)
    is_number = isinstance(value, np.ndarray | int | float)
    if not is_number or isinstance(value, bool) or name.startswith(_VARYING):
        raise SimSpecError(
            f"{owner} cannot observe {name}: it is not an array whose size is the same "
            f"in every state. Such are xpos, geom_xpos, sensordata or ncon."
        )
    if name in _NOT_COMPUTED:
        raise SimSpecError(
            f"{owner} cannot observe {name}: mj_forward does not compute it. Apply "
            f"MuJoCo's own functions to the MjData that sim.to_data(state) returns."
        )
    return _numbers(value)


def _numbers(value: Any) -> Array:
    """Return a copy of a field, whole numbers and truth values as int32."""
    found = np.array(value)
    return found if found.dtype.kind == "f" else found.astype(np.int32)
