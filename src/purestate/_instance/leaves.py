"""`ps.leaves`: a choice of leaves, by path or by what they are, that can be kept.

One kind of choice is taken by `at`, `grad`, `partition`, the optimizer and, as a
function that returns a tree of bools, by optax's masks. A choice is a value: it is
compared, hashed and pickled by its parts, so that it can be a static field.
"""

import fnmatch
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from purestate._inspect.key_paths import names_on, path_text
from purestate._schema.static_values import Unfit, typed
from purestate._schema.text import root_name
from purestate.errors import PlaceError
from purestate.errors._text import nearest, short

_Test = str | Callable[[Any], Any]
_Step = Callable[[str], Any]  # whether a name is meant


class Leaves:
    """A choice of leaves, made by `ps.leaves`; combined with `&`, `|` and `~`.

    Called with a tree it returns a tree of the same structure with a bool for each
    leaf, which optax takes as a mask.
    """

    __slots__ = ("_key", "_kind", "_parts")

    _kind: str  # "or" of any parts, "and" and "not" of choices
    _parts: tuple[Any, ...]
    _key: Any

    def __init__(self, kind: str, parts: tuple[Any, ...]) -> None:
        held = {"_kind": kind, "_parts": parts}
        held["_key"] = (kind, tuple(map(_part_key, parts)))
        for name, value in held.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"cannot assign {name}: a choice of leaves does not change. Combine "
            f"choices with & | ~, each of which makes a new one."
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(
            f"cannot delete {name}: a choice of leaves does not change."
        )

    def __invert__(self) -> "Leaves":
        return self._parts[0] if self._kind == "not" else Leaves("not", (self,))

    def __and__(self, other: object) -> "Leaves":
        if not isinstance(other, Leaves):
            return NotImplemented
        return Leaves("and", (*self._joined("and"), *other._joined("and")))

    def __or__(self, other: object) -> "Leaves":
        if not isinstance(other, Leaves):
            return NotImplemented
        return Leaves("or", (*self._joined("or"), *other._joined("or")))

    def _joined(self, kind: str) -> tuple[Any, ...]:
        return self._parts if self._kind == kind else (self,)

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self} chooses leaves and has no truth value: combine choices with "
            f"& | ~, not with and, or, not."
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Leaves):
            return NotImplemented
        return bool(self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __reduce__(self) -> tuple[Any, ...]:
        return Leaves, (self._kind, self._parts)

    def __repr__(self) -> str:
        if self._parts == (is_float,):
            return "ps.floats"
        if self._kind == "or" and not self._is_joined:
            return f"ps.leaves({', '.join(map(_part_text, self._parts))})"
        shown = [
            f"({part!r})" if part._is_joined else repr(part)
            for part in map(leaves, self._parts)
        ]
        if self._kind == "not":
            return f"~{shown[0]}"
        return (" & " if self._kind == "and" else " | ").join(shown)

    @property
    def _is_joined(self) -> bool:
        """Return whether it is printed with an operator between two choices."""
        if self._kind != "or":
            return self._kind == "and"
        named = (isinstance(p, Leaves) or p is is_float for p in self._parts)
        return len(self._parts) > 1 and any(named)

    def __call__(self, tree: Any) -> Any:
        """Return a tree of bools: which leaves are meant."""
        structure: Any
        found, structure = jax.tree_util.tree_flatten_with_path(tree)
        root = root_name(tree)
        flags = [self._means(names_on(path), path, x, root) for path, x in found]
        return structure.unflatten(flags)

    def among(self, tree: Any) -> list[bool]:
        """Return which leaves of a tree are meant, each pattern at least one.

        Raises:
            PlaceError: a path in the choice, also below `~`, that leads to no leaf.
        """
        found = self._checked(tree)
        root = root_name(tree)
        return [self._means(names, path, leaf, root) for names, path, leaf in found]

    def check(self, tree: Any) -> None:
        """Raise if a path in the choice leads to no leaf of a tree.

        Raises:
            PlaceError: it names the path, and one that is near.
        """
        self._checked(tree)

    def _checked(self, tree: Any) -> list[tuple[tuple[str, ...], Any, Any]]:
        found = jax.tree_util.tree_leaves_with_path(tree)
        named = [(names_on(path), path, leaf) for path, leaf in found]
        for pattern in self._patterns() if named else ():
            if not any(_leads(pattern, names) for names, _, _ in named):
                hint = _near(pattern, [names for names, _, _ in named])
                name = type(tree).__name__
                raise PlaceError(f"{name} has no leaf {pattern!r}; {hint}")
        return named

    def functions(self) -> list[Callable[[Any], Any]]:
        """Return the functions in the choice."""
        return [part for part in self._tests() if not isinstance(part, str)]

    def _patterns(self) -> list[str]:
        return [part for part in self._tests() if isinstance(part, str)]

    def _tests(self) -> list[_Test]:
        inner = [p._tests() if isinstance(p, Leaves) else [p] for p in self._parts]
        return [test for tests in inner for test in tests]

    def _means(self, names: tuple[str, ...], path: Any, leaf: Any, root: str) -> bool:
        if self._kind == "and":
            return all(part._means(names, path, leaf, root) for part in self._parts)
        if self._kind == "not":
            return not self._parts[0]._means(names, path, leaf, root)
        for part in self._parts:
            if isinstance(part, Leaves):
                met = part._means(names, path, leaf, root)
            elif isinstance(part, str):
                met = _leads(part, names)
            else:
                met = _passes(part, leaf, path, root)
            if met:
                return True
        return False


def leaves(*tests: "_Test | Leaves") -> Leaves:
    """Return a choice of the leaves that pass any of the tests.

    Args:
        *tests: a path of names with dots, of fields, keys and indices: `"encoder"`,
            `"layers.0"`, `"layers.*.kernel"`, `"**.bias"`. In it `*` stands for any
            part of one name, `**` for any number of names, none too. It means a leaf by
            the leaf's own path, or by that of what the leaf is in. Or a function of a
            leaf that looks at its shape or dtype; or another choice.

    Returns:
        A choice, to be combined with `&`, `|` and `~`.

    Raises:
        TypeError: no test, or something that is not a path, a function or a choice.

    >>> import jax, jax.numpy as jnp, purestate as ps
    >>> class Layer(ps.State):
    ...     kernel: jax.Array
    ...     bias: jax.Array
    >>> layer = Layer(kernel=jnp.ones((2, 3)), bias=jnp.ones(3))
    >>> decayed = ps.leaves(lambda x: x.ndim > 1) & ~ps.leaves("**.bias")
    >>> decayed(layer)
    Layer(kernel=True, bias=False)
    >>> layer.at(ps.leaves("bias")).apply(jnp.zeros_like).bias.tolist()
    [0.0, 0.0, 0.0]
    """
    if len(tests) == 1 and isinstance(tests[0], Leaves):
        return tests[0]
    for test in tests or (None,):
        if isinstance(test, str):
            if "" in test.split("."):
                raise TypeError(
                    f"ps.leaves({test!r}): a path is names with dots between them, as "
                    f"in 'layers.0.kernel' or '**.bias'."
                )
        elif not callable(test):
            got = "nothing" if not tests else f"{test!r}"
            raise TypeError(
                f"ps.leaves takes paths, as 'layers.*.kernel', functions of a leaf, as "
                f"lambda x: x.ndim > 1, and other choices, and got {got}."
            )
    joined = (
        test._joined("or") if isinstance(test, Leaves) else (test,) for test in tests
    )
    return Leaves("or", tuple(part for parts in joined for part in parts))


def is_float(leaf: object) -> bool:
    """Return whether a leaf is a floating-point array, which a gradient can be."""
    dtype = None if isinstance(leaf, type) else getattr(leaf, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.floating))


def is_path(name: str) -> bool:
    """Return whether a name is a path of `ps.leaves`, and not that of a field."""
    return "." in name or "*" in name


def _part_key(part: Any) -> Any:
    if isinstance(part, Leaves):
        return part._key
    try:
        return typed(part)
    except Unfit as unfit:
        raise TypeError(
            f"ps.leaves({_part_text(part)}) cannot be kept as a value: it holds an "
            f"array, or something without a hash, of type "
            f"{type(unfit.value).__name__}. Give a function that looks at the shape or "
            f"dtype of a leaf, and holds nothing."
        ) from None


def _part_text(part: Any) -> str:
    if isinstance(part, str | Leaves):
        return repr(part)
    return getattr(part, "__qualname__", None) or short(part)


def _passes(test: Callable[[Any], Any], leaf: Any, path: Any, root: str) -> bool:
    try:
        return bool(test(leaf))
    except Exception as error:
        error.add_note(
            f"raised by {_part_text(test)}, a test of ps.leaves, for "
            f"{path_text(path, root) or 'the leaf'}: it looks at the shape or dtype "
            f"of a leaf, not at its values."
        )
        raise


def _leads(pattern: str, names: tuple[str, ...]) -> bool:
    """Return whether a pattern means a leaf: its path, or the beginning of it."""
    start = 0
    for i, steps in enumerate(_stretches(pattern)):
        # The first match of a stretch leaves most to the next, so none is tried again.
        last = len(names) - len(steps) if i else 0
        while not _fits(steps, names, start):
            start += 1
            if start > last:
                return False
        start += len(steps)
    return True


def _fits(steps: tuple[_Step, ...], names: tuple[str, ...], start: int) -> bool:
    if len(names) - start < len(steps):
        return False
    return all(step(names[start + i]) for i, step in enumerate(steps))


@functools.lru_cache(maxsize=1024)
def _stretches(pattern: str) -> tuple[tuple[_Step, ...], ...]:
    """Return the stretches of a pattern between its `**`, with a test for each name."""
    found: list[list[_Step]] = [[]]
    for step in pattern.split("."):
        if step == "**":
            found.append([])
        elif _MAGIC.isdisjoint(step):
            found[-1].append(step.__eq__)
        else:
            found[-1].append(re.compile(fnmatch.translate(step)).match)
    return tuple(map(tuple, found))


_MAGIC = frozenset("*?[")


def _near(pattern: str, paths: list[tuple[str, ...]]) -> str:
    """Return which path was meant, of a leaf or of what leaves are in."""
    if paths == [()]:
        return "it is a leaf itself."
    begin = "**." if pattern.startswith("**.") else ""
    nodes = {
        begin + _pattern(names[i:end])
        for names in paths
        for end in range(1, len(names) + 1)
        for i in range(end if begin else 1)
    }
    hint = nearest(pattern, sorted(nodes), "leaves")
    if hint.startswith("did you mean"):
        return hint
    known = list(map(_pattern, paths))
    return nearest(
        "", [*known[:_LISTED], "..."] if known[_LISTED:] else known, "leaves"
    )


def _pattern(names: tuple[str, ...]) -> str:
    """Return a path that leads there, with `*` for what a path cannot hold."""
    return ".".join(re.sub(r"[.*?\[]", "*", name) or "*" for name in names)


_LISTED = 12  # of the leaves of a tree, in a text


floats = leaves(is_float)
"""The choice of the floating-point arrays, which is what `grad` differentiates.

Python floats, complex numbers, integers and keys are not among them.
"""
