"""`ps.load` and `ps.from_dict`: from a file, or from arrays by name, to a State."""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, overload

import numpy as np

from purestate._compat import untyped_jax
from purestate._pack.packed import Packed
from purestate._saving.file import File, local_path, stored_as
from purestate._saving.fit import ALLOW, Fit, Spot
from purestate._saving.place import fetch
from purestate._saving.saved import Leaf, Saved, copied, saved_tree
from purestate._schema.text import root_name
from purestate.errors import LoadError, LoadWarning
from purestate.errors._base import warn_caller

_S = TypeVar("_S")
_Path = str | os.PathLike[str]
# What an engine returns is a mapping, and is typed as a tree of any kind.
_Leaves = Mapping[str, Any] | Callable[[dict[str, Any]], Any]


@overload
def load(source: Any) -> Saved: ...
@overload
def load(
    source: Any,
    like: type[_S],
    *,
    allow: str | Iterable[str] = (),
    sharding: Any = None,
) -> _S: ...
@overload
def load(
    source: Any, like: _S, *, allow: str | Iterable[str] = (), sharding: Any = None
) -> _S: ...
def load(
    source: Any,
    like: Any = None,
    *,
    allow: str | Iterable[str] = (),
    sharding: Any = None,
) -> Any:
    """Return what `ps.save` wrote, as a State of the class as it is now.

    No callable is made from a file, nothing is imported, and no code of the class runs
    but `__migrate__`, before, and `__check__`, at the end.

    Args:
        source: a path, or a part of a `Saved`, of which no more than that is read.
        like: what is expected. A State class: structure and static values are as they
            were saved. An instance, or an abstract one of `jax.eval_shape`: structure,
            shapes, dtypes and static values must be as in it, and arrays go where its
            arrays are. A container of these. Nothing: a `Saved` is returned, which
            needs no classes and reads arrays when they are asked for.
        allow: which differences are welcome, one or several of "cast" (another dtype),
            "drop" (something that only the file has), "keep" (something that only
            `like` has), "static" (another static value: the one of `like` is taken).
        sharding: where the arrays shall lie: a sharding, or a tree of them of the same
            class, as `ps.prefix` makes one.

    Raises:
        LoadError: the file does not fit; all differences are listed, and no array was
            read.
        CorruptFileError: the file is damaged.
        OSError: there is no such file.
        ValueError: a word in `allow` that is not one of the four.

    >>> import os, tempfile, purestate as ps
    >>> class Point(ps.State):
    ...     x: ps.Array
    >>> path = os.path.join(tempfile.mkdtemp(), "point.safetensors")
    >>> ps.save(path, Point(x=1.5), extra={"epoch": 3})
    >>> ps.load(path, Point)
    Point(x=f32[])
    >>> saved = ps.load(path)
    >>> saved["x"], saved.extra
    (f32[], {'epoch': 3})
    """
    allowed = allowed_words(allow)
    if not isinstance(source, str | bytes | os.PathLike):
        if like is None or not isinstance(source, dict | list | tuple | Leaf):
            what = "nothing" if like is None else f"a {type(like).__name__}"
            raise TypeError(
                f"ps.load takes a path, or a part of what ps.load(path) returned and a "
                f"class or an instance as like: got a {type(source).__name__} as the "
                f"first and {what} as like."
            )
        part = copied(source)
        return _fitted(part, like, allowed, sharding, _name_of(part))
    opened = _OpenFile(local_path(source, LoadError.address))
    with contextlib.ExitStack() as at_the_end:
        at_the_end.callback(opened.close)
        with opened.file.describing():
            saved = saved_tree(opened.manifest(), opened)
        if like is None:
            at_the_end.pop_all()
            return saved
        return _fitted(saved, like, allowed, sharding, opened.name)


@overload
def from_dict(
    manifest: Mapping[str, Any],
    like: type[_S],
    leaves: _Leaves,
    *,
    allow: str | Iterable[str] = (),
    sharding: Any = None,
) -> _S: ...
@overload
def from_dict(
    manifest: Mapping[str, Any],
    like: _S,
    leaves: _Leaves,
    *,
    allow: str | Iterable[str] = (),
    sharding: Any = None,
) -> _S: ...
def from_dict(
    manifest: Mapping[str, Any],
    like: Any,
    leaves: _Leaves,
    *,
    allow: str | Iterable[str] = (),
    sharding: Any = None,
) -> Any:
    """Return the State that `ps.to_dict` took apart.

    Args:
        manifest: as `ps.to_dict` returned it.
        like: as for `ps.load`.
        leaves: the arrays by name; or a function that returns them, called once all
            fits, with a `jax.ShapeDtypeStruct` for each array that is needed; for one
            of numpy with an array of that type instead.
        allow: as for `ps.load`.
        sharding: as for `ps.load`.

    Raises:
        LoadError: something does not fit; all differences are listed. Or `leaves` are
            no arrays by name.
        ValueError: a word in `allow` that is not one of its four.
    """
    allowed = allowed_words(allow)
    if not (isinstance(leaves, Mapping) or callable(leaves)):
        raise LoadError.no_leaves(leaves)
    try:
        saved = saved_tree(manifest, _Arrays(leaves))
    except LoadError:
        raise
    except Exception as error:  # noqa: BLE001  # as many as there are mistakes
        raise LoadError.no_manifest(error) from None
    return _fitted(saved, like, allowed, sharding, _MANIFEST)


_MANIFEST = "the manifest"


def allowed_words(allow: str | Iterable[str]) -> frozenset[str]:
    """Return `allow=` as a set.

    Raises:
        ValueError: something else than the four words.
    """
    known = f"{', '.join(map(repr, ALLOW[:-1]))} or {ALLOW[-1]!r}"
    words = (allow,) if isinstance(allow, str) else allow
    if not isinstance(words, Iterable):
        raise ValueError(f"allow={allow!r}: give {known}, or several of them.")
    for word in (words := [*words]):
        if word not in ALLOW:
            raise ValueError(f"allow={word!r}: give {known}, or several of them.")
    return frozenset(words)


def _fitted(
    saved: Any, like: Any, allowed: frozenset[str], sharding: Any, name: str
) -> Any:
    fit = Fit(allowed)
    try:
        make = fit.tree(saved, like, Spot(sharding=sharding))
    except RecursionError:
        raise LoadError.too_deep(name) from None
    if fit.problems:
        if isinstance(like, Packed):
            like = like.unpack()
        is_class = isinstance(like, type)
        expected = like.__name__ if is_class else root_name(like)
        raise LoadError.unfit(
            name,
            expected or f"the {type(like).__name__} given as like",
            fit.problems,
            needs_instance=fit.needs_instance,
        )
    if fit.defaults:
        warn_caller(
            LoadWarning(
                f"{name} has no {', '.join(fit.defaults)}: the defaults of the class "
                f"are used."
            )
        )
    if fit.vague:
        warn_caller(LoadWarning.vague(name, fit.vague))
    if lost := [*fit.lost, *fetch(fit.wants)]:
        warn_caller(LoadWarning.lost(name, lost))
    try:
        return make()
    except Exception as error:  # of a check
        error.add_note(f"raised while {name or 'what was saved'} was loaded.")
        raise


def _name_of(part: Any) -> str:
    """Return the name of the file that a part is of."""
    if isinstance(part, Leaf):
        return part.source.name
    if isinstance(part, Saved):
        return part.path
    if isinstance(part, dict | list | tuple):  # no arrays, which are long
        inner = part.values() if isinstance(part, dict) else part
        return next(filter(None, map(_name_of, inner)), "")
    return ""


class _OpenFile:
    """Leaves that are in a file."""

    def __init__(self, path: str) -> None:
        self.name = path
        self.file = File(path)

    def __deepcopy__(self, memo: Any) -> "_OpenFile":
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            f"what ps.load({self.name!r}) returned reads its arrays from an open file, "
            f"and cannot be pickled: hand on the path, or numpy.asarray of an array."
        )

    def close(self) -> None:
        self.file.close()

    def manifest(self) -> Any:
        text = self.file.metadata.get("purestate")
        if text is None:
            raise LoadError.foreign(self.name)
        return json.loads(text)

    def check(self, leaf: Leaf) -> None:
        entry = self.file.entries[leaf.name]
        shape, dtype = leaf.stored
        code, stored = stored_as(dtype, shape)
        if (entry.code, entry.shape) != (code, tuple(stored)):
            raise ValueError(f"{leaf.name} is {entry.code} of shape {entry.shape}")

    def read(
        self, leaves: list[Leaf], shardings: list[Any]
    ) -> Iterator[tuple[Leaf, Any]]:
        by_name = {leaf.name: leaf for leaf in leaves}
        for name, data in self.file.read(by_name):
            leaf = by_name[name]
            shape, dtype = leaf.stored
            yield leaf, data.view(dtype).reshape(shape)


class _Arrays:
    """Leaves that another engine has stored."""

    def __init__(self, leaves: _Leaves) -> None:
        self.name = _MANIFEST
        self._leaves = leaves

    def check(self, leaf: Leaf) -> None:
        """Nothing is known of them before they are asked for."""

    def close(self) -> None:
        """Nothing is open."""

    def read(
        self, leaves: list[Leaf], shardings: list[Any]
    ) -> Iterator[tuple[Leaf, Any]]:
        # An engine that is told no sharding takes that of the time of saving, whose
        # devices may not be there.
        here = untyped_jax.sharding.SingleDeviceSharding(untyped_jax.local_devices()[0])
        wanted = {
            leaf.name: _wanted(leaf, sharding or here)
            for leaf, sharding in zip(leaves, shardings, strict=True)
            if leaf.size
        }
        found: Any = self._leaves
        if not isinstance(found, Mapping):
            found = found(wanted)
        if not isinstance(found, Mapping):
            raise LoadError.no_leaves(found)
        given = {name: _given_text(found.get(name)) for name in wanted}
        problems = [
            f"{name}: {given[name]} given, {_type_text(want)} expected"
            for name, want in wanted.items()
            if given[name] != _type_text(want)
        ]
        if problems:
            raise LoadError.unfit("leaves", self.name, problems)
        for leaf in leaves:
            if leaf.size:
                yield leaf, found[leaf.name]
            else:
                yield leaf, np.zeros(*leaf.stored)


def _wanted(leaf: Leaf, sharding: Any) -> Any:
    shape, dtype = leaf.stored
    if leaf.kind == "numpy":
        # As an array of jax an int64 would come back cut to 32 bits. This one takes no
        # memory.
        return np.broadcast_to(np.empty((), dtype), shape)
    return untyped_jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _given_text(array: Any) -> str:
    if array is None:
        return "nothing"
    # An abstract array has a type, and no numbers.
    is_array = hasattr(array, "dtype") and not isinstance(
        array, untyped_jax.ShapeDtypeStruct
    )
    return _type_text(array) if is_array else f"a {type(array).__name__}"


def _type_text(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)}"
