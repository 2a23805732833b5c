"""What differs between versions of Python and JAX, and what others may change.

Every other file may assume that what is exported here behaves the same everywhere.
"""

import contextlib
import dataclasses
import functools
import inspect
import itertools
import os
import re
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.core
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray, Trace
from jax.core import Tracer as Tracer

# jax annotates some of its names in some versions only: what is used of those is used
# through this.
untyped_jax: Any = jax
# Imported here, with purestate, and not when it is first needed: it adds entries to
# jax's trace context, and every function that was compiled before would be compiled
# again at its next call. Public only there; jax 0.7.2 has it in jax.core alone.
_extended: Any = jax.extend.core
_home: Any = _extended if hasattr(_extended, "get_opaque_trace_state") else jax.core
_trace_state: Callable[..., object] = _home.get_opaque_trace_state
_SHARED_KEYS = 30  # beyond this, CPython gives each instance a dict of its own [1]


def fills_dict(count: int) -> bool:
    """Return whether `count` attributes are best stored through an object's `__dict__`.

    From CPython 3.13 on they stay inside the object [2]. Before, asking for `__dict__`
    makes later attribute reads about 1.4 x slower; a finished dict put in place of it
    does not.

    [1] CPython, Objects/dictobject.c, SHARED_KEYS_MAX_SIZE
    [2] python/cpython#115776
    """
    return sys.version_info >= (3, 13) or count > _SHARED_KEYS


def own_annotations(cls: type) -> dict[str, Any]:
    """Return the annotations of the class body itself, strings left as strings."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(
            cls, format=annotationlib.Format.FORWARDREF
        )
    return inspect.get_annotations(cls)


def revived_field(spec: dataclasses.Field[Any]) -> dataclasses.Field[Any]:
    """Return an unpickled field whose sentinels are the ones of this process."""
    for slot in ("default", "default_factory"):
        if type(getattr(spec, slot)) is type(dataclasses.MISSING):
            setattr(spec, slot, dataclasses.MISSING)
    private: Any = dataclasses
    kinds = (private._FIELD, private._FIELD_CLASSVAR, private._FIELD_INITVAR)
    kind = next(k for k in kinds if k.name == field_kind(spec))
    spec._field_type = kind  # type: ignore[attr-defined]
    return spec


def field_kind(spec: dataclasses.Field[Any]) -> str:
    """Return "_FIELD", "_FIELD_INITVAR" or "_FIELD_CLASSVAR"."""
    return str(spec._field_type.name)  # type: ignore[attr-defined]


def decorates_frozen(frame: types.FrameType) -> bool:
    """Return whether a frame is that of `dataclasses` making a frozen dataclass."""
    is_theirs = frame.f_globals.get("__name__") == "dataclasses"
    return is_theirs and frame.f_locals.get("frozen") is True


def is_written_by_dataclasses(function: object) -> bool:
    """Return whether the standard library wrote a method, and not a person.

    It compiles its methods from strings.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)  # type: ignore[arg-type]
    return getattr(code, "co_filename", "") == "<string>"


def is_tracer(value: object) -> bool:
    """Return whether `value` stands for an array inside a transformed function."""
    return isinstance(value, Tracer)


JAX_FOLDER = os.path.join(os.path.dirname(jax.__file__), "")


class Line(NamedTuple):
    """A line of a program that ran.

    Attributes:
        file: its file, as Python names it.
        number: the line, counted from 1.
        function: the innermost function that it is in, without those around it.
    """

    file: str
    number: int
    function: str


def computed_lines(tracer: Any) -> list[Line]:
    """Return the lines that ran when a tracer was made, the innermost first.

    Those of jax are among them. Empty for an argument of a jit or a vmap, and where jax
    does not keep them, as for the tracers of `jax.grad` outside of any jit.
    """
    if getattr(tracer, "parent", tracer) is None:
        return []
    info = getattr(tracer, "_line_info", None) or getattr(tracer, "source_info", None)
    frames = getattr(getattr(info, "traceback", None), "frames", None)
    if frames:
        lines = [
            Line(f.file_name, f.line_num, f.function_name.rpartition(".")[2])
            for f in frames
        ]
        first = itertools.takewhile(lambda x: x.file.startswith(JAX_FOLDER), lines)
        # The function that `jax.vmap` returns makes the tracers of the arguments.
        return [] if any(line.function == "vmap_f" for line in first) else lines
    inner = (getattr(tracer, name, None) for name in ("primal", "val", "tangent"))
    return next(
        (lines for t in inner if is_tracer(t) and (lines := computed_lines(t))), []
    )


_SOURCE = re.compile(r"(?P<function>.*) at (?P<file>.*):(?P<line>\d+)")


def traced_function(tracer: Any) -> Line | None:
    """Return the function in whose trace a tracer was made, by its first line."""
    about = getattr(tracer, "_debug_info", None)
    found = _SOURCE.fullmatch(str(getattr(about, "func_src_info", "")))
    if found:
        return Line(found["file"], int(found["line"]), found["function"])
    inner = (getattr(tracer, name, None) for name in ("primal", "val", "tangent"))
    return next((f for t in inner if is_tracer(t) and (f := traced_function(t))), None)


def origin_text(tracer: Any) -> str:
    """Return the line by which jax says in errors where a tracer is from, or ""."""
    return str(tracer._origin_msg()).strip()


def is_over(tracer: Any) -> bool | None:
    """Return whether the trace of a tracer came to its end; None if jax does not tell.

    A trace that an exception left did not. jax keeps the equations of a jit until its
    end, and marks other traces. It does not tell of the arguments of a jit.
    """
    trace = getattr(tracer, "_trace", None)
    if not trace or not trace.is_valid():
        return True
    equations = getattr(getattr(trace, "frame", None), "tracing_eqns", None)
    if equations is not None:
        if equations:
            return False
        return True if getattr(tracer, "parent", None) is not None else None
    inner = (getattr(tracer, name, None) for name in ("tangent", "primal", "val"))
    known = [over for t in inner if is_tracer(t) and (over := is_over(t)) is not None]
    return known[0] if known else None


def last_error() -> BaseException | None:
    """Return the exception that is handled now, or the last one that nobody handled."""
    last = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return sys.exception() or last


def current_trace() -> object:
    """Return something that equals itself exactly while the same trace is running."""
    return _trace_state(convention="purestate")


@functools.cache
def outermost_trace() -> object:
    """Return what `current_trace` is while nothing is traced, in any thread."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(current_trace()))
    thread.start()  # a new thread is inside of no trace
    thread.join()
    return found[0]


def is_inside_trace() -> bool:
    """Return whether this thread runs a function that some transform has called."""
    return current_trace() != outermost_trace()


def is_tracing() -> bool:
    """Return whether jnp returns tracers, also for arguments that are not."""
    return not is_refusing() and is_tracer(jnp.zeros(()))


def varying_axes(aval: Any) -> frozenset[Any]:
    """Return the axes of a `shard_map` along which a type's values differ."""
    if hasattr(aval, "vma"):
        return frozenset(aval.vma)
    return frozenset(aval.manual_axis_type.varying)


def vary(value: Any, axes: frozenset[Any]) -> Any:
    """Return `value`, typed as differing along `axes`."""
    missing = tuple(sorted(axes - varying_axes(jax.typeof(value)), key=str))
    if not missing:
        return value
    if hasattr(untyped_jax.lax, "pcast"):
        return untyped_jax.lax.pcast(value, missing, to="varying")
    return untyped_jax.lax.pvary(value, missing)


def result_type(like: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a type for a result, on the mesh and with the varying axes of `like`."""
    if like is None or not like.sharding.mesh.axis_names:
        return ShapedArray(shape, dtype)
    spec = untyped_jax.sharding.PartitionSpec(*(None for _ in shape))
    sharding = like.sharding.update(spec=spec)
    return like.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)


def resharded_like(value: Any, like: Any) -> Any:
    """Return `value`, laid out on the mesh as a type says, if types say so at all."""
    if not _is_explicit(like.sharding):
        return value
    return untyped_jax.sharding.reshard(value, like.sharding)


def aligned(arrays: list[Any], rank: int) -> list[Any]:
    """Return arrays whose first `rank` axes are the same ones, laid out alike.

    On a mesh with explicit axes as in the first that is split there at all, and varying
    along the same axes of a `shard_map`.
    """
    types = [jax.typeof(array) for array in arrays]
    if any(_is_explicit(found.sharding) for found in types):
        arrays = _split_alike(arrays, types, rank)
    axes = frozenset[Any]().union(*map(varying_axes, types))
    return [vary(array, axes) for array in arrays] if axes else arrays


def _split_alike(arrays: list[Any], types: list[Any], rank: int) -> list[Any]:
    specs = [tuple(found.sharding.spec) for found in types]
    meshes = [found.sharding.mesh for found in types]
    if not any(map(any, specs)) and all(mesh == meshes[0] for mesh in meshes):
        return arrays

    def says(i: int) -> tuple[bool, bool]:
        return any(specs[i][:rank]), _is_explicit(types[i].sharding)

    which = max(range(len(arrays)), key=says)
    # Outside of a trace a type does not say which devices, and jax 0.7.2 reshards only
    # what is on a mesh already.
    concrete = not any(map(is_tracer, arrays))
    like = types[which] if is_tracer(arrays[which]) else arrays[which]
    place = untyped_jax.device_put if concrete else untyped_jax.sharding.reshard
    made = []
    for array in arrays:
        rest = (None for _ in range(array.ndim - rank))
        spec = untyped_jax.sharding.PartitionSpec(*specs[which][:rank], *rest)
        made.append(place(array, like.sharding.update(spec=spec)))
    return made


def placed_on(value: Any, sharding: Any) -> Any:
    """Return a traced value, laid out on a mesh; None asks for nothing."""
    if sharding is None:
        return value
    constrain = untyped_jax.lax.with_sharding_constraint
    if not _is_explicit(sharding):
        return constrain(value, sharding)
    mesh, spec = sharding.mesh, untyped_jax.sharding.PartitionSpec
    pairs = zip(mesh.axis_names, mesh.axis_types, strict=True)
    explicit = {axis for axis, kind in pairs if kind == jax.sharding.AxisType.Explicit}
    if explicit.issuperset(mesh.axis_names):
        return untyped_jax.sharding.reshard(value, sharding)
    # On a mesh of both kinds jax takes the axes of one kind in each of the two calls.
    said: list[Any] = []
    hinted: list[Any] = []
    for entry in sharding.spec:
        axes = entry if isinstance(entry, tuple) else (entry,)
        said.append(tuple(axis for axis in axes if axis in explicit) or None)
        rest = tuple(axis for axis in axes if axis not in explicit and axis is not None)
        hinted.append(rest or (spec.UNCONSTRAINED if said[-1] else None))
    value = untyped_jax.sharding.reshard(value, sharding.update(spec=spec(*said)))
    return constrain(value, sharding.update(spec=spec(*hinted)))


FINDS_MESH = hasattr(jax.sharding, "get_mesh")  # not in jax 0.7.2


def current_mesh() -> Any:
    """Return the mesh that `jax.set_mesh` has set, or None.

    Inside of a trace, and of `grad` or `vmap` outside of one, it is abstract: programs
    are traced without devices.
    """
    if is_tracing():
        mesh = untyped_jax.sharding.get_abstract_mesh()
    elif FINDS_MESH:
        try:
            mesh = untyped_jax.sharding.get_mesh()
        except ValueError:  # jax tells it outside of all transformations only
            mesh = untyped_jax.sharding.get_abstract_mesh()
    else:
        return None
    return None if mesh.empty else mesh


def is_in_shard_map() -> bool:
    """Return whether this runs in a `shard_map` over all axes of its mesh."""
    kinds = untyped_jax.sharding.get_abstract_mesh().axis_types or ()
    return {jax.sharding.AxisType.Manual} == set(kinds)


def _is_explicit(sharding: Any) -> bool:
    kinds = getattr(sharding.mesh, "axis_types", None) or ()
    return jax.sharding.AxisType.Explicit in kinds


def weakly_typed(value: Any) -> Any:
    """Return a traced value of the same dtype, whose type is weak."""
    conversion = untyped_jax.lax.convert_element_type_p  # nothing above it does that
    return conversion.bind(value, new_dtype=value.dtype, weak_type=True, sharding=None)


def splits_in_loops() -> dict[Any, Callable[..., Any]]:
    """Return jax's rules for splitting the body of a loop, by primitive.

    jax splits it under `grad` of `scan`. Empty if this version does not show them.
    """
    from jax.interpreters import partial_eval

    return getattr(partial_eval, "custom_partial_eval_rules", {})


@functools.cache
def note_runtime_errors(note: Callable[[str], None]) -> None:
    """Call `note` with the text of each error of jax's runtime that reaches Python.

    For the rest of the process. jax tells nobody whether an error of a program came out
    anywhere, and makes the exception where it does.
    """
    error: Any = jax.errors.JaxRuntimeError
    usual = error.__init__

    def noting(self: Any, *args: Any) -> None:
        usual(self, *args)
        note(str(self))

    error.__init__ = noting


def is_differentiating() -> bool:
    """Return whether jax computes tangents beside what runs now."""
    with _home.take_current_trace() as trace:
        # By name: only the first of them is public.
        return type(trace).__name__ in ("JVPTrace", "LinearizeTrace")


_trace: Any = Trace
_CAN_REFUSE = hasattr(_extended, "set_current_trace")


class _Refusal(_trace):  # type: ignore[misc]
    """A trace in which no operation of jax can run."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        super().__init__()
        self._error = error

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise self._error()

    process_primitive = _refuse
    process_call = _refuse
    process_map = _refuse
    process_custom_jvp_call = _refuse
    process_custom_vjp_call = _refuse
    process_custom_transpose = _refuse
    process_shard_map = _refuse
    cur_qdd = _refuse
    stage_value = _refuse


def refusing_jax(
    error: Callable[[], Exception],
) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Return what makes contexts in which operations of jax raise what `error` makes.

    To make one takes half as long as a refusal would that is new each time. jax 0.7.2
    has no public way to refuse: there such operations run.
    """
    if not _CAN_REFUSE:
        return contextlib.nullcontext
    return functools.partial(_extended.set_current_trace, _Refusal(error))


def is_refusing() -> bool:
    """Return whether this thread is in such a context: all is numpy there."""
    if not _CAN_REFUSE:
        return False
    with _home.take_current_trace() as trace:
        return isinstance(trace, _Refusal)


def array_here(value: np.ndarray[Any, Any]) -> Any:
    """Return an array as one of jax, or as it is where operations of jax are refused.

    States made in a host function hold what that computes with.
    """
    return value if is_refusing() else jnp.array(value)


# What jax raises about a tracer, where a number was asked for or another trace's.
TRACER_ERRORS: tuple[type[Exception], ...] = (
    untyped_jax.errors.JAXTypeError,
    untyped_jax.errors.JAXIndexError,
)

# --- texts of jax's own errors and warnings; tests/test_canaries.py raises each -------

# A runtime refuses a buffer that it was given twice: CPU at the first call, then at a
# later one, GPU.
DONATED_TWICE = (
    "donate the same buffer twice",
    "is also used by the same call",  # "a buffer that", and "which" in other places
    "previously donated in the same call",
)
DELETED = re.compile(r"^Array has been deleted with shape=(\S*[^\s.])")
NEEDS_A_VALUE = "concrete"  # in every error about a value that a trace has not
UNUSED_DONATION = "Some donated buffers were not usable"
LEAKED = "Leaked"  # by jax.checking_leaks
# Where a derivative is not offered at all: of what has a custom_vjp in forward mode, of
# loops and custom_jvp in reverse mode, of primitives without a rule.
NO_DERIVATIVE = (
    "custom_vjp",
    "everse-mode differentiation",
    "not support JVP",
    "erentiat",
)
