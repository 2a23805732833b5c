"""What native operations lean on: each test fails when it is no longer so.

Where one fails after an update of numba or jax, look at `_host/native/numba_parts.py`
and `_host/native/frame.py`. Functions stay callbacks as long as the self-test fails.
"""

import importlib
import operator
import pathlib
import re

import jax
import numpy as np
import pytest

from tests.host.native.helpers import numba

parts = pytest.importorskip("purestate._host.native.numba_parts")
frame = importlib.import_module("purestate._host.native.frame")


@pytest.fixture(scope="module")
def context():
    """Return the context that numba hands to intrinsics."""
    kept = []

    @numba.extending.intrinsic
    def look(typing, x):
        def codegen(context, builder, signature, args):
            kept.append(context)
            return args[0]

        return x(x), codegen

    numba.njit(lambda x: look(x))(1.0)
    return kept[0]


@pytest.mark.parametrize(
    ("module", "name"),
    [(m, n) for m, names in parts.INTERNALS.items() if "." in m for n in names],
)
def test_modules_of_numba_still_have(module, name):
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize("name", parts.INTERNALS["context"])
def test_the_context_of_an_intrinsic_still_has(context, name):
    assert callable(operator.attrgetter(name)(context))


def test_what_a_dispatcher_has_compiled_is_still_there():
    fn = numba.njit(lambda x: x + 1)
    kinds = (numba.types.int64,)
    fn.compile(kinds)

    for name in parts.INTERNALS["dispatcher"]:
        assert hasattr(fn, name)
    for name in parts.INTERNALS["compiled"]:
        assert getattr(fn.overloads[kinds], name) is not None
    assert numba.types.int64 == fn.overloads[kinds].signature.return_type
    assert {} == {k: v for k, v in fn.targetoptions.items() if k == "forceobj" and v}


def test_a_compiled_class_still_has_its_methods():
    @numba.experimental.jitclass([("k", numba.float64)])
    class Scaled:
        def __init__(self, k):
            self.k = k

        def of(self, x):
            return self.k * x

    assert "JitClassType" == type(Scaled).__name__
    (name,) = parts.INTERNALS["class"]
    assert {"__init__", "of"} == set(getattr(Scaled.class_type, name))


def test_a_callback_of_numba_still_has_an_address():
    made = numba.cfunc(numba.types.int64(numba.types.int64))(lambda x: x)

    assert made.address > 0
    assert made._library is not None


def test_a_function_that_returns_a_number_still_has_the_type_of_that_number():
    fn = numba.njit(lambda x: 0)
    fn.compile((numba.types.int64,))

    (found,) = fn.overloads.values()
    assert isinstance(found.signature.return_type, numba.types.Literal)


def test_numba_still_takes_arrays_that_nobody_may_write_to_for_what_they_are():
    array = np.zeros(3, np.float32)
    array.flags.writeable = False

    expected = numba.types.Array(numba.types.float32, 1, "C", readonly=True)
    assert expected == numba.typeof(array)


def fields(header, struct):
    """Return the names of the fields of a struct of XLA's, in order."""
    body = re.search(rf"struct {struct} {{(.*?)\n}};", header, re.DOTALL)[1]
    body = re.sub(r"//[^\n]*", "", body)
    found = re.findall(r"(\w+)\)?;", body)
    return [name for name in found if name != "extension_start"]


def test_the_interface_of_xla_is_the_one_that_is_read():
    header = pathlib.Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text()

    assert f"#define XLA_FFI_API_MAJOR {frame.MAJOR}\n" in header
    expected = {
        "XLA_FFI_Buffer": ["struct_size", "dtype", "data", "rank", "dims"],
        "XLA_FFI_CallFrame": [
            "struct_size",
            "api",
            "ctx",
            "stage",
            "args",
            "rets",
            "attrs",
        ],
        "XLA_FFI_Args": ["struct_size", "size", "types", "args"],
        "XLA_FFI_Attrs": ["struct_size", "size", "types", "names", "attrs"],
        "XLA_FFI_Error_Create_Args": ["struct_size", "message", "errc"],
        "XLA_FFI_ThreadPool_Schedule_Args": ["struct_size", "ctx", "task", "data"],
    }
    for struct, names in expected.items():
        assert names == fields(header, struct)[: len(names)]
    functions = fields(header, "XLA_FFI_Api")
    first = functions.index("XLA_FFI_Error_Create")
    for name, number in (
        ("Error_Create", frame.CREATE_ERROR),
        ("Error_Destroy", frame.DESTROY_ERROR),
        ("ThreadPool_Schedule", frame.SCHEDULE),
    ):
        assert number == functions.index(f"XLA_FFI_{name}") - first
