"""MuJoCo's state vector: which parts it has, where they lie, and how it is set.

The vector is that of `mjSTATE_INTEGRATION`: all that the next step depends on, the
solver's warm start and the inputs included. With anything less a step would depend on
what its scratch had simulated before: with a warm start left there and few iterations
of the solver, steps from one state differed by 0.016 to 0.033.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from purestate.mujoco._package import mujoco

# What `mj_getState` and `mj_setState` are told: the whole vector.
INTEGRATION = int(mujoco.mjtState.mjSTATE_INTEGRATION)
_NAMES: dict[str, str] = {"WARMSTART": "qacc_warmstart", "PLUGIN": "plugin_state"}


@dataclasses.dataclass(frozen=True)
class StateVector:
    """What the numbers of a model's state vector are: its parts, in order.

    Not the numbers, which are the leaf `values` of a `SimState`, while this is static
    there: equal for states that can be mixed.

    Attributes:
        names: of the parts, as in `MjData`.
        bits: their `mjtState`.
        shapes: their shapes in `MjData`, `()` for the time.
    """

    names: tuple[str, ...]
    bits: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """The number of elements in all."""
        return sum(math.prod(shape) for shape in self.shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a part."""
        return self.shapes[self.names.index(name)]

    def part(self, name: str) -> slice:
        """Return where a part lies, as a slice of the vector."""
        place = self.names.index(name)
        start = sum(math.prod(shape) for shape in self.shapes[:place])
        return slice(start, start + math.prod(self.shapes[place]))

    def indices(self, mask: int) -> np.ndarray[Any, Any]:
        """Return the elements whose parts are in a mask of `mjtState` bits."""
        found = [
            np.arange(self.size)[self.part(name)]
            for name, bit in zip(self.names, self.bits, strict=True)
            if bit & mask
        ]
        return np.concatenate(found)


def state_vector(model: Any) -> StateVector:
    """Return the parts of a model's state vector, as this version of MuJoCo has them.

    MuJoCo is asked for them, since later versions have added some.
    """
    single: dict[int, str] = {
        int(bit): name.removeprefix("mjSTATE_")
        for name, bit in mujoco.mjtState.__members__.items()
        if int(bit).bit_count() == 1 and int(bit) & INTEGRATION
    }
    data = mujoco.MjData(model)
    names: list[str] = []
    shapes = []
    for bit in sorted(single):
        name: str = _NAMES.get(single[bit], single[bit].lower())
        names.append(name)
        shapes.append(np.shape(getattr(data, name)))
    return StateVector(tuple(names), tuple(sorted(single)), tuple(shapes))


def set_state(model: Any, data: Any, state: np.ndarray[Any, Any]) -> None:
    """Write a whole state vector into `data`; nothing is computed from it."""
    # A copy: MuJoCo 3.3 takes no array that cannot be written to.
    mujoco.mj_setState(model, data, np.array(state), INTEGRATION)
