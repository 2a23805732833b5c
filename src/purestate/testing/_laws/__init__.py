"""Laws: what every State, method and host function promises.

`law` says what a law is. Those of States are `state_tree`, `state_updates`,
`state_places`, `state_copies` and `state_compiled`; those of calls are `call` and
`call_gradient`. They are imported here in the order in which they are tried.
"""

# isort: off
from purestate.testing._laws import state_tree as state_tree
from purestate.testing._laws import state_updates as state_updates
from purestate.testing._laws import state_places as state_places
from purestate.testing._laws import state_copies as state_copies
from purestate.testing._laws import state_compiled as state_compiled
from purestate.testing._laws import call as call
from purestate.testing._laws import call_gradient as call_gradient
