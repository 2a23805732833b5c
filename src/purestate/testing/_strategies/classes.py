"""Random State classes: fields of all kinds, inherited, generic, derived, checked.

Classes are made from a small number of choices and kept, since JAX keeps every class
that was ever registered.
"""

import dataclasses
import enum
import functools
import types
import typing
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np

from purestate._schema.fields import field, static
from purestate._state.state import State
from purestate.testing._strategies.scope import Scope

_T = TypeVar("_T")


class Mode(enum.Enum):
    """A static value that lists its members."""

    TRAIN = 1
    TEST = 2


class Inner(State):
    """A State to be nested."""

    inner: jax.Array
    tag: str = static(default="t")


class Leafless(State):
    """A State without arrays."""

    tag: str = static(default="t")


class Box(State, Generic[_T]):
    """A generic State."""

    held: _T


class Pair(NamedTuple):
    """A NamedTuple to be nested."""

    first: jax.Array
    second: jax.Array | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Plain:
    """A plain dataclass to be nested."""

    held: jax.Array


# What a field may be: its annotation, and its specifier where it has one.
_KINDS: dict[str, tuple[Any, Any]] = {
    "array": (jax.Array, None),
    "counter": (jax.Array, lambda: field(default=0, kw_only=True)),
    "byte": (jax.Array, lambda: field(default=3, dtype=jnp.uint8, kw_only=True)),
    "any": (object, None),
    "list": (list[jax.Array], None),
    "tuple": (tuple[jax.Array, float], None),
    "dict": (dict[str, jax.Array], None),
    "optional": (jax.Array | None, None),
    "union": (jax.Array | list[jax.Array], None),
    "float": (float, None),
    "numpy": (np.ndarray, None),
    "key": (jax.Array, None),
    "nested": (Inner, None),
    "states": (list[Inner], None),
    "leafless": (Leafless, None),
    "generic": (Box[jax.Array | None], None),
    "namedtuple": (Pair, None),
    "dataclass": (Plain, None),
    "static": (object, static),
    "width": (int, lambda: static(default=2, kw_only=True)),
    "mode": (Mode, static),
    "literal": (Literal["a", "b"], static),
    "settings": (tuple[int, ...], static),
}

_TRAITS = (
    *("derived", "started", "inherits", "generic", "strict", "checked"),
    *("wrapped",),
)


def state_classes() -> st.SearchStrategy[type[State]]:
    """Return a strategy for State classes.

    Their fields hold arrays, keys, numbers, containers, optional values, other States,
    NamedTuples and dataclasses, or are static; some are derived, or only started by
    `__post_init__`; some classes inherit, are generic, strict, keyword-only, have a
    `__check__` or a decorated `__init__`. `states(cls)` draws their instances.

    >>> import hypothesis, purestate as ps, purestate.testing as pst
    >>> @hypothesis.given(pst.state_classes())
    ... def test(cls):
    ...     assert issubclass(cls, ps.State)
    >>> test()
    """

    @st.composite
    def drawn(draw: Any) -> type[State]:
        return draw_class(Scope(draw))

    return drawn()


def draw_class(scope: Scope) -> type[State]:
    """Draw a State class."""
    count = scope.choose((1, 2, 3, 4, 5))
    kinds = tuple(scope.choose(tuple(_KINDS)) for _ in range(count))
    traits = tuple(trait for trait in _TRAITS if scope.choose((False, False, True)))
    return _make(kinds, traits)


@functools.cache
def _make(kinds: tuple[str, ...], traits: tuple[str, ...]) -> type[State]:
    names = [f"f{i}_key" if kind == "key" else f"f{i}" for i, kind in enumerate(kinds)]
    split = len(kinds) // 2 if "inherits" in traits else 0
    bases: tuple[Any, ...] = (State,)
    if split:
        body = _body(kinds[:split], names[:split])
        bases = (types.new_class("Base", bases, exec_body=lambda ns: ns.update(body)),)
    body = _body(kinds[split:], names[split:])
    if "generic" in traits:
        generic: Any = Generic
        bases += (generic[_T],)
        body["__annotations__"]["generic"] = _T
    if "derived" in traits:
        body["__annotations__"]["derived"] = object
        body["derived"] = field(init=False)
    if "started" in traits:
        body["__annotations__"]["started"] = jax.Array
        body["started"] = field(init=False, derived=False)
    source = names[0]

    def __post_init__(self: Any) -> None:
        if "derived" in traits:
            # Not the arrays themselves: two fields must not share a buffer.
            parts = jax.tree.leaves(getattr(self, source))
            self.derived = [float(len(parts)), len(names)]
        if "started" in traits:
            self.started = jax.device_put(np.zeros(2, np.float32))

    if not {"derived", "started"}.isdisjoint(traits):
        body["__post_init__"] = __post_init__
    if "checked" in traits:
        body["__check__"] = lambda self: len(vars(self)) > 0
    keywords = {"strict": True} if "strict" in traits else {}
    made: Any = types.new_class("Drawn", bases, keywords, lambda ns: ns.update(body))
    if "wrapped" in traits:
        made.__init__ = _wrapped(made.__init__)
    return typing.cast("type[State]", made)


def _wrapped(init: Any) -> Any:
    """Return a constructor as a decorator for logging or type checks makes it."""

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)

    return __init__


def _body(kinds: tuple[str, ...], names: list[str]) -> dict[str, Any]:
    body: dict[str, Any] = {"__module__": __name__, "__annotations__": {}}
    for kind, name in zip(kinds, names, strict=True):
        annotation, specifier = _KINDS[kind]
        body["__annotations__"][name] = annotation
        if specifier is not None:
            body[name] = specifier()
    return body
