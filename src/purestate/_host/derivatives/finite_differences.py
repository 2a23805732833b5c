"""Finite differences and complex steps, for a whole batch at a time.

Each evaluation is one call for the whole batch, in the mode that `vmap=` names. Where
only the tangents or cotangents are batched, as under `jax.jacrev`, the function is
evaluated once for all of them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from purestate._host.call.batch import Batch, batch_caller
from purestate._host.call.invoke import Arrays
from purestate._host.call.leaf import Leaf, epsilon
from purestate._host.derivatives.derivative import Derivative
from purestate._host.derivatives.transpose import transposed
from purestate.errors import HostGradError

Array = np.ndarray[Any, Any]
_TINY = 1e-20  # a complex step has no cancellation, so it can be this small


def by_differences(
    derivative: Derivative, arrays: Sequence[Array], batch: Batch
) -> Arrays:
    """Return the product with the Jacobian, from evaluations of the function."""
    count = len(derivative.op.ins)
    full = batch.aligned(arrays)
    if derivative.kind == "jvp":
        return _Differences(derivative, full[:count], batch.sizes).along(full[count:])
    # Where no argument has a batch axis, one evaluation serves all cotangents.
    used = batch.part(range(count)).used
    lead = tuple(n if has else 1 for n, has in zip(batch.sizes, used, strict=True))
    column = _Differences(derivative, full[:count], lead).column
    ins, outs = derivative.ins, derivative.outs
    return transposed(column, ins, outs, full[count:], batch.sizes)


class _Differences:
    """The evaluations of a function around one point per item of a batch."""

    def __init__(
        self, derivative: Derivative, at: Arrays, sizes: tuple[int, ...]
    ) -> None:
        self.op = derivative.op
        self.wrt = derivative.wrt
        self.sizes = sizes
        self.at = [self._wide(leaf, x) for leaf, x in zip(self.op.ins, at, strict=True)]
        self.step = self.op.options.eps or self._default_step()
        self.base: Arrays | None = None

    def along(self, tangents: Sequence[Array]) -> Arrays:
        """Return the derivative in one direction per item."""
        if self.op.options.grad == "complex":
            turned = self._evaluate(tangents, np.full(self.sizes, 1j * _TINY))
            self._require_complex(turned, tangents)
            return [np.asarray(v.imag / _TINY) for v in turned]
        return self._difference(tangents, self._steps(tangents))

    def _steps(self, tangents: Sequence[Array]) -> Array:
        """Return a step for each item."""
        # No element is moved by more than a step of its own.
        step = np.full(self.sizes, np.inf)
        for i, tangent in zip(self.wrt, tangents, strict=True):
            size = np.abs(np.asarray(tangent, _real(tangent)))
            reach = self.step * np.maximum(1.0, np.abs(_plain(self.at[i])))
            with np.errstate(divide="ignore", over="ignore"):
                allowed = np.where(size > 0, reach / size, np.inf)
            core = tuple(range(len(self.sizes), allowed.ndim))
            step = np.minimum(step, allowed.min(axis=core, initial=np.inf))
        return np.where(np.isfinite(step), step, 1.0)

    def _require_complex(self, turned: Arrays, tangents: Sequence[Array]) -> None:
        """Give what came back real a derivative of zero, where that is one.

        Raises:
            HostGradError: it is real and changes with the arguments, as a norm does:
                its derivative is not what a complex step sees.
        """
        real = [np.isnan(v.imag) & ~np.isnan(v.real) for v in turned]
        if not any(map(np.any, real)):
            return
        steps = self._steps(tangents)
        here, there = (self._evaluate(tangents, s) for s in (0 * steps, steps))
        options = self.op.options
        paths = [self.op.out_paths[i] for i in self.op.inexact_outs]
        for path, mask, a, b, value in zip(
            paths, real, here, there, turned, strict=True
        ):
            if (a.real != b.real)[mask].any():
                raise HostGradError(
                    options.name,
                    options.place,
                    f'has grad="complex", and {path or "its result"} came back real '
                    f"for complex arguments, as from abs, a norm or a standard "
                    f"deviation: a complex step cannot see its derivative. Use "
                    f'grad="fd", or compute it without them: np.sqrt((x * x).sum()).',
                )
            value.imag[mask] = 0

    def column(self, which: int, element: int, unit: complex) -> Arrays:
        """Return the derivative along one element of one argument."""
        tangents = []
        for number, i in enumerate(self.wrt):
            x = self.at[i]
            # Complex where the unit is: the others may be real arguments.
            is_turned = number == which and unit == 1j
            tangent = np.zeros(x.shape, complex if is_turned else float)
            if number == which:
                rank = len(self.sizes)
                flat = tangent.reshape((*x.shape[:rank], self.op.ins[i].size))
                flat[..., element] = unit
                tangent = flat.reshape(x.shape)
            tangents.append(tangent)
        return self.along(tangents)

    def _difference(self, tangents: Sequence[Array], step: Array) -> Arrays:
        above = self._evaluate(tangents, step)
        if self.op.options.grad == "fd-forward":
            if self.base is None:
                self.base = self._evaluate(tangents, np.zeros_like(step))
            pairs, width = zip(above, self.base, strict=True), step
        else:
            below = self._evaluate(tangents, -step)
            pairs, width = zip(above, below, strict=True), 2 * step
        return [np.asarray((a - b) / self._over(width, a)) for a, b in pairs]

    def _evaluate(self, tangents: Sequence[Array], step: Array) -> Arrays:
        points = list(self.at)
        for i, tangent in zip(self.wrt, tangents, strict=True):
            x = self.at[i]
            wide = np.promote_types(_plain(x).dtype, np.float64)
            tangent = np.asarray(tangent, np.promote_types(_real(tangent), float))
            moved = _plain(x).astype(wide) + self._over(step, tangent) * tangent
            points[i] = moved.astype(self._moved_dtype(x, step))
        full = [
            np.broadcast_to(point, self.sizes + leaf.shape)
            for leaf, point in zip(self.op.ins, points, strict=True)
        ]
        batch = Batch.full(self.sizes, len(full))
        found = batch_caller(self.op, batch, precision="double")(*full)
        # A copy: the next evaluation may write into the same memory.
        return [found[i].copy() for i in self.op.inexact_outs]

    def _over(self, step: Array, like: Array) -> Array:
        """Return the step of each item, with axes of size 1 for its elements."""
        return step.reshape((*step.shape, *(1,) * (like.ndim - step.ndim)))

    def _moved_dtype(self, x: Array, step: Array) -> Any:
        if step.dtype.kind != "c":
            return x.dtype
        return np.complex128 if x.dtype == np.float64 else np.complex64

    def _wide(self, leaf: Leaf, x: Array) -> Array:
        return x.astype(leaf.wide) if self.op.options.upcast else x

    def _default_step(self) -> float:
        given = [self.at[i].dtype for i in self.wrt]
        if not self.op.options.upcast:
            given += [self.op.outs[i].dtype for i in self.op.inexact_outs]
        eps = max(map(epsilon, given))
        return float(eps ** (1 / 2 if self.op.options.grad == "fd-forward" else 1 / 3))


def _plain(x: Array) -> Array:
    """Return the array in a type of numpy's own, which bfloat16 is not."""
    return x if x.dtype.kind in "biufc" else x.astype(np.float32)


def _real(x: Array) -> Any:
    return x.dtype if x.dtype.kind in "fc" else np.float32
