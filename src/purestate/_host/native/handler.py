"""Compiling a function of numba into an operation of XLA.

What is compiled is a text with one line for each argument and each result: it makes
arrays of XLA's memory, calls the function, and copies what comes back, for each item of
a batch. There is one handler for each function and its types; sizes, batch axes and
how many they are come with every call.
"""

import dataclasses
import inspect
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from purestate._host.native.arrays import (
    array_type,
    as_readonly,
    item_of,
    put,
    view,
)
from purestate._host.native.frame import (
    attribute_array,
    dimensions,
    handler_type,
    is_question,
    operand,
    result,
)
from purestate._host.native.functions import reachable
from purestate._host.native.memory import load
from purestate._host.native.numba_parts import inline, numba, types
from purestate._host.native.pool import shared
from purestate._host.native.raising import Record, guarded, note

# Compiled code stays for good, as XLA may call it for good: numba's libraries, and what
# the code reads of Python. Not the functions themselves.
_code: list[Any] = []
_made: weakref.WeakSet[Any] = weakref.WeakSet()


@dataclasses.dataclass(frozen=True)
class Signature:
    """What a handler is compiled for, beside the function.

    Attributes:
        call: the call as text, with `fn` for the function and x0, x1, ... for operands.
        operands: dtype and rank of each, without batch axes.
        wide: the dtype that each operand is cast to, None for none.
        writable: how many of the first operands are copies that may be written to.
        copied: whether the others are copies, too, as numba may not see writes to them.
        results: dtype and rank of each.
        parts: where each is in what the function returns, as text with `r` for it; or
            "", for zeros.
        threads: whether a batch is shared among threads.
    """

    call: str
    operands: tuple[tuple[Any, int], ...]
    wide: tuple[Any, ...]
    writable: int = 0
    copied: bool = False
    results: tuple[tuple[Any, int], ...] = ()
    parts: tuple[str, ...] = ()
    threads: bool = False

    @property
    def names(self) -> list[str]:
        """What the operands are called."""
        return [f"x{i}" for i in range(len(self.operands))]

    @property
    def argument_types(self) -> tuple[Any, ...]:
        """Numba's types of the operands, as the function gets them."""
        return tuple(
            array_type(wide or dtype, ndim, readonly=i >= self.writable)
            for i, ((dtype, ndim), wide) in enumerate(
                zip(self.operands, self.wide, strict=True)
            )
        )


def entry(fn: Any, signature: Signature) -> tuple[Any, Any]:
    """Return a function of the operands that makes the call, and numba's type of it.

    Raises:
        numba.core.errors.NumbaError: numba cannot compile it.
    """
    kinds, given = signature.argument_types, ", ".join(signature.names)
    call = fn
    if signature.call != f"fn({given})" or not _takes(fn, len(kinds)):
        text = f"def call({given}):\n    return {signature.call}"
        call = made(text, "call", {"fn": fn, "np": np, "as_readonly": as_readonly})
    call.compile(kinds)
    return call, call.overloads[kinds].signature.return_type


def _takes(fn: Any, count: int) -> bool:
    """Return whether a function is compiled for its arguments as they are given.

    With defaults, `*args` or types of its own it is not, and another function calls it.
    """
    kinds = [p.kind for p in inspect.signature(fn.py_func).parameters.values()]
    plain = [inspect.Parameter.POSITIONAL_OR_KEYWORD] * count
    return kinds == plain and not fn.py_func.__defaults__ and fn._can_compile


def batch_attribute(
    sizes: Sequence[int], masks: Sequence[Sequence[bool]], threads: int
) -> Any:
    """Return what a handler is told of a batch.

    Args:
        sizes: of its axes.
        masks: for each operand, which of them it has.
        threads: how many may share the items.

    Returns:
        How many axes there are, the threads, and a word of bits for each operand, the
        lowest for the first axis.
    """
    bits = (sum(has << axis for axis, has in enumerate(mask)) for mask in masks)
    return np.array([len(sizes), threads, *bits], np.int64)


@inline
def count_of(frame, batch):
    """Return how many items there are: a result has all axes of the batch in front."""
    sizes, count = dimensions(result(frame, 0)), 1
    for axis in range(load(batch)):
        count *= load(sizes + 8 * axis)
    return count


def compiled(call: Any, signature: Signature, record: Record) -> int:
    """Return the address of a handler.

    Args:
        call: what `entry` returned.
        signature: the types.
        record: what errors say of the function.
    """
    names: dict[str, Any] = {
        "call": call,
        "load": load,
        "view": view,
        "operand": operand,
        "result": result,
        "item_of": item_of,
        "put": put,
        "as_readonly": as_readonly,
        "record": note(record),
    }
    body = made(_source(signature, names), "body", names)
    kind = (types.int64,) * 4
    body.compile(kind)
    found = body.overloads[kind]
    run = guarded(found)
    if signature.threads:
        run, task = shared(run)
        _code.append(task._library)

    def handler(frame):
        if is_question(frame):
            return 0
        batch = attribute_array(frame, 0)
        return run(frame, batch, 0, count_of(frame, batch))

    operation = numba.cfunc(handler_type(), nogil=True)(handler)
    # What stays is machine code and, for each function, what it reads of Python: names
    # of modules and constants, without which an exception could not be made.
    _code.append(operation._library)
    for each in (body, *reachable(call)):
        for own in each.overloads.values():
            _code.extend([own.environment, own.library])
        if each in _made:
            each.py_func.__globals__.clear()  # with the function that it calls
    return int(operation.address)


def _source(signature: Signature, names: dict[str, Any]) -> str:
    """Return the text of a function that runs some items of a batch."""
    lines = [
        "def body(frame, batch, start, stop):",
        "    axes = load(batch)",
        "    for index in range(start, stop):",
    ]
    for i, (dtype, ndim) in enumerate(signature.operands):
        names[f"X{i}"] = array_type(dtype, ndim, readonly=True)
        item = f"item_of(frame, axes, index, load(batch + {8 * (i + 2)}))"
        made = f"view(operand(frame, {i}), {item}, X{i})"
        if signature.wide[i] is not None:
            names[f"W{i}"] = signature.wide[i].type
            made = f"{made}.astype(W{i})"
        elif i < signature.writable or signature.copied:
            made = f"{made}.copy()"
        if i >= signature.writable:
            made = f"as_readonly({made})"
        lines.append(f"        x{i} = {made}")
    lines.append(f"        r = call({', '.join(signature.names)})")
    for k, (dtype, ndim) in enumerate(signature.results):
        names[f"Y{k}"] = array_type(dtype, ndim, readonly=False)
        lines.append(f"        y{k} = view(result(frame, {k}), index, Y{k})")
        part = signature.parts[k]
        told = f"put(y{k}, {part}, record, {k})" if part else f"y{k}[...] = 0"
        lines.append(f"        {told}")
    return "\n".join([*lines, "    return 0"])


def made(source: str, name: str, names: dict[str, Any]) -> Any:
    """Return a function of numba's from its text."""
    exec(source, names)  # text of ours, with no word of a user's
    found = numba.njit(names[name])
    _made.add(found)
    return found
