"""Rows of a buffer as a linear operation, whose transpose is one concatenate.

Derivatives go through it. jax transposes each slice to an array as long as the buffer,
and adds those up, one per leaf; it knows `jax.lax.split`, too, whose transpose is a
concatenate. But XLA compiles the parts of a split one by one, so that forward
derivatives of 64 leaves would take four times as long to compile, or more.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from purestate._compat import untyped_jax

# jax's own annotations do not cover what is used of it here.
_ad: Any = ad
rows_p: Any = Primitive("unpack")
rows_p.multiple_results = True
Places = tuple[tuple[int, int], ...]  # where rows begin, and their sizes, in order


def linear_rows(
    cut: Callable[[Places, Any], list[Any]], places: Places, buffer: Any
) -> list[Any]:
    """Return `cut(places, buffer)` as one operation that jax can transpose.

    Args:
        cut: returns the numbers at these places of the last axis.
        places: in the order of the buffer, without overlap.
        buffer: an array or a tracer; its other axes are batch axes.
    """
    return list(rows_p.bind(buffer, cut=cut, places=places))


def _run(buffer: Any, *, cut: Any, places: Places) -> Any:
    return cut(places, buffer)


rows_p.def_impl(_run)
mlir.register_lowering(rows_p, mlir.lower_fun(_run, multiple_results=True))


def _types(buffer: Any, *, cut: Any, places: Places) -> list[Any]:
    lead = buffer.shape[:-1]
    spec = untyped_jax.sharding.PartitionSpec(*buffer.sharding.spec[: len(lead)], None)
    sharding = buffer.sharding.update(spec=spec)
    return [buffer.update(shape=(*lead, n), sharding=sharding) for _, n in places]


rows_p.def_abstract_eval(_types)


def _batched(operands: Sequence[Any], dims: Sequence[int], **params: Any) -> Any:
    rows = rows_p.bind(jnp.moveaxis(operands[0], dims[0], 0), **params)
    return rows, [0] * len(rows)


batching.primitive_batchers[rows_p] = _batched


def _transposed(
    cotangents: Sequence[Any], buffer: Any, *, cut: Any, places: Places
) -> list[Any]:
    aval = buffer.aval
    if all(isinstance(row, ad.Zero) for row in cotangents):
        return [ad.Zero(aval)]
    given = [
        _ad.instantiate_zeros(row) if isinstance(row, ad.Zero) else row
        for row in cotangents
    ]
    like, parts, end = given[0], [], 0
    for (start, size), row in zip(places, given, strict=True):
        if start > end:
            parts.append(_zeros(like, start - end))
        parts.append(row)
        end = start + size
    if end < aval.shape[-1]:
        parts.append(_zeros(like, aval.shape[-1] - end))
    return [jax.lax.concatenate(parts, dimension=aval.ndim - 1)]


def _zeros(like: Any, size: int) -> Any:
    return jnp.zeros_like(like, shape=(*like.shape[:-1], size))


_ad.deflinear2(rows_p, _transposed)
