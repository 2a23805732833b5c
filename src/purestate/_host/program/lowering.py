"""How a host call gets into a compiled program: in one of two ways.

- "pure", `jax.pure_callback` (`jax.experimental.io_callback` for effects), with jax's
  own wrapper taken away: everywhere, and the faster one for small arrays.
- "buffer", `jax.experimental.buffer_callback`: views of XLA's buffers, and results are
  written in place. For large arrays on one CPU device. Not a stable part of jax: where
  it is missing, all calls are "pure".
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback
from jax.interpreters import mlir

from purestate._compat import untyped_jax as _jax
from purestate._host.call.failures import guarded, numbered, raise_numbered
from purestate._host.call.invoke import frozen
from purestate._host.call.leaf import struct
from purestate._host.program.wide_numbers import (
    from_words,
    has_wide,
    in_words,
    in_words_type,
    to_words,
)
from purestate.errors import HostSpecError

buffer_callback: Any = None  # an experimental part of jax, which may go away
with contextlib.suppress(ImportError):
    from jax.experimental.buffer_callback import buffer_callback


VARIABLE = "PURESTATE_HOST_LOWERING"
NATIVE = "native"
LOWERINGS = ("buffer", NATIVE, "pure")
# Bytes of operands and results from which on copies cost more than views do. A step of
# a scan took "buffer" 1.25 to 1.45 times as long as "pure" at 16 bytes, 1.1 to 1.3
# times at 128 KiB, 0.9 times at 512 KiB and 0.8 to 0.9 times at 2 MiB, on jax 0.7.2,
# 0.10.2 and 0.12.0.
_LARGE = 512 * 1024
_SMALL = 64 * 1024  # bytes up to which a copy costs less than keeping a view safe
_REPEATED = (
    "\nIt is an ordered effect on several devices. If the function that raises this is "
    "another one, this is an error of an earlier program: jax before 0.12 raises it "
    "again in all later ordered effects of the same thread (jax#37587). Call them in "
    "another thread, or declare effects=True in place of ordered=True."
)
_Call = Callable[..., Sequence[np.ndarray[Any, Any]]]


def wanted() -> str:
    """Return the lowering that the environment variable asks for, or nothing.

    Raises:
        HostSpecError: there is no such lowering.
    """
    found = os.environ.get(VARIABLE, "")
    if found and found not in LOWERINGS:
        raise HostSpecError(
            f"{found!r} is no lowering of host functions; they are "
            f"{', '.join(LOWERINGS)}."
        )
    return found


def chosen(size: int, devices: int, platform: str, effect: str) -> str:
    """Return the lowering of a callback, "buffer" or "pure".

    Args:
        size: bytes of its operands and results.
        devices: how many devices the program runs on.
        platform: their kind.
        effect: "", "unordered" or "ordered".

    Raises:
        HostSpecError: the environment variable asks for another one.
    """
    asked = wanted()
    if asked in ("", NATIVE):
        asked = "buffer" if size >= _LARGE else "pure"
    # "buffer" knows nothing of shardings, and keeps no order.
    if devices > 1 or platform != "cpu" or effect or buffer_callback is None:
        return "pure"
    return asked


def lower(ctx: Any, call: _Call, results: list[Any], effect: str, *args: Any) -> Any:
    """Return the MLIR values of a host call's results.

    Args:
        ctx: jax's lowering context.
        call: takes and returns numpy arrays.
        results: shapes and dtypes of what it returns.
        effect: see `chosen`.
        *args: the operands.
    """
    where = ctx.module_context.axis_context
    devices = getattr(where, "num_devices", 1)
    if isinstance(where, mlir.SPMDAxisContext):
        devices = 2  # at least it may be: one call for each shard
    platform = ctx.module_context.platforms[0]
    size = sum(t.size * t.dtype.itemsize for t in (*ctx.avals_in, *results))
    name = chosen(size, devices, platform, effect)
    # jax's callbacks cut 64-bit numbers where x64 is off, which it is on threads of XLA
    # even in a `with jax.enable_x64(True)`; a buffer has the bits that are there.
    wide = name != "buffer" and has_wide([*ctx.avals_in, *results])
    safe = in_words(call, ctx.avals_in) if wide else call
    shapes = [in_words_type(r) for r in results] if wide else results

    spread = devices > 1 and not isinstance(where, mlir.SPMDAxisContext)
    known = len(ctx.module_context.host_callbacks)
    repeats = effect == "ordered" and isinstance(where, mlir.SPMDAxisContext)
    direct = (
        [numbered(safe, shapes), _raise_on_device]
        if spread
        else [guarded(safe, _REPEATED if repeats else "")]
    )

    def run(*operands: Any) -> Any:
        if wide:
            operands = tuple(map(to_words, operands))
        if name == "buffer":
            found = _buffer(direct[0], shapes, operands)
        elif spread:
            found = _spread(direct, shapes, operands, effect, devices)
        else:
            found = _pure(direct[0], shapes, operands, effect)
        if wide:
            found = [
                from_words(f, r.dtype) for f, r in zip(found, results, strict=True)
            ]
        return found

    lowered = mlir.lower_fun(run, multiple_results=True)(ctx, *args)
    if name == "pure":
        if effect == "ordered":
            direct[0] = _after_tokens(direct[0], len(args))
        _call_directly(ctx.module_context.host_callbacks, known, direct)
    return lowered


# --- the two ways --------------------------------------------------------------------


def _buffer(call: _Call, shapes: list[Any], operands: Any) -> Any:
    def fill(context: Any, outs: Any, *buffers: Any) -> None:
        arrays = [np.asarray(buffer) for buffer in buffers]
        # The views are live and writable: XLA uses the memory again after the call, and
        # one that was kept had other numbers in it, in 20 of 20 tries.
        arrays = [a.copy() if a.nbytes <= _SMALL else a for a in arrays]
        for array in arrays:
            array.flags.writeable = False
        for out, value in zip(outs, call(*arrays), strict=True):
            np.copyto(np.asarray(out), value)

    return buffer_callback(fill, tuple(shapes))(*operands)


def _pure(call: _Call, shapes: list[Any], operands: Any, effect: str) -> Any:
    def numbers(*arrays: Any) -> Any:
        return call(*map(frozen, map(np.asarray, arrays)))

    if effect:
        ordered = effect == "ordered"
        return io_callback(numbers, tuple(shapes), *operands, ordered=ordered)
    return jax.pure_callback(
        numbers, tuple(shapes), *operands, vmap_method="sequential"
    )


def _spread(
    direct: list[_Call], shapes: list[Any], operands: Any, effect: str, devices: int
) -> Any:
    """Return the results of a call for the whole array, on every device of the program.

    The call runs on the first, and jax would leave zeros on the others. What it raises
    must not end the program there: the others would wait for the results, until XLA
    gives up after 40 s and ends the process (jax#6621). So a number comes with the
    results, and every device raises if it is not 0.
    """
    call, check = direct
    number = struct((), np.int32)
    # With names of its own where there are none: a mesh that is set decides for jax
    # which axes are all axes.
    around = _jax.sharding.get_abstract_mesh()
    known = around.size == devices and around.axis_names
    sizes, names = (around.axis_sizes, known) if known else ((devices,), ("host",))
    mesh = _jax.sharding.AbstractMesh(sizes, names)
    with _jax.sharding.use_abstract_mesh(mesh):
        found = _pure(call, [*shapes, number], operands, effect)
        everywhere = _jax.sharding.NamedSharding(mesh, _jax.sharding.PartitionSpec())
        *values, failed = [
            _jax.lax.with_sharding_constraint(value, everywhere) for value in found
        ]
        unordered = effect and "unordered"
        (failed,) = _jax.shard_map(
            lambda failed: _pure(check, [number], [failed], unordered),
            mesh=mesh,
            in_specs=everywhere.spec,
            out_specs=everywhere.spec,
            check_vma=False,
        )(failed)
        # Nothing is computed from results of a failed call: an effect could show it.
        zeros = map(_jax.numpy.zeros_like, values)
        return [
            _jax.lax.select(failed == 0, value, zero)
            for value, zero in zip(values, zeros, strict=True)
        ]


def _raise_on_device(number: Any) -> Any:
    return (raise_numbered(number),)


def _after_tokens(call: _Call, count: int) -> _Call:
    """Return `call` on the last `count` of its arrays; in front come tokens."""

    def ordered(*arrays: Any) -> tuple[Any, ...]:
        tokens = arrays[: len(arrays) - count]
        return (*tokens, *call(*arrays[len(tokens) :]))

    return ordered


def _call_directly(callbacks: list[Any], known: int, calls: list[_Call]) -> None:
    """Have the program call us, and not jax's wrapper around us.

    The wrapper makes jax arrays of the operands, and whoever reads those waits for a
    thread of XLA: on one core there is only the one that waits (jax#24255). It would
    also cut 64-bit numbers, and costs four times as much. Where a program is built in
    another way, as on a TPU, it stays. A test fails when jax keeps what a program calls
    elsewhere.

    Args:
        callbacks: what jax's program calls.
        known: how many there were before.
        calls: ours, which it has put there since, wrapped.
    """
    # As many more than before as are ours. Any other count: they may be another's.
    if len(callbacks) == known + len(calls):
        callbacks[known:] = calls
