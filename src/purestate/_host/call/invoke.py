"""Calling a host function on numpy arrays, and checking what comes back."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from purestate._host.call.leaf import (
    Leaf,
    generators,
    may_cast,
    refusal,
    too_large,
    type_text,
)
from purestate._host.call.operation import Operation
from purestate._host.call.options import Options
from purestate._inspect.key_paths import path_text
from purestate.errors import HostSpecError

Arrays = list[np.ndarray[Any, Any]]
# The imaginary part of what came back real from a complex step. One item of a batch may
# be real and the next one complex, so that the dtype cannot say it.
NOT_COMPLEX = complex(0, np.nan)


def caller(
    op: Operation,
    *,
    which: str = "fn",
    lead: tuple[int, ...] = (),
    precision: str = "declared",
    eager: bool = False,
) -> Callable[..., Sequence[np.ndarray[Any, Any]]]:
    """Return what makes a `call`: a function of arrays, `frozen` if it is "declared".

    What an operation needs is found out here, once: at each call it took longer than
    all the rest, for 8 bytes. Of most a call is then the function itself, and one look
    at the array that it returns.
    """
    options = op.options
    if options.trusted and not options.cache:
        trusted: Callable[..., Any] = getattr(options, which)
        return trusted
    if not op.is_plain or precision != "declared":
        return lambda *arrays: call(
            op, arrays, which=which, lead=lead, precision=precision, eager=eager
        )
    refusing = options.refusing
    is_flat = op.in_tree == jax.tree.structure(((0,) * len(op.ins), {}))
    unflatten = op.in_tree.unflatten
    shape: Any = None
    dtype: Any = None
    if op.returns_array:
        shape, dtype = lead + op.outs[0].shape, op.outs[0].dtype

    def direct_call(*arrays: np.ndarray[Any, Any]) -> Sequence[np.ndarray[Any, Any]]:
        args, kwargs = (arrays, _NO_NAMES) if is_flat else unflatten(arrays)
        called = getattr(options, which)  # now: to count calls replaces it
        if eager:
            result = called(*args, **kwargs)
        else:
            with refusing():
                result = called(*args, **kwargs)
        if (
            type(result) is np.ndarray
            and result.shape == shape
            and result.dtype == dtype
        ):
            return (result,)
        return checked(op, result, lead, "declared")

    return direct_call


_NO_NAMES: dict[str, Any] = {}


def frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array with these numbers that is C-contiguous and read-only."""
    flags = array.flags
    if not flags.c_contiguous:
        array = array.copy(order="C")
    elif not flags.writeable:
        return array
    array = array.view()
    array.flags.writeable = False
    return array


def call(
    op: Operation,
    arrays: Sequence[np.ndarray[Any, Any]],
    *,
    which: str = "fn",
    lead: tuple[int, ...] = (),
    precision: str = "declared",
    eager: bool = False,
) -> Arrays:
    """Return the leaves of one result, checked.

    Args:
        op: the function and its types.
        arrays: one per argument leaf.
        which: "fn", or "batch_fn" for the whole-batch version.
        lead: the batch axes that arguments and results have in front.
        precision: of inexact results: "declared"; "double", as differences need it; or
            "kept", double for those that come in another one than declared.
        eager: called by a person, and not by a running program.
    """
    size = op.options.cache
    if not size:
        return _call(op, arrays, which, lead, precision, eager)
    numbers = ((a.shape, a.dtype.str, a.tobytes()) for a in arrays)
    key = (which, lead, precision, *numbers)
    with op.lock:
        if (kept := op.kept.get(key)) is not None:
            op.kept.move_to_end(key)
            return list(kept)
    made = [found.copy() for found in _call(op, arrays, which, lead, precision, eager)]
    with op.lock:
        op.kept[key] = made
        while len(op.kept) > size:
            op.kept.popitem(last=False)
    return list(made)


def _call(
    op: Operation,
    arrays: Sequence[np.ndarray[Any, Any]],
    which: str,
    lead: tuple[int, ...],
    precision: str,
    eager: bool,
) -> Arrays:
    options = op.options
    fn = getattr(options, which)
    if options.trusted:
        made: Arrays = fn(*arrays)
        return made
    args, kwargs = arguments(op, arrays)
    result = invoke(options, fn, args, {**kwargs, **op.statics}, eager)
    if options.has_effects and options.out is None:
        return []  # an effect without a spec has no result
    return checked(op, result, lead, precision)


def arguments(op: Operation, arrays: Sequence[np.ndarray[Any, Any]]) -> Any:
    """Return `(args, kwargs)` as the function gets them."""
    options = op.options
    leaves = []
    for leaf, given in zip(op.ins, arrays, strict=True):
        if leaf.key is not None:
            leaves.append(generators(given))
            continue
        array = given
        if options.upcast and array.dtype == leaf.dtype:
            array = array.astype(leaf.wide, copy=False)
        if not options.writable:
            array = frozen(array)
        elif not array.flags.c_contiguous or array is given:
            array = array.copy(order="C")
        leaves.append(array)
    return jax.tree.unflatten(op.in_tree, leaves)


def invoke(
    options: Options,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    eager: bool = False,
) -> Any:
    """Return what a function of the user returns, on its thread, with its scratch."""
    refusing = contextlib.nullcontext if eager else options.refusing

    def run() -> Any:
        if options.work_spaces is None:
            with refusing():
                return fn(*args, **kwargs)
        with options.work_spaces.lent() as first, refusing():
            return fn(first, *args, **kwargs)

    if options.own_thread is not None:
        return options.own_thread.run(run)
    if eager and options.work_spaces is None:
        return fn(*args, **kwargs)
    return run()


def checked(
    op: Operation, result: Any, lead: tuple[int, ...], precision: str
) -> Arrays:
    """Return the leaves of a result; structure, then shapes, then dtypes are checked.

    Raises:
        HostSpecError: what was declared and what came back do not agree.
    """
    values, tree = jax.tree.flatten(result)
    if tree != op.out_tree:
        raise _structure_error(op, result, tree)
    return [
        value
        if type(value) is np.ndarray
        and value.shape == lead + leaf.shape
        and value.dtype == leaf.dtype
        and precision == "declared"
        else _checked(op, path, leaf, value, lead, precision)
        for path, leaf, value in zip(op.out_paths, op.outs, values, strict=True)
    ]


def _checked(
    op: Operation,
    path: str,
    leaf: Leaf,
    value: Any,
    lead: tuple[int, ...],
    precision: str,
) -> np.ndarray[Any, Any]:
    if leaf.key is not None:
        value = _key_data(value, leaf)
    if type(value) is np.ndarray:
        array = value
    elif isinstance(value, np.ma.MaskedArray):
        raise unexpected(op.options.label, path, leaf, lead, ", ".join(refusal(value)))
    else:
        array = np.asarray(value)
    expected = lead + leaf.shape
    if array.dtype == object:
        shown = str(value) if isinstance(value, int) else type(value).__name__
        raise unexpected(
            op.options.label, path, leaf, lead, f"an array of objects ({shown})"
        )
    if lead and array.shape != expected and op.options.vmap == "vectorized":
        array = _repeated(array, lead, leaf)  # what no argument with the axis reached
    if array.shape != expected:
        raise unexpected(op.options.label, path, leaf, lead, type_text(array))
    if precision == "kept" and array.dtype != leaf.dtype:
        wanted = leaf.wide
    elif precision == "double" and leaf.inexact:
        # For differences: all in double precision, whatever single items come as.
        wanted = np.dtype(complex) if op.options.grad == "complex" else leaf.wide
    else:
        wanted = leaf.dtype
    if array.dtype == wanted:
        return array
    if not may_cast(array.dtype, wanted, op.options.casting, isinstance(value, int)):
        why = f" (casting={op.options.casting!r})"
        raise unexpected(op.options.label, path, leaf, lead, type_text(array) + why)
    number = None if op.options.casting == "unsafe" else too_large(array, wanted)
    if number is not None:
        why = f" with {number}, which {wanted.name} cannot hold"
        raise unexpected(op.options.label, path, leaf, lead, type_text(array) + why)
    cast = array.astype(wanted)
    is_turned = precision == "double" and op.options.grad == "complex" and leaf.inexact
    if is_turned and array.dtype.kind != "c":
        return np.asarray(cast + NOT_COMPLEX)
    return cast


def _repeated(
    array: np.ndarray[Any, Any], lead: tuple[int, ...], leaf: Leaf
) -> np.ndarray[Any, Any]:
    sizes = array.shape[: len(lead)]
    if len(sizes) < len(lead) or array.shape[len(lead) :] != leaf.shape:
        return array
    if any(found not in (1, size) for found, size in zip(sizes, lead, strict=True)):
        return array
    return np.broadcast_to(array, lead + leaf.shape)


def _key_data(value: Any, leaf: Leaf) -> Any:
    """Return the numbers of a new key: a generator's next ones, or those given."""
    if isinstance(value, np.random.Generator):
        return value.integers(0, 2**32, leaf.shape, leaf.dtype)
    found = np.asarray(value)
    if found.dtype == object and found.shape == leaf.shape[:-1]:
        rows = [g.integers(0, 2**32, leaf.shape[-1], leaf.dtype) for g in found.flat]
        return np.reshape(rows, leaf.shape)
    return found


def unexpected(
    label: str, path: str, leaf: Leaf, lead: tuple[int, ...], found: str
) -> HostSpecError:
    """Return the error for a leaf that is not what was declared."""
    shape = ",".join(map(str, (*lead, *leaf.shape)))
    batch = f" (batch {lead} in front)" if lead else ""
    return HostSpecError(
        f"{label} returned another array than declared at "
        f"{path or 'its result'}:\n"
        f"  expected: {leaf.dtype.name}[{shape}]{batch}\n"
        f"  received: {found}"
    )


def _structure_error(op: Operation, result: Any, tree: Any) -> HostSpecError:
    found = [path_text(keys) for keys, _ in jax.tree_util.tree_leaves_with_path(result)]
    missing = [path for path in op.out_paths if path not in found]
    extra = [path for path in found if path not in op.out_paths]
    where = "".join(
        f"\n  {title}: {', '.join(path or 'an array' for path in paths[:5])}"
        for title, paths in (("missing", missing), ("not declared", extra))
        if paths
    )
    return HostSpecError(
        f"{op.options.label} returned another structure than declared:\n"
        f"  declared: {op.out_tree}\n"
        f"  returned: {tree}{where}"
    )
