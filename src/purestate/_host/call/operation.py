"""One host function at one set of argument and result types."""

import collections
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax

from purestate._host.call.leaf import Leaf
from purestate._host.call.options import Options
from purestate._inspect.key_paths import path_text

_ARRAY = jax.tree.structure(0)


@dataclasses.dataclass(frozen=True, eq=False)
class Operation:
    """What jax sees of a host call; one object per types, so compared by identity.

    Attributes:
        options: the function and how it was declared.
        in_tree: structure of `(args, kwargs)`, without the static arguments.
        ins: the argument leaves.
        statics: the static arguments, by name.
        out_tree: structure of the result.
        outs: the result leaves.
    """

    options: Options
    in_tree: Any
    ins: tuple[Leaf, ...]
    statics: dict[str, Any]
    out_tree: Any
    outs: tuple[Leaf, ...]
    kept: "collections.OrderedDict[Any, Any]" = dataclasses.field(
        default_factory=collections.OrderedDict, repr=False
    )
    lock: Any = dataclasses.field(default_factory=threading.Lock, repr=False)
    _parameter: list[Any] = dataclasses.field(default_factory=list, repr=False)

    def as_parameter(self) -> Callable[[], "Operation"]:
        """Return a function that returns the operation, for jax to keep.

        jax keeps the parameters of primitives for ever, in the cache of their result
        types, except functions: those it refers to weakly, and forgets what it knew
        with them. So ten jitted functions that are gone leave nothing behind. It is
        the same function as long as some program has it, for jax compares by it.
        """
        found = self._parameter[0]() if self._parameter else None
        if found is None:
            found = lambda: self  # noqa: E731  # its name is what a jaxpr shows
            found.__qualname__ = repr(self)
            self._parameter[:] = [weakref.ref(found)]
        return found

    @functools.cached_property
    def is_plain(self) -> bool:
        """Whether the function takes arrays as they are given, and returns some.

        What has nothing of all that costs time takes the direct way of `caller`.
        """
        options = self.options
        special = (
            options.cache,
            options.scratch,
            options.thread,
            options.trusted,
            options.upcast,
            options.writable,
            options.has_effects and options.out is None,
            self.statics,
        )
        return not any(special) and all(leaf.key is None for leaf in self.ins)

    @functools.cached_property
    def returns_array(self) -> bool:
        """Whether the result is one array, and nothing around it."""
        return self.out_tree == _ARRAY and self.outs[0].key is None

    @functools.cached_property
    def inexact_outs(self) -> tuple[int, ...]:
        """The result leaves that can have a derivative."""
        return tuple(i for i, leaf in enumerate(self.outs) if leaf.inexact)

    @functools.cached_property
    def rule_tree(self) -> Any:
        """Structure of the arguments as derivative rules get them, in one tuple."""
        args, kwargs = jax.tree.unflatten(self.in_tree, range(len(self.ins)))
        return jax.tree.structure((*args, *kwargs.values()))

    @functools.cached_property
    def out_paths(self) -> tuple[str, ...]:
        """Where each result leaf is, as a person writes it."""
        result = jax.tree.unflatten(self.out_tree, range(len(self.outs)))
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(result)]
        return tuple(path_text(path) for path in paths)

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self.ins))
        return f"{self.options.name}({shown})"
