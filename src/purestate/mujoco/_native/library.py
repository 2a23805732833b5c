"""MuJoCo's own functions, by name, for code that numba and LLVM compile."""

import ctypes
import functools
from pathlib import Path
from typing import Any

from purestate._host.native.numba_parts import binding, types
from purestate.mujoco._package import mujoco

# The last two are no part of its interface: MuJoCo's Python package uses them to make
# exceptions of fatal errors.
NAMES = (
    *("mj_step", "mj_setState", "mj_getState", "mj_makeData", "mj_deleteData"),
    *("_mjPRIVATE_setTlsLogHandler", "_mjPRIVATE_getGlobalLogHandler"),
)
# Of the C library. On Windows there is no `_setjmp` that can be called like this.
_JUMPS = ("_setjmp", "longjmp", "pthread_getspecific", "pthread_setspecific")

CALLBACKS = (
    *("mjcb_passive", "mjcb_control", "mjcb_contactfilter", "mjcb_sensor", "mjcb_time"),
    *("mjcb_act_dyn", "mjcb_act_gain", "mjcb_act_bias"),
)

_address = types.int64
set_state = types.ExternalFunction(
    "mj_setState", types.void(_address, _address, _address, types.int32)
)
get_state = types.ExternalFunction(
    "mj_getState", types.void(_address, _address, _address, types.int32)
)
make_data = types.ExternalFunction("mj_makeData", _address(_address))
delete_data = types.ExternalFunction("mj_deleteData", types.void(_address))


@functools.cache
def missing() -> tuple[str, ...]:
    """Return the names of functions that are not there; the others can be called."""
    found = [name for name in _JUMPS if not _symbol(name)]
    library = loaded()
    for name in NAMES:
        function = getattr(library, name, None)
        if function is None:
            found.append(name)
        else:
            address = ctypes.cast(function, ctypes.c_void_p).value
            binding.add_symbol(name, address)
    return tuple(found)


def callbacks() -> list[tuple[int, int]]:
    """Return where MuJoCo has its callbacks, and what is there if none is set.

    Not always null: the Python package brings a clock of its own.
    """
    found = []
    for name in CALLBACKS:
        pointer = ctypes.c_void_p.in_dll(loaded(), name)
        is_set = getattr(mujoco, f"get_{name}")() is not None
        found.append((ctypes.addressof(pointer), 0 if is_set else pointer.value or 0))
    return found


def free_space(data: int) -> None:
    """Free the `mjData` at an address."""
    delete: Any = loaded().mj_deleteData
    delete(ctypes.c_void_p(data))


@functools.cache
def loaded() -> Any:
    """Return the shared library in MuJoCo's package, which is loaded already."""
    home = Path(mujoco.__file__).parent
    names = [*home.glob("libmujoco*.so*"), *home.glob("libmujoco*.dylib")]
    return ctypes.CDLL(str(names[0])) if names else None


def _symbol(name: str) -> Any:
    return binding.address_of_symbol(name)
