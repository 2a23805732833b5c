"""Keeping MuJoCo's fatal errors from ending the process.

Where it cannot go on, as when its memory is full, MuJoCo calls the log handler of the
thread and then `exit`. Its Python package therefore leaves the handler by `longjmp`, to
where the step began, and so does this. What was computed on is thrown away afterwards.
Warnings go to the handler that the process has set. A process that has set one of
MuJoCo's callbacks steps in Python: what Python sets there looks for Python's `MjData`.

It is written in LLVM's own language: a function that calls `setjmp` must say that it
returns twice, and must not become part of another one, which numba cannot promise.
"""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from purestate._host.native.numba_parts import binding
from purestate.errors import SimSpecError
from purestate.mujoco._native.library import callbacks

_LEVEL_ERROR = 3  # mjLOG_ERROR; the level is the first word of a message
# Larger than the `jmp_buf` of any system that is known: 200 bytes on x86-64 with glibc,
# 312 on ARM.
_BUFFER = 1024
_CODE = """
declare i32 @_setjmp(ptr) #0
declare void @longjmp(ptr, i32) #1
declare ptr @pthread_getspecific(i32)
declare i32 @pthread_setspecific(i32, ptr)
declare ptr @_mjPRIVATE_setTlsLogHandler(ptr)
declare ptr @_mjPRIVATE_getGlobalLogHandler()
declare void @mj_step(ptr, ptr)

define void @purestate_mujoco_handler(ptr %message) {{
  %level = load i32, ptr %message
  %fatal = icmp eq i32 %level, {error}
  br i1 %fatal, label %leave, label %pass
leave:
  %buffer = call ptr @pthread_getspecific(i32 {key})
  call void @longjmp(ptr %buffer, i32 1)
  unreachable
pass:
  %usual = call ptr @_mjPRIVATE_getGlobalLogHandler()
  %none = icmp eq ptr %usual, null
  br i1 %none, label %done, label %tell
tell:
  call void %usual(ptr %message)
  br label %done
done:
  ret void
}}

define i64 @purestate_mujoco_steps(i64 %model, i64 %data, i64 %count) #2 {{
  %buffer = alloca [{size} x i8], align 16
  %m = inttoptr i64 %model to ptr
  %d = inttoptr i64 %data to ptr
  %outer = call ptr @pthread_getspecific(i32 {key})
  %before = call ptr @_mjPRIVATE_setTlsLogHandler(ptr @purestate_mujoco_handler)
  %set = call i32 @pthread_setspecific(i32 {key}, ptr %buffer)
  %jumped = call i32 @_setjmp(ptr %buffer) #0
  %failed = icmp ne i32 %jumped, 0
  br i1 %failed, label %end, label %step
step:
  %i = phi i64 [ 0, %0 ], [ %next, %step ]
  call void @mj_step(ptr %m, ptr %d)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %step, label %end
end:
  %found = phi i64 [ 1, %0 ], [ 0, %step ]
  %after = call ptr @_mjPRIVATE_setTlsLogHandler(ptr %before)
  %unset = call i32 @pthread_setspecific(i32 {key}, ptr %outer)
  ret i64 %found
}}

define i64 @purestate_mujoco_table() {{
  ret i64 {table}
}}

define i64 @purestate_mujoco_callbacks() {{
{callbacks}
}}

attributes #0 = {{ returns_twice }}
attributes #1 = {{ noreturn }}
attributes #2 = {{ noinline }}
"""
_kept: list[Any] = []  # compiled code is called for good


@functools.cache
def prepare(table: int) -> None:
    """Make the functions of this module known to LLVM, by their names.

    Args:
        table: the address of the table, which no other process has there.
    """
    text = _CODE.format(
        error=_LEVEL_ERROR,
        key=_thread_key(),
        size=_BUFFER,
        table=table,
        callbacks=_any_set(callbacks()),
    )
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    module = binding.parse_assembly(text)
    module.verify()
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _kept.append(engine)
    for name in ("steps", "table", "callbacks"):
        whole = f"purestate_mujoco_{name}"
        binding.add_symbol(whole, engine.get_function_address(whole))


def _thread_key() -> int:
    """Return a new key, under which each thread keeps an address of its own.

    Raises:
        SimSpecError: all keys of the process, a thousand or so, are taken.
    """
    key = ctypes.c_uint()
    create: Any = ctypes.CDLL(None).pthread_key_create
    if create(ctypes.byref(key), None):
        raise SimSpecError(
            'engine="native" cannot be had: the process has no key left for memory of '
            "its threads. Leave engine= out."
        )
    return key.value


def _any_set(known: Sequence[tuple[int, int]]) -> str:
    """Return what finds out whether a pointer is not what it is without a callback.

    Args:
        known: for each pointer, where it is, and what it is then.
    """
    lines = ["  %v0 = add i64 0, 0"]
    for i, (address, usual) in enumerate(known):
        lines += [
            f"  %p{i} = inttoptr i64 {address} to ptr",
            f"  %w{i} = load i64, ptr %p{i}",
            f"  %x{i} = xor i64 %w{i}, {usual}",
            f"  %v{i + 1} = or i64 %v{i}, %x{i}",
        ]
    return "\n".join([*lines, f"  ret i64 %v{len(known)}"])
