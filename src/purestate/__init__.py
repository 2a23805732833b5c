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
from purestate._diff import diff
from purestate._fields import field, static
from purestate._repr import pformat
from purestate._state import State

__all__ = ["State", "diff", "errors", "field", "pformat", "static"]
__version__ = "0.1.0"
