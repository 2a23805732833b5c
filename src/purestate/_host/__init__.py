"""Host functions: numpy code as a citizen of jit, vmap, grad and scan.

From the bottom up: `_failures` keeps exceptions across XLA, `_leaves` says what an
array looks like, `_options` checks a declaration, `_workers` owns threads and scratch
objects, `_operation` is one function at one set of types, `_run` calls it, over batches
in `_batches`, `_derive` differentiates it; `_lowering` puts it into a compiled program,
64-bit numbers as `_words`, `_primitive` tells jax's transforms about it, `_effects`
what must run once per step; `_infer` finds out what it returns, and `_function` is what
a user holds. On top of it, `_sim` makes a function of a `_simulator`, and `_env` lets
programs act on a live environment, whose types come from its `_spaces`.
"""

from purestate._host._env import HostEnv
from purestate._host._failures import original_error, surface_errors
from purestate._host._function import HostFunction, host_function
from purestate._host._sim import HostSim

__all__ = [
    "HostEnv",
    "HostFunction",
    "HostSim",
    "host_function",
    "original_error",
    "surface_errors",
]
