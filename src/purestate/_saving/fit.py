"""What was saved against what is expected: how to make it, or all that differs.

No array is read here. Where the two fit, the result is a function that makes the tree
once the wanted arrays are there. Where they do not, each difference is a line with its
way out.
"""

import contextlib
import dataclasses
import functools
import typing
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from purestate._compat import is_tracer, untyped_jax
from purestate._instance.checks import run_checks
from purestate._instance.numbers import is_number, strong
from purestate._instance.seal import converted, default_of
from purestate._pack.pack import pack
from purestate._pack.packed import Packed
from purestate._saving.classes import annotated_classes, is_named, state_class
from purestate._saving.describe import class_name, registered_parts, static_part
from purestate._saving.place import Want, misplaced, part_of, survives, wrong_sharding
from purestate._saving.saved import Leaf, Saved, as_it_was
from purestate._saving.values import (
    Recorded,
    agree,
    decode,
    encode,
    encode_number,
    find_class,
    is_namedtuple,
    is_unnamed,
    is_vague,
    number_name,
    value_text,
)
from purestate._schema.fields import MISSING, old_names
from purestate._schema.layout import Layout, layout_of
from purestate._schema.leaves import is_array, is_key
from purestate._schema.marks import held_by, is_state, is_state_class
from purestate._schema.text import function_name
from purestate.errors import LoadError

ALLOW = ("cast", "drop", "keep", "static")
_AS_SAVED: Any = object()  # what is expected where a class does not say it
_Make = Callable[[], Any]


def _no_classes() -> tuple[type, ...]:
    return ()


@dataclasses.dataclass(frozen=True)
class Spot:
    """A place in the tree.

    Attributes:
        path: its path, for messages.
        sharding: of what is there: a sharding, a tree of them, None.
        classes: returns the classes that the annotation above it mentions.
    """

    path: str = ""
    sharding: Any = None
    classes: Callable[[], tuple[type, ...]] = _no_classes

    def below(self, step: Any, text: str) -> "Spot":
        """Return the spot one step down: at a field, a key or an index."""
        sharding = part_of(self.sharding, step, self.path)
        return Spot(self.path + text, sharding, self.classes)

    def below_text(self, text: str) -> "Spot":
        """Return the spot one step down, of which only the path counts."""
        return Spot(self.path + text)

    def field(self, layout: Layout, name: str) -> "Spot":
        """Return the spot of a field."""
        classes = functools.partial(annotated_classes, layout, name)
        sharding = None
        if name not in layout.static_names:
            sharding = part_of(self.sharding, name, self.path)
        return Spot(f"{self.path}.{name}", sharding, classes)

    def array_sharding(self) -> Any:
        """Return the sharding of an array that is here.

        Raises:
            TypeError: what was given for it is not a sharding.
        """
        if self.sharding is None or isinstance(self.sharding, jax.sharding.Sharding):
            return self.sharding
        raise wrong_sharding(self.sharding, self.path)


class Fit:
    """One comparison of a tree that was saved with what is expected.

    Attributes:
        wants: the arrays to be read.
        problems: the differences, a line each.
        defaults: the fields that the file lacks, and that get their defaults.
        needs_instance: whether an instance as like would solve one of the problems.
        vague: the static values of which no more than a name could be compared.
        lost: the numbers that a cast has changed.
    """

    def __init__(self, allow: Iterable[str]) -> None:
        self.allow = frozenset(allow)
        self.wants: list[Want] = []
        self.problems: list[str] = []
        self.defaults: list[str] = []
        self.needs_instance = False
        self.vague: list[str] = []
        self.lost: list[str] = []
        self._known: dict[Any, Want] = {}
        self._classes: dict[tuple[str, str], type] = {}  # by module and name

    def tree(self, saved: Any, like: Any, spot: Spot) -> _Make:
        """Return what makes a part of the tree, once the wanted arrays are there.

        Args:
            saved: the part as it was saved.
            like: what is expected: a State class, an instance, a container of these.
            spot: where the part is.

        Raises:
            LoadError: `__migrate__` returned something that is not a dict.
            TypeError: `sharding=` has no sharding for a part.
        """
        saved = as_it_was(saved)
        if isinstance(like, Packed):
            unpacked = self.tree(saved, like.unpack(), spot)
            return lambda: pack(unpacked())
        if (origin := typing.get_origin(like)) and is_state_class(origin):
            like = origin
        if like is _AS_SAVED:
            return self._as_saved(saved, spot)
        if isinstance(like, type) and is_state_class(like):
            return self._of_class(saved, like, spot)
        if is_state(like):
            return self._like_state(saved, like, spot)
        kind = type(like)
        if like is None:
            return self._same_kind(saved, None, spot) or _always(None)
        if kind in (dict, OrderedDict):
            return self._same_kind(saved, like, spot) or self._dict(saved, like, spot)
        if kind in (list, tuple):
            return self._same_kind(saved, like, spot) or self._row(saved, like, spot)
        if is_namedtuple(kind):
            return self._namedtuple(saved, like, spot)
        if is_array(like) or isinstance(like, jax.ShapeDtypeStruct):
            return self._array(saved, like, spot)
        try:
            encode_number(like)
        except TypeError:
            return self._registered(saved, like, spot)
        return self._number(saved, like, spot)

    def _problem(self, spot: Spot, text: str) -> _Make:
        self.problems.append(f"{spot.path or 'the tree'}: {text}")
        return _always(None)

    def _differ(self, spot: Spot, saved: Any, expected: str) -> _Make:
        return self._problem(
            spot, f"{_kind_text(saved)} in the file, {expected} expected"
        )

    def _same_kind(self, saved: Any, like: Any, spot: Spot) -> _Make | None:
        if type(saved) is type(like):
            return None
        return self._differ(spot, saved, _kind_text(like))

    # --- States -----------------------------------------------------------------------

    def _of_class(self, saved: Any, cls: Any, spot: Spot) -> _Make:
        layout = layout_of(cls)
        if layout.bare:
            cls._ps_awaken()
        fields, spot = self._fields(saved, layout, spot)
        if fields is None:
            return _always(None)
        makes = {}
        for name in layout.names:
            inner = spot.field(layout, name)
            if name not in fields:
                makes[name] = self._default(layout, name, inner, fields)
                continue
            value = fields[name]
            if name in layout.static_names:
                makes[name] = self._static(layout, name, value, inner)
            elif _is_new_number(layout, name, value, saved):
                makes[name] = _always(strong(layout, name, value))
            else:
                makes[name] = self.tree(value, _AS_SAVED, inner)
        self._extra(fields, layout, spot)
        return _state_maker(layout, makes)

    def _like_state(self, saved: Any, like: Any, spot: Spot) -> _Make:
        layout = layout_of(type(like))
        if is_state(saved):  # a migration made it
            return self._given(saved, like, spot)
        row, aux = layout.flatten(like)
        fields, spot = self._fields(saved, layout, spot)
        if fields is None:
            return _always(None)
        expected = dict(zip(layout.data, row, strict=True))
        expected |= zip(layout.static, aux.values, strict=True)
        makes = {}
        for name in layout.names:
            inner, old = spot.field(layout, name), expected[name]
            if name not in fields:
                makes[name] = self._missing_field(layout, name, old, inner)
                continue
            value = fields[name]
            if name in layout.static_names:
                makes[name] = self._same_static(value, old, inner)
            else:
                if _is_new_number(layout, name, value, saved):
                    value = strong(layout, name, value, old)
                makes[name] = self.tree(value, old, inner)
        self._extra(fields, layout, spot)
        return _state_maker(layout, makes)

    def _fields(
        self, saved: Any, layout: Layout, spot: Spot
    ) -> tuple[dict[str, Any] | None, Spot]:
        """Return the fields of a State as its class has them now, and where it is."""
        cls: Any = layout.cls
        if not spot.path:
            spot = dataclasses.replace(spot, path=cls.__name__)
        if not isinstance(saved, Saved) or saved.kind != "state":
            self._differ(spot, saved, f"a {cls.__name__}")
            return None, spot
        if not is_named(cls, saved.name):
            self._problem(
                spot,
                f"a {saved.name} in the file, a {cls.__name__} expected (if it was "
                f"renamed: class {cls.__name__}(ps.State, was={saved.name!r}))",
            )
            return None, spot
        if saved.version > layout.version:
            self._problem(
                spot,
                f"version {saved.version} of {cls.__name__} in the file, and the class "
                f"is version {layout.version} (update the code)",
            )
        is_older = saved.version < layout.version and hasattr(cls, "__migrate__")
        fields = _migrated(saved, cls) if is_older else dict(saved)
        for name in layout.names:
            for old in old_names(layout.specs[name]):
                if name not in fields and old in fields:
                    fields[name] = fields.pop(old)
                    if old in saved.data:
                        saved.data[name] = saved.data[old]
        for name in fields:
            if name not in layout.stored or is_older:
                continue
            if (name in layout.data) != (name in saved.data):
                self._moved(layout, name, spot)
        return fields, spot

    def _extra(self, fields: Iterable[str], layout: Layout, spot: Spot) -> None:
        for name in fields:
            if name not in layout.stored and "drop" not in self.allow:
                self._problem(
                    spot.below_text(f".{name}"),
                    "in the file only (allow='drop' leaves it out; ps.field(was=...) "
                    "if it was renamed)",
                )

    def _moved(self, layout: Layout, name: str, spot: Spot) -> None:
        kinds = ("a static value", "data")
        was, now = kinds if name in layout.data else kinds[::-1]
        self._problem(
            spot.below_text(f".{name}"),
            f"{was} in the file, {now} expected (version= and __migrate__ tell how it "
            f"moved)",
        )

    def _default(
        self, layout: Layout, name: str, spot: Spot, there: Iterable[str]
    ) -> _Make:
        spec = layout.specs[name]
        value = default_of(spec)
        if value is MISSING:
            old = [repr(other) for other in there if other not in layout.stored]
            kind = "static" if name in layout.static_names else "field"
            ways = "a default, __migrate__, or" if old else "a default or __migrate__"
            if old:
                ways += f" ps.{kind}(was=...) if {' or '.join(old)} is its old name"
            return self._problem(
                spot, f"not in the file, and it has no default ({ways})"
            )
        self.defaults.append(spot.path)
        if name in layout.converters:
            value = converted(layout, name, value)
        if name in layout.arrays and is_number(value):
            value = strong(layout, name, value)
        if name in layout.static_names or spot.sharding is None:
            return _always(value)
        return self.tree(value, _AS_SAVED, spot)

    def _missing_field(self, layout: Layout, name: str, old: Any, spot: Spot) -> _Make:
        if "keep" not in self.allow and default_of(layout.specs[name]) is not MISSING:
            value = self._default(layout, name, Spot(spot.path), ())()
            if name in layout.static_names:
                if agree(encode(old), encode(value)):
                    return _always(old)
            elif _is_alike(value, old):
                return self._given(value, old, spot)
            self.defaults.pop()
        return self._missing(old, spot)

    def _missing(self, old: Any, spot: Spot) -> _Make:
        abstract = any(
            isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(old)
        )
        if "keep" not in self.allow:
            return self._problem(
                spot, "not in the file (allow='keep' keeps what like has)"
            )
        if abstract:
            return self._problem(
                spot, "not in the file, and like has no numbers (give an instance)"
            )
        return _always(old)

    def _given(self, value: Any, like: Any, spot: Spot) -> _Make:
        """Return what makes a value that does not come from the file."""
        if not _is_alike(value, like):
            return self._problem(spot, "what was made has another structure than like")
        if spot.sharding is not None:
            where = jax.tree.map(lambda _: spot.array_sharding(), like)
        else:
            where = jax.tree.map(_sharding_of, like)
        made = self._completed(value, Spot(spot.path))
        return lambda: jax.tree.map(_placed, made(), where, is_leaf=_is_none)

    def _completed(self, value: Any, spot: Spot) -> _Make:
        """Return what makes something that a migration made, maybe of unread arrays."""
        if refused := self._unread(value, spot, static=False):
            return refused
        parts, structure = untyped_jax.tree_util.tree_flatten_with_path(value)
        if not any(isinstance(part, Leaf | Saved) for _, part in parts):
            return _always(value)
        makes = [
            self._as_saved(part, Spot(spot.path + jax.tree_util.keystr(path)))
            for path, part in parts
        ]
        return lambda: structure.unflatten([make() for make in makes])

    # --- static values ----------------------------------------------------------------

    def _static(self, layout: Layout, name: str, value: Any, spot: Spot) -> _Make:
        if not isinstance(value, Recorded):
            return self._unread(value, spot, static=True) or self._annotated(
                value, spot
            )
        default = default_of(layout.specs[name])
        is_known = default is not MISSING and not is_unnamed(value.encoded)
        if is_known and agree(value.encoded, encode(default)):
            self._note_vague(value.encoded, spot)
            return _always(default)
        made = decode(value.encoded, spot.classes())
        return self._cannot_hold(made, spot) or _always(made)

    def _annotated(self, value: Any, spot: Spot) -> _Make:
        """Return what makes a value of the classes that the annotation mentions."""
        encoded = encode(value)
        if not isinstance(encoded, dict) or not (classes := spot.classes()):
            return _always(value)
        made = decode(encoded, classes)
        if isinstance(made, Recorded) and isinstance(decode(encoded), Recorded):
            return _always(value)  # of a migration
        return self._cannot_hold(made, spot) or _always(made)

    def _unread(self, value: Any, spot: Spot, *, static: bool) -> _Make | None:
        """Refuse what a migration left of the file where it is not read."""
        for text, part in _left_of_file(value, static):
            inner = spot.below_text(text)
            if isinstance(part, Recorded):
                return self._cannot_hold(part, inner)
            what = (
                "an array" if isinstance(part, Leaf) else f"a {part.name or part.kind}"
            )
            return self._problem(
                inner,
                f"{what} of the file in a static field (np.asarray(...).item() reads a "
                f"number; arrays belong into data fields)",
            )
        return None

    def _note_vague(self, encoded: Any, spot: Spot) -> None:
        if is_vague(encoded) and spot.path not in self.vague:
            self.vague.append(spot.path)

    def _cannot_hold(self, value: Any, spot: Spot) -> _Make | None:
        if not isinstance(value, Recorded):
            return None
        self.needs_instance = True
        ways = "give an instance as like, or a default in the class"
        if is_unnamed(value.encoded):  # no default is known to be the same
            ways = "give an instance as like"
        return self._problem(
            spot, f"the file names {value!r}, which it cannot hold ({ways})"
        )

    def _same_static(self, value: Any, old: Any, spot: Spot) -> _Make:
        known = value.encoded if isinstance(value, Recorded) else encode(value)
        if agree(known, encode(old)):
            self._note_vague(known, spot)
        elif "static" not in self.allow:
            self._problem(
                spot,
                f"static value {value_text(value)} in the file, {value_text(old)} "
                f"expected (allow='static' takes the one expected)",
            )
        return _always(old)

    # --- containers -------------------------------------------------------------------

    def _dict(self, saved: Any, like: Any, spot: Spot) -> _Make:
        found = {_known_key(key, like): part for key, part in saved.items()}
        makes, kind = self._items(found, like, spot, "[{!r}]"), type(like)
        return lambda: kind((key, make()) for key, make in makes.items())

    def _row(self, saved: Any, like: Any, spot: Spot) -> _Make:
        old, new = dict(enumerate(like)), dict(enumerate(saved))
        makes, kind = self._items(new, old, spot, "[{!r}]"), type(like)
        return lambda: kind(make() for make in makes.values())

    def _namedtuple(self, saved: Any, like: Any, spot: Spot) -> _Make:
        cls: Any = type(like)
        if is_namedtuple(type(saved)):  # of a migration
            saved = _as_saved_tuple(saved)
        if not _is_kind(saved, "namedtuple", cls):
            return self._differ(spot, saved, f"a {class_name(cls)}")
        old = dict(zip(cls._fields, like, strict=True))
        makes = self._items(saved, old, spot, ".{}")
        return lambda: tuple.__new__(cls, [make() for make in makes.values()])

    def _registered(self, saved: Any, like: Any, spot: Spot) -> _Make:
        cls, parts = type(like), registered_parts(like)
        if parts is None and (callable(like) or _is_annotation(like)):
            if isinstance(saved, Recorded):  # as equinox has among its leaves
                return self._same_static(saved, like, spot)
            return self._problem(spot, _no_like(like))
        if parts is None:
            return self._problem(
                spot,
                f"an object of type {cls.__name__} expected, which no file holds "
                f"(declare it with ps.static())",
            )
        if not _is_kind(saved, "tree", cls):
            return self._differ(spot, saved, f"a {class_name(cls)}")
        if saved.aux is not None:
            self._same_static(saved.aux, static_part(like), spot)
        old = {name: part for name, (_, part) in parts.items()}
        makes = self._items(saved, old, spot, "{}")
        structure: Any = jax.tree.structure(like, is_leaf=lambda x: x is not like)
        return lambda: structure.unflatten([make() for make in makes.values()])

    def _items(self, saved: Any, like: Any, spot: Spot, step: str) -> dict[Any, _Make]:
        makes = {}
        for key, old in like.items():
            inner = spot.below(key, step.format(key))
            if key in saved:
                makes[key] = self.tree(saved[key], old, inner)
            else:
                makes[key] = self._missing(old, inner)
        for key in saved:
            if key not in like and "drop" not in self.allow:
                self._problem(
                    spot.below_text(step.format(key)),
                    "in the file only (allow='drop' leaves it out)",
                )
        return makes

    # --- leaves -----------------------------------------------------------------------

    def _array(self, saved: Any, like: Any, spot: Spot) -> _Make:
        if is_tracer(like):
            return self._problem(
                spot,
                "a tracer expected, which is no array yet (load outside of jit, or "
                "give what jax.eval_shape returns)",
            )
        cast = "cast" in self.allow
        if is_number(saved) and not isinstance(saved, Leaf):
            if _is_abstract_number(saved, like):
                return _always(saved)
            if like.shape == () and not is_key(like):
                if not cast:
                    return self._problem(
                        spot,
                        f"{type(saved).__name__} in the file, an array of {like.dtype} "
                        f"expected (allow='cast' converts)",
                    )
                saved = _array_of(saved, like.dtype)
                if saved.dtype == object:
                    return self._problem(
                        spot, f"{saved} in the file, which {like.dtype} cannot hold"
                    )
        if not isinstance(saved, Leaf) and not is_array(saved):
            return self._differ(spot, saved, _kind_text(like))
        problem = _type_problem(saved, like, cast)
        if problem:
            return self._problem(spot, problem)
        sharding = spot.array_sharding()
        if sharding is None:
            sharding = _sharding_of(like)
        if is_key(like):
            return self._want(saved, "key", None, False, sharding, spot)
        weak = bool(getattr(like, "weak_type", False))
        kind, dtype = "jax", np.dtype(like.dtype)
        if isinstance(like, np.ndarray):
            kind = "numpy"
        elif _is_abstract_numpy(saved, like):
            kind, dtype = "numpy", saved.dtype
        return self._want(saved, kind, dtype, weak, sharding, spot)

    def _number(self, saved: Any, like: Any, spot: Spot) -> _Make:
        if type(saved) is type(like):
            return _always(saved)
        if not (is_number(saved) and is_number(like)):
            return self._differ(spot, saved, _kind_text(like))
        if "cast" in self.allow:
            try:
                made: Any = type(like)(saved)
            except (TypeError, ValueError, OverflowError):
                kind = type(like).__name__
                return self._problem(spot, f"{saved!r} in the file, which is no {kind}")
            if not survives(np.asarray(saved), np.asarray(made)):
                self.lost.append(spot.path or "the tree")
            return _always(made)
        names = type(saved).__name__, type(like).__name__
        return self._problem(
            spot, f"{names[0]} in the file, {names[1]} expected (allow='cast' converts)"
        )

    def _want(
        self, saved: Any, kind: str, dtype: Any, weak: bool, sharding: Any, spot: Spot
    ) -> _Make:
        if kind != "numpy" and (problem := misplaced(saved.shape, sharding)):
            return self._problem(spot, problem)
        origin = (saved.source, saved.name) if isinstance(saved, Leaf) else (saved, "")
        key = (id(origin[0]), origin[1], kind, dtype, weak, sharding)
        want = self._known.get(key)
        if want is None:
            path = spot.path or "the tree"
            want = Want(saved, kind, dtype, weak, sharding, path)
            self._known[key] = want
            self.wants.append(want)
        made = want
        return lambda: made.array

    # --- as saved ---------------------------------------------------------------------

    def _as_saved(self, saved: Any, spot: Spot) -> _Make:
        if isinstance(saved, Leaf) or is_array(saved):
            return self._array_as_saved(saved, spot)
        if isinstance(saved, Saved):
            return self._saved_class(saved, spot)
        if is_namedtuple(type(saved)):  # of a migration
            cls: Any = type(saved)
            spot = dataclasses.replace(spot, classes=lambda: (cls,))
            return self._saved_class(_as_saved_tuple(saved), spot)
        if isinstance(saved, dict):
            keys = [self._key_as_saved(key, spot) for key in saved]
            makes = [*self._parts_as_saved(saved, spot, "[{!r}]").values()]
            kind = type(saved)
            return lambda: kind(
                (key(), make()) for key, make in zip(keys, makes, strict=True)
            )
        if type(saved) in (list, tuple):
            row = self._parts_as_saved(dict(enumerate(saved)), spot, "[{!r}]")
            return lambda: type(saved)(make() for make in row.values())
        return self._cannot_hold(saved, spot) or self._completed(saved, spot)

    def _key_as_saved(self, key: Any, spot: Spot) -> _Make:
        return self._cannot_hold(key, spot) or self._annotated(key, spot)

    def _parts_as_saved(
        self, parts: Mapping[Any, Any], spot: Spot, step: str
    ) -> dict[Any, _Make]:
        return {
            key: self.tree(part, _AS_SAVED, spot.below(key, step.format(key)))
            for key, part in parts.items()
        }

    def _array_as_saved(self, saved: Any, spot: Spot) -> _Make:
        sharding = spot.array_sharding()
        if not isinstance(saved, Leaf):
            if problem := misplaced(saved.shape, sharding):
                return self._problem(spot, problem)
            return _always(_placed(saved, sharding))
        if saved.kind == "key":
            return self._want(saved, "key", None, False, sharding, spot)
        dtype = saved.dtype
        if saved.kind == "jax":
            dtype = jax.dtypes.canonicalize_dtype(dtype)
            if dtype != saved.dtype and "cast" not in self.allow:
                return self._problem(
                    spot,
                    f"{saved.dtype} in the file, which jax has only with "
                    f"jax_enable_x64 (allow='cast' converts to {dtype})",
                )
        return self._want(saved, saved.kind, dtype, saved.weak, sharding, spot)

    def _saved_class(self, saved: Saved, spot: Spot) -> _Make:
        classes = spot.classes()
        if saved.kind == "state":
            # A part without an annotation, as moments of an optimizer are, is of the
            # class that its name stood for elsewhere in the file.
            key = saved.module, saved.name
            met = [cls for cls in [self._classes.get(key)] if cls]
            cls = state_class(saved.name, saved.module, classes, met)
            if cls is not None:
                self._classes.setdefault(key, cls)
                return self._of_class(saved, cls, spot)
            named = [c for c in classes if is_state_class(c)]
            if len(named) == 1:
                return self._of_class(saved, named[0], spot)
            self.needs_instance = True
            return self._problem(
                spot,
                f"the file holds a {saved.name}, and no such State class exists here "
                f"(import {saved.module}, or give an instance as like)",
            )
        if saved.kind == "namedtuple":
            cls = find_class(saved.name, classes)
            if is_namedtuple(cls) and cls._fields == tuple(saved):
                makes = self._parts_as_saved(saved, spot, ".{}")
                return lambda: tuple.__new__(cls, [make() for make in makes.values()])
        self.needs_instance = True
        return self._problem(
            spot,
            f"the file holds a {saved.name}, which only an instance can rebuild (give "
            f"an instance as like)",
        )


def _migrated(saved: Saved, cls: Any) -> dict[str, Any]:
    """Return what `__migrate__` makes of the fields of an older class.

    Raises:
        LoadError: it returned something else than a dict.
    """
    try:
        fields = cls.__migrate__(saved, saved.version)
    except Exception as error:
        error.add_note(
            f"raised by {cls.__name__}.__migrate__ for {saved.name} saved as version "
            f"{saved.version}."
        )
        raise
    if not isinstance(fields, dict):
        raise LoadError.migrated(cls.__name__, fields)
    return dict(fields)


def _is_new_number(layout: Layout, name: str, value: Any, saved: Saved) -> bool:
    """Return whether an array field got a number that it did not have when saved."""
    if name not in layout.arrays or not is_number(value):
        return False
    return saved.data.get(name, MISSING) is not value


def _state_maker(layout: Layout, makes: Mapping[str, _Make]) -> _Make:
    def make() -> Any:
        values = {name: make() for name, make in makes.items()}
        aux = layout.intern(values)
        state = layout.unflatten(aux, [values[name] for name in layout.data])
        run_checks(state, layout)
        return state

    return make


def _always(value: Any) -> _Make:
    return lambda: value


def _is_none(value: Any) -> bool:
    return value is None


def _is_annotation(like: Any) -> bool:
    return isinstance(like, type) or typing.get_origin(like) is not None


def _no_like(like: Any) -> str:
    """Return what is wrong with a function or an annotation as like."""
    if _is_annotation(like):
        name = like.__name__ if isinstance(like, type) else repr(like)
        return (
            f"{name} expected, which is no State class (give one, an instance, or a "
            f"list, tuple or dict that holds them)"
        )
    name = function_name(like)
    return (
        f"the function {name} expected, which no file holds (if it makes what is "
        f"expected: jax.eval_shape({name}))"
    )


def _as_saved_tuple(value: Any) -> Saved:
    fields = dict(zip(type(value)._fields, value, strict=True))
    return Saved(fields, "namedtuple", class_name(type(value)))


def _is_kind(saved: Any, kind: str, cls: type) -> bool:
    """Return whether it was saved of a class of this name, of whichever module."""
    if not isinstance(saved, Saved) or saved.kind != kind:
        return False
    return saved.name.rpartition(":")[2] == cls.__qualname__


def _known_key(key: Any, like: Mapping[Any, Any]) -> Any:
    """Return a key of a dict, which a file may know by name only."""
    known = key.encoded if isinstance(key, Recorded) else encode(key)
    if not isinstance(known, dict) or key in like:
        return key
    return next((k for k in like if agree(known, encode(k))), key)


def _left_of_file(value: Any, static: bool, path: str = "") -> Iterator[Any]:
    """Yield path and part of what a file names, and static parts that it holds."""
    if isinstance(value, Recorded) or (static and isinstance(value, Leaf | Saved)):
        yield path, value
    elif is_state(value):
        layout, held = layout_of(type(value)), held_by(value)
        for name in layout.names:
            inner = static or name in layout.static_names
            yield from _left_of_file(held[name], inner, f"{path}.{name}")
    elif isinstance(value, tuple | list | frozenset):
        for i, part in enumerate(value):
            yield from _left_of_file(part, static, f"{path}[{i}]")
    elif type(value) in (dict, OrderedDict):
        for key, part in value.items():
            yield from _left_of_file(part, static, f"{path}[{key!r}]")
    elif static and dataclasses.is_dataclass(value) and not isinstance(value, type):
        for name, part in getattr(value, "__dict__", {}).items():
            yield from _left_of_file(part, static, f"{path}.{name}")


def _array_of(number: Any, dtype: Any) -> Any:
    """Return a number as an array; of objects if the dtype has none that large."""
    made = np.asarray(number)
    if made.dtype == object and jax.numpy.issubdtype(dtype, np.inexact):
        with contextlib.suppress(OverflowError):
            return np.asarray(float(number))
    return made


def _is_alike(value: Any, like: Any) -> bool:
    """Return whether two trees have one structure, and leaves of the same types."""
    first, second = untyped_jax.tree.flatten(value), untyped_jax.tree.flatten(like)
    pairs = zip(first[0], second[0], strict=False)
    return first[1] == second[1] and all(
        _leaf_type(a) == _leaf_type(b) for a, b in pairs
    )


def _leaf_type(leaf: Any) -> Any:
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return tuple(leaf.shape), leaf.dtype
    return type(leaf)


def _type_problem(saved: Any, like: Any, cast: bool) -> str:
    """Return how the type of an array differs from the one expected, or nothing."""
    first, second = _dtype_text(saved), _dtype_text(like)
    if first == second and saved.shape == like.shape:
        return ""
    if first != second and (is_key(saved) or is_key(like)):
        return f"{first} in the file, {second} expected"
    if tuple(saved.shape) != tuple(like.shape):
        return f"shape {tuple(saved.shape)} in the file, {tuple(like.shape)} expected"
    if first == second or cast or _is_abstract_numpy(saved, like):
        return ""
    return f"{first} in the file, {second} expected (allow='cast' converts)"


def _is_abstract_numpy(saved: Any, like: Any) -> bool:
    """Return whether `jax.eval_shape` returned `like` for an array of numpy."""
    if not isinstance(like, jax.ShapeDtypeStruct) or like.sharding is not None:
        return False
    is_numpy = isinstance(saved, np.ndarray) or getattr(saved, "kind", "") == "numpy"
    return is_numpy and bool(jax.dtypes.canonicalize_dtype(saved.dtype) == like.dtype)


def _is_abstract_number(saved: Any, like: Any) -> bool:
    """Return whether `jax.eval_shape` returned `like` for a number of this type."""
    if not isinstance(like, jax.ShapeDtypeStruct) or like.shape != () or is_key(like):
        return False
    if isinstance(saved, np.generic):  # whose types eval_shape keeps
        return bool(jax.dtypes.canonicalize_dtype(saved.dtype) == like.dtype)
    is_weak = bool(like.weak_type) or isinstance(saved, bool)
    return is_weak and bool(like.dtype == untyped_jax.numpy.result_type(saved))


def _dtype_text(value: Any) -> str:
    return number_name(value.dtype) or f"a {value.dtype}"


def _sharding_of(like: Any) -> Any:
    """Return where an array lies, if it was put there on purpose."""
    if isinstance(like, jax.ShapeDtypeStruct):
        return like.sharding
    is_placed = isinstance(like, jax.Array) and getattr(like, "committed", False)
    return like.sharding if is_placed else None


def _placed(value: Any, sharding: Any) -> Any:
    return value if sharding is None else untyped_jax.device_put(value, sharding)


def _kind_text(saved: Any) -> str:
    if saved is None:
        return "None"
    if isinstance(saved, Saved):
        return f"a {saved.name or saved.kind}"
    if hasattr(saved, "dtype") and hasattr(saved, "shape"):
        return f"an array of {_dtype_text(saved).removeprefix('a ')}"
    return f"a {type(saved).__name__}"
