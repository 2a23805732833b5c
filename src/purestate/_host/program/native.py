"""Which host calls become native operations, and how they get into a program.

A function of numba becomes an operation of XLA wherever nothing of Python is needed to
call it. Everywhere else the call is a callback, with the same results: `lowered`
returns None, and `lowering` goes on.
"""

import os
import sys
from typing import Any

import jax

from purestate._host.call.batch import Batch
from purestate._host.call.operation import Operation
from purestate._host.call.options import Options
from purestate._host.derivatives.derivative import Derivative
from purestate._host.program.lowering import NATIVE, VARIABLE, wanted


def why_not(options: Options) -> str:
    """Return why calls of a function are callbacks, or nothing if they are native.

    Single calls may still be callbacks, because of what they are given.
    """
    if wanted() not in ("", NATIVE):
        return f"{VARIABLE}={wanted()} asks for callbacks"
    if sys.modules.get("numba") is None:
        return "numba is not imported, so that it is no function of numba's"
    from purestate._host.native.functions import is_dispatcher

    if not is_dispatcher(options.fn):
        return "it is no function of numba.njit"
    return _why_not(options, options.fn)


def _why_not(options: Options, fn: Any) -> str:
    declared = {
        "effects=": options.has_effects,
        "cache=": options.cache,
        "scratch=": options.scratch,
        "thread=": options.thread,
        "static_argnames=": options.static_argnames,
    }
    for name, is_given in declared.items():
        if is_given:
            return f"it is declared with {name}, which needs Python"
    from purestate._host.native.functions import aborts, needs_python
    from purestate._host.native.trial import why_not_here

    if aborts(fn):
        return (
            "it has parallel=True, and numba's own pool of threads, workqueue, ends "
            "the process where two threads use it: install OpenMP or TBB for numba"
        )
    if needs_python(fn):
        return "it has blocks of numba.objmode, which need Python"
    why = why_not_here()
    return f"native operations do not work here: {why}" if why else ""


def lowered(
    ctx: Any,
    op: Operation,
    derivative: Derivative | None,
    batch: Batch,
    args: tuple[Any, ...],
) -> Any:
    """Return the MLIR values of a call's results, or None where it is a callback.

    Args:
        ctx: jax's lowering context.
        op: the function and its types.
        derivative: which product with its Jacobian, or None for the call itself.
        batch: of the operands.
        args: the operands.

    Raises:
        HostSpecError: numba cannot compile the function for these types.
    """
    options = op.options
    if options.native is None and sys.modules.get("numba") is None:
        return None
    if wanted() not in ("", NATIVE):
        return None
    if any(platform != "cpu" for platform in ctx.module_context.platforms):
        return None
    if options.native is not None:  # brings an operation of its own
        found = options.native(op, derivative, batch)
        if found is not None:  # what it works on must outlive the program
            ctx.module_context.add_keepalive(options)
    else:
        found = _target(op, derivative, batch)
    if found is None:
        return None
    name, attributes = found
    return jax.ffi.ffi_lowering(name)(ctx, *args, **attributes)


def _target(op: Operation, derivative: Derivative | None, batch: Batch) -> Any:
    """Return the name of a native operation and its attributes, or None."""
    from purestate._host.native.calls import call_of, product_of
    from purestate._host.native.functions import is_dispatcher
    from purestate._host.native.handler import batch_attribute

    options = op.options
    found = call_of(op, batch) if derivative is None else product_of(derivative, batch)
    if found is None or not is_dispatcher(found.fn):
        return None
    if _why_not(options, found.function):
        return None
    name = found.target()
    if name is None:
        return None
    threads = (options.threads or os.cpu_count() or 1) if found.threads else 1
    return name, {"batch": batch_attribute(batch.sizes, batch.masks, threads)}
