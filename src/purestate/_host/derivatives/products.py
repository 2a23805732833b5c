"""Derivatives of a host function, as products with its Jacobian.

Whatever source was declared, both kinds of product follow from it. Complex numbers
count as pairs of real ones; the pairing is jax's, the real part of sum(a * b).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from purestate._host.call.batch import Batch, each
from purestate._host.call.invoke import Arrays
from purestate._host.call.leaf import Leaf
from purestate._host.derivatives.derivative import Derivative
from purestate._host.derivatives.finite_differences import by_differences
from purestate._host.derivatives.rules import Rule
from purestate._host.derivatives.transpose import transposed

Array = np.ndarray[Any, Any]


def product(derivative: Derivative, arrays: Sequence[Array], batch: Batch) -> Arrays:
    """Return the product with the Jacobian for a batch, all batch axes in front.

    Args:
        derivative: which one.
        arrays: the arguments, then one tangent per argument in `wrt` or one cotangent
            per inexact result.
        batch: of these arrays.
    """
    options, wanted = derivative.op.options, derivative.products
    if 0 in batch.sizes:
        return [np.zeros(batch.sizes + leaf.shape, leaf.dtype) for leaf in wanted]
    if options.grad is not None:
        found = by_differences(derivative, arrays, batch)
    elif derivative.kind == "vjp" and batch.sizes and options.batch_vjp is not None:
        found = _whole_batch(derivative, arrays, batch)
    elif options.jac is not None:
        found = _by_jacobians(derivative, arrays, batch)
    else:
        one = _item(derivative)
        if batch.sizes:
            found = each(derivative.op, one, arrays, batch)
        else:
            found = one(*arrays)
    return [
        np.asarray(value).astype(leaf.dtype, copy=False)
        for leaf, value in zip(wanted, found, strict=True)
    ]


def _item(derivative: Derivative) -> Callable[..., Arrays]:
    """Return the product for one item, from the rule that was declared."""
    count = len(derivative.op.ins)
    given_kind = "jvp" if derivative.op.options.jvp is not None else "vjp"

    def one(*item: Array) -> Arrays:
        rule = Rule(derivative, item[:count])
        linear = item[count:]
        if given_kind == derivative.kind:
            return rule.apply(given_kind, linear)
        sources, targets = derivative.products, derivative.transposed().products

        def column(which: int, element: int, unit: complex) -> Arrays:
            return rule.apply(given_kind, _basis(sources, which, element, unit))

        return transposed(column, sources, targets, linear, ())

    return one


def _by_jacobians(
    derivative: Derivative, arrays: Sequence[Array], batch: Batch
) -> Arrays:
    """Return the product from `jac=`, which is asked once at each point.

    The batch axes that no argument has, as under `jax.jacrev`, are further products
    with the same Jacobian.
    """
    count, rank = len(derivative.op.ins), len(batch.sizes)
    primals, linear = batch.part(range(count)), batch.part(range(count, len(arrays)))
    used = primals.used
    order = sorted(range(rank), key=lambda axis: not used[axis])
    moving = order[: sum(used)]
    points = primals.along(moving)
    points += Batch.full(points.sizes, len(linear.masks))
    items = [*arrays[:count]]
    items += [_moved(a, order) for a in linear.repeated(arrays[count:])]

    def one(*item: Array) -> Arrays:
        rule = Rule(derivative, item[:count])
        return rule.by_jacobian(derivative.kind, item[count:], rank - len(moving))

    found = each(derivative.op, one, items, points) if moving else one(*items)
    return [_moved(value, np.argsort(order)) for value in found]


def _moved(array: Array, order: Sequence[int] | Array) -> Array:
    """Return the array with its first axes in another order."""
    return array.transpose(*order, *range(len(order), array.ndim))


def _basis(leaves: list[Leaf], which: int, element: int, unit: complex) -> Arrays:
    made = [np.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
    chosen = made[which]
    chosen.reshape(-1)[element] = unit if chosen.dtype.kind == "c" else unit.real
    return made


def _whole_batch(
    derivative: Derivative, arrays: Sequence[Array], batch: Batch
) -> Arrays:
    count = len(derivative.op.ins)
    flat = batch.flattened(arrays)
    rule = Rule(derivative, flat[:count], lead=(int(np.prod(batch.sizes)),))
    return batch.unflattened(rule.apply("vjp", flat[count:]))
