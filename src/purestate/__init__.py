"""State containers for JAX: objects whose jitted methods return updated instances.

>>> import jax, purestate as ps
>>> class Counter(ps.State):
...     count: ps.Array
...
...     @jax.jit
...     def step(self):
...         return self.replace(count=self.count + 1)
>>> int(Counter(count=0).step().count)
1
"""

import importlib
from typing import TYPE_CHECKING, Any

from purestate import errors
from purestate._host.call.failures import original_error, surface_errors
from purestate._inspect.diff import diff
from purestate._inspect.repr import pformat
from purestate._instance.batches import prefix, stack, unstack
from purestate._instance.leaves import floats, leaves
from purestate._pack.pack import pack
from purestate._schema.annotations import Array
from purestate._schema.fields import field, static
from purestate._schema.tracers import find_tracers
from purestate._state.state import State
from purestate._transforms.jit import jit

if TYPE_CHECKING:
    from purestate._host.function import host_function
    from purestate._host.simulators.host_env import HostEnv
    from purestate._host.simulators.host_sim import HostSim
    from purestate._inspect.explain import explain
    from purestate._inspect.nonfinite import find_nonfinite
    from purestate._inspect.summary import summary
    from purestate._instance.partition import combine, partition
    from purestate._instance.where import where
    from purestate._saving.checkpoints import Checkpoints
    from purestate._saving.load import from_dict, load
    from purestate._saving.save import save, to_dict
    from purestate._saving.saved import Saved
    from purestate._sharding.shard import shard
    from purestate._sharding.specs import shardings
    from purestate._transforms.donation_report import donation_report
    from purestate._transforms.grad import grad, value_and_grad
    from purestate._transforms.vmap import vmap

__all__ = [
    "Array",
    "Checkpoints",
    "HostEnv",
    "HostSim",
    "Saved",
    "State",
    "combine",
    "diff",
    "donation_report",
    "errors",
    "explain",
    "field",
    "find_nonfinite",
    "find_tracers",
    "floats",
    "from_dict",
    "grad",
    "host_function",
    "jit",
    "leaves",
    "load",
    "original_error",
    "pack",
    "partition",
    "pformat",
    "prefix",
    "save",
    "shard",
    "shardings",
    "stack",
    "static",
    "summary",
    "surface_errors",
    "to_dict",
    "unstack",
    "value_and_grad",
    "vmap",
    "where",
]
__version__ = "0.2.0"

# Imported when they are first asked for: a fifth of the files, which programs without
# host functions do not need.
_LATER = {
    "Checkpoints": "_saving.checkpoints",
    "HostEnv": "_host.simulators.host_env",
    "HostSim": "_host.simulators.host_sim",
    "Saved": "_saving.saved",
    "combine": "_instance.partition",
    "donation_report": "_transforms.donation_report",
    "explain": "_inspect.explain",
    "find_nonfinite": "_inspect.nonfinite",
    "from_dict": "_saving.load",
    "grad": "_transforms.grad",
    "host_function": "_host.function",
    "load": "_saving.load",
    "partition": "_instance.partition",
    "save": "_saving.save",
    "summary": "_inspect.summary",
    "to_dict": "_saving.save",
    "shard": "_sharding.shard",
    "shardings": "_sharding.specs",
    "value_and_grad": "_transforms.grad",
    "vmap": "_transforms.vmap",
    "where": "_instance.where",
}

# What tracebacks, pickles and help() show is where an object is public.
for _name in set(__all__) - {"Array", "errors", "floats", *_LATER}:
    globals()[_name].__module__ = __name__


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    found.__module__ = __name__
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
