"""`ps.pack`: many small leaves as one argument of a jitted function.

A call of a jitted function costs a microsecond or two per leaf that goes in and comes
out. Here is how leaves get into buffers, before a call and at the end of a trace, and
how a traced function gets the State in place of the buffers. A warm call runs none of
this.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purestate._compat import is_tracer, placed_on, untyped_jax, weakly_typed
from purestate._inspect.donations import explaining_deleted
from purestate._pack.packed import Packed
from purestate._pack.slots import (
    Group,
    Slot,
    Spec,
    join,
    row,
    spec_of,
    starts,
    taken_apart,
)
from purestate._schema.leaves import is_key
from purestate._schema.marks import held_by, is_state
from purestate.errors import PackError


@explaining_deleted()
def pack(state: Any, max_bytes: int = 65536) -> Any:
    """Return a State with its small leaves in one buffer per dtype.

    For a State of many small arrays, whose jitted step is bound by the number of them.
    A function under `ps.jit` that is given the packed State receives the State itself,
    and a State of the same structure comes back packed, so a loop stays as it is. To
    type checkers the packed State is `Any`: it goes wherever the State goes.

    Args:
        state: a State, or a container of States. Its large leaves are shared, not
            copied.
        max_bytes: larger leaves stay as they are. So do leaves that are split over
            devices, Python numbers, and the only one of its dtype.

    Returns:
        A pytree with `unpack()`, which returns the State, and with the State's fields
        and its methods that are under `ps.jit`.

    Raises:
        PackError: `state` is no tree of States, or `max_bytes` no size.

    >>> import jax, jax.numpy as jnp, purestate as ps
    >>> class Train(ps.State):
    ...     params: dict
    ...     count: ps.Array
    ...
    ...     @ps.jit(donate=True)
    ...     def step(self):
    ...         params = jax.tree.map(lambda p: p * 0.5, self.params)
    ...         return self.replace(params=params, count=self.count + 1)
    >>> params = {f"w{i}": jnp.ones(3) for i in range(3)}
    >>> packed = ps.pack(Train(params=params, count=0))
    >>> for _ in range(2):
    ...     packed = packed.step()
    >>> int(packed.count), packed.unpack().params["w2"].tolist()
    (2, [0.25, 0.25, 0.25])
    """
    if isinstance(max_bytes, bool) or not hasattr(max_bytes, "__index__"):
        raise PackError.size(max_bytes)
    if max_bytes < 0:
        raise PackError.size(max_bytes)
    if type(state) is Packed:
        state = state.unpack()
    leaves, treedef = jax.tree.flatten(state)
    if not _has_state(state):
        raise PackError.given(state)
    leaves = [jnp.asarray(x) if isinstance(x, _HOST) else x for x in leaves]
    spec = _planned(leaves, treedef, max_bytes)
    buffers = join(spec, leaves)
    kept = [
        leaf for leaf, slot in zip(leaves, spec.slots, strict=True) if slot.size < 0
    ]
    return jax.tree.unflatten(_structure(spec), [*buffers, *kept])


_HOST = (np.ndarray, np.generic)


def _has_state(tree: Any) -> bool:
    return any(map(is_state, jax.tree.leaves(tree, is_leaf=is_state)))


def _structure(spec: Spec) -> Any:
    kept = sum(slot.size < 0 for slot in spec.slots)
    empty = object.__new__(Packed)
    leaves = (0,) * (len(spec.groups) + kept)
    held_by(empty).update(_ps_leaves=leaves, _ps_spec=spec)
    return jax.tree.structure(empty)


def _planned(leaves: list[Any], treedef: Any, max_bytes: int) -> Spec:
    """Return which leaf goes where: those of one dtype in a row, in field order."""
    members: dict[Any, list[int]] = {}
    for i, leaf in enumerate(leaves):
        kind = _kind(leaf, max_bytes)
        if kind is not None:
            members.setdefault(kind, []).append(i)
    slots: dict[int, Slot] = {}
    groups: list[Group] = []
    for (dtype, weak, sharding), places in members.items():
        if len(places) < 2:
            continue  # it would be copied for nothing
        start = 0
        for i in places:
            impl, inner = _key_facts(leaves[i])
            shape = leaves[i].shape
            size = int(np.prod((*shape, *inner), dtype=np.int64))
            slots[i] = Slot(len(groups), start, size, shape, impl, inner)
            start += size
        on_mesh = sharding if isinstance(sharding, jax.sharding.NamedSharding) else None
        groups.append(Group(dtype, weak, start, on_mesh))
    part = len(groups)
    for i in range(len(leaves)):
        if i not in slots:
            slots[i] = Slot(part)
            part += 1
    return spec_of(treedef, [slots[i] for i in range(len(leaves))], groups)


def _kind(leaf: Any, max_bytes: int) -> Any:
    """Return what leaves of one buffer have in common, None if it stays by itself."""
    if not isinstance(leaf, jax.Array):
        return None
    impl, inner = _key_facts(leaf)
    dtype: Any = np.dtype(np.uint32) if impl is not None else leaf.dtype
    if impl is None and not (
        jnp.issubdtype(dtype, np.number) or jnp.issubdtype(dtype, np.bool_)
    ):
        return None
    count = int(np.prod((*leaf.shape, *inner), dtype=np.int64))
    if count * dtype.itemsize > max_bytes:
        return None
    sharding = None
    if not is_tracer(leaf):
        sharding = leaf.sharding
        if not sharding.is_fully_replicated:
            return None
        if isinstance(sharding, jax.sharding.NamedSharding):
            sharding = sharding.update(spec=untyped_jax.sharding.PartitionSpec())
    return dtype, bool(getattr(leaf, "weak_type", False)), sharding


def _key_facts(leaf: Any) -> tuple[Any, tuple[int, ...]]:
    """Return the implementation of a typed key and the shape of its data."""
    if not is_key(leaf):
        return None, ()
    data = jax.eval_shape(jax.random.key_data, leaf)
    return str(jax.random.key_impl(leaf)), data.shape[leaf.ndim :]


@dataclasses.dataclass(frozen=True)
class Given:
    """A packed State among the arguments of a function that is being traced.

    Attributes:
        packed: the argument, with tracers.
        state: what the function receives.
        leaves: the State's leaves.
    """

    packed: Packed
    state: Any
    leaves: list[Any]

    def fits(self, tree: Any) -> bool:
        """Return whether a tree can be packed as the argument was."""
        spec = self.packed._ps_spec
        if type(tree) is not type(self.state):
            return False
        leaves, treedef = jax.tree.flatten(tree)
        return treedef == spec.treedef and all(map(_is_like, leaves, self.leaves))

    def filled(self, tree: Any) -> Packed:
        """Return the argument with the leaves of a tree that fits.

        Leaves that came through untouched stay where they are. The others are written
        one after the other, which XLA does in place and without a thread for each.
        """
        spec, old = self.packed._ps_spec, self.packed._ps_leaves
        new, leaves = list(old), jax.tree.leaves(tree)
        changed = [
            (slot, leaf)
            for slot, leaf, was in zip(spec.slots, leaves, self.leaves, strict=True)
            if leaf is not was
        ]
        written = [(slot, leaf) for slot, leaf in changed if slot.size >= 0]
        for slot, leaf in changed:
            if slot.size < 0:
                new[slot.part] = leaf
        begin = starts([slot for slot, _ in written]) if written else []
        for (slot, leaf), start in zip(written, begin, strict=True):
            buffer = jnp.asarray(new[slot.part])
            lead = buffer.shape[:-1]
            where = (*(np.uint32(0) for _ in lead), start)
            numbers = row(slot, leaf, lead)
            new[slot.part] = jax.lax.dynamic_update_slice(buffer, numbers, where)
        for part, group in enumerate(spec.groups):
            if new[part] is not old[part]:
                if group.is_weak:  # an update by index would make it strong
                    new[part] = weakly_typed(new[part])
                new[part] = placed_on(new[part], group.sharding)
        return jax.tree.unflatten(_structure(spec), new)  # type: ignore[no-any-return]


def _is_like(leaf: Any, was: Any) -> bool:
    if leaf is was or was is None:
        return leaf is was
    try:
        a, b = jax.typeof(leaf), jax.typeof(was)
    except TypeError:
        return False
    return (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)


def unpacked(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], list[Given]]:
    """Return the arguments of a call with States in place of packed ones.

    Raises:
        PackError: a buffer of another length, as under a vmap over the packed State.
    """
    given: list[Given] = []

    def opened(part: Any) -> Any:
        if type(part) is not Packed:
            return part
        spec = part._ps_spec
        leaves = taken_apart(spec, spec.slots, part._ps_leaves)
        given.append(Given(part, jax.tree.unflatten(spec.treedef, leaves), leaves))
        return given[-1].state

    def changed(arg: Any) -> Any:
        try:
            parts = jax.tree.leaves(arg, is_leaf=_is_packed)
        except Exception:  # noqa: BLE001  # keys that jax cannot sort: it will say so
            return arg
        if not any(map(_is_packed, parts)):
            return arg  # a static argument must stay the object that it is
        return jax.tree.map(opened, arg, is_leaf=_is_packed)

    return (
        tuple(map(changed, args)),
        {name: changed(arg) for name, arg in kwargs.items()},
        given,
    )


def _is_packed(part: Any) -> bool:
    return type(part) is Packed


def packed_again(out: Any, given: list[Given]) -> Any:
    """Return what a function returned, with each State packed that fits."""

    def fitting(part: Any) -> Given | None:
        return next((one for one in given if one.fits(part)), None)

    def closed(part: Any) -> Any:
        found = fitting(part)
        return part if found is None else found.filled(part)

    return jax.tree.map(closed, out, is_leaf=lambda part: fitting(part) is not None)
