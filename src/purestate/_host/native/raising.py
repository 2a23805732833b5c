"""How an exception leaves code of numba, and a program of XLA.

Numba's functions do not raise: they return a status, and whoever called them makes an
exception of it. A handler is called by XLA, so here it does, with Python's lock held,
and hands it to `keep`, which gives the text that XLA carries out of the program;
`call/failures` has the rest of the trip. A callback of numba's own (`cfunc`) would
print the exception and go on.
"""

import copy
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from purestate._host.call.failures import kept_text
from purestate._host.call.invoke import unexpected
from purestate._host.call.leaf import Leaf, type_text
from purestate._host.native.numba_parts import cgutils, intrinsic, ir, types
from purestate._host.native.python import emit_call
from purestate.errors import HostSpecError


@dataclasses.dataclass(frozen=True)
class Record:
    """What an error says of a function: its name, and the leaves of its result.

    It must not hold the function: the code that is made of it stays for good.
    """

    label: str
    leaves: tuple[tuple[str, Any, Any], ...]  # path, dtype declared, dtype returned


_records: dict[int, Record] = {}
_numbers = itertools.count(1)


class Mismatch(Exception):  # it becomes a HostSpecError
    """A result that is not what was declared, as code of numba finds it.

    Args: the number of the record, which leaf, the shape declared, the shape that came,
    and an integer that is too large, or 0.
    """


def note(record: Record) -> int:
    """Return a number for a record, by which code of numba names it."""
    number = next(_numbers)
    _records[number] = record
    return number


def keep(error: BaseException) -> bytes:
    """Keep an exception for whoever waits for the program; return what XLA says."""
    if isinstance(error, Mismatch):
        error = _explained(*error.args)
    return kept_text(error).encode()


def _explained(
    number: int, which: int, shape: Any, received: Any, integer: int
) -> HostSpecError:
    record = _records[number]
    path, declared, returned = record.leaves[which]
    found = type_text(Leaf(received, returned))
    if shape == received:
        found += f" with {integer}, which {declared.name} cannot hold"
    return unexpected(record.label, path, Leaf(shape, declared), (), found)


def guarded(compiled: Any) -> Callable[..., Any]:
    """Return an intrinsic that calls a function and returns the address of an error.

    Args:
        compiled: numba's account of the compiled function: it takes the address of a
            call frame and three other integers, and returns an integer.
    """
    signature, library = compiled.signature, compiled.library
    # numba keeps intrinsics for good, and with them what they refer to. Of the function
    # only what it takes to call it, therefore, and not what it refers to.
    described = copy.copy(compiled.fndesc)
    described.global_dict, described.typemap, described.calltypes = None, {}, {}
    # Not what that says: a function that returns 0 has, for numba, the type of 0.
    gives = types.int64(*signature.args)

    def codegen(context: Any, builder: Any, _: Any, args: Any) -> Any:
        context.add_linking_libs([library])
        status, _ = context.call_internal_no_propagate(
            builder, described, signature, args
        )
        error = cgutils.alloca_once_value(builder, ir.Constant(ir.IntType(64), 0))
        with builder.if_then(status.is_error, likely=False):
            builder.store(_raised(context, builder, status, args[0]), error)
        return builder.load(error)

    @intrinsic
    def run(typing: Any, frame: Any, a: Any, b: Any, c: Any) -> Any:
        return gives, codegen

    return run


def _raised(context: Any, builder: Any, status: Any, frame: Any) -> Any:
    """Emit what makes an exception of a status, and an error of XLA of that."""
    python = context.get_python_api(builder)
    lock = python.gil_ensure()
    context.call_conv.raise_error(builder, python, status)
    parts = [cgutils.alloca_once(builder, python.pyobj) for _ in range(3)]
    python.err_fetch(*parts)
    kind = ir.FunctionType(ir.VoidType(), [python.pyobj.as_pointer()] * 3)
    normalize = cgutils.get_or_insert_function(
        builder.module, kind, "PyErr_NormalizeException"
    )
    builder.call(normalize, parts)
    exception, traceback = builder.load(parts[1]), builder.load(parts[2])
    with builder.if_then(cgutils.is_not_null(builder, traceback)):
        kind = ir.FunctionType(ir.IntType(32), [python.pyobj] * 2)
        attach = cgutils.get_or_insert_function(
            builder.module, kind, "PyException_SetTraceback"
        )
        builder.call(attach, [exception, traceback])
    error = emit_call(context, builder, python, __name__, "keep", [exception], frame)
    for part in parts:
        python.decref(builder.load(part))  # of nothing, nothing
    python.gil_release(lock)
    return error
