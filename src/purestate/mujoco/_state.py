"""`SimState`: the state of a simulation as a value."""

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from purestate._compat import aligned
from purestate._schema.fields import static
from purestate._schema.view import View
from purestate._state.state import State
from purestate.errors import SimSpecError
from purestate.mujoco._state_vector import StateVector

if TYPE_CHECKING:
    from typing import Self


class _Part(View):
    """A part of the state vector, in the shape that it has in `MjData`."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def read(self, state: Any) -> Any:
        vector = state.layout
        if self.name not in vector.names:  # of a newer MuJoCo
            return jnp.zeros((*state.values.shape[:-1], 0), state.values.dtype)
        part, shape = vector.part(self.name), vector.shape(self.name)
        return state.values[..., part].reshape(*state.values.shape[:-1], *shape)

    def changes(self, state: Any, value: Any) -> dict[str, Any]:
        values, vector = state.values, state.layout
        batch = values.shape[:-1]
        known = vector.names.index(self.name) if self.name in vector.names else None
        shape = (0,) if known is None else vector.shapes[known]
        try:
            given = jnp.asarray(value, values.dtype)
        except (TypeError, ValueError) as error:
            raise SimSpecError(
                f"SimState.{self.name} takes numbers, and got a "
                f"{type(value).__name__}: {error}"
            ) from error
        if given.shape != batch + shape:
            raise SimSpecError.shape(self.name, shape, given.shape, batch)
        if known is None or not given.size:
            return {}
        parts = [values, given, *jax.tree.leaves(state.words)]
        values, given, *words = aligned(parts, len(batch))
        flat = given.reshape(*batch, math.prod(shape))
        start = vector.part(self.name).start
        # Half the time of `at[].set` outside of jit, and it takes numpy arrays.
        changed = jax.lax.dynamic_update_slice_in_dim(values, flat, start, axis=-1)
        # The words only where they moved: each field that is replaced costs.
        if words and words[0] is not state.words:
            return {"values": changed, "words": words[0]}
        return {"values": changed}


class SimState(State):
    """All that the next step of a simulation depends on, in one array.

    The parts have their names of `MjData`: read `state.qpos`, change them with
    `state.replace(qpos=...)`, `state.at(lambda s: s.qpos).set(...)` or in a draft.
    Unless jax computes in double precision, the parts are float32 and the exact numbers
    travel beside them; a changed element counts as it was given, all others keep every
    bit.

    Attributes:
        values: MuJoCo's state vector, shape `(..., n)`, in jax's default float dtype.
        words: the same numbers in double precision as pairs of words, shape
            `(..., n, 2)`, dtype uint32; None where `values` has them.
        layout: where the parts are.
    """

    values: jax.Array
    words: jax.Array | None
    layout: StateVector = static(repr=False)

    time = _Part("Simulation time in seconds, shape `(...)`.")
    qpos = _Part("Positions, shape `(..., nq)`, in metres and radians.")
    qvel = _Part("Velocities, shape `(..., nv)`.")
    act = _Part("Actuator activations, shape `(..., na)`.")
    history = _Part("Buffers of delayed signals, shape `(..., nhistory)`.")
    qacc_warmstart = _Part("Where the solver starts, shape `(..., nv)`.")
    ctrl = _Part("Controls, shape `(..., nu)`.")
    qfrc_applied = _Part("Applied generalized forces, shape `(..., nv)`.")
    xfrc_applied = _Part("Applied forces and torques, shape `(..., nbody, 6)`.")
    eq_active = _Part("Which equality constraints are on, shape `(..., neq)`.")
    mocap_pos = _Part("Positions of mocap bodies, shape `(..., nmocap, 3)`.")
    mocap_quat = _Part("Orientations of mocap bodies, shape `(..., nmocap, 4)`.")
    userdata = _Part("The user's own numbers, shape `(..., nuserdata)`.")
    plugin_state = _Part("States of plugins, shape `(..., npluginstate)`.")
    plastic = _Part("Plastic deformation, shape `(..., nplastic)`.")

    if TYPE_CHECKING:

        def replace(  # type: ignore[override]  # the parts are names of it, too
            self,
            /,
            *,
            values: Any = ...,
            words: Any = ...,
            time: Any = ...,
            qpos: Any = ...,
            qvel: Any = ...,
            act: Any = ...,
            history: Any = ...,
            qacc_warmstart: Any = ...,
            ctrl: Any = ...,
            qfrc_applied: Any = ...,
            xfrc_applied: Any = ...,
            eq_active: Any = ...,
            mocap_pos: Any = ...,
            mocap_quat: Any = ...,
            userdata: Any = ...,
            plugin_state: Any = ...,
            plastic: Any = ...,
        ) -> Self: ...
