"""Calling a host function for a whole batch.

`batch` holds the sizes of the batch axes, outermost first. A mask says for each array
which of these axes it has; its own axes come after them. Nothing is guessed from ranks.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from purestate._host.call.invoke import Arrays, call
from purestate._host.call.leaf import epsilon, is_inexact
from purestate._host.call.operation import Operation
from purestate.errors import HostVmapError

Masks = tuple[tuple[bool, ...], ...]
Array = np.ndarray[Any, Any]


def call_batch(
    op: Operation,
    arrays: Sequence[Array],
    batch: tuple[int, ...],
    masks: Masks,
    cast: bool = True,
) -> Arrays:
    """Return the result's leaves, each with all batch axes in front."""
    if not batch:
        return call(op, arrays, cast=cast)
    mode = op.options.vmap
    whole = op.options.batch_fn is not None or mode in ("vectorized", "batched")
    if 0 in batch:
        return [np.zeros(batch + leaf.shape, leaf.dtype) for leaf in op.outs]
    if not whole:
        return each(op, lambda item: call(op, item, cast=cast), arrays, batch, masks)
    full = [aligned(a, mask, batch) for a, mask in zip(arrays, masks, strict=True)]
    if mode == "vectorized" and op.options.batch_fn is None:
        return call(op, full, lead=batch, cast=cast)
    flat = flattened(op, full, batch)
    lead = (int(np.prod(batch)),)
    found = call(op, flat, fn=op.options.batch_fn, lead=lead, cast=cast)
    return [value.reshape((*batch, *value.shape[1:])) for value in found]


def each(
    op: Operation,
    body: Callable[[Arrays], Arrays],
    arrays: Sequence[Array],
    batch: tuple[int, ...],
    masks: Masks,
) -> Arrays:
    """Return what `body` makes of each item, stacked along the batch axes.

    There must be an item: without one, nothing is known of the results.
    """
    stacks: Arrays = []
    lock = threading.Lock()

    def run(index: tuple[int, ...]) -> None:
        # The ellipsis keeps what has no axes left an array.
        item = [
            array[_own(index, mask)] for array, mask in zip(arrays, masks, strict=True)
        ]
        values = body(item)
        with lock:
            if not stacks:
                stacks.extend(np.empty(batch + v.shape, v.dtype) for v in values)
        # At once: the next item may be computed in the same memory.
        for stack, value in zip(stacks, values, strict=True):
            stack[index] = value

    indices = list(np.ndindex(*batch))
    if op.options.vmap == "threads":
        op.options.pool.each(run, indices)
    else:
        for index in indices:
            run(index)
    return stacks


def _own(index: tuple[int, ...], mask: tuple[bool, ...]) -> Any:
    return (*(i for i, has in zip(index, mask, strict=True) if has), ...)


def aligned(array: Array, mask: tuple[bool, ...], batch: tuple[int, ...]) -> Array:
    """Return the array with an axis of size 1 for each batch axis that it lacks."""
    core = array.shape[sum(mask) :]
    sizes = (size if has else 1 for size, has in zip(batch, mask, strict=True))
    return array.reshape((*sizes, *core))


def flattened(op: Operation, full: Sequence[Array], batch: tuple[int, ...]) -> Arrays:
    """Return the arrays with exactly one batch axis, repeated where they had none."""
    made = []
    lead_size = int(np.prod(batch))
    for leaf, array in zip(op.ins, full, strict=True):
        repeated = np.broadcast_to(array, (*batch, *leaf.shape))
        made.append(repeated.reshape((lead_size, *leaf.shape)))
    return made


def compare_rows(op: Operation, arrays: Sequence[Array], count: int) -> None:
    """Compare the whole-batch result with two of its rows computed alone.

    Raises:
        HostVmapError: they differ, so the function mixes the items of a batch.
    """
    masks = ((True,),) * len(arrays)
    together = call_batch(op, arrays, (count,), masks)
    for row in sorted({0, count - 1}):
        alone = call(op, [array[row, ...] for array in arrays])
        for place, both, one in zip(op.out_paths, together, alone, strict=True):
            tolerance = 100 * epsilon(one.dtype) if is_inexact(one.dtype) else 0.0
            if not np.allclose(both[row], one, tolerance, tolerance, equal_nan=True):
                raise HostVmapError(
                    op.options.name,
                    op.options.place,
                    f"mixes the items of a batch: row {row} of {place or 'its result'} "
                    f"is\n  {both[row]!r}\nin the batch, and alone\n  {one!r}\n"
                    f'Sum and normalise along axis=-1, or use vmap="loop".',
                )
