"""Where each part of a simulation's state lies in MuJoCo's state vector.

The vector is `mjSTATE_INTEGRATION`: all that the next step depends on, the solver's
warm start and the inputs included.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from purestate.mujoco._native import mujoco

WHOLE = int(mujoco.mjtState.mjSTATE_INTEGRATION)
# The warnings after which MuJoCo resets a simulation, or drops its controls.
FATAL = [
    int(getattr(mujoco.mjtWarning, f"mjWARN_BAD{name}"))
    for name in ("QPOS", "QVEL", "QACC", "CTRL")
]
_NAMES: dict[str, str] = {"WARMSTART": "qacc_warmstart", "PLUGIN": "plugin_state"}


@dataclasses.dataclass(frozen=True)
class StateVector:
    """The parts of a state vector, in order.

    Attributes:
        names: as in `MjData`.
        bits: their `mjtState`.
        shapes: their shapes, `()` for the time.
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
    """Return the layout of a model's states."""
    single: dict[int, str] = {
        int(bit): name.removeprefix("mjSTATE_")
        for name, bit in mujoco.mjtState.__members__.items()
        if int(bit).bit_count() == 1 and int(bit) & WHOLE
    }
    data = mujoco.MjData(model)
    names: list[str] = []
    shapes = []
    for bit in sorted(single):
        name: str = _NAMES.get(single[bit], single[bit].lower())
        names.append(name)
        shapes.append(np.shape(getattr(data, name)))
    return StateVector(tuple(names), tuple(sorted(single)), tuple(shapes))


def put(model: Any, data: Any, state: np.ndarray[Any, Any]) -> None:
    """Set `data` to a state."""
    # A copy: MuJoCo 3.3 takes no array that cannot be written to.
    mujoco.mj_setState(model, data, np.array(state), WHOLE)
