"""Stepping many simulations at once, in MuJoCo's own threads.

An engine takes states in double precision, shape `(count, n)`, and returns those after
the step; what it computes on is scratch. It also says which simulations MuJoCo warned
about: it has reset those, in silence but for a line of its log.

One native call for a whole batch is the fastest. 64 humanoids, per step of each: with
one Euler step 9.9 us, in Python threads, which wait for one another between two calls
of MuJoCo, 25.5, in C++ threads without any Python 7.5. With five RK4 substeps, where
the physics takes 114 us, it is 120 and 143.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from purestate._host.call.workers import Pool, Scratch
from purestate.errors import SimSpecError
from purestate.mujoco._faults import RESETTING
from purestate.mujoco._package import Batch, BatchError, mujoco
from purestate.mujoco._state_vector import INTEGRATION, set_state

Array = np.ndarray[Any, Any]
NATIVE = "native"
ENGINES = ("batch", NATIVE, "threads")
Engine = Callable[[Array], tuple[Array, Array]]


class Single:
    """Simulations one by one, each on a work space from a free list."""

    def __init__(self, model: Any, substeps: int) -> None:
        self._model, self._substeps = model, substeps
        # As `Scratch`, whose context manager takes 1.2 us; `pop` and `append`, 0.05.
        self._free: list[tuple[Any, Array]] = []

    def __call__(self, state: Array) -> tuple[Array, bool]:
        """Return the next state, and whether MuJoCo warned about it, or raised."""
        try:
            data, warnings = self._free.pop()
        except IndexError:
            data = mujoco.MjData(self._model)
            warnings = data.warning.number
        set_state(self._model, data, state)
        try:
            mujoco.mj_step(self._model, data, nstep=self._substeps)
        except mujoco.FatalError:  # out of memory, for one
            return state, True
        following = np.empty_like(state)
        mujoco.mj_getState(self._model, data, following, INTEGRATION)
        warned = False
        if warnings.any():
            warned = bool(warnings[RESETTING].any())
            warnings[:] = 0
        self._free.append((data, warnings))  # not one that was in use at an error
        return following, warned


def make_engine(
    name: str | None, model: Any, substeps: int, threads: int | None
) -> tuple[str, Engine]:
    """Return the engine of this name, or the best one, and its name.

    Raises:
        SimSpecError: no such engine, or not in this version of MuJoCo.
    """
    if name is None:
        name = "threads" if Batch is None else "batch"
    if name not in ENGINES:
        raise SimSpecError(f"engine={name!r} is none of {', '.join(ENGINES)}.")
    count = threads or os.cpu_count() or 1
    if name == "threads":
        return name, _InThreads(model, substeps, count)
    if Batch is None:
        raise SimSpecError(
            f'engine="batch" needs MuJoCo 4 or newer, and this is '
            f'{mujoco.__version__}: use engine="threads".'
        )
    return name, _InBatches(model, substeps, count)


class Batches:
    """A free list of `mujoco.batch.Batch` for each number of simulations."""

    def __init__(self, model: Any, threads: int) -> None:
        self._model, self._threads = model, threads
        self._free: dict[int, Scratch] = {}

    def lent(self, count: int) -> contextlib.AbstractContextManager[Any]:
        """Lend a batch of so many simulations."""
        if count not in self._free:
            make = functools.partial(Batch, self._model, count, self._threads)
            self._free.setdefault(count, Scratch(make))
        return self._free[count].lent()


class _InBatches:
    """`mujoco.batch.Batch`: one native call for all simulations."""

    def __init__(self, model: Any, substeps: int, threads: int) -> None:
        self._substeps = substeps
        self._batches = Batches(model, threads)

    def __call__(self, states: Array) -> tuple[Array, Array]:
        failures = np.zeros(len(states), bool)
        with self._batches.lent(len(states)) as batch:
            batch.state[:] = states
            batch.warning[:] = 0
            try:
                batch.step(nstep=self._substeps)
            except BatchError as error:
                failures[error.ids] = True
            failures |= batch.warning[:, RESETTING, 1].any(axis=1)
            return batch.state.copy(), failures


class _InThreads:
    """A pool of Python threads, each with simulations of its own."""

    def __init__(self, model: Any, substeps: int, threads: int) -> None:
        self._single = Single(model, substeps)
        self._pool = Pool(threads, "purestate-mujoco")

    def __call__(self, states: Array) -> tuple[Array, Array]:
        following = np.empty_like(states)
        failures = np.zeros(len(states), bool)

        def run(row: int) -> None:
            following[row], failures[row] = self._single(states[row])

        self._pool.each(run, list(range(len(states))))
        return following, failures
