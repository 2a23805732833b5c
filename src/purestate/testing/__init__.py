"""Property-based tests of States, methods and host functions.

Needs the extra `testing`: hypothesis and chex.

>>> import purestate as ps, purestate.testing as pst
>>> class Counter(ps.State):
...     count: ps.Array = 0
>>> pst.assert_same(Counter(), Counter())
"""

from purestate.errors._text import needs_extra

# Before what imports them.
with needs_extra("purestate.testing", "testing", "hypothesis", "chex"):
    import chex as _chex
    import hypothesis as _hypothesis

from purestate.testing._backends import backends
from purestate.testing._check_call import check_host, check_method
from purestate.testing._check_state import check_state
from purestate.testing._counting import assert_traces, count_host_calls
from purestate.testing._laws.law import laws
from purestate.testing._machine import machine
from purestate.testing._strategies.arrays import arrays, keys
from purestate.testing._strategies.classes import state_classes
from purestate.testing._strategies.registered import register_strategy
from purestate.testing._strategies.states import states, trees
from purestate.testing._trees.asserts import assert_close, assert_same

__all__ = [
    "arrays",
    "assert_close",
    "assert_same",
    "assert_traces",
    "backends",
    "check_host",
    "check_method",
    "check_state",
    "count_host_calls",
    "keys",
    "laws",
    "machine",
    "register_strategy",
    "state_classes",
    "states",
    "trees",
]

del _chex, _hypothesis
# What tracebacks, pickles and help() show is where an object is public.
for _name in __all__:
    globals()[_name].__module__ = __name__
