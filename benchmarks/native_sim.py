"""MuJoCo stepped by C++ threads, called through `jax.ffi`: the least a batch can cost.

Compiled on the spot, where there is a compiler, against the library that the Python
package of MuJoCo brings. States travel as words, as purestate's do, and each thread has
an `mjData` of its own.
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
import mujoco

TARGET = "purestate_bench_mujoco"
SOURCE = """
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>
#include "mujoco/mujoco.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using Words = ffi::Buffer<ffi::U32>;
using Controls = ffi::Buffer<ffi::F32>;

static std::vector<mjData*> spaces;

static ffi::Error Run(int64_t address, int64_t substeps, int64_t threads, Words in,
                      Controls controls, ffi::ResultBuffer<ffi::U32> out) {
  const mjModel* m = reinterpret_cast<const mjModel*>(address);
  const int size = mj_stateSize(m, mjSTATE_INTEGRATION);
  const size_t count = in.element_count() / 2 / size;
  if (spaces.empty() || spaces[0]->nplugin != 0)
    while (spaces.size() < (size_t)threads) spaces.push_back(mj_makeData(m));
  std::atomic<size_t> next{0};
  auto work = [&](mjData* d) {
    for (size_t i; (i = next++) < count;) {
      auto from = reinterpret_cast<const mjtNum*>(in.typed_data()) + i * size;
      auto to = reinterpret_cast<mjtNum*>(out->typed_data()) + i * size;
      mj_setState(m, d, from, mjSTATE_INTEGRATION);
      for (int u = 0; u < m->nu; ++u) d->ctrl[u] = controls.typed_data()[i * m->nu + u];
      for (int64_t s = 0; s < substeps; ++s) mj_step(m, d);
      mj_getState(m, d, to, mjSTATE_INTEGRATION);
    }
  };
  std::vector<std::thread> others;
  for (int64_t t = 1; t < threads && (size_t)t < count; ++t)
    others.emplace_back(work, spaces[t]);
  work(spaces[0]);
  for (auto& other : others) other.join();
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    Step, Run,
    ffi::Ffi::Bind().Attr<int64_t>("model").Attr<int64_t>("substeps")
        .Attr<int64_t>("threads").Arg<Words>().Arg<Controls>()
        .Ret<ffi::Buffer<ffi::U32>>());
"""
"""Work spaces are made at the first call and belong to one model per process."""


def compiled() -> Callable[..., Any] | str:
    """Return `step(model, substeps)(words, controls)`, or why there is none."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return "no C++ compiler was found"
    home = Path(mujoco.__file__).parent
    library = next(iter(sorted(home.glob("libmujoco*.so*"))), None)
    if library is None or not (home / "include").is_dir():
        return "the MuJoCo that is installed has no headers"
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "step.cc"), Path(folder, "step.so")
        source.write_text(SOURCE)
        options = ["-O3", "-std=c++17", "-shared", "-fPIC", "-pthread"]
        options += [f"-I{jax.ffi.include_dir()}", f"-I{home / 'include'}"]
        options += [str(source), str(library), f"-Wl,-rpath,{home}", "-o", str(made)]
        done = subprocess.run(
            [compiler, *options], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return f"{compiler} failed: {done.stderr.strip()[:200]}"
        handler = ctypes.CDLL(str(made)).Step
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler), platform="cpu")

    def step(model: Any, substeps: int) -> Callable[[Any, Any], Any]:
        facts = {
            "model": model._address,
            "substeps": substeps,
            "threads": os.cpu_count() or 1,
        }

        def call(words: Any, controls: Any) -> Any:
            spec = jax.ShapeDtypeStruct(words.shape, words.dtype)
            return jax.ffi.ffi_call(TARGET, spec)(
                words,
                controls,
                **{k: ctypes.c_int64(v).value for k, v in facts.items()},
            )

        return call

    return step
