"""Names by which programs know their native operations.

A program holds a name and no address, so that it may lie in jax's persistent cache: the
process that finds it there has registered its own function under that name, while it
lowered the same program. Two functions never share a name in one process: the second
one's gets a number, and is then part of another program.
"""

import threading
import weakref
from typing import Any

import jax

from purestate._host.native import handler
from purestate._host.native.frame import capsule
from purestate._host.native.raising import Record

_lock = threading.RLock()
# By function, and gone with it: what is compiled stays, but nobody asks for it again.
_known: weakref.WeakKeyDictionary[Any, dict[handler.Signature, str]] = (
    weakref.WeakKeyDictionary()
)
_names: dict[str, int] = {}


def target(
    fn: Any, call: Any, signature: handler.Signature, record: Record
) -> str:
    """Return the name of the operation for a function and its types; register it once.

    Args:
        fn: numba's function, after which it is named.
        call: what calls it, as `handler.entry` returned it.
        signature: the types.
        record: what errors say of the function.
    """
    with _lock:
        known = _known.setdefault(fn, {})
        if signature not in known:
            address = handler.compiled(call, signature, record)
            known[signature] = register(_name(fn, signature), address)
        return known[signature]


def register(name: str, address: int) -> str:
    """Register a handler for programs on processors; return the name that it got."""
    with _lock:
        count = _names[name] = _names.get(name, 0) + 1
        unique = name if count == 1 else f"{name}#{count}"
        jax.ffi.register_ffi_target(unique, capsule(address), platform="cpu")
        return unique


def _name(fn: Any, signature: handler.Signature) -> str:
    function = fn.py_func
    given, made = (
        ",".join(f"{dtype}[{':' * ndim}]" for dtype, ndim in leaves)
        for leaves in (signature.operands, signature.results)
    )
    return f"purestate/{function.__module__}.{function.__qualname__}/{given}->{made}"
