"""`shardings`: a sharding for each leaf of a State, from the `spec=` of its fields.

A leaf has the spec of the innermost field around it that has one. Nothing is guessed,
but for the optimizer: its moments have the paths and shapes of what it trains.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from purestate._compat import FINDS_MESH, current_mesh, untyped_jax
from purestate._inspect.key_paths import path_text
from purestate._pack.packed import Packed
from purestate._schema.fields import sharding_spec
from purestate._schema.layout import layout_of, state_layout
from purestate._schema.marks import is_state
from purestate.errors import ShardingError

_S = TypeVar("_S")
_P: Any = PartitionSpec  # not annotated in every version of jax
_OFFER = "__purestate_mirrors__"  # of purestate.optax.Optimizer, which is above


def shardings(
    state: _S,
    mesh: Mesh | AbstractMesh | None = None,
    *,
    rules: Mapping[str, Any] | None = None,
    batch: Any = (),
) -> _S:
    """Return a tree like a State, with a `NamedSharding` for each leaf.

    It goes wherever jax takes shardings: `out_shardings=` of `ps.jit`, so that a State
    is made where it belongs, `jax.device_put`, checkpoints. Specs for `shard_map` are
    `jax.tree.map(lambda s: s.spec, ps.shardings(state, mesh))`.

    What a field declares with `ps.field(spec=...)` holds for every leaf below it, but
    for those whose own fields inside of it declare another. Without a spec a leaf is
    replicated. A field without one that holds a `purestate.optax.Optimizer` mirrors the
    field that it trains: of several leaves that fit one of its own the one with the
    longest path. Leaves of another shape, as counts, are replicated.

    Args:
        state: a State, or an abstract one, `jax.eval_shape(make)`.
        mesh: the devices; that of `jax.set_mesh` if it is not given (JAX 0.7.2 does not
            say outside of jit which one that is).
        rules: the axis of the mesh for each name in a spec that is none itself, several
            in a tuple, or None to replicate.
        batch: the axis, or a tuple with one for each of several, of the dimensions that
            `ps.stack` or `vmap` put in front of every leaf.

    Raises:
        FieldError: not a State.
        ShardingError: no mesh, or leaves that their specs do not fit, all at once.

    >>> import jax, jax.numpy as jnp, purestate as ps
    >>> from jax.sharding import PartitionSpec as P
    >>> class Net(ps.State):
    ...     w: jax.Array = ps.field(spec=P("embed", None))
    ...     b: jax.Array
    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> net = Net(w=jnp.ones((4, 2)), b=jnp.ones(2))
    >>> places = ps.shardings(net, mesh, rules={"embed": "data"})
    >>> places.w == jax.NamedSharding(mesh, P("data", None))
    True
    >>> places.b == jax.NamedSharding(mesh, P())
    True
    """
    return shardings_for("ps.shardings", state, mesh, rules, batch)


def shardings_for(
    caller: str, state: _S, mesh: Any, rules: Mapping[str, Any] | None, batch: Any
) -> _S:
    """Return what `shardings` does; errors name the function that the user called."""
    if isinstance(state, Packed):
        raise ShardingError.packed(caller)
    root = state_layout(state, caller).cls.__name__
    mesh = current_mesh() if mesh is None else mesh
    if mesh is None:
        raise ShardingError.no_mesh(caller, is_found=FINDS_MESH)
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise ShardingError.not_a_mesh(caller, mesh)
    axes = _Axes(mesh, rules or {})
    leading, problems = axes.of(batch if isinstance(batch, tuple) else (batch,))
    if problems:
        raise ShardingError.of(f"batch={batch!r}: {problem}" for problem in problems)
    asked: list[tuple[Any, str]] = []
    found = _Walk(root, len(leading), asked).state(state, (), None)
    listed = [f"{path_text(path, root)}: {text}" for path, text in asked]
    made = []
    for leaf in found:
        spec, problems = axes.fitted(leaf, leading)
        place = path_text(leaf.path, root)
        listed += [f"{place}: {problem}" for problem in problems]
        made.append(NamedSharding(mesh, spec))
    if listed:
        raise ShardingError.of(listed)
    structure: Any = jax.tree.structure(state)
    tree: _S = structure.unflatten(made)
    return tree


class _Leaf(NamedTuple):
    path: tuple[Any, ...]
    shape: tuple[int, ...]
    spec: Any  # as declared: a PartitionSpec; None is replicated; or something wrong


class _Spec(NamedTuple):
    """What a field declares, for the leaves below it."""

    declared: Any  # a PartitionSpec, or a function of (path, leaf)
    depth: int  # how long the field's own path is

    def of(self, path: tuple[Any, ...], leaf: Any, root: str) -> Any:
        if isinstance(self.declared, PartitionSpec):
            return self.declared
        try:
            return self.declared(jax.tree_util.keystr(path[self.depth :]), leaf)
        except Exception as error:
            place = path_text(path, root)
            error.add_note(f"raised by the spec function for {place}.")
            raise


class _Walk:
    """The way through a State, in the order of its leaves.

    Args:
        root: the name that paths begin with.
        batch: how many dimensions were put in front of every leaf.
        asked: where what must be said is added, as (path, text).
    """

    def __init__(self, root: str, batch: int, asked: list[tuple[Any, str]]) -> None:
        self._root = root
        self._batch = batch
        self._asked = asked

    def state(
        self, state: Any, path: tuple[Any, ...], spec: _Spec | None
    ) -> list[_Leaf]:
        """Return the leaves of a State with what is declared for them.

        Args:
            state: the State.
            path: where it is.
            spec: what the fields around it declare.
        """
        layout = layout_of(type(state))
        found: dict[str, list[_Leaf]] = {}

        def field(name: str) -> list[_Leaf]:
            if name not in found:
                value = getattr(state, name)
                below = (*path, jax.tree_util.GetAttrKey(name))
                own = sharding_spec(layout.specs[name])
                if isinstance(own, str):
                    found[name] = _mirrored(value, below, field(own), len(below))
                else:
                    inside = spec if own is None else _Spec(own, len(below))
                    found[name] = self._value(value, below, inside, trained)
            return found[name]

        def trained(optimizer: Any, place: tuple[Any, ...]) -> list[_Leaf]:
            candidates = [
                name
                for name in layout.data
                if not isinstance(sharding_spec(layout.specs[name]), str)
                and not any(map(_is_optimizer, _parts(getattr(state, name))))
            ]
            own = place[len(path)].name
            model = self._trained(optimizer, place, own, state, candidates, field)
            depth = len(path) + 1
            return _mirrored(optimizer, place, model, depth)

        return [leaf for name in layout.data for leaf in field(name)]

    def _value(
        self,
        value: Any,
        path: tuple[Any, ...],
        spec: _Spec | None,
        trained: Callable[[Any, tuple[Any, ...]], list[_Leaf]],
    ) -> list[_Leaf]:
        """Return the leaves of what a field holds."""
        found: list[_Leaf] = []
        for below, part in jax.tree_util.tree_leaves_with_path(value, is_leaf=is_state):
            place = (*path, *below)
            if not is_state(part):
                declared = spec.of(place, part, self._root) if spec else None
                found.append(_Leaf(place, jnp.shape(part), declared))
            elif spec is None and _is_optimizer(part):
                found += trained(part, place)
            else:
                found += self.state(part, place, spec)
        return found

    def _trained(
        self,
        optimizer: Any,
        place: tuple[Any, ...],
        own: str,
        state: Any,
        candidates: list[str],
        field: Callable[[str], list[_Leaf]],
    ) -> list[_Leaf]:
        """Return the leaves of the field that an optimizer trains, none if none is.

        Asks the user where several fit, or none, unless all are replicated anyway.
        """
        leaves = jax.tree.leaves(optimizer)
        has_moments = any(jnp.ndim(leaf) > self._batch for leaf in leaves)
        sharded = [n for n in candidates if any(leaf.spec for leaf in field(n))]
        if not has_moments or not sharded:
            return []
        plain = self._unbatched(optimizer)
        repeated = [
            name
            for name in candidates
            if plain.__purestate_mirrors__(self._unbatched(getattr(state, name)))
        ]
        if len(repeated) == 1:
            return field(repeated[0])
        self._asked.append((place, ShardingError.optimizer(own, repeated)))
        return []

    def _unbatched(self, tree: Any) -> Any:
        """Return an abstract tree without the dimensions in front."""

        def abstract(leaf: Any) -> Any:
            dtype = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
            return untyped_jax.ShapeDtypeStruct(jnp.shape(leaf)[self._batch :], dtype)

        return jax.tree.map(abstract, tree)


def _parts(value: Any) -> list[Any]:
    return jax.tree.leaves(value, is_leaf=is_state)


def _is_optimizer(part: Any) -> bool:
    return hasattr(type(part), _OFFER)


def _mirrored(
    value: Any, path: tuple[Any, ...], other: list[_Leaf], depth: int
) -> list[_Leaf]:
    """Return the leaves of a value with the specs of another field's leaves.

    Args:
        value: whose leaves have the other's paths at the end of their own.
        path: where it is.
        other: the leaves of the other field.
        depth: the length of that field's path.
    """
    specs = {(leaf.path[depth:], leaf.shape): leaf.spec for leaf in other}
    longest = max((len(leaf.path) - depth for leaf in other), default=0)
    found: list[_Leaf] = []
    for below, leaf in jax.tree.leaves_with_path(value):
        shape = jnp.shape(leaf)
        ends = (below[max(0, len(below) - n) :] for n in range(longest, -1, -1))
        fit = (specs[end, shape] for end in ends if (end, shape) in specs)
        found.append(_Leaf((*path, *below), shape, next(fit, None)))
    return found


class _Axes:
    """The axes of a mesh, under their logical names too."""

    def __init__(self, mesh: Any, rules: Mapping[str, Any]) -> None:
        self._sizes: dict[Any, int] = dict(mesh.shape)
        self._rules = rules

    def of(self, entries: Any) -> tuple[tuple[Any, ...], list[str]]:
        """Return the entries of a spec as axes of the mesh, and what is wrong."""
        made: list[Any] = []
        problems: list[str] = []
        for entry in entries:
            if entry is None or entry is PartitionSpec.UNCONSTRAINED:
                made.append(entry)
                continue
            axes: list[Any] = []
            for name in entry if isinstance(entry, tuple) else (entry,):
                meant = self._rules.get(name, name)
                several = meant if isinstance(meant, tuple | list) else (meant,)
                for axis in several:
                    if axis is not None and axis not in self._sizes:
                        text = ShardingError.unknown_axis(axis, name, self._sizes)
                        problems.append(text)
                axes += [axis for axis in several if axis is not None]
            several = tuple(axes)
            is_one = not isinstance(entry, tuple) and len(several) == 1
            made.append(several[0] if is_one else several or None)
        return tuple(made), problems

    def fitted(
        self, leaf: _Leaf, leading: tuple[Any, ...]
    ) -> tuple[PartitionSpec, list[str]]:
        """Return the spec of a leaf in axes of the mesh, and what is wrong."""
        declared = _P() if leaf.spec is None else leaf.spec
        if not isinstance(declared, PartitionSpec):
            return _P(), [ShardingError.not_a_spec(declared)]
        if len(declared) + len(leading) > len(leaf.shape):
            text = ShardingError.too_long(
                _text(declared), len(declared), len(leading), leaf.shape
            )
            return _P(), [text]
        entries, problems = self.of(declared)
        entries = (*leading, *entries)
        if problems:
            return _P(), problems
        seen: list[Any] = []
        for i, (entry, size) in enumerate(zip(entries, leaf.shape, strict=False)):
            if entry is None or entry is PartitionSpec.UNCONSTRAINED:
                continue
            axes = entry if isinstance(entry, tuple) else (entry,)
            problems += [
                f"axis {axis!r} twice in {_text(entries)}"
                for axis in axes
                if axis in seen
            ]
            seen += axes
            count = math.prod(self._sizes[axis] for axis in axes)
            if size % count:
                problems.append(ShardingError.not_divided(i, size, entry, count))
        return _P() if problems else _P(*entries), problems


def _text(spec: Any) -> str:
    # jax 0.7.2 writes PartitionSpec(...).
    return f"P({', '.join(map(repr, spec))})"
