"""What numba was given: which functions are its own, and what they call."""

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any


def is_dispatcher(function: Any) -> bool:
    """Return whether a function is one that numba compiles, in its mode without Python.

    numba is not imported for it: who has such a function has imported it.
    """
    numba = sys.modules.get("numba")
    if numba is None:
        return False
    from numba.core.dispatcher import Dispatcher

    if not isinstance(function, Dispatcher):
        return False
    return not function.targetoptions.get("forceobj", False)


def reachable(dispatcher: Any) -> Iterator[Any]:
    """Yield a function of numba's and those that it may call, each once."""
    seen, todo = {id(dispatcher)}, [dispatcher]
    while todo:
        found = todo.pop()
        yield found
        function = found.py_func
        names = function.__code__.co_names
        values = [function.__globals__.get(name) for name in names]
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # it has no value yet
                values.append(cell.cell_contents)
        for other in values:
            if is_dispatcher(other) and id(other) not in seen:
                seen.add(id(other))
                todo.append(other)


def needs_python(dispatcher: Any) -> bool:
    """Return whether a compiled function has blocks of `numba.objmode`.

    What is raised there lies in Python's state for the thread, which a thread of XLA
    has only as long as it is in such a block: it would be lost.
    """
    found = (own for f in reachable(dispatcher) for own in f.overloads.values())
    return any(own.lifted for own in found)


def aborts(dispatcher: Any) -> bool:
    """Return whether numba would end the process if XLA's threads called a function.

    numba's own pool of threads, "workqueue", does that when two threads call functions
    with `parallel=True`; the others, of OpenMP and TBB, do not.
    """
    parallel = (f.targetoptions.get("parallel", False) for f in reachable(dispatcher))
    return any(parallel) and _threading_layer() == "workqueue"


@functools.cache
def _threading_layer() -> str:
    """Return which pool numba's parallel loops use; it is chosen at the first one."""
    import numpy as np

    from purestate._host.native.numba_parts import numba

    @numba.njit(parallel=True)
    def first(x):
        for i in numba.prange(x.size):
            x[i] = i
        return x

    first(np.zeros(2))
    return str(numba.threading_layer())
