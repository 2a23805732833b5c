"""What numba was given: which functions are its own, and what they call."""

import contextlib
import dis
import functools
import sys
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

import numpy as np


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
    """Yield a function of numba's and those that it may call, each once.

    They are found in what its code names: globals, attributes of modules, what it
    closes over, defaults, and methods of classes that numba compiled.
    """
    seen, todo = {id(dispatcher)}, [dispatcher]
    while todo:
        found = todo.pop()
        yield found
        for other in _mentioned(found.py_func)[1]:
            if is_dispatcher(other) and id(other) not in seen:
                seen.add(id(other))
                todo.append(other)


def _mentioned(function: Any) -> tuple[set[str], list[Any]]:
    """Return the names in a function's code, and the objects that they stand for."""
    names, codes = set(), [function.__code__]
    for code in codes:
        names.update(code.co_names)
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
    todo = [function.__globals__.get(name) for name in names]
    todo += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it has no value yet
            todo.append(cell.cell_contents)
    found: dict[int, Any] = {}
    while todo:
        value = todo.pop()
        if value is None or id(value) in found:
            continue
        found[id(value)] = value
        if isinstance(value, ModuleType):
            todo += [vars(value).get(name) for name in names]
        elif isinstance(value, tuple):
            todo += value
        elif type(value).__name__ == "JitClassType":
            todo += [*value.class_type.jit_methods.values()]
    return names, list(found.values())


def needs_python(dispatcher: Any) -> bool:
    """Return whether a function has blocks of `numba.objmode`.

    What is raised there lies in Python's state for the thread, which a thread of XLA
    has only as long as it is in such a block: it would be lost.
    """
    from purestate._host.native.numba_parts import numba

    return any(
        value is numba.objmode
        for each in reachable(dispatcher)
        for value in _mentioned(each.py_func)[1]
    )


def may_write(dispatcher: Any) -> bool:
    """Return whether a function may write to arguments of a type that is read-only.

    numba refuses to, but for an array's `flat`, what `ascontiguousarray`,
    `asfortranarray` and `nditer` return, `fill_diagonal`, and the third argument of
    `dot`. A function that names one of them gets copies.
    """
    return any(_may_write(each.py_func) for each in reachable(dispatcher))


def _may_write(function: Any) -> bool:
    names, values = _mentioned(function)
    leaky = (np.ascontiguousarray, np.asfortranarray, np.nditer, np.fill_diagonal)
    if "flat" in names or any(value is each for value in values for each in leaky):
        return True
    if "dot" not in names and not any(value is np.dot for value in values):
        return False
    calls = (i for i in dis.get_instructions(function) if i.opname.startswith("CALL"))
    return any((i.arg or 0) >= 3 for i in calls)


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
    from purestate._host.native.numba_parts import numba

    @numba.njit(parallel=True)
    def first(x):
        for i in numba.prange(x.size):
            x[i] = i
        return x

    first(np.zeros(2))
    return str(numba.threading_layer())
