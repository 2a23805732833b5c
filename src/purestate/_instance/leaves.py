"""`ps.leaves`: a choice of leaves, by path or by what they are, that can be kept.

One kind of choice is taken by `at`, `grad`, `partition`, the optimizer and, as a
function that returns a tree of bools, by optax's masks. A choice is a value: it is
compared, hashed and pickled by its parts, so that it can be a static field.
"""

import dataclasses
import fnmatch
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from purestate._inspect.key_paths import names_on, path_text
from purestate._schema.static_values import Unfit, typed
from purestate._schema.text import root_name
from purestate.errors import PlaceError
from purestate.errors._text import nearest

_Test = str | Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, eq=False, repr=False, slots=True)
class Leaves:
    """A choice of leaves, made by `ps.leaves`; combined with `&`, `|` and `~`.

    Called with a tree it returns a tree of the same structure with a bool for each
    leaf, which optax takes as a mask.
    """

    _kind: str  # "or" of any parts, "and" and "not" of choices
    _parts: tuple[Any, ...]
    _key: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        try:
            keys = tuple(map(_part_key, self._parts))
        except Unfit as unfit:
            raise TypeError(
                f"ps.leaves({_part_text(self._parts[0])}) cannot be kept as a value: "
                f"it holds an array, or something without a hash, of type "
                f"{type(unfit.value).__name__}. Give a function that looks at the "
                f"shape or dtype of a leaf, and holds nothing."
            ) from None
        object.__setattr__(self, "_key", (self._kind, keys))

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
        if self == floats:
            return "ps.floats"
        if self._kind == "or" and not any(isinstance(p, Leaves) for p in self._parts):
            return f"ps.leaves({', '.join(map(_part_text, self._parts))})"
        shown = [
            f"({part!r})"
            if isinstance(part, Leaves) and part._kind in ("and", "or") and part._nested
            else repr(part if isinstance(part, Leaves) else leaves(part))
            for part in self._parts
        ]
        if self._kind == "not":
            return f"~{shown[0]}"
        return (" & " if self._kind == "and" else " | ").join(shown)

    @property
    def _nested(self) -> bool:
        return self._kind == "and" or any(isinstance(p, Leaves) for p in self._parts)

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
        found = jax.tree_util.tree_leaves_with_path(tree)
        root = root_name(tree)
        named = [(names_on(path), path, leaf) for path, leaf in found]
        for pattern in self._patterns() if named else ():
            steps = _steps(pattern)
            if not any(_leads(steps, names) for names, _, _ in named):
                known = sorted({".".join(names) for names, _, _ in named})
                hint = nearest(pattern, known, "leaves")
                name = type(tree).__name__
                raise PlaceError(f"{name} has no leaf {pattern!r}; {hint}")
        return [self._means(names, path, leaf, root) for names, path, leaf in named]

    def functions(self) -> list[Callable[[Any], Any]]:
        """Return the functions in the choice."""
        return [part for part in self._tests() if not isinstance(part, str)]

    def _patterns(self) -> list[str]:
        return [part for part in self._tests() if isinstance(part, str)]

    def _tests(self) -> list[_Test]:
        inner = [p._tests() if isinstance(p, Leaves) else [p] for p in self._parts]
        return [test for tests in inner for test in tests]

    def _means(self, names: Sequence[str], path: Any, leaf: Any, root: str) -> bool:
        if self._kind == "and":
            return all(part._means(names, path, leaf, root) for part in self._parts)
        if self._kind == "not":
            return not self._parts[0]._means(names, path, leaf, root)
        for part in self._parts:
            if isinstance(part, Leaves):
                met = part._means(names, path, leaf, root)
            elif isinstance(part, str):
                met = _leads(_steps(part), tuple(names))
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
    return part._key if isinstance(part, Leaves) else typed(part)


def _part_text(part: Any) -> str:
    if isinstance(part, str | Leaves):
        return repr(part)
    return getattr(part, "__qualname__", repr(part))


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


@functools.lru_cache(maxsize=1024)
def _steps(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.split("."))


def _leads(steps: tuple[str, ...], names: tuple[str, ...]) -> bool:
    """Return whether a pattern means a leaf: its path, or the beginning of it."""
    if not steps:
        return True
    step, *_ = steps
    if step == "**":
        return any(_leads(steps[1:], names[i:]) for i in range(len(names) + 1))
    return (
        bool(names)
        and fnmatch.fnmatchcase(names[0], step)
        and _leads(steps[1:], names[1:])
    )


# Floating-point arrays; Python floats, complex numbers, integers and keys are not.
floats = leaves(is_float)
