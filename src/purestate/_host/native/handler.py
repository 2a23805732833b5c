"""Compiling a function of numba into an operation of XLA.

What is compiled is a text with one line for each argument and each result: it makes
arrays of XLA's memory, calls the function, and copies what comes back, for each item of
a batch. There is one handler for each function and its types; sizes, batch axes and
how many they are come with every call.
"""

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import numba
from numba.core import types

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
    inline,
    is_question,
    operand,
    result,
)
from purestate._host.native.functions import reachable
from purestate._host.native.memory import load
from purestate._host.native.pool import shared
from purestate._host.native.raising import Record, guarded, note

BATCH = "batch"  # the attribute: int64, as `batch_attribute` makes it
# Compiled code stays for good, as XLA may call it for good: numba's libraries, and what
# the code reads of Python. Not the functions themselves.
_code: list[Any] = []


@dataclasses.dataclass(frozen=True)
class Signature:
    """What a handler is compiled for, beside the function.

    Attributes:
        call: the call as text, with `fn` for the function and x0, x1, ... for operands.
        operands: dtype and rank of each, without batch axes.
        results: dtype and rank of each.
        parts: where each is in what the function returns, as text with `r` for it.
        wide: the dtype that each operand is cast to, None for none.
        writable: whether operands are copies.
        threads: whether a batch is shared among threads.
    """

    call: str
    operands: tuple[tuple[Any, int], ...]
    results: tuple[tuple[Any, int], ...]
    parts: tuple[str, ...]
    wide: tuple[Any, ...]
    writable: bool = False
    threads: bool = False

    def argument_types(self) -> list[Any]:
        """Return numba's types of the operands, as the function gets them."""
        return [
            array_type(wide or dtype, ndim, readonly=not self.writable)
            for (dtype, ndim), wide in zip(self.operands, self.wide, strict=True)
        ]


@inline
def _count(frame, batch):  # type: ignore[no-untyped-def]
    """Return how many items there are: a result has all axes of the batch in front."""
    sizes, count = dimensions(result(frame, 0)), 1
    for axis in range(load(batch)):
        count *= load(sizes + 8 * axis)
    return count


def compiled(fn: Any, signature: Signature, record: Record) -> int:
    """Return the address of a handler.

    Raises:
        numba.core.errors.NumbaError: numba cannot compile it.
    """
    names: dict[str, Any] = {
        "fn": fn,
        "load": load,
        "view": view,
        "operand": operand,
        "result": result,
        "item_of": item_of,
        "put": put,
        "as_readonly": as_readonly,
        "record": note(record),
    }
    body = _made(_source(signature, names), names)
    kind = (types.int64,) * 4
    body.compile(kind)
    found = body.overloads[kind]
    run = guarded(found)
    if signature.threads:
        run, task = shared(run)
        _code.append(task._library)

    def handler(frame):  # type: ignore[no-untyped-def]
        if is_question(frame):
            return 0
        batch = attribute_array(frame, 0)
        return run(frame, batch, 0, _count(frame, batch))

    made = numba.cfunc(handler_type(), nogil=True)(handler)
    # What stays is machine code and, for each function, what it reads of Python: names
    # of modules and constants, without which an exception could not be made.
    _code.append(made._library)
    for each in (body, *reachable(fn)):
        _code.extend(c.environment for c in each.overloads.values())
        _code.extend(c.library for c in each.overloads.values())
    return int(made.address)


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
            if not signature.writable:
                made = f"as_readonly({made})"
        elif signature.writable:
            made = f"{made}.copy()"
        lines.append(f"        x{i} = {made}")
    lines.append(f"        r = {signature.call}")
    for k, (dtype, ndim) in enumerate(signature.results):
        names[f"Y{k}"] = array_type(dtype, ndim, readonly=False)
        lines.append(f"        y{k} = view(result(frame, {k}), index, Y{k})")
        lines.append(f"        put(y{k}, {signature.parts[k]}, record, {k})")
    return "\n".join([*lines, "    return 0"])


def _made(source: str, names: dict[str, Any]) -> Any:
    exec(source, names)  # text of ours, with no word of a user's
    return numba.njit(names["body"])
