"""Names by which programs know their native operations.

A program holds a name and no address, so that it may lie in jax's persistent cache: the
process that finds it there has registered its own function under that name, while it
lowered the same program. Two functions never share a name in one process: the second
one's gets a number, and is then part of another program.
"""

import threading
from typing import Any

import jax

from purestate._host.native.frame import capsule

_lock = threading.Lock()
_names: dict[str, int] = {}


def register(name: str, address: int) -> str:
    """Register a handler for programs on processors; return the name that it got."""
    with _lock:
        count = _names[name] = _names.get(name, 0) + 1
    unique = name if count == 1 else f"{name}#{count}"
    # XLA refuses a name that is taken, as by another copy of this module.
    jax.ffi.register_ffi_target(unique, capsule(address), platform="cpu")
    return unique


def named(function: Any, operands: Any, results: Any) -> str:
    """Return the name for a Python function and its types: pairs of dtype and rank."""
    given, made = (
        ",".join(f"{dtype}[{':' * ndim}]" for dtype, ndim in leaves)
        for leaves in (operands, results)
    )
    return f"purestate/{function.__module__}.{function.__qualname__}/{given}->{made}"
