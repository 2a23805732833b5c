"""The one primitive behind every host call, and what jax's transforms do with it.

Its operands are the argument leaves, then, in a derivative, linear operands: tangents
(kind "jvp") or cotangents (kind "vjp"). The two kinds are each other's transpose.

Its parameters are `operation`, which returns the function and its types; `derivative`,
or None for the call itself; and `batch`, the axes that vmap gave to the operands.

One primitive, and not `jax.custom_vjp` around `jax.pure_callback`: that has no forward
mode and raises under gradients of `shard_map`, and a callback of jax's own knows of a
batch by ranks alone (`vmap_method="expand_dims"` makes x / norm(x) of a batch 0.2887
where it is 0.5774, without a word).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from purestate._compat import resharded_like, result_type, vary, varying_axes
from purestate._host.call.batch import Batch, batch_caller
from purestate._host.call.invoke import frozen
from purestate._host.call.leaf import Leaf, struct
from purestate._host.call.operation import Operation
from purestate._host.call.traced_calls import note_call
from purestate._host.derivatives.derivative import Derivative
from purestate._host.derivatives.products import product
from purestate._host.program.effects import EFFECTS, rule_runs
from purestate._host.program.lowering import lower
from purestate._host.program.native import lowered
from purestate.errors import HostGradError, HostVmapError

# jax's own annotations do not cover what is used of it here.
_ad: Any = ad
host_p: Any = Primitive("host_call")
host_p.multiple_results = True


def bind(
    operands: Sequence[Any],
    op: Operation,
    derivative: Derivative | None = None,
    batch: Batch | None = None,
) -> list[Any]:
    """Return the results of a host call, a product with its Jacobian, or tracers."""
    # `ps.jit` then waits for the result, for the sake of exceptions.
    note_call(op.options.has_effects)
    if op.options.has_effects and not operands:
        operands = [np.int32(0)]  # without any, jax could not keep it in its loop
    # Under shard_map the operands must vary along the same axes. Without axes a result
    # would count as replicated: `out_specs=P()` would be taken, and be wrong.
    axes = frozenset[Any]().union(*(varying_axes(jax.typeof(x)) for x in operands))
    if axes:
        operands = [vary(x, axes) for x in operands]
    batch = batch or Batch.full((), len(operands))
    parameters = {"operation": op.as_parameter(), "derivative": derivative}
    return list(host_p.bind(*operands, **parameters, batch=batch))


def _results(op: Operation, derivative: Derivative | None) -> Sequence[Leaf]:
    return op.outs if derivative is None else derivative.products


def _effect(op: Operation) -> str:
    if op.options.ordered:
        return "ordered"
    return "unordered" if op.options.effects else ""


def _caller(
    *,
    operation: Callable[[], Operation],
    derivative: Derivative | None,
    batch: Batch,
) -> Callable[..., Sequence[np.ndarray[Any, Any]]]:
    """Return what runs the call on arrays that are `frozen`."""
    op = operation()
    if derivative is not None:
        return lambda *arrays: product(derivative, arrays, batch)
    found = batch_caller(op, batch)
    if op.ins:
        return found
    return lambda *arrays: found()  # an effect got an operand; see `bind`


def _impl(*operands: Any, **params: Any) -> list[Any]:
    # Outside of any program, as under `jax.grad` without jit: a call right here.
    found = _caller(**params)(*map(frozen, map(np.asarray, operands)))
    return [jnp.array(value) for value in found]


host_p.def_impl(_impl)


def _types(
    *avals: Any,
    operation: Callable[[], Operation],
    derivative: Derivative | None,
    batch: Batch,
) -> Any:
    op = operation()
    like = avals[0] if avals else None  # `bind` has given all of them the same axes
    types = [
        result_type(like, batch.sizes + leaf.shape, leaf.dtype)
        for leaf in _results(op, derivative)
    ]
    return types, EFFECTS[_effect(op)]


host_p.def_effectful_abstract_eval(_types)


def _lowered(ctx: Any, *args: Any, **params: Any) -> Any:
    op: Operation = params["operation"]()
    native = lowered(ctx, op, params["derivative"], params["batch"], args)
    if native is not None:
        return native
    results = [
        struct(params["batch"].sizes + leaf.shape, leaf.dtype)
        for leaf in _results(op, params["derivative"])
    ]
    return lower(ctx, _caller(**params), results, _effect(op), *args)


mlir.register_lowering(host_p, _lowered)


def _batched(
    operands: Sequence[Any],
    dims: Sequence[Any],
    *,
    operation: Callable[[], Operation],
    derivative: Derivative | None,
    batch: Batch,
) -> Any:
    op = operation()
    options = op.options
    mapped = [dim is not None for dim in dims]
    if options.has_effects:
        why = options.no_vmap or _EFFECT_UNDER_VMAP
        raise HostVmapError(options.name, options.place, why)
    if options.vmap == "error" and any(mapped[: len(op.ins)]):
        raise HostVmapError(
            options.name,
            options.place,
            'was declared with vmap="error". To allow vmap, choose "loop", "threads", '
            '"vectorized" or "batched", or give its whole-batch version as batch_fn=.',
        )
    # In front, so that the axes of a batch are in the order of the vmaps around it, and
    # nested vmaps are one batch for the function.
    moved = [
        x if dim is None else jnp.moveaxis(x, dim, 0)
        for x, dim in zip(operands, dims, strict=True)
    ]
    size = next(x.shape[0] for x, has in zip(moved, mapped, strict=True) if has)
    found = bind(moved, op, derivative, batch.mapped(size, mapped))
    return found, [0] * len(found)


_EFFECT_UNDER_VMAP = (
    "has effects, whose order under vmap nobody has chosen. Use jax.lax.scan or "
    "jax.lax.map over the batch, or call it outside of vmap, with the array of all "
    "items; vmap= has no say here."
)
batching.primitive_batchers[host_p] = _batched


def _differentiated(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    operation: Callable[[], Operation],
    derivative: Derivative | None,
    batch: Batch,
) -> Any:
    op = operation()
    options, count = op.options, len(op.ins)
    # The arguments that the result is differentiated in. Without those whose tangents
    # are zero: in reverse mode each of their elements costs a call or two.
    moving = tuple(
        i
        for i, leaf in enumerate(op.ins)
        if leaf.inexact and not isinstance(tangents[i], ad.Zero)
    )
    with rule_runs():
        outs = bind(primals, op, derivative, batch)
    zeros = [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outs]
    if derivative is not None:
        # A product is linear in its last operands, and its own derivative there; in the
        # arguments it is not, and that would be a second derivative.
        if moving:
            raise HostGradError(
                options.name,
                options.place,
                "has no second derivative: its rule is numpy code too. Differentiate "
                "it once, or give it by jax.custom_jvp a derivative that is a host "
                "function with a derivative of its own.",
            )
        linear = [
            _ad.instantiate_zeros(t) if isinstance(t, ad.Zero) else t
            for t in tangents[count:]
        ]
        operands = [*primals[:count], *linear]
        return outs, bind(operands, op, derivative, batch)
    if not moving or options.grad == "zero" or not op.inexact_outs:
        return outs, zeros
    if options.has_effects:
        why = options.no_grad or _EFFECT_UNDER_GRAD
        raise HostGradError(options.name, options.place, why)
    if not options.has_derivative:
        raise HostGradError(options.name, options.place, options.no_grad)
    if options.grad == "complex":
        turned = [op.ins[i] for i in moving]
        for leaves, what in ((turned, "in a complex argument"), (op.outs, _TO_COMPLEX)):
            if any(leaf.dtype.kind == "c" for leaf in leaves):
                raise HostGradError(
                    options.name,
                    options.place,
                    f'is differentiated by a complex step {what}: use grad="fd".',
                )
    operands = [*primals, *(tangents[i] for i in moving)]
    forward = Derivative(op, "jvp", moving)
    found = bind(operands, op, forward, batch + batch.part(moving))
    for i, tangent in zip(op.inexact_outs, found, strict=True):
        zeros[i] = tangent
    return outs, zeros


_TO_COMPLEX = "and has a complex result"
_EFFECT_UNDER_GRAD = (
    "has effects, and is differentiated: put jax.lax.stop_gradient around its "
    "arguments."
)
ad.primitive_jvps[host_p] = _differentiated


def _transposed(
    cotangents: Sequence[Any],
    *operands: Any,
    operation: Callable[[], Operation],
    derivative: Derivative,
    batch: Batch,
) -> list[Any]:
    op = operation()
    # jax transposes what is linear, so there is a `derivative`. Its transpose, with the
    # same arguments, takes what comes back.
    count = len(op.ins)
    primals, linear = operands[:count], operands[count:]
    given = [
        _ad.instantiate_zeros(ct) if isinstance(ct, ad.Zero) else ct
        for ct in cotangents
    ]
    full = batch.part(range(count)) + Batch.full(batch.sizes, len(given))
    found = bind([*primals, *given], op, derivative.transposed(), full)
    sums: list[Any] = []
    for value, operand, mask in zip(found, linear, batch.masks[count:], strict=True):
        if not _ad.is_undefined_primal(operand):
            sums.append(None)
            continue
        # What was repeated along an axis of the batch gets the sum of its cotangents.
        absent = tuple(axis for axis, has in enumerate(mask) if not has)
        total = value.sum(axis=absent) if absent else value
        sums.append(resharded_like(total, operand.aval))
    return [None] * count + sums


ad.primitive_transposes[host_p] = _transposed
