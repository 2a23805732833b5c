"""What of a `MujocoSim` runs on the host: its two host functions.

They take and return numpy arrays: `values`, and `words` unless the values are in double
precision. States are checked on the way in and out, and nothing else is.
"""

import dataclasses
import functools
import os
from typing import Any

from purestate._host._function import HostFunction, host_function
from purestate.mujoco._engines import Batches, Single, make_engine
from purestate.mujoco._exact import merged, split
from purestate.mujoco._faults import Faults
from purestate.mujoco._jacobian import Jacobian, why_no_gradient
from purestate.mujoco._layout import StateLayout
from purestate.mujoco._native import mujoco
from purestate.mujoco._observe import Observer

__all__ = ["Calls"]


class Calls:
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
        layout: StateLayout,
        name: str,
        *,
        substeps: int,
        engine: str | None,
        observe: tuple[str, ...],
        threads: int | None,
        as_nan: bool,
    ) -> None:
        self._single = Single(model, substeps)
        self.engine, self._advance = make_engine(
            engine, model, layout, substeps, threads
        )
        self._faults = Faults(name, model, layout, substeps, as_nan)
        self._jacobian = Jacobian(model, layout, substeps)
        batches = Batches(model, threads or os.cpu_count() or 1)
        self._observer = Observer(
            model, name, observe, batches if self.engine == "batch" else None
        )
        self.observed = observe
        no_grad = why_no_gradient(model)
        common: dict[str, Any] = {
            "vmap": "threads",  # of derivatives; the calls have whole-batch versions
            "threads": threads,
            "scratch": functools.partial(mujoco.MjData, model),
        }
        step: Any = host_function(
            self._one,
            batch_fn=self._many,
            jac=None if no_grad else self._step_jacobian,
            out=lambda values, words: (values, words),
            name=f"{name}.step",
            **common,
        )
        self.step = HostFunction(
            dataclasses.replace(
                step.options,
                no_grad=no_grad,
                trusted=True,
                pattern=self._jacobian.pattern,
            )
        )
        self.observe: Any = host_function(
            self._look,
            batch_fn=self._look_at_all if self._observer.in_batches else None,
            jac=self._look_jacobian,
            out=lambda values, words: self._observer.specs(values.dtype),
            name=f"{name}.observe",
            **common,
        )

    def _one(self, values: Any, words: Any = None) -> Any:
        state, stands_in = self._faults.before(merged(values, words))
        found, warned = self._single(state)
        return _parts(self._faults.after(state, found, warned, stands_in), values)

    def _many(self, values: Any, words: Any = None) -> Any:
        states, stand_ins = self._faults.before(merged(values, words))
        found, warned = self._advance(states)
        return _parts(self._faults.after(states, found, warned, stand_ins), values)

    def _step_jacobian(self, data: Any, values: Any, words: Any) -> Any:
        return self._jacobian.step(data, merged(values, words))

    def _look(self, data: Any, values: Any, words: Any) -> Any:
        return self._observer.look(data, merged(values, words))

    def _look_at_all(self, data: Any, values: Any, words: Any) -> Any:
        return self._observer.look_at_all(merged(values, words))

    def _look_jacobian(self, data: Any, values: Any, words: Any) -> Any:
        state = merged(values, words)
        flat = self._jacobian.observed(data, state, self._observer.flat)
        return self._observer.rows(flat)


def _parts(state: Any, values: Any) -> list[Any]:
    return [part for part in split(state, values.dtype) if part is not None]
