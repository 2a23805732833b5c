"""What XLA hands to an operation: its call frame, as code of numba reads it.

The layout is that of XLA's C interface for foreign functions, `xla/ffi/api/c_api.h`,
which comes with jaxlib (`jax.ffi.include_dir()`) and is stable: XLA keeps it from one
minor version to the next, and says which ones it takes. All of it is for 64 bits. An
address is an int64 here; a handler takes that of its frame and returns that of an
error, or 0.
"""

import ctypes
import math
from typing import Any

import numpy as np

from purestate._host.native.memory import load, load_int, store, store_int
from purestate._host.native.numba_parts import inline, intrinsic, ir, types

# The version of the interface that this is written for. All of XLA's so far take it.
MAJOR, MINOR = 0, 1
_EXTENSIONS, _API, _CONTEXT, _OPERANDS, _RESULTS, _ATTRIBUTES = 8, 16, 24, 72, 112, 160
_DTYPE = 16  # of a buffer, a code
_DTYPES = {
    8: np.dtype(np.uint32),
    11: np.dtype(np.float32),
    12: np.dtype(np.float64),
}
DATA, RANK, DIMENSIONS = 24, 32, 40  # of a buffer
_ARRAY_DATA = 16  # of an attribute
_METADATA_KIND = 1
_FUNCTIONS = 48  # the first function of the table, 8 bytes each
CREATE_ERROR, DESTROY_ERROR, SCHEDULE = 0, 2, 11
_UNKNOWN = 2  # the code of an error that is of no other kind


@intrinsic
def _call(typing: Any, function: Any, argument: Any) -> Any:
    """Call a C function at an address, with an address; return what it returns."""
    kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)]).as_pointer()

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.call(builder.inttoptr(args[0], kind), args[1:])

    return types.int64(types.int64, types.int64), codegen


@intrinsic(prefer_literal=True)
def _block(typing: Any, words: Any) -> Any:
    """Return the address of zeros on the stack, so many words of 64 bits."""
    count = words.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.ArrayType(ir.IntType(64), count)
        with builder.goto_entry_block():
            pointer = builder.alloca(kind)
        builder.store(ir.Constant(kind, None), pointer)
        return builder.ptrtoint(pointer, ir.IntType(64))

    return types.int64(words), codegen


@inline
def is_question(frame):
    """Return whether XLA asks for the version of the interface; if so, answer.

    It does so once, when the handler is registered.
    """
    extension = load(frame + _EXTENSIONS)
    while extension != 0:
        if load_int(extension + 8) == _METADATA_KIND:
            metadata = load(extension + 24)
            store_int(metadata + 24, MAJOR)
            store_int(metadata + 28, MINOR)
            store_int(metadata + 32, 0)  # no traits
            return True
        extension = load(extension + 16)
    return False


@inline
def operand(frame, which):
    """Return the buffer of an operand."""
    return load(load(frame + _OPERANDS) + 8 * which)


@inline
def result(frame, which):
    """Return the buffer of a result."""
    return load(load(frame + _RESULTS) + 8 * which)


@inline
def data(buffer):
    """Return where the numbers of a buffer are; they are in row-major order."""
    return load(buffer + DATA)


@inline
def dimensions(buffer):
    """Return where the dimensions of a buffer are, an int64 each."""
    return load(buffer + DIMENSIONS)


@inline
def attribute_array(frame, which):
    """Return where the numbers of an attribute are; they are sorted by their names."""
    return load(load(load(frame + _ATTRIBUTES) + 8 * which) + _ARRAY_DATA)


@inline
def _function(frame, which):
    return load(load(frame + _API) + _FUNCTIONS + 8 * which)


@inline
def create_error(frame, message):
    """Return an error with a text, which ends with a zero byte and is copied."""
    args = _block(4)
    store(args, 28)
    store(args + 16, message)
    store_int(args + 24, _UNKNOWN)
    return _call(_function(frame, CREATE_ERROR), args)


@inline
def destroy_error(frame, error):
    """Free an error that is not returned to XLA."""
    args = _block(3)
    store(args, 24)
    store(args + 16, error)
    _call(_function(frame, DESTROY_ERROR), args)


@inline
def schedule(frame, task, job):
    """Have a thread of XLA call a function with an address; return whether it will."""
    args = _block(5)
    store(args, 40)
    store(args + 16, load(frame + _CONTEXT))
    store(args + 24, task)
    store(args + 32, job)
    error = _call(_function(frame, SCHEDULE), args)
    if error != 0:
        destroy_error(frame, error)
        return False
    return True


def arrays_of(frame: int) -> tuple[list[Any], list[Any], Any]:
    """Return operands, results and the first attribute as arrays of numpy, in Python.

    They are XLA's own memory, and gone when the handler returns.
    """

    def word(address: int) -> int:
        return ctypes.c_int64.from_address(address).value

    def array(address: int, dtype: Any, shape: tuple[int, ...]) -> Any:
        count = math.prod(shape)
        if not count:
            return np.zeros(shape, dtype)
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
        return np.frombuffer(memory, dtype).reshape(shape)

    def buffers(end: int) -> list[Any]:
        found = []
        for which in range(word(frame + end - 16)):
            buffer = word(word(frame + end) + 8 * which)
            dims = word(buffer + DIMENSIONS)
            shape = tuple(word(dims + 8 * i) for i in range(word(buffer + RANK)))
            code = ctypes.c_int32.from_address(buffer + _DTYPE).value
            found.append(array(word(buffer + DATA), _DTYPES[code], shape))
        return found

    told = word(word(frame + _ATTRIBUTES))
    attribute = array(word(told + _ARRAY_DATA), np.dtype(np.int64), (word(told + 8),))
    return buffers(_OPERANDS), buffers(_RESULTS), attribute


def handler_type() -> Any:
    """Return numba's signature of a handler."""
    return types.int64(types.int64)


def capsule(address: int) -> Any:
    """Return what `jax.ffi.register_ffi_target` takes, for a handler."""
    import jax

    return jax.ffi.pycapsule(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address))
