"""Arrays of numba on XLA's memory: an item of an operand, an item of a result."""

from typing import Any

import numpy as np

from purestate._host.native.frame import (
    DATA,
    DIMENSIONS,
    RANK,
    dimensions,
    result,
)
from purestate._host.native.memory import load
from purestate._host.native.numba_parts import (
    cgutils,
    from_dtype,
    impl_ret_borrowed,
    inline,
    intrinsic,
    ir,
    make_array,
    overload,
    populate_array,
    types,
)
from purestate._host.native.raising import Mismatch

_I64 = ir.IntType(64)


@inline
def item_of(frame, batch, index, mask):
    """Return which item of an operand belongs to an item of the batch.

    Args:
        frame: the call frame. Every result has all axes of the batch in front.
        batch: how many axes it has.
        index: of an item in it, in row-major order.
        mask: which of these axes the operand has, as bits, the lowest for the first.
    """
    if batch == 0 or mask == 0:
        return 0
    if mask == (1 << batch) - 1:
        return index
    sizes = dimensions(result(frame, 0))
    found, stride = 0, 1
    for axis in range(batch - 1, -1, -1):
        size = load(sizes + 8 * axis)
        if mask >> axis & 1:
            found += index % size * stride
            stride *= size
        index //= size
    return found


def array_type(dtype: Any, ndim: int, *, readonly: bool) -> Any:
    """Return numba's type of an array as host functions get them."""
    return types.Array(from_dtype(dtype), ndim, "C", readonly=readonly)


@intrinsic
def view(typing: Any, buffer: Any, item: Any, kind: Any) -> Any:
    """Return an item of a buffer as an array of a type, on XLA's own memory.

    The last dimensions of the buffer are those of the item. Nothing owns the memory, so
    nobody counts who holds it.
    """
    array = kind.instance_type

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def at(address: Any, offset: int) -> Any:
            place = builder.add(address, _I64(offset))
            return builder.load(builder.inttoptr(place, _I64.as_pointer()))

        number = context.get_data_type(array.dtype)
        size = context.get_abi_sizeof(number)
        lead = builder.sub(at(args[0], RANK), _I64(array.ndim))
        own = builder.add(at(args[0], DIMENSIONS), builder.mul(lead, _I64(8)))
        shape = [at(own, 8 * axis) for axis in range(array.ndim)]
        step, strides = _I64(size), list[Any]()
        for length in reversed(shape):
            strides.insert(0, step)
            step = builder.mul(step, length)
        address = builder.add(at(args[0], DATA), builder.mul(args[1], step))
        made = make_array(array)(context, builder)
        pointer = builder.inttoptr(address, number.as_pointer())
        populate_array(made, pointer, shape, strides, size, None)
        return made._getvalue()

    return array(types.int64, types.int64, kind), codegen


@intrinsic
def block(typing: Any, address: Any, count: Any, kind: Any) -> Any:
    """Return so many numbers at an address as an array with one axis."""
    array = kind.instance_type

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = context.get_data_type(array.dtype)
        size = context.get_abi_sizeof(number)
        pointer = builder.inttoptr(args[0], number.as_pointer())
        made = make_array(array)(context, builder)
        populate_array(made, pointer, [args[1]], [_I64(size)], size, None)
        return made._getvalue()

    return array(types.int64, types.int64, kind), codegen


@intrinsic
def as_readonly(typing: Any, array: Any) -> Any:
    """Return an array that numba lets nobody write to."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return impl_ret_borrowed(context, builder, signature.return_type, args[0])

    return array.copy(readonly=True)(array), codegen


@intrinsic
def flat(typing: Any, array: Any) -> Any:
    """Return a view of a C-contiguous array with one axis, also of one without any."""
    kind = array.copy(ndim=1)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        given = make_array(array)(context, builder, value=args[0])
        made = make_array(kind)(context, builder)
        populate_array(
            made,
            given.data,
            [given.nitems],
            [given.itemsize],
            given.itemsize,
            given.meminfo,
            given.parent,
        )
        return impl_ret_borrowed(context, builder, kind, made._getvalue())

    return kind(array), codegen


@intrinsic
def _copy_bytes(typing: Any, out: Any, value: Any) -> Any:
    """Copy the numbers of an array in row-major order into one that is as large."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        into, source = (
            make_array(kind)(context, builder, value=arg)
            for kind, arg in zip(signature.args, args, strict=True)
        )
        cgutils.raw_memcpy(
            builder, into.data, source.data, source.nitems, source.itemsize
        )
        return context.get_dummy_value()

    return types.void(out, value), codegen


def put(out: Any, value: Any, record: Any, leaf: Any) -> Any:
    """Write a result, or one item of it, checked; in code of numba.

    Args:
        out: where to: an array on XLA's memory.
        value: what the function returned there.
        record: the number of the `Record` from which an error is made.
        leaf: which leaf of the result it is.

    Raises:
        Mismatch: it has another shape, or an integer that does not fit.
    """
    raise NotImplementedError  # numba has the function below in its place


@overload(put, strict=False)  # the inner ones have no annotations
def _put(out: Any, value: Any, record: Any, leaf: Any) -> Any:
    wanted = out.dtype
    given = value.dtype if isinstance(value, types.Array) else value
    below = above = None
    narrowed = isinstance(given, types.Integer) and isinstance(wanted, types.Integer)
    if narrowed:
        limits = np.iinfo(str(wanted))
        own = np.iinfo(str(given))
        narrowed = own.min < limits.min or own.max > limits.max
        # In the dtype that is given: numba compares signed with unsigned as floats.
        exact = np.dtype(str(given)).type
        below, above = exact(max(limits.min, own.min)), exact(min(limits.max, own.max))
    if not isinstance(value, types.Array):
        if narrowed:

            def put_integer(out, value, record, leaf):
                if value < below or value > above:
                    raise Mismatch(record, leaf, (), (), value)
                out[()] = value

            return put_integer

        def put_number(out, value, record, leaf):
            out[()] = value

        return put_number
    if given == wanted and value.layout == "C":

        def put_bytes(out, value, record, leaf):
            if out.shape != value.shape:
                raise Mismatch(record, leaf, out.shape, value.shape, 0)
            _copy_bytes(out, value)

        return put_bytes

    def put_array(out, value, record, leaf):
        if out.shape != value.shape:
            raise Mismatch(record, leaf, out.shape, value.shape, 0)
        if narrowed and value.size:
            least, most = value.min(), value.max()
            if least < below:
                raise Mismatch(record, leaf, out.shape, value.shape, least)
            if most > above:
                raise Mismatch(record, leaf, out.shape, value.shape, most)
        out[...] = value

    return put_array
