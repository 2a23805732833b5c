"""State containers for JAX: objects whose jitted methods return updated instances.

>>> import jax, jax.numpy as jnp, purestate as ps
>>> class Counter(ps.State):
...     count: jax.Array
...
...     @jax.jit
...     def step(self):
...         return self.replace(count=self.count + 1)
>>> int(Counter(count=0).step().count)
1
"""

from purestate import errors
from purestate._batches import prefix, stack, unstack
from purestate._diff import diff
from purestate._donation import donation_report
from purestate._fields import field, static
from purestate._find import find_tracers
from purestate._host import (
    HostEnv,
    HostSim,
    host_function,
    original_error,
    surface_errors,
)
from purestate._jit import jit
from purestate._pack import pack
from purestate._repr import pformat
from purestate._state import State
from purestate._transforms import grad, value_and_grad, vmap

__all__ = [
    "HostEnv",
    "HostSim",
    "State",
    "diff",
    "donation_report",
    "errors",
    "field",
    "find_tracers",
    "grad",
    "host_function",
    "jit",
    "original_error",
    "pack",
    "pformat",
    "prefix",
    "stack",
    "static",
    "surface_errors",
    "unstack",
    "value_and_grad",
    "vmap",
]
__version__ = "0.1.0"
