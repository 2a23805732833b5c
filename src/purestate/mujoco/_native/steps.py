"""The handler that steps models: what Python does for one, in code of numba.

For each simulation: merge values and words, look at the state, set it, step, look at
what MuJoCo warned of, get the state, look at it again, split it. `_exact` and `_faults`
have the reasons, and say the same of every number.
"""

import functools
from typing import Any

import numpy as np

from purestate._host.native.arrays import array_type, block, item_of
from purestate._host.native.frame import (
    attribute_array,
    data,
    handler_type,
    is_question,
    operand,
    result,
)
from purestate._host.native.handler import count_of
from purestate._host.native.memory import atomic_add, atomic_swap, load
from purestate._host.native.numba_parts import inline, numba, types
from purestate._host.native.pool import shared
from purestate._host.native.python import calling
from purestate._host.native.targets import register
from purestate.mujoco._exact import TINY
from purestate.mujoco._faults import LIMIT, RESETTING
from purestate.mujoco._native import guard, table
from purestate.mujoco._native.library import (
    delete_data,
    get_state,
    make_data,
    set_state,
)
from purestate.mujoco._package import mujoco
from purestate.mujoco._state_vector import INTEGRATION

_DOUBLES = array_type(np.dtype(np.float64), 1, readonly=False)
_SINGLES = array_type(np.dtype(np.float32), 1, readonly=False)
_BYTES = array_type(np.dtype(np.uint8), 1, readonly=False)
_COUNTS = array_type(np.dtype(np.int32), 1, readonly=False)
_WARNINGS = int(mujoco.mjtWarning.mjNWARNING)
_RESETTING = tuple(RESETTING)

_table = types.ExternalFunction("purestate_mujoco_table", types.int64())
_callbacks = types.ExternalFunction("purestate_mujoco_callbacks", types.int64())
_steps = types.ExternalFunction(
    "purestate_mujoco_steps", types.int64(types.int64, types.int64, types.int64)
)


@inline
def _entry(key):
    """Return the entry of a model, held, or 0 if nobody steps it any more."""
    found = load(_table() + 8 * (key & (table.BUCKETS - 1)))
    while found != 0 and load(found + 8 * table.KEY) != key:
        found = load(found + 8 * table.NEXT)
    if found == 0:
        return 0
    atomic_add(found + 8 * table.USERS, 1)
    if load(found + 8 * table.MODEL) == 0:
        atomic_add(found + 8 * table.USERS, -1)
        return 0
    return found


@inline
def _borrowed(entry, model):
    """Return an `mjData` of the model, 0 if there is no memory for one."""
    for slot in range(table.SLOTS):
        place = entry + 8 * (table.SLOT + slot)
        found = load(place)
        if found != 0 and atomic_swap(place, found, 0) == found:
            return found
    return make_data(model)


@inline
def _returned(entry, space):
    for slot in range(table.SLOTS):
        place = entry + 8 * (table.SLOT + slot)
        if load(place) == 0 and atomic_swap(place, 0, space) == 0:
            return
    delete_data(space)


@inline
def _are_sound(state, limited):
    for i in range(state.size):
        size = abs(state[i])
        # NaN is in no order.
        if not size < np.inf or (limited[i] and not size <= LIMIT):
            return False
    return True


@inline
def _is_warned(space, offset):
    """Return whether MuJoCo has reset a simulation; forget what it warned of."""
    # Pairs of int32, of which the offset is that of the first second one.
    counts = block(space + offset, 2 * _WARNINGS, _COUNTS)
    warned = False
    for which in _RESETTING:
        warned |= counts[2 * which] != 0
    for which in range(_WARNINGS):
        counts[2 * which] = 0
    return warned


@inline
def _step(entry, model, state):
    """Replace a state by the next one; return whether all is well with both."""
    limited = block(load(entry + 8 * table.LIMITED), state.size, _BYTES)
    if not _are_sound(state, limited):
        return False
    space = _borrowed(entry, model)
    if space == 0:
        return False
    address = state.ctypes.data
    set_state(model, space, address, INTEGRATION)
    if _steps(model, space, load(entry + 8 * table.SUBSTEPS)) != 0:
        delete_data(space)  # it was left in the middle of something
        return False
    warned = _is_warned(space, load(entry + 8 * table.WARNINGS))
    get_state(model, space, address, INTEGRATION)
    _returned(entry, space)
    return not warned and _are_sound(state, limited)


@inline
def _read_words(frame, size, items, state):
    """Merge values and words into a state."""
    values = block(data(operand(frame, 0)) + 4 * size * items[0], size, _SINGLES)
    exact = block(data(operand(frame, 1)) + 8 * size * items[1], size, _DOUBLES)
    for i in range(size):
        value = values[i]
        state[i] = exact[i]
        is_tiny = abs(exact[i]) < TINY and abs(value) < TINY
        if np.float32(exact[i]) != value and not is_tiny:
            state[i] = value


@inline
def _write_words(frame, size, index, state):
    """Split a state into values and words."""
    values = block(data(result(frame, 0)) + 4 * size * index, size, _SINGLES)
    exact = block(data(result(frame, 1)) + 8 * size * index, size, _DOUBLES)
    for i in range(size):
        values[i] = state[i]
        exact[i] = state[i]


@inline
def _read_doubles(frame, size, items, state):
    state[:] = block(data(operand(frame, 0)) + 8 * size * items[0], size, _DOUBLES)


@inline
def _write_doubles(frame, size, index, state):
    block(data(result(frame, 0)) + 8 * size * index, size, _DOUBLES)[:] = state


def _steps_of(operands: int, read: Any, write: Any) -> Any:
    """Return what steps some simulations, and returns 1 if one fails.

    Args:
        operands: how many there are; the number of the model comes after their masks.
        read: makes a state of an item of each.
        write: makes results of a state.
    """

    @inline
    def run(frame, batch, start, stop):
        axes, masks = load(batch), batch + 16
        entry = _entry(load(masks + 8 * operands))
        if entry == 0:
            return 1
        model, size = load(entry + 8 * table.MODEL), load(entry + 8 * table.SIZE)
        state, failed = np.empty(size), 0
        items = np.empty(operands, np.int64)
        for index in range(start, stop):
            for which in range(operands):
                mask = load(masks + 8 * which)
                items[which] = item_of(frame, axes, index, mask)
            read(frame, size, items, state)
            if not _step(entry, model, state):
                failed = 1
                break
            write(frame, size, index, state)
        atomic_add(entry + 8 * table.USERS, -1)
        return failed

    return run


@inline
def _discard(frame, failed):
    pass  # a mark, and no error of XLA's


@functools.cache
def handler(is_double: bool) -> str:
    """Return the name of the handler, which is compiled at the first call.

    Args:
        is_double: whether states are doubles, and not values and words.
    """
    guard.prepare(table.address())
    if is_double:
        steps = _steps_of(1, _read_doubles, _write_doubles)
    else:
        steps = _steps_of(2, _read_words, _write_words)
    run, task = shared(steps, _discard)
    again = calling("purestate.mujoco._native.engine", "again")

    @numba.cfunc(handler_type(), nogil=True)
    def step(frame):
        if is_question(frame):
            return 0
        batch = attribute_array(frame, 0)
        if _callbacks() == 0 and run(frame, batch, 0, count_of(frame, batch)) == 0:
            return 0
        return again(frame)

    _kept.extend([task, step])
    kind = "float64" if is_double else "float32"
    return register(f"purestate.mujoco/step/{kind}", step.address)


_kept: list[Any] = []  # XLA calls it for good
