"""Memory by address, in code of numba: 64-bit loads and stores, and atomic ones."""

from collections.abc import Callable
from typing import Any

from purestate._host.native.numba_parts import intrinsic, ir, types

_I64 = ir.IntType(64)


def _operation(
    width: int, emit: Callable[..., Any], *values: str
) -> Callable[..., Any]:
    """Return an intrinsic on the integer of so many bits at an address."""
    kind = ir.IntType(width)

    def typed(codegen_of: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], kind.as_pointer())
            given = [builder.trunc(a, kind) if width < 64 else a for a in args[1:]]
            found = emit(builder, pointer, *given)
            if found is None or found.type == ir.VoidType():
                return context.get_dummy_value()
            return builder.sext(found, _I64) if found.type.width < 64 else found

        return codegen_of, codegen

    if not values:

        @intrinsic
        def at(typing: Any, address: Any) -> Any:
            return typed(types.int64(types.int64))

        return at
    if len(values) == 1:
        gives = types.void if values[0] == "stored" else types.int64

        @intrinsic
        def with_one(typing: Any, address: Any, value: Any) -> Any:
            return typed(gives(types.int64, types.int64))

        return with_one

    @intrinsic
    def with_two(typing: Any, address: Any, expected: Any, value: Any) -> Any:
        return typed(types.int64(types.int64, types.int64, types.int64))

    return with_two


def _swapped(builder: Any, pointer: Any, expected: Any, value: Any) -> Any:
    found = builder.cmpxchg(pointer, expected, value, "seq_cst", "seq_cst")
    return builder.extract_value(found, 0)


load = _operation(64, lambda builder, pointer: builder.load(pointer))
load_int = _operation(32, lambda builder, pointer: builder.load(pointer))
store = _operation(
    64, lambda builder, pointer, value: builder.store(value, pointer), "stored"
)
store_int = _operation(
    32, lambda builder, pointer, value: builder.store(value, pointer), "stored"
)
# The value before.
atomic_add = _operation(
    64,
    lambda builder, pointer, value: builder.atomic_rmw(
        "add", pointer, value, "seq_cst"
    ),
    "value",
)
atomic_load = _operation(
    64, lambda builder, pointer: builder.load_atomic(pointer, "seq_cst", 8)
)
atomic_swap = _operation(64, _swapped, "expected", "value")
