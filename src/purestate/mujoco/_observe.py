"""What a user wants to see of a simulation besides its state."""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from purestate.errors import SimSpecError
from purestate.errors._base import nearest
from purestate.mujoco._engines import Batches
from purestate.mujoco._layout import put, state_layout
from purestate.mujoco._native import DATA_FIELDS, mujoco

__all__ = ["Observer"]

Array = np.ndarray[Any, Any]
_AFTER_CONSTRAINTS = ("cacc", "cfrc_int", "cfrc_ext")


class Observer:
    """Reads fields of `MjData` that belong to a state.

    Args:
        model: the model.
        owner: the simulator's name, for messages.
        names: the fields.
        batches: for `look_at_all`; None where there is no `mujoco.batch`.
    """

    def __init__(
        self, model: Any, owner: str, names: Iterable[str], batches: Batches | None
    ) -> None:
        self.names = tuple(names)
        self._model = model
        self._after = any(name in _AFTER_CONSTRAINTS for name in self.names)
        data = mujoco.MjData(model)
        self._like = {name: _value(owner, model, data, name) for name in self.names}
        self._batches = batches
        # In a batch, parts of the state are views of it, and some fields are missing.
        state = set(state_layout(model).names)
        fields = frozenset() if batches is None else DATA_FIELDS - state
        self.in_batches = bool(names) and not self._after and fields >= set(self.names)

    def specs(self, dtype: Any) -> dict[str, Any]:
        """Return shapes and dtypes, floating-point ones in `dtype`."""
        make: Any = jax.ShapeDtypeStruct
        return {
            name: make(like.shape, dtype if like.dtype.kind == "f" else np.int32)
            for name, like in self._like.items()
        }

    def look(self, data: Any, state: Array) -> dict[str, Array]:
        """Return the fields in a state; `data` is scratch."""
        put(self._model, data, state)
        mujoco.mj_forward(self._model, data)
        if self._after:
            mujoco.mj_rnePostConstraint(self._model, data)
        return {name: np.array(getattr(data, name)) for name in self.names}

    def look_at_all(self, states: Array) -> dict[str, Array]:
        """Return the fields in each of the states, by one native call."""
        batches: Any = self._batches
        with batches.lent(len(states)) as batch:
            bound = {name: batch.bind(name) for name in self.names}
            batch.state[:] = states
            batch.forward()
            return {name: value.copy() for name, value in bound.items()}

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
    if not is_number or isinstance(value, bool) or name.startswith(("efc_", "contact")):
        raise SimSpecError(
            f"{owner} cannot observe {name}: it is not an array whose size is the same "
            f"in every state. Such are xpos, geom_xpos, sensordata or ncon."
        )
    found = np.asarray(value)
    if found.dtype.kind not in "fiu" and found.dtype != bool:
        raise SimSpecError(f"{owner} cannot observe {name}: it holds no numbers.")
    return np.array(found)
