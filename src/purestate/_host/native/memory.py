"""Memory by address, in code of numba: 64-bit loads and stores, and atomic ones."""

from collections.abc import Callable
from typing import Any

from purestate._host.native.numba_parts import intrinsic, ir, types

_I64 = ir.IntType(64)


def _operation(
    emit: Callable[..., Any], values: int, *, width: int = 64, gives: Any = types.int64
) -> Callable[..., Any]:
    """Return an intrinsic on the integer at an address.

    Args:
        emit: from LLVM's builder, the pointer and the values to what is returned.
        values: how many values it takes beside the address.
        width: of the integer, in bits; outside of memory all have 64.
        gives: numba's type of what it returns.
    """
    kind = ir.IntType(width)
    signature = gives(*[types.int64] * (1 + values))

    def codegen(context: Any, builder: Any, _: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], kind.as_pointer())
        given = [builder.trunc(a, kind) if width < 64 else a for a in args[1:]]
        found = emit(builder, pointer, *given)
        if gives == types.void:
            return context.get_dummy_value()
        return builder.sext(found, _I64) if width < 64 else found

    @intrinsic
    def with_none(typing: Any, address: Any) -> Any:
        return signature, codegen

    @intrinsic
    def with_one(typing: Any, address: Any, value: Any) -> Any:
        return signature, codegen

    @intrinsic
    def with_two(typing: Any, address: Any, expected: Any, value: Any) -> Any:
        return signature, codegen

    found: Callable[..., Any] = (with_none, with_one, with_two)[values]
    return found


def _load(builder: Any, pointer: Any) -> Any:
    return builder.load(pointer)


def _store(builder: Any, pointer: Any, value: Any) -> Any:
    return builder.store(value, pointer)


def _load_atomic(builder: Any, pointer: Any) -> Any:
    return builder.load_atomic(pointer, "seq_cst", 8)


def _add(builder: Any, pointer: Any, value: Any) -> Any:
    return builder.atomic_rmw("add", pointer, value, "seq_cst")


def _swap(builder: Any, pointer: Any, expected: Any, value: Any) -> Any:
    found = builder.cmpxchg(pointer, expected, value, "seq_cst", "seq_cst")
    return builder.extract_value(found, 0)


load = _operation(_load, 0)
load_int = _operation(_load, 0, width=32)
store = _operation(_store, 1, gives=types.void)
store_int = _operation(_store, 1, width=32, gives=types.void)
atomic_load = _operation(_load_atomic, 0)
# These return the value before; the second stores only where it is the expected one.
atomic_add = _operation(_add, 1)
atomic_swap = _operation(_swap, 2)
