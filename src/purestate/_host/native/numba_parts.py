"""What is used of numba and of LLVM: all of it, in one place, and without types.

Compiled functions are called with other arguments than their text shows, which no type
checker knows. `INTERNALS` is what numba does not promise to keep; each has a test that
fails when it is gone, in `tests/host/native/test_canaries.py`.
"""

from typing import Any

import llvmlite.binding as _binding
import llvmlite.ir as _ir
import numba as _numba
import numba.extending as _extending
from numba.core import cgutils as _cgutils
from numba.core import errors as _errors
from numba.core import imputils as _imputils
from numba.core import types as _types
from numba.np import arrayobj as _arrayobj
from numba.np import numpy_support as _numpy_support

numba: Any = _numba
types: Any = _types
ir: Any = _ir
binding: Any = _binding
intrinsic: Any = _extending.intrinsic
overload: Any = _extending.overload
NumbaError: Any = _errors.NumbaError
from_dtype: Any = _numpy_support.from_dtype
as_dtype: Any = _numpy_support.as_dtype
# A function for handlers: never copied into its callers as Python, which LLVM does
# better, and compiled once for all of them.
inline: Any = numba.njit(nogil=True)

cgutils: Any = _cgutils
impl_ret_borrowed: Any = _imputils.impl_ret_borrowed
make_array: Any = _arrayobj.make_array
populate_array: Any = _arrayobj.populate_array
# Where they are used: names of modules, of the context of an intrinsic, of what a
# dispatcher has compiled, of dispatchers, of classes that are compiled (JitClassType),
# and of callbacks.
INTERNALS = {
    "numba.core.cgutils": (
        *("alloca_once", "alloca_once_value", "get_or_insert_function"),
        *("is_not_null", "raw_memcpy"),
    ),
    "numba.core.imputils": ("impl_ret_borrowed",),
    "numba.np.arrayobj": ("make_array", "populate_array"),
    "context": (
        *("add_linking_libs", "call_conv.raise_error", "call_internal_no_propagate"),
        *("compile_internal", "get_python_api", "insert_const_string"),
    ),
    "class": ("jit_methods",),
    "compiled": ("environment", "fndesc", "library", "signature"),
    "dispatcher": ("_can_compile", "overloads", "py_func", "targetoptions"),
    "callback": ("_library", "address"),
}
