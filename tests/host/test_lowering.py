"""How a host call gets into a compiled program, by its size, device and effects."""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import HostSpecError

VARIABLE = "PURESTATE_HOST_LOWERING"
HALF = 256 * 1024  # bytes: an argument and a result of this size are a large call
# What jax calls the way that a program holds.
TARGETS = {
    "xla_buffer_python_cpu_callback": "buffer",
    "xla_ffi_python_cpu_callback": "pure",
}


@pytest.fixture(autouse=True)
def _unset(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def lowered(fn, *shape):
    """Return how the calls got into a program, and run it."""
    x = jnp.zeros(shape or (2,), jnp.float32)
    program = jax.jit(fn).lower(x)

    assert (program.compile()(x) == 1).all()
    return [
        TARGETS[name] for name in re.findall(r"custom_call @(\w+)", program.as_text())
    ]


def add_one(**options):
    return ps.host_function(lambda x: x + 1, out=lambda x: x, **options)


def test_a_small_call_is_pure():
    assert ["pure"] == lowered(add_one(), HALF // 4 - 1)


def test_a_large_call_gets_views():
    assert ["buffer"] == lowered(add_one(), HALF // 4)


def test_arguments_and_results_count():
    double = ps.host_function(
        lambda x: np.ones(HALF // 2, np.float32),
        out=jax.ShapeDtypeStruct((HALF // 2,), jnp.float32),
    )

    assert ["buffer"] == lowered(double, 1)


def test_batch_axes_count():
    assert ["buffer"] == lowered(jax.vmap(add_one()), HALF // 4, 1)
    assert ["pure"] == lowered(jax.vmap(add_one()), HALF // 4 - 1, 1)


def test_the_calls_of_one_program_are_chosen_one_by_one():
    def program(x):
        return add_one()(x) + add_one()(x[:1]) - 1

    assert ["buffer", "pure"] == lowered(program, HALF // 4)


@pytest.mark.parametrize("options", [{"effects": True}, {"ordered": True}])
def test_a_large_call_with_effects_is_pure(options):
    assert ["pure"] == lowered(add_one(**options), HALF)


@pytest.mark.parametrize("name", ["buffer", "pure"])
@pytest.mark.parametrize("size", [1, HALF])
def test_the_environment_chooses_for_all_sizes(name, size, monkeypatch):
    monkeypatch.setenv(VARIABLE, name)

    assert [name] == lowered(add_one(), size)


def test_an_unknown_lowering_in_the_environment_is_refused(monkeypatch):
    monkeypatch.setenv(VARIABLE, "emit")

    with pytest.raises(
        HostSpecError,
        match=r"^'emit' is no lowering of host functions; they are buffer, native, pure\.",
    ):
        jax.jit(add_one())(1.0)


def test_all_calls_are_pure_where_jax_has_no_buffer_callback(monkeypatch):
    from purestate._host.program import lowering

    monkeypatch.setattr(lowering, "buffer_callback", None)
    monkeypatch.setenv(VARIABLE, "buffer")

    assert ["pure"] == lowered(add_one(), HALF)
    assert "pure" == add_one().lowering


def test_the_lowering_of_a_small_call_can_be_seen(monkeypatch):
    fn = add_one()

    assert "pure" == fn.lowering
    assert repr(fn).endswith(", pure>")
    monkeypatch.setenv(VARIABLE, "buffer")
    assert "buffer" == fn.lowering
    assert "pure" == add_one(ordered=True).lowering


def test_the_lowering_cannot_be_set():
    with pytest.raises(AttributeError, match="lowering"):
        add_one().lowering = "buffer"


# --- what purestate relies on in jax ------------------------------------------------

NO_LONGER_DIRECT = """\
A host call no longer runs by the direct call that `_call_directly` in
_host/program/lowering.py puts in place of jax's wrapper, as the last of the callbacks
in `ctx.module_context.host_callbacks`. Results stay right, and each small call costs
about four times as much; on one core, a function may wait for ever. Find where this jax
keeps what a program calls, and put the direct call there; if there is no such place,
have `chosen` take "buffer" for calls of all sizes.
"""


@pytest.mark.parametrize("options", [{}, {"effects": True}, {"ordered": True}])
def test_a_compiled_program_calls_without_a_wrapper_of_jax(options):
    @ps.host_function(out=lambda x: x, **options)
    def look(x):
        frames.extend(frames_of_purestate())
        return x

    frames = []
    jax.block_until_ready(jax.jit(look)(1.0))
    jax.effects_barrier()

    assert "numbers" not in frames, NO_LONGER_DIRECT
    assert ["direct_call", "guard"] == frames[:2]
    assert (["ordered"] if "ordered" in options else []) == frames[2:]


def frames_of_purestate():
    """Return the names of purestate's functions that wait for this one to end."""
    found, frame = [], sys._getframe()
    while (frame := frame.f_back) is not None:
        if frame.f_globals["__name__"].startswith("purestate."):
            found.append(frame.f_code.co_name)
    return found
