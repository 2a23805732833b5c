"""How a host call gets into a compiled program.

Three ways, behind one switch:

- "buffer", `jax.experimental.buffer_callback`: views of XLA's buffers, and results are
  written in place. On one CPU device.
- "emit", `jax.interpreters.mlir.emit_python_callback`: copies, as numpy arrays. On one
  CPU device, and for ordered effects.
- "pure", `jax.pure_callback` (`jax.experimental.io_callback` for effects): everywhere.

The first two are not stable parts of jax: where one is missing the next is taken.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import mlir

from purestate._host.call.failures import guarded
from purestate._host.program.effects import IO
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


LOWERINGS = ("buffer", "emit", "pure")
_VARIABLE = "PURESTATE_HOST_LOWERING"
_SMALL = 64 * 1024  # bytes up to which a copy costs less than keeping a view safe
_Call = Callable[..., list[np.ndarray[Any, Any]]]


def available() -> tuple[str, ...]:
    """Return the lowerings that this version of jax has, the fastest first."""
    found = {
        "buffer": buffer_callback is not None,
        "emit": hasattr(mlir, "emit_python_callback"),
        "pure": True,
    }
    return tuple(name for name in LOWERINGS if found[name])


def chosen(wanted: str | None, devices: int, platform: str, effect: str) -> str:
    """Return the lowering of a call.

    Args:
        wanted: the function's own choice, or None.
        devices: how many devices the program runs on.
        platform: their kind.
        effect: "", "unordered" or "ordered".
    """
    wanted = wanted or os.environ.get(_VARIABLE) or None
    if wanted is not None and wanted not in LOWERINGS:
        raise HostSpecError(
            f"{wanted!r} is no lowering of host functions; they are "
            f"{', '.join(LOWERINGS)}."
        )
    if devices > 1 or platform != "cpu":
        return "pure"  # the others know nothing of shardings
    usable = [name for name in available() if not (effect and name == "buffer")]
    if wanted in usable:
        return str(wanted)
    if wanted == "buffer":
        return usable[0]
    return usable[0] if wanted is None else "pure"


def lower(
    ctx: Any,
    call: _Call,
    results: list[Any],
    wanted: str | None,
    effect: str,
    *args: Any,
) -> Any:
    """Return the MLIR values of a host call's results.

    Args:
        ctx: jax's lowering context.
        call: takes and returns numpy arrays.
        results: shapes and dtypes of what it returns.
        wanted: see `chosen`.
        effect: see `chosen`.
        *args: the operands.
    """
    where = ctx.module_context.axis_context
    devices = getattr(where, "num_devices", 1)
    if isinstance(where, mlir.SPMDAxisContext):
        devices = 2  # at least it may be: one call for each shard
    platform = ctx.module_context.platforms[0]
    name = chosen(wanted, devices, platform, effect)
    wide = name != "buffer" and has_wide([*ctx.avals_in, *results])
    safe = in_words(call, ctx.avals_in) if wide else call
    shapes = [in_words_type(r) for r in results] if wide else results

    def run(*operands: Any) -> Any:
        if wide:
            operands = tuple(map(to_words, operands))
        found = _WAYS[name](guarded(safe), shapes, effect, *operands)
        if wide:
            found = [
                from_words(f, r.dtype) for f, r in zip(found, results, strict=True)
            ]
        return [_everywhere(value, where) for value in found]

    known = len(ctx.module_context.host_callbacks)
    lowered = mlir.lower_fun(run, multiple_results=True)(ctx, *args)
    if name == "pure":
        _call_directly(ctx.module_context.host_callbacks, known, safe, len(args))
    return lowered


# --- the three ways ------------------------------------------------------------------


def _buffer(call: _Call, shapes: list[Any], effect: str, *operands: Any) -> Any:
    def fill(context: Any, outs: Any, *buffers: Any) -> None:
        arrays = [np.asarray(buffer) for buffer in buffers]
        # The views are live and writable: XLA uses the memory again after the call.
        arrays = [a.copy() if a.nbytes <= _SMALL else a for a in arrays]
        for array in arrays:
            array.flags.writeable = False
        for out, value in zip(outs, call(*arrays), strict=True):
            np.copyto(np.asarray(out), value)

    return buffer_callback(fill, tuple(shapes), has_side_effect=bool(effect))(*operands)


def _emit(call: _Call, shapes: list[Any], effect: str, *operands: Any) -> Any:
    types = tuple((r.shape, r.dtype) for r in shapes)
    return emit_p.bind(*operands, call=call, types=types, effect=effect)


def _pure(call: _Call, shapes: list[Any], effect: str, *operands: Any) -> Any:
    def numbers(*arrays: Any) -> Any:
        return tuple(call(*map(np.asarray, arrays)))

    if effect:
        ordered = effect == "ordered"
        return io_callback(numbers, tuple(shapes), *operands, ordered=ordered)
    return jax.pure_callback(
        numbers, tuple(shapes), *operands, vmap_method="sequential"
    )


def _everywhere(value: Any, where: Any) -> Any:
    """Return the result of a call for the whole array, on every device of the program.

    The call runs on the first, and jax would leave zeros on the others.
    """
    if isinstance(where, mlir.SPMDAxisContext) or getattr(where, "num_devices", 1) == 1:
        return value
    untyped: Any = jax
    mesh = untyped.sharding.AbstractMesh((where.num_devices,), ("host",))
    placed = untyped.sharding.NamedSharding(mesh, untyped.sharding.PartitionSpec())
    return untyped.lax.with_sharding_constraint(value, placed)


def _call_directly(callbacks: list[Any], known: int, call: _Call, count: int) -> None:
    """Have the program call us, and not jax's wrapper around us.

    The wrapper makes jax arrays of the operands, and whoever reads those waits for a
    thread of XLA: on one core there is only the one that waits. It would also cut
    64-bit numbers. Where a program is built in another way, as on a TPU, it stays.
    """
    if len(callbacks) != known + 1:
        return
    numbers = guarded(call)

    def direct(*arrays: Any) -> tuple[Any, ...]:
        token = arrays[: len(arrays) - count]  # in front, if the effect is ordered
        return (*token, *numbers(*arrays[len(token) :]))

    callbacks[-1] = direct


_WAYS: dict[str, Callable[..., Any]] = {"buffer": _buffer, "emit": _emit, "pure": _pure}


emit_p: Any = Primitive("purestate_emit")
emit_p.multiple_results = True


def _emit_types(*avals: Any, call: Any, types: Any, effect: str) -> Any:
    return [ShapedArray(*t) for t in types], IO[effect]


emit_p.def_effectful_abstract_eval(_emit_types)


def _emit_rule(ctx: Any, *operands: Any, call: Any, types: Any, effect: str) -> Any:
    ordered = IO[effect] if effect == "ordered" else ()
    token = None
    for kind in ordered:
        token = ctx.tokens_in.get(kind)
    found, token, _ = mlir.emit_python_callback(
        ctx,
        lambda *arrays: tuple(call(*arrays)),
        token,
        list(operands),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=bool(effect),
    )
    for kind in ordered:
        ctx.set_tokens_out(mlir.TokenSet({kind: token}))
    return found


mlir.register_lowering(emit_p, _emit_rule)
