"""What was saved against what is expected: how to make it, or all that differs.

Nothing is read here. Where the two fit, the result is a function that makes the tree,
once the arrays that it wants are there. Where they do not, each difference is a line
with its way out.
"""

import dataclasses
import typing
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from purestate._instance.checks import run_checks
from purestate._instance.numbers import is_number, strong
from purestate._instance.seal import default_of
from purestate._saving.describe import class_name, registered_parts, short_name
from purestate._saving.saved import Leaf, Saved, as_it_was
from purestate._saving.values import (
    Recorded,
    agree,
    decode,
    encode,
    encode_number,
    find_class,
    is_namedtuple,
    value_text,
)
from purestate._schema.annotations import evaluated
from purestate._schema.fields import MISSING, old_names
from purestate._schema.layout import Layout, layout_of
from purestate._schema.leaves import is_array, is_key
from purestate._schema.marks import held_by, is_state, is_state_class
from purestate._state.state import State
from purestate.errors import LoadError

ALLOW = ("cast", "drop", "keep", "static")
_ANYTHING: Any = object()  # expected where a class says no more than "as saved"
Make = Callable[[], Any]


@dataclasses.dataclass(eq=False)
class Want:
    """An array that is wanted.

    Attributes:
        source: the leaf, or a number or array that a migration put in its place.
        kind: "jax", "numpy", "key".
        dtype: that it shall have; None for a key.
        weak: whether its type shall be weak.
        sharding: where it shall lie; None for the default device, uncommitted.
        array: it, as soon as it is there.
    """

    source: Any
    kind: str
    dtype: Any
    weak: bool
    sharding: Any
    array: Any = None


class Fit:
    """One comparison of a tree that was saved with what is expected.

    Attributes:
        wants: the arrays to be read.
        problems: the differences.
        defaults: fields that the file does not have, which get their defaults.
        needs_instance: whether a problem is one that an instance as like solves.
    """

    def __init__(self, allow: Iterable[str]) -> None:
        self.allow = frozenset(allow)
        self.wants: list[Want] = []
        self.problems: list[str] = []
        self.defaults: list[str] = []
        self.needs_instance = False
        self._known: dict[Any, Want] = {}

    def tree(self, saved: Any, like: Any, place: Any, path: str, hints: Any) -> Make:
        """Return what makes a part of the tree, when the wanted arrays are there.

        Args:
            saved: the part as it was saved.
            like: what is expected: a class, an instance, a container; or `_ANYTHING`.
            place: the sharding of its arrays, or a tree of shardings.
            path: of the part, for messages.
            hints: classes that the annotation above it names.
        """
        saved = as_it_was(saved)
        like = typing.get_origin(like) or like
        if like is _ANYTHING:
            return self._as_saved(saved, place, path, hints)
        if isinstance(like, type) and is_state_class(like):
            return self._class(saved, like, place, path)
        if is_state(like):
            return self._instance(saved, like, place, path)
        if like is None:
            if saved is not None:
                self._differ(path, saved, "None")
            return lambda: None
        kind = type(like)
        if kind is dict or kind is OrderedDict:
            return self._dict(saved, like, place, path)
        if kind is list or kind is tuple:
            return self._row(saved, like, place, path)
        if isinstance(like, tuple) and hasattr(kind, "_fields"):
            return self._namedtuple(saved, like, place, path)
        if is_array(like) or isinstance(like, jax.ShapeDtypeStruct):
            return self._array(saved, like, place, path)
        try:
            encode_number(like)
        except TypeError:
            return self._registered(saved, like, place, path)
        return self._number(saved, like, path)

    # --- States -----------------------------------------------------------------------

    def _class(self, saved: Any, cls: type, place: Any, path: str) -> Make:
        layout = _layout(cls)
        if not path:
            path = cls.__name__
        if not self._is_of(saved, layout, path):
            return _nothing
        fields = self._migrated(saved, layout, path)
        values = {}
        for name in layout.names:
            below, hints = f"{path}.{name}", _classes(layout, name)
            if name not in fields:
                values[name] = self._default(layout, name, below, [*fields])
            elif name in layout.static_names:
                values[name] = self._static(layout, name, fields[name], below, hints)
            elif _becomes_array(layout, saved, name, fields[name]):
                values[name] = _always(strong(layout, name, fields[name]))
            else:
                inner = _below(place, name, path)
                values[name] = self.tree(fields[name], _ANYTHING, inner, below, hints)
        self._extra(fields, layout, path)
        return _maker(layout, values)

    def _instance(self, saved: Any, like: Any, place: Any, path: str) -> Make:
        layout = layout_of(type(like))
        if not path:
            path = layout.cls.__name__
        if not self._is_of(saved, layout, path):
            return _nothing
        fields = self._migrated(saved, layout, path)
        row, aux = layout.flatten(like)
        expected = dict(zip(layout.static, aux.values, strict=True))
        data = dict(zip(layout.data, row, strict=True))
        values = {}
        for name in layout.names:
            below = f"{path}.{name}"
            old = data[name] if name in data else expected[name]
            if name not in fields:
                values[name] = self._missing_field(layout, name, old, place, below)
            elif name in expected:
                values[name] = _always(old)
                self._same_static(fields[name], old, below)
            elif (
                _becomes_array(layout, saved, name, fields[name])
                and "cast" not in self.allow
            ):
                number = strong(layout, name, fields[name])
                inner = _below(place, name, path)
                values[name] = self.tree(number, old, inner, below, ())
            else:
                inner = _below(place, name, path)
                values[name] = self.tree(fields[name], old, inner, below, ())
        self._extra(fields, layout, path)
        return _maker(layout, values)

    def _is_of(self, saved: Any, layout: Layout, path: str) -> bool:
        cls = layout.cls
        names = {short_name(cls), *layout.was}
        if not isinstance(saved, Saved) or saved.kind != "state":
            self._differ(path, saved, f"a {cls.__name__}")
            return False
        if saved.name not in names and saved.name.rpartition(".")[2] not in names:
            self.problems.append(
                f"{path}: a {saved.name} in the file, a {cls.__name__} expected (if it "
                f"was renamed: class {cls.__name__}(ps.State, was={saved.name!r}))"
            )
            return False
        return True

    def _migrated(self, saved: Saved, layout: Layout, path: str) -> dict[str, Any]:
        """Return the fields of a State as its class has them now."""
        cls: Any = layout.cls
        version = layout.version
        given: Any = saved
        if saved.version > version:
            self.problems.append(
                f"{path}: version {saved.version} of {cls.__name__} in the file, and "
                f"the class is version {version} (update the code)"
            )
        elif saved.version < version and hasattr(cls, "__migrate__"):
            try:
                given = cls.__migrate__(saved, saved.version)
            except Exception as error:
                error.add_note(
                    f"raised by {cls.__name__}.__migrate__ for {saved.name} saved as "
                    f"version {saved.version}."
                )
                raise
            if not isinstance(given, dict):
                raise LoadError.migrated(cls.__name__, given)
        fields = dict(given)
        for name in layout.names:
            for old in old_names(layout.specs[name]):
                if name not in fields and old in fields:
                    fields[name] = fields.pop(old)
        return fields

    def _extra(self, fields: Mapping[str, Any], layout: Layout, path: str) -> None:
        for name in fields:
            if name not in layout.stored and "drop" not in self.allow:
                self.problems.append(
                    f"{path}.{name}: in the file only (allow='drop' leaves it out; "
                    f"ps.field(was=...) if it was renamed)"
                )

    def _default(self, layout: Layout, name: str, path: str, there: list[str]) -> Make:
        value = default_of(layout.specs[name])
        if value is MISSING:
            old = [repr(other) for other in there if other not in layout.stored]
            kind = "static" if name in layout.static_names else "field"
            hint = f", or ps.{kind}(was=...) if {' or '.join(old)} is its old name"
            self.problems.append(
                f"{path}: not in the file, and it has no default (a default"
                f"{',' if old else ' or'} __migrate__{hint if old else ''})"
            )
            return _nothing
        self.defaults.append(path)
        if name in layout.converters:
            value = layout.converters[name](value)
        if name in layout.arrays and is_number(value):
            value = strong(layout, name, value)
        return _always(value)

    def _missing_field(
        self, layout: Layout, name: str, old: Any, place: Any, path: str
    ) -> Make:
        if "keep" not in self.allow and default_of(layout.specs[name]) is not MISSING:
            value = self._default(layout, name, path, [])()
            if name in layout.static_names:
                if agree(encode(value), encode(old)):
                    return _always(old)
            else:
                trial = Fit(())
                make = trial.tree(value, old, _below(place, name, path), path, ())
                if not trial.problems:
                    self.wants += trial.wants
                    return make
            self.defaults.pop()
        return self._missing(old, path)

    def _missing(self, old: Any, path: str) -> Make:
        abstract = any(
            isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(old)
        )
        if "keep" in self.allow and not abstract:
            return _always(old)
        what = "an instance with arrays" if abstract else "what like has"
        how = "takes it from" if abstract else "keeps"
        self.problems.append(f"{path}: not in the file (allow='keep' {how} {what})")
        return _nothing

    # --- static values ----------------------------------------------------------------

    def _static(
        self, layout: Layout, name: str, value: Any, path: str, hints: Iterable[type]
    ) -> Make:
        if not isinstance(value, Recorded):
            return _always(value)
        default = default_of(layout.specs[name])
        if default is not MISSING and agree(encode(default), value.encoded):
            return _always(default)
        made = decode(value.encoded, hints)
        if isinstance(made, Recorded):
            self.needs_instance = True
            self.problems.append(
                f"{path}: the file names {made!r}, which it cannot hold (give an "
                f"instance as like, or a default in the class)"
            )
        return _always(made)

    def _same_static(self, value: Any, old: Any, path: str) -> None:
        known = value.encoded if isinstance(value, Recorded) else encode(value)
        if not agree(known, encode(old)) and "static" not in self.allow:
            self.problems.append(
                f"{path}: static value {value_text(value)} in the file, "
                f"{value_text(old)} expected (allow='static' takes the one expected)"
            )

    # --- containers -------------------------------------------------------------------

    def _dict(self, saved: Any, like: Any, place: Any, path: str) -> Make:
        if type(saved) is not type(like):
            self._differ(path, saved, _kind_text(like))
            return _nothing
        makes = self._items(saved, like, place, path, "[{!r}]")
        kind = type(like)
        return lambda: kind((key, make()) for key, make in makes.items())

    def _row(self, saved: Any, like: Any, place: Any, path: str) -> Make:
        if type(saved) is not type(like):
            self._differ(path, saved, _kind_text(like))
            return _nothing
        old, new = dict(enumerate(like)), dict(enumerate(saved))
        makes = self._items(new, old, place, path, "[{!r}]")
        kind = type(like)
        return lambda: kind(make() for make in makes.values())

    def _namedtuple(self, saved: Any, like: Any, place: Any, path: str) -> Make:
        cls: Any = type(like)
        name = class_name(cls)
        if not _is_kind(saved, "namedtuple", name):
            self._differ(path, saved, f"a {name}")
            return _nothing
        old = dict(zip(cls._fields, like, strict=True))
        makes = self._items(saved, old, place, path, ".{}")
        return lambda: tuple.__new__(cls, (make() for make in makes.values()))

    def _registered(self, saved: Any, like: Any, place: Any, path: str) -> Make:
        name, parts = class_name(type(like)), registered_parts(like)
        if parts is None:
            self.problems.append(
                f"{path or 'like'}: an object of type {type(like).__name__} expected, "
                f"which no file holds (give a State class, an instance or a container)"
            )
            return _nothing
        if not _is_kind(saved, "tree", name):
            self._differ(path, saved, f"a {name}")
            return _nothing
        old = {jax.tree_util.keystr(step): part for step, part in parts}
        makes = self._items(saved, old, place, path, "{}")
        structure: Any = jax.tree.structure(like, is_leaf=lambda x: x is not like)
        return lambda: structure.unflatten([make() for make in makes.values()])

    def _items(
        self, saved: Any, like: Any, place: Any, path: str, step: str
    ) -> dict[Any, Make]:
        makes = {}
        for key, old in like.items():
            below = path + step.format(key)
            if key in saved:
                inner = _below(place, key, path)
                makes[key] = self.tree(saved[key], old, inner, below, ())
            else:
                makes[key] = self._missing(old, below)
        for key in saved:
            if key not in like and "drop" not in self.allow:
                self.problems.append(
                    f"{path}{step.format(key)}: in the file only (allow='drop' leaves "
                    f"it out)"
                )
        return makes

    # --- leaves -----------------------------------------------------------------------

    def _array(self, saved: Any, like: Any, place: Any, path: str) -> Make:
        kind = "numpy" if isinstance(like, np.ndarray) else "jax"
        if is_array(saved):  # of a migration, or the default of a new field
            saved = _Given(saved)
        if not isinstance(saved, Leaf | _Given):
            if like.shape == () and is_number(saved) and not is_key(like):
                if "cast" in self.allow:
                    saved = _Given(np.asarray(saved))
                else:
                    kinds = type(saved).__name__, like.dtype
                    self.problems.append(
                        f"{path}: {kinds[0]} in the file, an array of {kinds[1]} "
                        f"expected (allow='cast' converts)"
                    )
                    return _nothing
            else:
                self._differ(path, saved, f"an array of {like.dtype}")
                return _nothing
        problem = _type_problem(saved, like, "cast" in self.allow)
        if problem:
            self.problems.append(f"{path}: {problem}")
            return _nothing
        sharding = place if place is not None else _sharding(like)
        weak = bool(getattr(like, "weak_type", False))
        if is_key(like):
            return self._want(saved, "key", None, False, sharding)
        return self._want(saved, kind, np.dtype(like.dtype), weak, sharding)

    def _number(self, saved: Any, like: Any, path: str) -> Make:
        if type(saved) is type(like):
            return _always(saved)
        names = type(saved).__name__, type(like).__name__
        if is_number(saved) and is_number(like):
            if "cast" in self.allow:
                return _always(type(like)(saved))
            self.problems.append(
                f"{path}: {names[0]} in the file, {names[1]} expected (allow='cast' "
                f"converts)"
            )
        else:
            self._differ(path, saved, f"a {names[1]}")
        return _nothing

    def _want(
        self, saved: Any, kind: str, dtype: Any, weak: bool, sharding: Any
    ) -> Make:
        origin = saved.value if isinstance(saved, _Given) else saved.source
        name = "" if isinstance(saved, _Given) else saved.name
        key = (id(origin), name, kind, dtype, weak, sharding)
        want = self._known.get(key)
        if want is None:
            source = saved.value if isinstance(saved, _Given) else saved
            want = self._known[key] = Want(source, kind, dtype, weak, sharding)
            self.wants.append(want)
        made = want
        return lambda: made.array

    # --- as saved ---------------------------------------------------------------------

    def _as_saved(self, saved: Any, place: Any, path: str, hints: Any) -> Make:
        if isinstance(saved, Leaf):
            dtype = None if saved.kind == "key" else saved.dtype
            if saved.kind == "jax":
                held = jax.dtypes.canonicalize_dtype(dtype)
                if held != dtype and "cast" not in self.allow:
                    self.problems.append(
                        f"{path}: {dtype} in the file, which jax holds only with "
                        f"jax_enable_x64 (allow='cast' converts to {held})"
                    )
                dtype = held
            return self._want(saved, saved.kind, dtype, saved.weak, place)
        if isinstance(saved, Saved):
            return self._saved_class(saved, place, path, hints)
        if isinstance(saved, dict):
            makes = {
                key: self.tree(
                    part, _ANYTHING, _below(place, key, path), f"{path}[{key!r}]", hints
                )
                for key, part in saved.items()
            }
            kind = type(saved)
            return lambda: kind((key, make()) for key, make in makes.items())
        if type(saved) in (list, tuple):
            row = [
                self.tree(
                    part, _ANYTHING, _below(place, i, path), f"{path}[{i}]", hints
                )
                for i, part in enumerate(saved)
            ]
            return lambda: type(saved)(make() for make in row)
        return _always(saved)

    def _saved_class(self, saved: Saved, place: Any, path: str, hints: Any) -> Make:
        if saved.kind == "state":
            cls = _state_class(saved, hints)
            if cls is not None:
                return self._class(saved, cls, place, path)
            self.needs_instance = True
            self.problems.append(
                f"{path}: the file holds a {saved.name}, and there is no such State "
                f"class here (import {saved.module}, or give an instance as like)"
            )
            return _nothing
        if saved.kind == "namedtuple":
            cls = find_class(saved.name, hints)
            if is_namedtuple(cls) and cls._fields == tuple(saved):
                makes = [
                    self.tree(
                        part,
                        _ANYTHING,
                        _below(place, name, path),
                        f"{path}.{name}",
                        hints,
                    )
                    for name, part in saved.items()
                ]
                return lambda: tuple.__new__(cls, (make() for make in makes))
        self.needs_instance = True
        self.problems.append(
            f"{path}: the file holds a {saved.name}, which only an instance can "
            f"rebuild (give an instance as like)"
        )
        return _nothing

    def _differ(self, path: str, saved: Any, expected: str) -> None:
        self.problems.append(
            f"{path or 'the tree'}: {_kind_text(saved)} in the file, {expected} "
            f"expected"
        )


class _Given:
    """An array that did not come from the file."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.shape, self.dtype = value.shape, value.dtype
        self.kind = "key" if is_key(value) else "jax"
        self.impl = str(jax.random.key_impl(value)) if self.kind == "key" else None


def _type_problem(saved: Any, like: Any, cast: bool) -> str:
    if is_key(like) or saved.kind == "key":
        names = [_dtype_text(saved), _dtype_text(like)]
        if names[0] != names[1]:
            return f"{names[0]} in the file, {names[1]} expected"
    if tuple(saved.shape) != tuple(like.shape):
        return f"shape {tuple(saved.shape)} in the file, {tuple(like.shape)} expected"
    if saved.dtype != like.dtype and not cast and not is_key(like):
        return (
            f"{saved.dtype} in the file, {like.dtype} expected (allow='cast' converts)"
        )
    return ""


def _dtype_text(value: Any) -> str:
    return (
        f"a {value.dtype}" if str(value.dtype).startswith("key<") else str(value.dtype)
    )


def _sharding(like: Any) -> Any:
    """Return where an array lies, if it was put there on purpose."""
    if isinstance(like, np.ndarray):
        return None
    if isinstance(like, jax.ShapeDtypeStruct):
        return like.sharding
    return like.sharding if like.committed else None


def _below(place: Any, step: Any, path: str) -> Any:
    """Return the shardings for a part: of a tree of them, or the one for all."""
    if place is None or isinstance(place, jax.sharding.Sharding):
        return place
    try:
        if is_state(place):
            return held_by(place)[step]
        if isinstance(place, dict | list) or type(place) is tuple:
            return place[step]
        if isinstance(place, tuple):
            return getattr(place, step)
        parts = registered_parts(place)
        if parts is not None:
            return {jax.tree_util.keystr(key): part for key, part in parts}[step]
    except (KeyError, IndexError, AttributeError):
        pass
    raise TypeError(
        f"sharding= has no part for {step!r} of {path or 'the tree'}: give a sharding, "
        f"a tree of them of the same structure, or ps.prefix(...)."
    )


def _becomes_array(layout: Layout, saved: Any, name: str, value: Any) -> bool:
    """Return whether a number is put into an array field that was not there before."""
    if name not in layout.arrays or not is_number(value):
        return False
    return not (name in saved.data and saved.data[name] is value)


def _maker(layout: Layout, makes: Mapping[str, Make]) -> Make:
    def make() -> Any:
        values = {name: made() for name, made in makes.items()}
        aux = layout.intern(values)
        state = layout.unflatten(aux, [values[name] for name in layout.data])
        run_checks(state, layout)
        return state

    return make


def _always(value: Any) -> Make:
    return lambda: value


def _nothing() -> None:
    return None


def _layout(cls: Any) -> Layout:
    layout = layout_of(cls)
    if layout.bare:
        cls._ps_awaken()
    return layout


def _is_kind(saved: Any, kind: str, name: str) -> bool:
    if not isinstance(saved, Saved) or saved.kind != kind:
        return False
    return saved.name.rpartition(":")[2] == name.rpartition(":")[2]


def _kind_text(saved: Any) -> str:
    if saved is None:
        return "None"
    if isinstance(saved, Leaf):
        return f"an array of {saved.dtype}"
    if isinstance(saved, Saved):
        return f"a {saved.name or saved.kind}"
    return f"a {type(saved).__name__}"


def _classes(layout: Layout, name: str) -> list[type]:
    """Return the classes that the annotation of a field mentions, at any depth."""
    for base in layout.cls.__mro__:
        if is_state_class(base) and name in layout_of(base).stored:
            owner = base
    annotation = layout.specs[name].type
    if isinstance(annotation, str):
        annotation = evaluated(owner, annotation)
    found: list[type] = []
    _collect(annotation, found)
    return found


def _collect(annotation: Any, found: list[type]) -> None:
    for part in typing.get_args(annotation):
        _collect(part, found)
    origin = typing.get_origin(annotation) or annotation
    if isinstance(origin, type):
        found.append(origin)


def _state_class(saved: Saved, hints: Iterable[Any]) -> Any:
    """Return the State class of a name: of the annotation, else one that exists."""
    for cls in hints:
        if is_state_class(cls):
            names = {short_name(cls), *layout_of(cls).was}
            if saved.name in names:
                return cls
    every = _subclasses(State)
    found = [c for c in every if short_name(c) == saved.name]
    same = [c for c in found if c.__module__ == saved.module]
    known = same or found
    return known[-1] if known else None


def _subclasses(root: Any) -> list[Any]:
    found: dict[Any, None] = {}
    for below in root.__subclasses__():
        found |= dict.fromkeys([below, *_subclasses(below)])
    return [*filter(is_state_class, found)]
