"""`ps.load` and `ps.from_dict`: from a file, or from arrays by name, to a State."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, overload

import numpy as np

from purestate._compat import untyped_jax
from purestate._pack.pack import pack
from purestate._pack.packed import Packed
from purestate._saving.file import File, local_path, stored_as
from purestate._saving.fit import ALLOW, Fit
from purestate._saving.place import fetch
from purestate._saving.saved import Leaf, Saved, saved_tree
from purestate._schema.text import root_name
from purestate.errors import LoadError, LoadWarning

_S = TypeVar("_S")
_Path = str | os.PathLike[str]
_Leaves = Mapping[str, Any] | Callable[[dict[str, Any]], Mapping[str, Any]]


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
    (float32[], {'epoch': 3})
    """
    allowed = _allowed(allow)
    if not isinstance(source, str | os.PathLike):
        if like is None:
            raise TypeError("ps.load(part) needs the class or an instance as like.")
        return _fitted(source, like, allowed, sharding, _origin(source))
    path = local_path(source, LoadError.address)
    opened = _OpenFile(path)
    with opened.file.describing():
        saved = saved_tree(opened.manifest(), opened, path)
    if like is None:
        return saved
    try:
        return _fitted(saved, like, allowed, sharding, path)
    finally:
        opened.file.close()


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
            fits, with a `jax.ShapeDtypeStruct` for each array that is needed.
        allow: as for `ps.load`.
        sharding: as for `ps.load`.

    Raises:
        LoadError: something does not fit; all differences are listed.
        ValueError: a word in `allow` that is not one of its four.
    """
    allowed = _allowed(allow)
    try:
        saved = saved_tree(manifest, _Arrays(leaves))
    except LoadError:
        raise
    except Exception as error:  # noqa: BLE001  # as many as there are mistakes
        raise LoadError(
            f"the manifest is not one that ps.to_dict returned "
            f"({type(error).__name__}: {error})"
        ) from None
    return _fitted(saved, like, allowed, sharding, "the manifest")


def _allowed(allow: str | Iterable[str]) -> frozenset[str]:
    words = frozenset((allow,) if isinstance(allow, str) else allow)
    for word in words:
        if word not in ALLOW:
            known = ", ".join(map(repr, ALLOW[:-1]))
            raise ValueError(
                f"allow={word!r}: give {known} or {ALLOW[-1]!r}, or several of them."
            )
    return words


def _fitted(
    saved: Any, like: Any, allowed: frozenset[str], sharding: Any, path: str
) -> Any:
    packed = isinstance(like, Packed)
    if packed:
        like = like.unpack()
    fit = Fit(allowed)
    make = fit.tree(saved, like, sharding, "", ())
    if fit.problems:
        expected = getattr(like, "__name__", "") or root_name(like)
        hint = (
            "An instance is one that the program makes, or jax.eval_shape(make), which "
            "computes nothing."
        )
        raise LoadError.unfit(
            path,
            expected or f"the {type(like).__name__} expected",
            fit.problems,
            hint if fit.needs_instance else "",
        )
    if fit.defaults:
        warnings.warn(
            f"{path} has no {', '.join(fit.defaults)}: the defaults of the class are "
            f"used.",
            LoadWarning,
            stacklevel=3,
        )
    fetch(fit.wants)
    made = make()
    return pack(made) if packed else made


def _origin(part: Any) -> str:
    """Return the path of the file that a part is of."""
    if isinstance(part, Saved) and part.path:
        return part.path
    return "the part"


class _OpenFile:
    """Leaves that are in a file."""

    def __init__(self, path: str) -> None:
        self.file = File(path)

    def manifest(self) -> Any:
        import json

        text = self.file.metadata.get("purestate")
        if text is None:
            raise LoadError.foreign(self.file.path)
        return json.loads(text)

    def check(self, leaf: Leaf) -> None:
        entry = self.file.entries[leaf.name]
        code, shape = stored_as(leaf.stored.dtype, leaf.stored.shape)
        if (entry.code, entry.shape) != (code, tuple(shape)):
            raise ValueError(f"{leaf.name} is {entry.code}{entry.shape} in the file")

    def read(
        self, leaves: list[Leaf], shardings: list[Any]
    ) -> Iterator[tuple[Leaf, Any]]:
        by_name = {leaf.name: leaf for leaf in leaves}
        for name, data in self.file.read(by_name):
            leaf = by_name[name]
            yield leaf, data.view(leaf.stored.dtype).reshape(leaf.stored.shape)


class _Arrays:
    """Leaves that another engine has stored."""

    def __init__(self, leaves: _Leaves) -> None:
        self.leaves = leaves

    def check(self, leaf: Leaf) -> None:
        """Nothing is known of them yet."""

    def read(
        self, leaves: list[Leaf], shardings: list[Any]
    ) -> Iterator[tuple[Leaf, Any]]:
        wanted = {
            leaf.name: untyped_jax.ShapeDtypeStruct(
                leaf.stored.shape, leaf.stored.dtype, sharding=sharding
            )
            for leaf, sharding in zip(leaves, shardings, strict=True)
            if leaf.size
        }
        found = self.leaves(wanted) if callable(self.leaves) else self.leaves
        for leaf in leaves:
            if leaf.size:
                yield leaf, found[leaf.name]
            else:
                yield leaf, np.zeros(leaf.stored.shape, leaf.stored.dtype)
