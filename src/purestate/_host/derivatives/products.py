"""Derivatives of a host function, as products with its Jacobian.

A product is asked for in one of two kinds, each the transpose of the other: "jvp" takes
a tangent for each of the arguments `wrt` and gives one for each inexact result, "vjp"
the reverse. Whatever source was declared, both kinds follow from it. Complex numbers
count as pairs of real ones; the pairing is jax's, the real part of sum(a * b).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from purestate._host.call.batch import Masks, aligned, each, flattened
from purestate._host.call.invoke import Arrays
from purestate._host.call.leaf import Leaf
from purestate._host.call.operation import Operation
from purestate._host.derivatives.finite_differences import by_differences
from purestate._host.derivatives.rules import Rule
from purestate._host.derivatives.transpose import transposed

Array = np.ndarray[Any, Any]


def product(
    op: Operation,
    kind: str,
    wrt: tuple[int, ...],
    arrays: Sequence[Array],
    batch: tuple[int, ...],
    masks: Masks,
) -> Arrays:
    """Return the product with the Jacobian for a batch, all batch axes in front.

    Args:
        op: the function and its types.
        kind: "jvp" or "vjp".
        wrt: the argument leaves to differentiate.
        arrays: the arguments, then one tangent per argument in `wrt` or one cotangent
            per inexact result.
        batch: sizes of the batch axes.
        masks: which of them each array has.
    """
    outs = [op.outs[i] for i in op.inexact_outs]
    ins = [op.ins[i] for i in wrt]
    wanted = outs if kind == "jvp" else ins
    if 0 in batch:
        return [np.zeros(batch + leaf.shape, leaf.dtype) for leaf in wanted]
    if op.options.grad is not None:
        found = by_differences(op, kind, wrt, arrays, batch, masks)
    elif kind == "vjp" and batch and op.options.batch_vjp is not None:
        found = _whole_batch(op, wrt, arrays, batch, masks)
    elif op.options.jac is not None:
        found = _by_jacobians(op, kind, wrt, arrays, batch, masks)
    else:
        one = _item(op, kind, wrt)
        found = each(op, one, arrays, batch, masks) if batch else one(list(arrays))
    return [
        np.asarray(value).astype(leaf.dtype, copy=False)
        for leaf, value in zip(wanted, found, strict=True)
    ]


def _item(op: Operation, kind: str, wrt: tuple[int, ...]) -> Callable[[Arrays], Arrays]:
    """Return the product for one item, from the rule that was declared."""
    count = len(op.ins)
    given_kind = "jvp" if op.options.jvp is not None else "vjp"

    def one(item: Arrays) -> Arrays:
        rule = Rule(op, wrt, item[:count])
        linear = item[count:]
        if given_kind == kind:
            return rule.apply(kind, linear)
        outs = [op.outs[i] for i in op.inexact_outs]
        ins = [op.ins[i] for i in wrt]
        sources, targets = (ins, outs) if given_kind == "jvp" else (outs, ins)

        def column(which: int, element: int, unit: complex) -> Arrays:
            return rule.apply(given_kind, _basis(sources, which, element, unit))

        return transposed(column, sources, targets, linear, ())

    return one


def _by_jacobians(
    op: Operation,
    kind: str,
    wrt: tuple[int, ...],
    arrays: Sequence[Array],
    batch: tuple[int, ...],
    masks: Masks,
) -> Arrays:
    """Return the product from `jac=`, which is asked once at each point.

    The batch axes that no argument has, as under `jax.jacrev`, are further products
    with the same Jacobian.
    """
    count = len(op.ins)
    axes = range(len(batch))
    moving = [a for a in axes if any(mask[a] for mask in masks[:count])]
    fixed = [a for a in axes if a not in moving]
    points = tuple(batch[a] for a in moving)
    own_masks = [tuple(mask[a] for a in moving) for mask in masks[:count]]
    items: Arrays = list(arrays[:count])
    for array, mask in zip(arrays[count:], masks[count:], strict=True):
        core = array.shape[sum(mask) :]
        whole = np.broadcast_to(aligned(array, mask, batch), (*batch, *core))
        rest = range(len(batch), whole.ndim)
        items.append(whole.transpose(*moving, *fixed, *rest))
        own_masks.append((True,) * len(moving))

    def one(item: Arrays) -> Arrays:
        rule = Rule(op, wrt, item[:count])
        return rule.by_jacobian(kind, item[count:], len(fixed))

    found = each(op, one, items, points, tuple(own_masks)) if points else one(items)
    place = np.argsort([*moving, *fixed])
    return [value.transpose(*place, *range(len(batch), value.ndim)) for value in found]


def _basis(leaves: list[Leaf], which: int, element: int, unit: complex) -> Arrays:
    made = [np.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
    chosen = made[which]
    chosen.reshape(-1)[element] = unit if chosen.dtype.kind == "c" else unit.real
    return made


def _whole_batch(
    op: Operation,
    wrt: tuple[int, ...],
    arrays: Sequence[Array],
    batch: tuple[int, ...],
    masks: Masks,
) -> Arrays:
    count = len(op.ins)
    full = [aligned(a, mask, batch) for a, mask in zip(arrays, masks, strict=True)]
    lead = (int(np.prod(batch)),)
    cotangents = []
    for i, value in zip(op.inexact_outs, full[count:], strict=True):
        shape = op.outs[i].shape
        cotangents.append(
            np.broadcast_to(value, (*batch, *shape)).reshape((lead[0], *shape))
        )
    rule = Rule(op, wrt, flattened(op, full[:count], batch), lead)
    found = rule.apply("vjp", cotangents)
    return [value.reshape((*batch, *value.shape[1:])) for value in found]
