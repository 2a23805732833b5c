"""The same function in C++, called through `jax.ffi`: the least that a call can cost.

It is compiled on the spot, where there is a compiler, into a folder that is removed.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

TARGET = "purestate_bench_add_one"
SOURCE = """
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

static ffi::Error Run(ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
  const float* from = x.typed_data();
  float* to = y->typed_data();
  const size_t count = x.element_count();  // else asked for at every number
  for (size_t i = 0; i < count; ++i) to[i] = from[i] + 1.0f;
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    AddOne, Run,
    ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());
"""


def compiled() -> Callable[[Any], Any] | str:
    """Return the function for float32 arrays of any shape, or why there is none."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return "no C++ compiler was found"
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "add_one.cc"), Path(folder, "add_one.so")
        source.write_text(SOURCE)
        options = [
            "-O3",
            "-std=c++17",
            "-shared",
            "-fPIC",
            f"-I{jax.ffi.include_dir()}",
        ]
        done = subprocess.run(
            [compiler, *options, str(source), "-o", str(library)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return f"{compiler} failed: {done.stderr.strip()[:200]}"
        handler = ctypes.CDLL(str(library)).AddOne
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler), platform="cpu")

    def call(x: Any) -> Any:
        spec = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.ffi.ffi_call(TARGET, spec, vmap_method="broadcast_all")(x)

    return call
