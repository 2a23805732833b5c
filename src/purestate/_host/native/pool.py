"""A batch shared among the threads of XLA.

The thread that XLA calls takes items too, and waits only for items that another one
has begun: where all threads are busy, or where there is but one, it does all of them
itself. A task that comes late finds none left. It may come when the call is over, so
what it looks at is a block of its own, freed by who leaves it last.
"""

from typing import Any

from purestate._host.native.frame import destroy_error, schedule
from purestate._host.native.memory import (
    atomic_add,
    atomic_load,
    atomic_swap,
    load,
    store,
)
from purestate._host.native.numba_parts import inline, numba, types

# Where things are in a block: how many items were taken, are there, and are done, who
# holds the block, the address of the first error, and what a call is made of.
_TAKEN, _COUNT, _DONE, _HOLDERS, _ERROR, _FRAME, _BATCH, _CHUNK = range(0, 64, 8)
_BYTES = 64
_PARTS = 4  # of a batch for each thread, so that none waits long for the slowest
_SPINS = 200  # looks at whether the others are done, before sleeping between them
_PAUSE = 20  # microseconds

_malloc = types.ExternalFunction("malloc", types.int64(types.int64))
_free = types.ExternalFunction("free", types.void(types.int64))
_yield = types.ExternalFunction("sched_yield", types.int32())
_sleep = types.ExternalFunction("usleep", types.int32(types.uint32))


@inline
def _leave(block):
    if atomic_add(block + _HOLDERS, -1) == 1:
        _free(block)


@inline
def _wait(block, count):
    spins = 0
    while atomic_load(block + _DONE) != count:
        spins += 1
        if spins < _SPINS:
            _yield()
        else:
            _sleep(_PAUSE)


def shared(run: Any, discard: Any = destroy_error) -> Any:
    """Return `run(frame, batch, start, stop)` as one whose items threads share.

    Args:
        run: runs items, and returns the address of an error or 0. In the second word at
            the address `batch` is how many threads there may be.
        discard: is given what else is returned, once there is an error.

    Returns:
        The function, and what must be kept as long as it may be called.
    """

    @inline
    def work(block):
        count, chunk = load(block + _COUNT), load(block + _CHUNK)
        frame, batch = load(block + _FRAME), load(block + _BATCH)
        while True:
            start = atomic_add(block + _TAKEN, chunk)
            if start >= count:  # then the call may be over, and its frame gone
                return
            stop = min(start + chunk, count)
            error = run(frame, batch, start, stop)
            if error != 0 and atomic_swap(block + _ERROR, 0, error) != 0:
                discard(frame, error)
            atomic_add(block + _DONE, stop - start)

    @numba.cfunc(types.int64(types.int64), nogil=True)
    def task(block):
        work(block)
        _leave(block)
        return 0

    address = task.address

    @inline
    def run_shared(frame, batch, start, stop):
        threads = min(load(batch + 8), stop - start)
        if threads < 2:
            return run(frame, batch, start, stop)
        block = _malloc(_BYTES)
        store(block + _TAKEN, start)
        store(block + _COUNT, stop)
        store(block + _DONE, start)
        store(block + _HOLDERS, threads)
        store(block + _ERROR, 0)
        store(block + _FRAME, frame)
        store(block + _BATCH, batch)
        store(block + _CHUNK, max(1, (stop - start) // (_PARTS * threads)))
        for _ in range(threads - 1):
            if not schedule(frame, address, block):
                _leave(block)
        work(block)
        _wait(block, stop)
        error = load(block + _ERROR)
        _leave(block)
        return error

    return run_shared, task
