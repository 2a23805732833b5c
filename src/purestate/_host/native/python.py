"""Calling Python from code of numba, with its lock, and making XLA's errors of texts.

What is called is named, by its module and by its name there: an address of an object
would be wrong in another process.
"""

from collections.abc import Callable, Sequence
from typing import Any

from purestate._host.native.frame import create_error
from purestate._host.native.numba_parts import cgutils, intrinsic, ir, types

_I64 = ir.IntType(64)


def calling(module: str, name: str) -> Callable[..., Any]:
    """Return an intrinsic that hands the address of a call frame to a Python function.

    Args:
        module: where the function is.
        name: of it; it returns the text of an error as bytes, empty for none.

    Returns:
        From the address of the frame to that of an error, or 0.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        python = context.get_python_api(builder)
        lock = python.gil_ensure()
        frame = python.long_from_longlong(args[0])
        found = emit_call(context, builder, python, module, name, [frame], args[0])
        python.decref(frame)
        python.gil_release(lock)
        return found

    @intrinsic
    def call(typing: Any, frame: Any) -> Any:
        return types.int64(types.int64), codegen

    return call


def emit_call(
    context: Any,
    builder: Any,
    python: Any,
    module: str,
    name: str,
    given: Sequence[Any],
    frame: Any,
) -> Any:
    """Emit a call of a Python function, and what makes an error of the text it returns.

    Args:
        context: numba's.
        builder: LLVM's.
        python: numba's interface to Python, whose lock is held.
        module: where the function is.
        name: of it; it returns bytes.
        given: objects to hand it.
        frame: the address of the call frame.

    Returns:
        The address of an error, 0 if the text is empty.
    """
    home = python.import_module(context.insert_const_string(builder.module, module))
    function = python.object_getattr_string(home, name)
    told = python.call_function_objargs(function, given)
    lost = context.insert_const_string(builder.module, "an exception was lost")
    text = cgutils.alloca_once_value(builder, lost)
    with builder.if_else(cgutils.is_not_null(builder, told)) as (is_kept, is_lost):
        with is_kept:
            builder.store(python.bytes_as_string(told), text)
        with is_lost:
            python.err_clear()
    found = cgutils.alloca_once_value(builder, ir.Constant(_I64, 0))
    first = builder.load(builder.load(text))
    with builder.if_then(builder.icmp_unsigned("!=", first, first.type(0))):
        address = builder.ptrtoint(builder.load(text), _I64)
        # numba's own copy of `create_error`, called as any function of numba's.
        error = context.compile_internal(
            builder,
            lambda frame, message: create_error(frame, message),
            types.int64(types.int64, types.int64),
            [frame, address],
        )
        builder.store(error, found)
    for held in (told, function, home):
        python.decref(held)  # of nothing, nothing
    return builder.load(found)
