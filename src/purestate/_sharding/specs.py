"""`shardings`: a sharding for each leaf of a State, from the `spec=` of its fields.

A leaf has the spec of the innermost field around it that has one. Nothing is guessed,
but for the optimizer: its moments have the paths and shapes of what it trains.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
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
        TypeError: rules= or batch= of another type.

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
    _check_names(rules, batch)
    axes = _Axes(mesh, rules or {})
    leading, problems = axes.of(batch if isinstance(batch, tuple) else (batch,))
    if problems:
        raise ShardingError.of(f"batch={batch!r}: {problem}" for problem in problems)
    walk = _Walk(root, len(leading))
    found = walk.state(state, (), None)
    walk.ask_for_lonely(found)
    parts = jax.tree.leaves_with_path(state, is_leaf=_is_packed)
    packed = [path for path, part in parts if _is_packed(part)]
    asked = walk.asked + [(path, ShardingError.packed_below()) for path in packed]
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


def _check_names(rules: Any, batch: Any) -> None:
    if not isinstance(rules, Mapping | None):
        raise ShardingError.wrong_rules(rules)
    for name, meant in (rules or {}).items():
        if not _names_axes(tuple(meant) if type(meant) is list else meant):
            raise ShardingError.wrong_rules({name: meant})
    if not all(map(_names_axes, batch if type(batch) is tuple else (batch,))):
        raise ShardingError.wrong_batch(batch)


def _names_axes(value: Any) -> bool:
    # A PartitionSpec is no name, and a tuple in some versions of jax.
    names = value if type(value) is tuple else () if value is None else (value,)
    return all(isinstance(name, str) for name in names)


class _Leaf(NamedTuple):
    path: tuple[Any, ...]
    shape: tuple[int, ...]
    spec: Any  # as declared: a PartitionSpec; None is replicated; or something wrong


class _Spec(NamedTuple):
    """What a field declares, for the leaves below it."""

    declared: Any  # a PartitionSpec, or a function of (path, leaf)
    depth: int  # how long the field's own path is

    def is_fixed(self) -> bool:
        return isinstance(self.declared, PartitionSpec)

    def of(self, path: tuple[Any, ...], leaf: Any, root: str) -> Any:
        try:
            return self.declared(jax.tree_util.keystr(path[self.depth :]), leaf)
        except Exception as error:
            place = path_text(path, root)
            error.add_note(f"raised by the spec function for {place}.")
            raise


class _Lonely(NamedTuple):
    """An optimizer with moments, and no sharded field beside it."""

    optimizer: Any
    path: tuple[Any, ...]
    above: tuple[tuple[Any, tuple[Any, ...]], ...]  # the States around it, with paths


class _Walk:
    """The way through a State, in the order of its leaves.

    Args:
        root: the name that paths begin with.
        batch: how many dimensions were put in front of every leaf.

    Attributes:
        asked: what must be said, as (path, text).
    """

    def __init__(self, root: str, batch: int) -> None:
        self._root = root
        self._batch = batch
        self._above: tuple[tuple[Any, tuple[Any, ...]], ...] = ()
        self._lonely: list[_Lonely] = []
        self.asked: list[tuple[Any, str]] = []

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
                    other = getattr(state, own)
                    found[name] = self._mirrored(value, below, own, other, field(own))
                else:
                    inside = spec if own is None else _Spec(own, len(below))
                    found[name] = self._value(value, below, inside, trained)
            return found[name]

        def trained(optimizer: Any, place: tuple[Any, ...]) -> list[_Leaf]:
            model = self._trained(optimizer, place, (state, path), field)
            made = _mirror(optimizer, place, model, len(path) + 1)
            return [leaf for leaf, _ in made]

        around = self._above
        self._above = (*around, (state, path))
        leaves = [leaf for name in layout.data for leaf in field(name)]
        self._above = around
        return leaves

    def ask_for_lonely(self, leaves: list[_Leaf]) -> None:
        """Ask where optimizers go whose model is in a State around their own.

        Args:
            leaves: all of them, with what is declared.
        """
        if not any(leaf.spec for leaf in leaves):
            return
        for optimizer, place, above in self._lonely:
            plain = self._unbatched(optimizer)
            state, path = above[-1]
            names: list[str] = []
            for around, its_path in reversed(above):
                names = self._repeated(plain, _candidates(around))
                if names:
                    state, path = around, its_path
                    break
            depth = len(path)
            sharded = {
                leaf.path[depth].name
                for leaf in leaves
                if leaf.spec and leaf.path[:depth] == path
            }
            if names and not sharded.intersection(names):
                continue  # what it trains is replicated
            owner = None if state is above[-1][0] else type(state).__name__
            text = ShardingError.optimizer(place[depth].name, names, owner)
            self.asked.append((place, text))

    def _value(
        self,
        value: Any,
        path: tuple[Any, ...],
        spec: _Spec | None,
        trained: Callable[[Any, tuple[Any, ...]], list[_Leaf]],
    ) -> list[_Leaf]:
        """Return the leaves of what a field holds."""
        found: list[_Leaf] = []
        for below, part in jax.tree.leaves_with_path(value, is_leaf=is_state):
            place = (*path, *below)
            if not is_state(part):
                found.append(self._leaf(part, place, spec))
            elif not _is_optimizer(part):
                found += self.state(part, place, spec)
            elif spec is None:
                found += trained(part, place)
            elif spec.is_fixed() or spec.depth < len(path):
                found += self.state(part, place, spec)
            else:
                # The moments of a State are States, and some have other shapes than
                # those that it declares specs for: the field's own function decides.
                found += [
                    self._leaf(leaf, (*place, *inside), spec)
                    for inside, leaf in jax.tree.leaves_with_path(part)
                ]
        return found

    def _leaf(self, leaf: Any, path: tuple[Any, ...], spec: _Spec | None) -> _Leaf:
        declared = spec.declared if spec else None
        if spec and not spec.is_fixed():
            problem = not_an_array(leaf)
            if problem:
                self.asked.append((path, problem))
            declared = (
                None if problem else spec.of(path, self._unbatched(leaf), self._root)
            )
        return _Leaf(path, jnp.shape(leaf), declared)

    def _mirrored(
        self,
        value: Any,
        path: tuple[Any, ...],
        name: str,
        other: Any,
        leaves: list[_Leaf],
    ) -> list[_Leaf]:
        """Return the leaves of a field that is said to mirror another.

        Args:
            value: what the field holds.
            path: where it is.
            name: the other field's.
            other: what that one holds.
            leaves: the leaves of that one.
        """
        made = _mirror(value, path, leaves, len(path))
        own = self._quietly(value, path)
        is_split = any(leaf.spec for leaf in leaves)
        text = ShardingError.no_mirror(path[-1].name, name)
        found: list[_Leaf] = []
        rest: list[_Leaf] = []  # in no optimizer, and like nothing in the other
        fits = any(common == "all" for _, common in made)
        for part in jax.tree.leaves(value, is_leaf=_is_optimizer):
            missed: list[_Leaf] = []
            is_own = False
            for _ in jax.tree.leaves(part):
                leaf, common = made[len(found)]
                said = own[len(found)].spec
                is_said = common is None and isinstance(said, PartitionSpec)
                if is_said and len(said) <= len(leaf.shape) - self._batch:
                    leaf = leaf._replace(spec=said)
                    is_own = True
                elif common in (None, "path") and self._is_large(leaf):
                    missed.append(leaf)
                found.append(leaf)
            if not _is_optimizer(part):
                rest += missed
                fits = fits or is_own
            elif (
                is_split
                and missed
                and not is_own
                and not self._repeated(self._unbatched(part), {name: other})
            ):
                self.asked.append((missed[0].path, text))
        if is_split and rest and not fits:
            self.asked.append((rest[0].path, text))
        return found

    def _quietly(self, value: Any, path: tuple[Any, ...]) -> list[_Leaf]:
        """Return what the States in a value say themselves, and ask nothing."""
        asked, lonely = list(self.asked), list(self._lonely)

        def nothing(optimizer: Any, place: tuple[Any, ...]) -> list[_Leaf]:
            return [leaf for leaf, _ in _mirror(optimizer, place, [], 0)]

        own = self._value(value, path, None, nothing)
        self.asked, self._lonely = asked, lonely
        return own

    def _trained(
        self,
        optimizer: Any,
        place: tuple[Any, ...],
        around: tuple[Any, tuple[Any, ...]],
        field: Callable[[str], list[_Leaf]],
    ) -> list[_Leaf]:
        """Return the leaves of the field that an optimizer trains, none if none is.

        Asks the user where several fit, or none, unless all are replicated anyway.
        """
        leaves = jax.tree.leaves(optimizer)
        if not any(jnp.ndim(leaf) > self._batch for leaf in leaves):
            return []
        state, path = around
        candidates = _candidates(state)
        if not any(leaf.spec for name in candidates for leaf in field(name)):
            self._lonely.append(_Lonely(optimizer, place, self._above))
            return []
        repeated = self._repeated(self._unbatched(optimizer), candidates)
        if len(repeated) == 1:
            return field(repeated[0])
        own = place[len(path)].name
        self.asked.append((place, ShardingError.optimizer(own, repeated)))
        return []

    def _repeated(self, plain: Any, fields: dict[str, Any]) -> list[str]:
        """Return the fields for which an optimizer would have a state like its own.

        Args:
            plain: the optimizer, abstract and without the dimensions in front.
            fields: what may be the field that it trains.
        """
        shapes = {leaf.shape for leaf in jax.tree.leaves(plain) if leaf.size > 1}
        bare = {
            name: self._unbatched(value)
            for name, value in fields.items()
            if not any(map(not_an_array, jax.tree.leaves(value)))
        }
        # To start an optimizer anew is a trace: first where the shapes are the same.
        likely = [
            name
            for name, tree in bare.items()
            if shapes <= {leaf.shape for leaf in jax.tree.leaves(tree)}
        ]
        found = [name for name in likely if plain.__purestate_mirrors__(bare[name])]
        others = [] if found else [name for name in bare if name not in likely]
        return found or [n for n in others if plain.__purestate_mirrors__(bare[n])]

    def _is_large(self, leaf: _Leaf) -> bool:
        return math.prod(leaf.shape[self._batch :]) > 1

    def _unbatched(self, tree: Any) -> Any:
        """Return an abstract tree without the dimensions in front."""

        def abstract(leaf: Any) -> Any:
            dtype = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
            return untyped_jax.ShapeDtypeStruct(jnp.shape(leaf)[self._batch :], dtype)

        return jax.tree.map(abstract, tree)


def _candidates(state: Any) -> dict[str, Any]:
    """Return the fields of a State that an optimizer beside them may train."""
    layout = layout_of(type(state))
    fields = {
        name: getattr(state, name)
        for name in layout.data
        if not isinstance(sharding_spec(layout.specs[name]), str)
    }
    return {
        name: value
        for name, value in fields.items()
        if not any(map(_is_optimizer, jax.tree.leaves(value, is_leaf=_is_optimizer)))
    }


def _is_optimizer(part: Any) -> bool:
    return hasattr(type(part), _OFFER)


def _is_packed(part: Any) -> bool:
    return isinstance(part, Packed)


def _mirror(
    value: Any, path: tuple[Any, ...], other: list[_Leaf], depth: int
) -> list[tuple[_Leaf, str | None]]:
    """Return the leaves of a value with the specs of another field's leaves.

    With each comes what it has in common with one of those: "all" is the end of the
    path and the shape, "path" is that alone, "factor" is the path and fewer dimensions.

    Args:
        value: whose leaves have the other's paths at the end of their own.
        path: where it is.
        other: the leaves of the other field.
        depth: the length of that field's path.
    """
    specs = {(leaf.path[depth:], leaf.shape): leaf.spec for leaf in other}
    ranks = {leaf.path[depth:]: len(leaf.shape) for leaf in other}
    longest = max((len(leaf.path) - depth for leaf in other), default=0)
    found: list[tuple[_Leaf, str | None]] = []
    for below, leaf in jax.tree.leaves_with_path(value):
        shape = jnp.shape(leaf)
        ends = [below[max(0, len(below) - n) :] for n in range(longest, -1, -1)]
        spec, common = None, None
        fit = next((end for end in ends if (end, shape) in specs), None)
        named = next((end for end in ends if end and end in ranks), None)
        if fit is not None:
            spec, common = specs[fit, shape], "all"
        elif named is not None:
            common = "factor" if len(shape) < ranks[named] else "path"
        found.append((_Leaf((*path, *below), shape, spec), common))
    return found


def not_an_array(leaf: Any) -> str | None:
    """Return what is wrong with a leaf of which jax makes no array."""
    is_told = hasattr(leaf, "dtype") and hasattr(leaf, "shape")
    if is_told and not isinstance(leaf, np.ndarray):
        return None
    try:
        dtype = jnp.result_type(leaf)
        if not is_told:
            np.asarray(leaf, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        return ShardingError.not_an_array(leaf, error)
    return None


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
        if getattr(declared, "unreduced", None) or getattr(declared, "reduced", None):
            return _P(), [ShardingError.unreduced(declared)]
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
