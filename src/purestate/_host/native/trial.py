"""Whether native operations work here: one is compiled, called, and made to fail."""

import functools
import threading
from typing import Any

import jax
import numpy as np

from purestate._host.call.failures import original_error
from purestate._host.native.handler import (
    Signature,
    batch_attribute,
    compiled,
    entry,
)
from purestate._host.native.numba_parts import numba
from purestate._host.native.raising import Record
from purestate._host.native.targets import named, register
from purestate.errors import HostSpecError


@numba.njit
def _tried(x):
    if x[0] < 0:
        raise ValueError("as it should", x[1])
    if x[0] == 0:
        return x[1:].copy()
    return x + x


@functools.cache
def why_not_here() -> str:
    """Return why native operations do not work here, or nothing if they do.

    It takes a second or two, once, most of which numba needs to get started.
    """
    found: list[str] = []

    def run() -> None:
        try:
            found.append(_try())
        except Exception as error:  # noqa: BLE001  # whatever has changed
            found.append(f"{type(error).__name__}: {error}")

    # On a thread of its own: whoever asks may be in the middle of tracing.
    thread = threading.Thread(target=run, name="purestate-self-test")
    thread.start()
    thread.join()
    return found[0]


def _try() -> str:
    dtype = np.dtype(np.float32)
    leaf = ((dtype, 1),)
    signature = Signature("fn(x0)", leaf, (None,), results=leaf, parts=("r",))
    record = Record("the self-test", (("", dtype, dtype),))
    function, _ = entry(_tried, signature)
    address = compiled(function, signature, record)
    name = register(named(_tried.py_func, leaf, leaf), address)
    device = jax.local_devices(backend="cpu")[0]
    batch = batch_attribute((2,), [(True,)], 1)

    def call(*rows: Any) -> Any:
        given: Any = jax.device_put(np.asarray(rows, dtype), device)
        kind: Any = jax.ShapeDtypeStruct(given.shape, given.dtype)
        return jax.jit(lambda x: jax.ffi.ffi_call(name, kind)(x, batch=batch))(given)

    good = np.asarray(call([1, 2], [3, 4])).tolist()
    if good != [[2, 4], [6, 8]]:
        return f"a sum was {good}"
    for rows, kind, text in (
        (([1, 2], [-1, 3]), ValueError, "('as it should', 3.0)"),
        (([1, 2], [0, 2]), HostSpecError, "received: float"),
    ):
        try:
            call(*rows).block_until_ready()
        except Exception as error:  # noqa: BLE001  # XLA's
            raised = original_error(error)
            if not isinstance(raised, kind) or text not in str(raised):
                return f"an exception came out as {error}"
        else:
            return "an exception was lost"
    return ""
