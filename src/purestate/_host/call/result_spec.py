"""What a host function returns: from a spec, a function of specs, names, or a probe."""

import inspect
import typing
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purestate._host.call.invoke import arguments, invoke
from purestate._host.call.leaf import Leaf, key_facts, refusal, struct, type_in_jax
from purestate._host.call.operation import Operation
from purestate._host.call.options import Options
from purestate._schema.dimensions import Dimension, dimensions
from purestate._schema.leaves import is_key
from purestate.errors import HostSpecError
from purestate.errors._text import error_text


def infer(
    options: Options, in_tree: Any, ins: tuple[Leaf, ...], statics: dict[str, Any]
) -> Operation:
    """Return the operation for these arguments: what comes back is found out once.

    Raises:
        HostSpecError: nothing says what comes back, or not with shape and dtype.
    """
    tree: Any
    outs: tuple[Leaf, ...]
    if options.out is None and options.has_effects:
        tree, outs = jax.tree.structure(None), ()
    elif options.out is None:
        tree, outs = _annotated(options, in_tree, ins) or _probed(
            options, in_tree, ins, statics
        )
    elif _is_function(options.out):
        structs = [_struct(leaf) for leaf in ins]
        args, kwargs = jax.tree.unflatten(in_tree, structs)
        tree, outs = _spec(options, options.out(*args, **kwargs, **statics))
    else:
        tree, outs = _spec(options, options.out)
    return Operation(options, in_tree, ins, statics, tree, outs)


def _is_function(out: Any) -> bool:
    is_spec = hasattr(out, "shape") and hasattr(out, "dtype")
    is_leaf = jax.tree.leaves(out) == [out] if callable(out) else False
    return is_leaf and not is_spec


def _struct(leaf: Leaf) -> Any:
    if leaf.key is not None:
        return struct(leaf.shape[:-1], leaf.key)
    return struct(leaf.shape, leaf.dtype)


def _spec(options: Options, out: Any) -> tuple[Any, tuple[Leaf, ...]]:
    values, tree = jax.tree.flatten(out)
    is_shape = isinstance(out, tuple | list) and all(isinstance(v, int) for v in values)
    if values and is_shape:
        shape = tuple(out)
        raise HostSpecError(
            f"{options.label} has out={out!r}, which says no dtype. Write "
            f"out=jax.ShapeDtypeStruct({shape}, jnp.float32), or an example array."
        )
    return tree, tuple(_leaf(options, value) for value in values)


def _leaf(options: Options, value: Any) -> Leaf:
    if is_key(value):
        count, _ = key_facts(value.dtype)
        return Leaf((*value.shape, count), np.dtype(np.uint32), value.dtype)
    if isinstance(value, bool | int | float | complex):
        value = np.asarray(value)
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        raise HostSpecError(
            f"{options.label} has {value!r} in out=, which has no shape and dtype: "
            f"give a jax.ShapeDtypeStruct or an example array."
        )
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(value.dtype))
    return Leaf(tuple(map(int, value.shape)), dtype)


# --- a probe -------------------------------------------------------------------------


def _probed(
    options: Options, in_tree: Any, ins: tuple[Leaf, ...], statics: dict[str, Any]
) -> tuple[Any, tuple[Leaf, ...]]:
    if options.probe is None:
        raise HostSpecError(
            f"{options.label} does not say what it returns: give out=, for example "
            f"out=jax.ShapeDtypeStruct(shape, dtype)."
        )
    make = np.ones if options.probe == "ones" else np.zeros
    arrays = [make(leaf.shape, leaf.dtype) for leaf in ins]
    blank = Operation(options, in_tree, ins, statics, None, ())
    args, kwargs = arguments(blank, arrays)
    try:
        with np.errstate(all="ignore"):  # 0 / 0 says nothing about the types
            result = invoke(options, options.fn, args, {**kwargs, **statics})
    except Exception as error:
        shown = ", ".join(map(str, ins))
        raise HostSpecError(
            f"{options.label} was called once with {options.probe} ({shown}) to see "
            f"what it returns, and raised {error_text(error)}. Say it with "
            f'out=jax.ShapeDtypeStruct(shape, dtype), or probe="ones".'
        ) from error
    values, tree = jax.tree.flatten(result)
    outs = []
    for value in values:
        found = type_in_jax(value)
        if found is None:
            raise HostSpecError(
                f"{options.label} returned {refusal(value)[0]} where it should "
                f"return arrays: {value!r}."
            )
        outs.append(found)
    return tree, tuple(outs)


# --- jaxtyping -----------------------------------------------------------------------


def _annotated(
    options: Options, in_tree: Any, ins: tuple[Leaf, ...]
) -> tuple[Any, tuple[Leaf, ...]] | None:
    """Return what a jaxtyping return annotation says, None if there is none."""
    try:
        hints = typing.get_type_hints(inspect.unwrap(options.fn))
    except (AttributeError, NameError, TypeError):
        return None
    wanted = hints.get("return")
    if wanted is None or not _all_jaxtyping(wanted) or options.signature is None:
        return None
    args, kwargs = jax.tree.unflatten(in_tree, ins)
    bound = options.signature.bind_partial(*args, **kwargs).arguments
    sizes: dict[str, Any] = {}
    for name, value in bound.items():
        if isinstance(value, Leaf) and _is_jaxtyping(hints.get(name)):
            _bind(options, name, hints[name], value, sizes)
    return _declared(options, wanted, ins, sizes)


def _is_jaxtyping(hint: Any) -> bool:
    return hasattr(hint, "dim_str") and hasattr(hint, "dtypes")


def _all_jaxtyping(hint: Any) -> bool:
    if typing.get_origin(hint) is tuple:
        return all(map(_all_jaxtyping, typing.get_args(hint)))
    return _is_jaxtyping(hint)


def _declared(
    options: Options, hint: Any, ins: tuple[Leaf, ...], sizes: Mapping[str, Any]
) -> tuple[Any, tuple[Leaf, ...]]:
    def build(hint: Any) -> Any:
        if typing.get_origin(hint) is tuple:
            return tuple(map(build, typing.get_args(hint)))
        shape: list[int] = []
        for dim in dimensions(hint.dim_str):
            size = _size(options, dim, sizes)
            shape += size if isinstance(size, tuple) else [size]
        return struct(tuple(shape), _dtype(hint, ins))

    return _spec(options, build(hint))


def _bind(
    options: Options, name: str, hint: Any, leaf: Leaf, sizes: dict[str, Any]
) -> None:
    dims = dimensions(hint.dim_str)
    many = [i for i, dim in enumerate(dims) if dim.is_many]
    spare = len(leaf.shape) - len(dims) + len(many)
    if spare < 0 or (spare != 0 and not many):
        raise HostSpecError(
            f"{options.label} got {name} of shape {leaf.shape}, annotated "
            f"{hint.dim_str!r}."
        )
    shape: list[Any] = list(leaf.shape)
    if many:
        at = many[0]
        shape[at : at + spare] = [tuple(shape[at : at + spare])]
    for dim, size in zip(dims, shape, strict=True):
        known = sizes.setdefault(dim.label, size) if dim.label.isidentifier() else size
        if dim.label.isdigit():
            known = int(dim.label)
        if known != size and not (dim.is_anonymous or dim.may_be_one):
            raise HostSpecError(
                f"{options.label} got {name} of shape {leaf.shape}, annotated "
                f"{hint.dim_str!r}: {dim.label} is {size} here and {known} before."
            )


def _size(options: Options, dim: Dimension, sizes: Mapping[str, Any]) -> Any:
    try:
        return dim.size(sizes)
    except (KeyError, SyntaxError):
        raise HostSpecError(
            f"{options.label} is annotated to return an axis {dim.word!r}, and no "
            f"argument has it: the known ones are {', '.join(sizes) or 'none'}. Give "
            f"out=."
        ) from None


def _dtype(hint: Any, ins: tuple[Leaf, ...]) -> Any:
    names = [hint.dtypes] if isinstance(hint.dtypes, str) else list(hint.dtypes)
    fitting = [leaf.dtype for leaf in ins if leaf.dtype.name in names]
    if fitting:
        return jnp.result_type(*fitting)
    for name in ("bool", "int32", "float32", "complex64"):
        if name in names and len(names) > 1:
            return name
    return names[0]
