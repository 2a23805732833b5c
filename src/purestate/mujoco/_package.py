"""The `mujoco` package, which ships no types for its compiled part.

`mujoco.batch` came with MuJoCo 4: before, `Batch` and its `BatchError` are None, and
`DATA_FIELDS`, the fields that a batch can show, is empty.
"""

import contextlib
import importlib
from typing import Any

from purestate.errors._text import needs_extra

with needs_extra("purestate.mujoco", "mujoco", "mujoco"):
    import mujoco as _mujoco

mujoco: Any = _mujoco
_batch: Any = None
with contextlib.suppress(ImportError):
    _batch = importlib.import_module("mujoco.batch")

Batch: Any = getattr(_batch, "Batch", None)
BatchError: Any = getattr(_batch, "SimulationError", None)
DATA_FIELDS: frozenset[str] = getattr(_batch, "DATA_FIELDS", frozenset())
