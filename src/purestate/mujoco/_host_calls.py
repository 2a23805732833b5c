"""What of a `MujocoSim` runs on the host: its two host functions.

They take and return numpy arrays: `values`, and `words` unless the values are in double
precision. A state is these two and not a leaf for each part, since every operand of a
call costs: a step of six leaves took 118 us, of one 59. States are checked on the way
in and out, and nothing else is.
"""

import functools
import os
from typing import Any

import numpy as np

from purestate._host.call.options import Options
from purestate._host.function import HostFunction, host_function
from purestate.errors import SimSpecError
from purestate.mujoco._engines import NATIVE, Batches, Single, make_engine
from purestate.mujoco._exact import merge, split
from purestate.mujoco._faults import Faults
from purestate.mujoco._jacobian import Jacobian, why_no_gradient
from purestate.mujoco._observe import Observer
from purestate.mujoco._package import mujoco
from purestate.mujoco._state_vector import StateVector

# Numbers beyond float32 are no reason to warn. One for each call: it takes 2 us.
_QUIET = np.errstate(over="ignore", invalid="ignore")


class HostCalls:
    """The host functions of a model.

    Attributes:
        step: from the values and words of a state to those of the next one.
        observe: from the values and words of a state to fields of `MjData`, by name.
        observed: the names of these fields.
        engine: the name of the engine that steps a batch.
    """

    def __init__(
        self,
        model: Any,
        vector: StateVector,
        name: str,
        *,
        substeps: int,
        engine: str | None,
        observe: tuple[str, ...],
        threads: int | None,
        as_nan: bool,
    ) -> None:
        self._model = model
        self._single = Single(model, substeps)
        is_native = engine == NATIVE
        self.engine, self._advance = make_engine(
            None if is_native else engine, model, substeps, threads
        )
        self._faults = Faults(name, model, vector, substeps, as_nan)
        self._jacobian = Jacobian(model, vector, substeps)
        batches = Batches(model, threads or os.cpu_count() or 1)
        self._observer = Observer(
            model,
            vector,
            name,
            observe,
            batches if self.engine == "batch" else None,
            threads,
        )
        self.observed = observe
        no_grad = why_no_gradient(model)
        common: dict[str, Any] = {
            "vmap": "threads",  # of derivatives; the calls have whole-batch versions
            "threads": threads,
            "scratch": functools.partial(mujoco.MjData, model),
        }
        native = None
        if is_native:
            try:
                from purestate.mujoco._native.engine import NativeSteps
            except ModuleNotFoundError as error:
                raise SimSpecError(
                    f'engine="native" needs numba, the extra `numba` ({error}): pip '
                    f"install numba, or leave engine= out."
                ) from error

            native = NativeSteps(
                self,
                model,
                self._faults.limited,
                vector.size,
                name=name,
                substeps=substeps,
                as_nan=as_nan,
                threads=threads or os.cpu_count() or 1,
            )
            self.engine = NATIVE
        self.step = HostFunction(
            Options(
                self.one,
                batch_fn=self.many,
                jac=None if no_grad else self._step_jacobian,
                out=lambda values, words: (values, words),
                name=f"{name}.step",
                no_grad=no_grad,
                trusted=True,
                native=native,
                pattern=self._jacobian.pattern,
                **common,
            )
        )
        self.observe: Any = host_function(
            self._look,
            batch_fn=self._look_at_all,
            jac=self._look_jacobian,
            out=lambda values, words: self._observer.specs(values.dtype),
            name=f"{name}.observe",
            **common,
        )

    @_QUIET
    def one(self, values: Any, words: Any = None) -> Any:
        """Step one simulation; return values, and words if there are some."""
        state, stands_in = self._faults.before(merge(values, words))
        found, warned = self._single(state)
        return _parts(self._faults.after(state, found, warned, stands_in), values)

    @_QUIET
    def many(self, values: Any, words: Any = None) -> Any:
        """Step simulations along the first axis."""
        states, stand_ins = self._faults.before(merge(values, words))
        found, warned = self._advance(states)
        return _parts(self._faults.after(states, found, warned, stand_ins), values)

    @_QUIET
    def _step_jacobian(self, data: Any, values: Any, words: Any) -> Any:
        state, stands_in = self._faults.before(merge(values, words), "differentiate")
        try:
            found, following, warned = self._jacobian.step(data, state)
        except mujoco.FatalError:  # as a step that failed
            mujoco.mj_resetData(self._model, data)
            found, following, warned = self._jacobian.nothing(), state, True
        after = self._faults.after(state, following, warned, stands_in)
        # A simulation that failed is constant: no NaN for what `jnp.where` leaves out.
        return found if after is following else np.zeros_like(found)

    @_QUIET
    def _look(self, data: Any, values: Any, words: Any) -> Any:
        state, stands_in = self._faults.before(merge(values, words), "observe")
        return _masked(self._observer.look(data, state), stands_in)

    @_QUIET
    def _look_at_all(self, data: Any, values: Any, words: Any) -> Any:
        states, stand_ins = self._faults.before(merge(values, words), "observe")
        return _masked(self._observer.look_at_all(states), stand_ins)

    @_QUIET
    def _look_jacobian(self, data: Any, values: Any, words: Any) -> Any:
        state, stands_in = self._faults.before(merge(values, words), "differentiate")
        flat = self._jacobian.observed(data, state, self._observer.flat)
        return self._observer.rows(flat if stands_in is None else np.zeros_like(flat))


def _masked(found: dict[str, Any], failed: Any) -> dict[str, Any]:
    """Return the fields with NaN for simulations that failed; integers have none."""
    if failed is None:
        return found
    masked = dict(found)
    for name, value in found.items():
        if value.dtype.kind == "f":
            own = (1,) * (value.ndim - failed.ndim)
            masked[name] = np.where(failed.reshape(failed.shape + own), np.nan, value)
    return masked


def _parts(state: Any, values: Any) -> list[Any]:
    return [part for part in split(state, values.dtype) if part is not None]
