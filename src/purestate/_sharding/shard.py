"""`shard`: an existing State, moved to where its fields say."""

from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from purestate._compat import (
    is_in_shard_map,
    is_tracer,
    is_tracing,
    placed_on,
    untyped_jax,
)
from purestate._inspect.key_paths import path_text
from purestate._schema.leaves import is_array, is_key
from purestate._sharding.specs import not_an_array, shardings_for
from purestate.errors import ShardingError

_S = TypeVar("_S")


def shard(
    state: _S,
    mesh: Mesh | AbstractMesh | None = None,
    *,
    rules: Mapping[str, Any] | None = None,
    batch: Any = (),
) -> _S:
    """Return a State whose arrays are split over devices as its fields declare.

    Outside of jit they are moved, and share no memory with those that were given: the
    new State may be donated, and the old one stays whole. What is large is better made
    in place, `ps.jit(make, out_shardings=ps.shardings(jax.eval_shape(make), mesh))()`.
    Inside of jit it says where the values are to be, for axes of either kind: a program
    with explicit axes runs within `jax.set_mesh(mesh)`.

    In a program of several processes each calls it. What lies on the devices of one
    process, or on the host, must have the same values in each.

    Args:
        state: a State.
        mesh: as for `ps.shardings`.
        rules: likewise.
        batch: likewise.

    Raises:
        FieldError: not a State.
        ShardingError: no mesh, or an abstract one outside of jit; within `shard_map`;
            or leaves that their specs do not fit or that are no arrays, all at once.
        TypeError: rules= or batch= of another type.

    >>> import jax, jax.numpy as jnp, purestate as ps
    >>> from jax.sharding import PartitionSpec as P
    >>> class Net(ps.State):
    ...     w: jax.Array = ps.field(spec=P("data"))
    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> net = ps.shard(Net(w=jnp.ones((4, 2))), mesh)
    >>> net.w.sharding == jax.NamedSharding(mesh, P("data"))
    True
    """
    if is_in_shard_map():
        raise ShardingError.in_shard_map()
    targets = shardings_for("ps.shard", state, mesh, rules, batch)
    leaves, structure = jax.tree.flatten(state)
    places = jax.tree.leaves(targets)
    has_tracers = is_tracing() or any(map(is_tracer, leaves))
    is_abstract = any(isinstance(place.mesh, AbstractMesh) for place in places)
    if is_abstract and not has_tracers:
        raise ShardingError.abstract_mesh()
    _check(state, leaves, [None if has_tracers else place.spec for place in places])
    if is_tracing():
        made = _placed(leaves, tuple(places))
    elif is_abstract:  # of the mesh that is set, and `grad` or `vmap` outside of jit
        made = jax.jit(_placed, static_argnums=1)(leaves, tuple(places))
    elif all(place.is_fully_addressable for place in places):
        made = _moved(leaves, places)
    else:
        made = _distributed(leaves, places)
    moved: _S = jax.tree.unflatten(structure, made)
    return moved


def _check(state: Any, leaves: list[Any], specs: list[Any]) -> None:
    """Raise for what cannot be moved.

    Args:
        state: what was given.
        leaves: its leaves.
        specs: where they go, None for each inside of a trace.
    """
    found = []
    for i, (leaf, spec) in enumerate(zip(leaves, specs, strict=True)):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            found.append((i, ShardingError.abstract()))
        elif isinstance(leaf, jax.Array):
            if not is_tracer(leaf) and leaf.is_deleted():
                found.append((i, ShardingError.deleted()))
        elif problem := not_an_array(leaf):
            found.append((i, problem))
        if spec and PartitionSpec.UNCONSTRAINED in tuple(spec):
            found.append((i, ShardingError.unconstrained()))
    if found:
        paths = [path for path, _ in jax.tree.leaves_with_path(state)]
        root = type(state).__name__
        raise ShardingError.of(f"{path_text(paths[i], root)}: {p}" for i, p in found)


def _placed(leaves: list[Any], places: tuple[Any, ...]) -> list[Any]:
    return [placed_on(*pair) for pair in zip(leaves, places, strict=True)]


def _moved(leaves: list[Any], places: list[Any]) -> list[Any]:
    """Return arrays on other devices of this process, in memory of their own."""
    made: list[Any] = untyped_jax.device_put(leaves, places, may_alias=False)
    # jax copies what stays as it is. What it makes of an array with a copy where it is
    # wanted, or with a slice, it does not: then that is what must be a copy.
    for i, leaf in enumerate(leaves):
        if is_array(leaf) and _share_memory(leaf, made[i]):
            made[i] = jax.device_put(_copied(leaf), places[i])
    return made


def _copied(leaf: Any) -> Any:
    if not is_key(leaf):
        return leaf.copy()
    data = jax.random.key_data(leaf).copy()
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))


def _share_memory(before: Any, after: Any) -> bool:
    try:
        mine, other = _spans(before), _spans(after)
    except Exception:  # noqa: BLE001  # a backend that does not say
        return True
    return any(a < d and c < b for a, b in mine for c, d in other)


def _spans(array: Any) -> set[tuple[int, int]]:
    """Return where the numbers of an array begin and end in memory."""
    if isinstance(array, np.ndarray):
        return {np.lib.array_utils.byte_bounds(array)}
    array = jax.random.key_data(array) if is_key(array) else array
    parts = [shard.data for shard in array.addressable_shards]
    starts = [(part.unsafe_buffer_pointer(), part.nbytes) for part in parts]
    return {(start, start + size) for start, size in starts}


def _distributed(leaves: list[Any], places: list[Any]) -> list[Any]:
    """Return arrays over devices of several processes, in memory of their own."""
    whole = [_as_global(*pair) for pair in zip(leaves, places, strict=True)]
    copied: Any = jax.jit(_copies, out_shardings=places)
    made: list[Any] = copied(whole)
    return made


def _copies(arrays: list[Any]) -> list[Any]:
    return [jnp.copy(array) for array in arrays]


def _as_global(leaf: Any, place: Any) -> Any:
    """Return an array that every process knows of, which may share memory."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return leaf
    if is_key(leaf):
        data = _as_global(jax.random.key_data(leaf), place)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    values = np.asarray(leaf)
    return jax.make_array_from_callback(values.shape, place, values.__getitem__)
