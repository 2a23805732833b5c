"""Calling a host function for a whole batch.

The axes of a batch are known from the trace, array by array: nothing is guessed from
ranks, so that a function of whole arrays cannot be taken for one of items.
"""

import dataclasses
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from purestate._host.call.invoke import Arrays, call, caller, frozen
from purestate._host.call.leaf import epsilon, is_inexact
from purestate._host.call.operation import Operation
from purestate.errors import HostVmapError

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Batch:
    """The batch axes of a call, and which of them each array has.

    A parameter of a primitive of jax, so it can be hashed and compared.

    Attributes:
        sizes: of the batch axes, outermost first.
        masks: for each array, which of these axes it has; its own come after them.
    """

    sizes: tuple[int, ...]
    masks: tuple[tuple[bool, ...], ...]

    @classmethod
    def full(cls, sizes: tuple[int, ...], arrays: int) -> "Batch":
        """Return the batch in which each array has all axes, if there are any."""
        return cls(sizes, ((True,) * len(sizes),) * arrays)

    def __add__(self, other: "Batch") -> "Batch":
        """Return the batch of these arrays and then of others along the same axes."""
        return Batch(self.sizes, self.masks + other.masks)

    def part(self, which: Iterable[int]) -> "Batch":
        """Return the batch of some of the arrays."""
        return Batch(self.sizes, tuple(self.masks[i] for i in which))

    def mapped(self, size: int, has: Iterable[bool]) -> "Batch":
        """Return the batch with one more axis in front, which some arrays have."""
        masks = zip(has, self.masks, strict=True)
        return Batch((size, *self.sizes), tuple((new, *mask) for new, mask in masks))

    def along(self, axes: Sequence[int]) -> "Batch":
        """Return the batch with some of its axes only."""
        masks = (tuple(mask[a] for a in axes) for mask in self.masks)
        return Batch(tuple(self.sizes[a] for a in axes), tuple(masks))

    @property
    def used(self) -> tuple[bool, ...]:
        """Which axes at least one array has."""
        masks = zip(*self.masks, strict=True)
        return tuple(map(any, masks)) or (False,) * len(self.sizes)

    def aligned(self, arrays: Sequence[Array]) -> Arrays:
        """Return the arrays with an axis of size 1 for each batch axis they lack."""
        made = []
        for array, mask in zip(arrays, self.masks, strict=True):
            sizes = (n if has else 1 for n, has in zip(self.sizes, mask, strict=True))
            made.append(array.reshape((*sizes, *array.shape[sum(mask) :])))
        return made

    def repeated(self, arrays: Sequence[Array]) -> Arrays:
        """Return views of the arrays with all batch axes."""
        rank = len(self.sizes)
        full = self.aligned(arrays)
        return [np.broadcast_to(a, (*self.sizes, *a.shape[rank:])) for a in full]

    def flattened(self, arrays: Sequence[Array]) -> Arrays:
        """Return the arrays with exactly one batch axis, repeated where they had none.

        The inverse, for results, is `unflattened`.
        """
        rank, count = len(self.sizes), int(np.prod(self.sizes))
        return [a.reshape((count, *a.shape[rank:])) for a in self.repeated(arrays)]

    def unflattened(self, arrays: Sequence[Array]) -> Arrays:
        """Return arrays with all batch axes in place of exactly one."""
        return [a.reshape((*self.sizes, *a.shape[1:])) for a in arrays]


def batch_caller(
    op: Operation, batch: Batch, precision: str = "declared"
) -> Callable[..., Sequence[Array]]:
    """Return what calls for a batch: a function of arrays, as `caller` returns one.

    Each leaf of its results has all batch axes in front.
    """
    sizes, mode = batch.sizes, op.options.vmap
    has_whole = op.options.batch_fn is not None
    if not sizes:
        return caller(op, precision=precision)
    if 0 in sizes:
        empty = [np.zeros(sizes + leaf.shape, leaf.dtype) for leaf in op.outs]
        return lambda *arrays: empty
    if not has_whole and mode not in ("vectorized", "batched"):
        item = caller(op, precision=precision)
        return lambda *arrays: each(op, item, arrays, batch)
    is_full = all(map(all, batch.masks))
    if not has_whole and mode == "vectorized":
        whole = caller(op, lead=sizes, precision=precision)
        if is_full:
            return whole
        return lambda *arrays: whole(*batch.aligned(arrays))
    lead = (math.prod(sizes),)
    whole = caller(
        op, which="batch_fn" if has_whole else "fn", lead=lead, precision=precision
    )
    if is_full and sizes == lead:
        return whole
    return lambda *arrays: batch.unflattened(
        whole(*map(frozen, batch.flattened(arrays)))
    )


def each(
    op: Operation,
    body: Callable[..., Sequence[Array]],
    arrays: Sequence[Array],
    batch: Batch,
) -> Arrays:
    """Return what `body` makes of each item, stacked along the batch axes.

    There must be an item: without one, nothing is known of the results.
    """
    stacks: Arrays = []
    lock = threading.Lock()
    is_full = all(map(all, batch.masks))

    def run(index: tuple[int, ...]) -> None:
        if is_full:
            at: Any = (*index, ...)  # an array with no axes left stays one
            item = [array[at] for array in arrays]
        else:
            masks = zip(arrays, batch.masks, strict=True)
            item = [array[_own(index, mask)] for array, mask in masks]
        values = body(*item)
        with lock:
            if not stacks:
                stacks.extend(np.empty(batch.sizes + v.shape, v.dtype) for v in values)
        # At once: the next item may be computed in the same memory.
        for stack, value in zip(stacks, values, strict=True):
            stack[index] = value

    indices = list(np.ndindex(*batch.sizes))
    if op.options.vmap == "threads":
        op.options.pool.each(run, indices)
    else:
        for index in indices:
            run(index)
    return stacks


def _own(index: tuple[int, ...], mask: tuple[bool, ...]) -> Any:
    return (*(i for i, has in zip(index, mask, strict=True) if has), ...)


def compare_rows(op: Operation, arrays: Sequence[Array], count: int) -> None:
    """Compare the whole-batch result with two of its rows computed alone.

    Raises:
        HostVmapError: they differ, so the function mixes the items of a batch.
    """
    batch = Batch.full((count,), len(arrays))
    together = batch_caller(op, batch)(*map(frozen, arrays))
    for row in sorted({0, count - 1}):
        alone = call(op, [array[row, ...] for array in arrays])
        for path, both, one in zip(op.out_paths, together, alone, strict=True):
            tolerance = 100 * epsilon(one.dtype) if is_inexact(one.dtype) else 0.0
            if not np.allclose(both[row], one, tolerance, tolerance, equal_nan=True):
                raise HostVmapError(
                    op.options.name,
                    op.options.place,
                    f"mixes the items of a batch: row {row} of {path or 'its result'} "
                    f"is\n  {both[row]!r}\nin the batch, and alone\n  {one!r}\n"
                    f'Sum and normalise along axis=-1, or use vmap="loop".',
                )
