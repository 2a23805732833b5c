"""Updates in depth: `state.at(lambda s: s.opt.mu).set(value)`.

The selector runs once on a stand-in that writes down which attributes and items it goes
through. A choice of leaves is a list of places, too. Each node on the way is then
rebuilt once, by the rules of its kind: a State as `replace` does, with its checks, a
list as a new list. Nothing else is copied.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import jax
import numpy as np

from purestate._compat import is_written_by_dataclasses
from purestate._instance.containers import with_items
from purestate._instance.leaves import Leaves
from purestate._schema.layout import layout_of
from purestate._schema.marks import is_state, is_state_class
from purestate._schema.view import View, view_names
from purestate.errors import PlaceError
from purestate.errors._text import nearest, short

_S = TypeVar("_S")
_T = TypeVar("_T")
_Step = tuple[str, Any]  # ("." or "[", name or key)
_Path = tuple[_Step, ...]
_Within = Callable[..., Any]  # how a function is applied to what is in a place


class At(Generic[_S, _T]):
    """Places in a State, ready to be changed."""

    __slots__ = ("_many", "_places", "_state")

    def __init__(self, state: _S, where: Callable[[_S], _T] | Leaves) -> None:
        self._state = state
        if isinstance(where, Leaves):
            self._places, self._many = _leaf_places(state, where), False
            return
        given: object = where
        if not callable(given):
            field = given if isinstance(given, str) else "field"
            raise PlaceError(
                f"at() takes a selector, lambda s: s.{field}, or a choice of leaves, "
                f"ps.leaves({field!r}), and got {short(given)}."
            )
        paths, self._many = selected_paths(state, where)
        self._places = [(path, _whole) for path in paths]

    def set(self, value: _T) -> _S:
        """Return the State with `value` in the place; a tuple for a tuple of places.

        With a choice of leaves the value goes into each of them.

        Raises:
            PlaceError: as many values as places are needed.

        >>> import jax, jax.numpy as jnp, purestate as ps
        >>> class Opt(ps.State):
        ...     mu: jax.Array
        >>> class Train(ps.State):
        ...     opt: Opt
        >>> train = Train(opt=Opt(mu=jnp.zeros(2)))
        >>> train.at(lambda t: t.opt.mu).set(jnp.ones(3))
        Train(opt=Opt(mu=f32[3]))
        """
        if not self._many:
            return self.apply(lambda _: value)
        if not isinstance(value, tuple | list) or len(value) != len(self._places):
            got = f"{len(value)}" if isinstance(value, tuple | list) else "no tuple"
            raise PlaceError(
                f"at({_name(self._state)}) selects {len(self._places)} places and "
                f"set() got {got}: pass a tuple with one value for each place."
            )
        changes = {
            path: lambda _, one=one: one  # bound at once
            for (path, _), one in zip(self._places, value, strict=True)
        }
        made: _S = _rebuilt(self._state, changes)
        return made

    def apply(self, function: Callable[..., Any], *others: Any) -> _S:
        """Return the State with `function(old, *theirs)` in each place.

        Args:
            function: returns the new value.
            *others: trees that have the same places; `theirs` are the values there.

        Raises:
            PlaceError: another tree does not have the place.

        >>> import purestate as ps
        >>> class Counter(ps.State):
        ...     count: ps.Array
        >>> int(Counter(count=1).at(lambda c: c.count).apply(lambda n: n + 1).count)
        2

        An exponential moving average: what is not a float stays as it is.

        >>> class Net(ps.State):
        ...     w: ps.Array
        ...     seen: ps.Array
        >>> ema, net = Net(w=0.0, seen=1), Net(w=1.0, seen=5)
        >>> ema = ema.at(ps.floats).apply(lambda e, x: 0.9 * e + 0.1 * x, net)
        >>> round(float(ema.w), 3), int(ema.seen)
        (0.1, 1)
        """

        def changed(path: _Path, within: _Within) -> Callable[[Any], Any]:
            theirs = [_there(tree, path) for tree in others]
            return lambda old: within(function, old, *theirs)

        changes = {path: changed(path, within) for path, within in self._places}
        made: _S = _rebuilt(self._state, changes)
        return made


def _whole(function: Callable[..., Any], old: Any, *theirs: Any) -> Any:
    return function(old, *theirs)


def _there(tree: Any, path: _Path) -> Any:
    """Return what another tree has in a place.

    Raises:
        PlaceError: nothing.
    """
    found = tree
    for i, (kind, key) in enumerate(path):
        try:
            found = getattr(found, key) if kind == "." else found[key]
        except (AttributeError, LookupError, TypeError):
            root = _name(tree)
            raise PlaceError(
                f"apply() got a {root} without {_text(root, path)[len(root) :]}: "
                f"{_text(root, path[:i])} is {_described(found)}. Give a tree that has "
                f"each place."
            ) from None
    return found


def _leaf_places(state: Any, where: Leaves) -> list[tuple[_Path, _Within]]:
    """Return the places that a choice of leaves means, without derived fields.

    What jax knows as a node, and `at` cannot go through, is a place as a whole, in
    which the chosen leaves are changed.
    """
    leaves = jax.tree_util.tree_leaves_with_path(state)
    foreign: dict[_Path, list[bool]] = {}
    places: list[tuple[_Path, _Within]] = []
    for (keys, _), flag in zip(leaves, where.among(state), strict=True):
        path, is_through = _own_path(state, keys)
        if path is None:
            continue  # derived: it will be computed again
        if is_through:
            places += [(path, _whole)] if flag else []
        else:
            foreign.setdefault(path, []).append(flag)
    for path, flags in foreign.items():
        if any(flags):
            places.append((path, functools.partial(_in_node, flags)))
    return places


def _own_path(state: Any, keys: Any) -> tuple[_Path | None, bool]:
    """Return the way to a leaf as far as `at` can go, and whether it is all of it."""
    node: Any = state
    path: _Path = ()
    for key in keys:
        name = getattr(key, "name", None)
        if is_state(node) and name in layout_of(type(node)).derived:
            return None, False
        if name is not None and name in _field_names(node):
            step = (".", name)
        elif isinstance(node, dict) and hasattr(key, "key"):
            step = ("[", key.key)
        elif isinstance(node, list | tuple) and hasattr(key, "idx"):
            names = _field_names(node)
            step = (".", names[key.idx]) if names else ("[", key.idx)
        else:
            return path, False
        path = (*path, step)
        node = getattr(node, step[1]) if step[0] == "." else node[step[1]]
    return path, True


def _in_node(
    flags: list[bool], function: Callable[..., Any], old: Any, *theirs: Any
) -> Any:
    """Return a node of jax with the chosen leaves changed."""
    structure: Any
    leaves, structure = jax.tree.flatten(old)
    try:
        rows = [leaves, *map(structure.flatten_up_to, theirs)]
    except ValueError as error:
        raise PlaceError(
            f"apply() got trees of different structure inside of a "
            f"{type(old).__name__}: {error}. Give a tree that has each place."
        ) from None
    return structure.unflatten(
        function(*row) if flag else row[0]
        for flag, *row in zip(flags, *rows, strict=True)
    )


def selected_paths(state: Any, where: Callable[[Any], Any]) -> tuple[list[_Path], bool]:
    """Return the paths that a selector picks, and whether it picked a tuple of them.

    Raises:
        PlaceError: it returned something that is no place in the State, two of its
            places overlap, or it went through something that is not there.
    """
    root = _name(state)
    try:
        picked = where(_Place(state, (), root))
    except PlaceError:
        raise
    except Exception as error:
        text = str(error).rstrip(".")
        raise PlaceError(
            f"the selector of at() raised {type(error).__name__}: {text}. It only "
            f"says where, as in `at(lambda s: s.field)`; compute in apply(...)."
        ) from error
    many = type(picked) in (tuple, list)
    found = list(picked) if many else [picked]
    for one in found:
        if type(one) is not _Place:
            raise PlaceError(
                f"the selector of at() returned {_thing(one)} instead of a place in "
                f"the {root}: return what the selector's argument leads to, as in "
                f"`at(lambda s: s.field)`, without computing anything."
            )
    paths = [object.__getattribute__(one, "_path") for one in found]
    for i, path in enumerate(paths):
        for other in paths[:i]:
            short, long = sorted((path, other), key=len)
            if long[: len(short)] == short:
                raise PlaceError(
                    f"at() got overlapping places {_text(root, other)} and "
                    f"{_text(root, path)}: one of them would be lost. Select each "
                    f"place once, and not a part of another."
                )
    return paths, many


class _Place:
    """Stands for a value while a selector runs, and remembers the way to it."""

    __slots__ = ("_path", "_root", "_value")

    def __init__(self, value: Any, path: _Path, root: str) -> None:
        object.__setattr__(self, "_value", value)
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_root", root)

    def __getattribute__(self, name: str) -> Any:
        value, path, root = map(_get(self), ("_value", "_path", "_root"))
        known = _field_names(value)
        found = getattr(type(value), name, None)
        if name in known or isinstance(found, View):
            return _Place(getattr(value, name), (*path, (".", name)), root)
        if isinstance(found, property) and found.fget is not None:
            return found.fget(self)  # a property may lead to a place
        if name.startswith("__") and name.endswith("__"):
            return object.__getattribute__(self, name)
        here = _text(root, path)
        if not known:
            raise PlaceError(
                f"{here} is {_described(value)} and has no field {name!r} to go "
                f"through; at() goes through States, dataclasses, NamedTuples, dicts, "
                f"lists and tuples."
            )
        known = (*known, *view_names(type(value)))
        raise PlaceError(f"{here} has no field {name!r}; {nearest(name, known)}")

    def __getitem__(self, key: Any) -> Any:
        value, path, root = map(_get(self), ("_value", "_path", "_root"))
        here = _text(root, path)
        if isinstance(value, jax.Array | np.ndarray):
            whole = "x" if isinstance(value, jax.Array) else "jnp.asarray(x)"
            raise PlaceError(
                f"{here} is an array, whose elements are no places: write "
                f"at(lambda s: ...).apply(lambda x: {whole}.at[{key!r}].set(...))."
            )
        if isinstance(value, dict):
            if key not in value:
                texts = [known for known in value if type(known) is type(key) is str]
                hint = nearest(str(key), texts, "keys")
                if not hint.startswith("did you mean"):
                    hint = nearest("", map(repr, value), "keys")
                raise PlaceError(f"{here} has no key {key!r}; {hint}")
            return _Place(value[key], (*path, ("[", key)), root)
        if isinstance(value, list | tuple):
            if hasattr(key, "__index__"):
                key = operator.index(key)
            if not isinstance(key, int) or not -len(value) <= key < len(value):
                raise PlaceError(
                    f"{here} has {len(value)} items and no item {key!r}; select single "
                    f"items by their index."
                )
            index = key % len(value)
            names = _field_names(value)  # a NamedTuple's items have names too
            step = (".", names[index]) if names else ("[", index)
            return _Place(value[index], (*path, step), root)
        raise PlaceError(f"{here} is {_described(value)}, which has no items.")

    def __iter__(self) -> Any:
        value = object.__getattribute__(self, "_value")
        if isinstance(value, dict):
            return iter(value)
        return iter([self[i] for i in range(len(value))])

    def __bool__(self) -> bool:
        raise PlaceError(
            f"{self!r} has no truth value: the selector of at() says where, and cannot "
            f"decide by what is there. Decide outside of it."
        )

    def __eq__(self, other: object) -> bool:
        return bool(self)

    def __contains__(self, item: object) -> bool:
        return bool(self)

    __hash__ = None  # type: ignore[assignment]

    def __setattr__(self, name: str, value: Any) -> None:
        raise PlaceError(
            f"cannot assign {name} in the selector of at(): it only says where. Pass "
            f"the value to set(value)."
        )

    def __repr__(self) -> str:
        return f"<place {_text(*map(_get(self), ('_root', '_path')))}>"


def _get(place: _Place) -> Callable[[str], Any]:
    return lambda name: object.__getattribute__(place, name)


def _rebuilt(node: Any, changes: dict[_Path, Any]) -> Any:
    """Return a node with each place changed; every node on the way is made once."""
    if not changes:
        return node
    if () in changes:
        return changes[()](node)
    inner: dict[_Step, dict[_Path, Any]] = {}
    for (step, *rest), change in changes.items():
        inner.setdefault(step, {})[tuple(rest)] = change
    new = {
        key: _rebuilt(getattr(node, key) if kind == "." else node[key], below)
        for (kind, key), below in inner.items()
    }
    if is_state(node):
        return node.replace(**new)  # the class may have one of its own
    kind: Any = type(node)
    if dataclasses.is_dataclass(kind):
        takes = {spec.name for spec in dataclasses.fields(kind) if spec.init}
        init = kind.__dict__.get("__init__")
        if is_written_by_dataclasses(init) and takes >= new.keys():
            return dataclasses.replace(node, **new)
        # A constructor of its own may take anything.
    return with_items(node, new)


def _field_names(value: Any) -> tuple[str, ...]:
    kind = type(value)
    if is_state_class(kind):
        return layout_of(kind).names
    if isinstance(value, tuple):
        return tuple(getattr(kind, "_fields", ()))
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return ()


def _text(root: str, path: Iterable[_Step]) -> str:
    return root + "".join(
        f".{key}" if kind == "." else f"[{key!r}]" for kind, key in path
    )


def _name(state: object) -> str:
    return type(state).__name__


def _thing(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


def _described(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
