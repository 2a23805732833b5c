"""What the text of `differences` is made of, in code of numba.

Moves, quotients and sums as numpy makes them in `derivatives/finite_differences`, in
the same precision and the same order.
"""

from typing import Any

import numpy as np

from purestate._host.native.arrays import flat
from purestate._host.native.numba_parts import inline, overload, types
from purestate._host.native.raising import Mismatch

_FEW, _BLOCK = 8, 128  # of numpy's pairwise sums


@inline
def copied(x):
    """Return an array to move: -0.0 is 0.0 there, as it is after adding a step."""
    made = np.empty(x.shape, x.dtype)
    out, given = flat(made), flat(x)
    for n in range(given.size):
        out[n] = given[n] + 0.0
    return made


@inline
def finite(step):
    """Return a step, 1 where a number that is not finite gave none."""
    return np.float64(step) if np.isfinite(step) else 1.0


def reach(x: Any, step: Any) -> Any:
    """Return how far an element may be moved, in its own precision."""
    raise NotImplementedError  # numba has the function below in its place


@overload(reach, strict=False)
def _reach_of(x: Any, step: Any) -> Any:
    kind = np.dtype(str(x)).type
    one = kind(1)

    def moved(x, step):
        return kind(step) * np.maximum(one, np.abs(x))

    return moved


def doubled(value: Any) -> Any:
    """Return a copy of a result in double precision; a later call may overwrite it."""
    raise NotImplementedError  # numba has the function below in its place


@overload(doubled, strict=False)
def _doubled_of(value: Any) -> Any:
    if isinstance(value, types.Array):

        def array(value):
            made = np.empty(value.shape)
            made[...] = value
            return made

        return array

    def number(value):
        made = np.empty(())
        made[()] = value
        return made

    return number


@inline
def quotient(above, below, width, record, leaf):
    """Return the derivative of a result in the direction of a step."""
    if above.shape != below.shape:
        raise Mismatch(record, leaf, above.shape, below.shape, 0)
    made = np.empty(above.shape)
    out, a, b = flat(made), flat(above), flat(below)
    for n in range(out.size):
        out[n] = (a[n] - b[n]) / width
    return made


@inline
def paired(above, below, width, cotangent, record, leaf):
    """Return the sum over a result of its derivative times its cotangent."""
    if above.shape != cotangent.shape:
        raise Mismatch(record, leaf, cotangent.shape, above.shape, 0)
    if below.shape != cotangent.shape:
        raise Mismatch(record, leaf, cotangent.shape, below.shape, 0)
    a, b, c = flat(above), flat(below), flat(cotangent)
    return 0.0 + _summed(a, b, c, width, 0, a.size)


@inline
def _term(a, b, c, width, n):
    return (a[n] - b[n]) / width * np.float64(c[n])


@inline
def _summed(a, b, c, width, start, count):
    """Return the sum of terms, in numpy's order: pairwise, in eight at a time."""
    if count < _FEW:
        total = 0.0
        for n in range(start, start + count):
            total += _term(a, b, c, width, n)
        return total
    if count <= _BLOCK:
        r0 = _term(a, b, c, width, start)
        r1 = _term(a, b, c, width, start + 1)
        r2 = _term(a, b, c, width, start + 2)
        r3 = _term(a, b, c, width, start + 3)
        r4 = _term(a, b, c, width, start + 4)
        r5 = _term(a, b, c, width, start + 5)
        r6 = _term(a, b, c, width, start + 6)
        r7 = _term(a, b, c, width, start + 7)
        whole = count - count % _FEW
        for n in range(start + _FEW, start + whole, _FEW):
            r0 += _term(a, b, c, width, n)
            r1 += _term(a, b, c, width, n + 1)
            r2 += _term(a, b, c, width, n + 2)
            r3 += _term(a, b, c, width, n + 3)
            r4 += _term(a, b, c, width, n + 4)
            r5 += _term(a, b, c, width, n + 5)
            r6 += _term(a, b, c, width, n + 6)
            r7 += _term(a, b, c, width, n + 7)
        total = ((r0 + r1) + (r2 + r3)) + ((r4 + r5) + (r6 + r7))
        for n in range(start + whole, start + count):
            total += _term(a, b, c, width, n)
        return total
    half = count // 2
    half -= half % _FEW
    first = _summed(a, b, c, width, start, half)
    return first + _summed(a, b, c, width, start + half, count - half)
