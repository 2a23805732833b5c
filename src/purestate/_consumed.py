"""What becomes of a State whose buffers were given away: it explains itself.

After a donated call the old instance still exists, with deleted arrays. It changes
class, to one that answers every use with who consumed it. Only objects that are dead
already pay for that; live ones keep their plain attribute access.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import jax

from purestate._compat import is_tracer
from purestate._layout import LAYOUT, layout_of
from purestate.errors import ConsumedStateError

__all__ = ["Consumed", "Path", "consume", "inner_states", "was_deleted"]

Path = tuple[Any, ...]  # names of fields, keys and indices

_WHO = "__purestate_consumed__"
_get = object.__getattribute__


def consume(state: Any, function: str, inner: Iterable[Path]) -> None:
    """Turn a State, and the States in it, into consumed ones, if it was really donated.

    Nothing happens where donation had no effect: inside another trace, on a backend
    without it, or when no buffer could be reused.

    Args:
        state: what was donated.
        function: the name of the function that it was donated to.
        inner: where in it other States may be, as `inner_states` finds them.
    """
    parts = [*(_follow(state, path) for path in inner), state]
    states = {id(part): part for part in parts if LAYOUT in type(part).__dict__}
    donated = [part for part in states.values() if _is_donated(part)]
    for part in donated:
        _mark(part, type(state), function)


def inner_states(state: Any) -> Iterator[Path]:
    """Return the paths to the States in a State's fields and containers, deepest first.

    Run while tracing, on the structure that jax traces.
    """
    kind = type(state)
    if LAYOUT in kind.__dict__:
        parts: list[tuple[Any, Any]] = [
            (name, state.__dict__[name]) for name in layout_of(kind).data
        ]
    elif isinstance(state, list | tuple):
        parts = list(enumerate(state))
    elif isinstance(state, dict):
        parts = list(state.items())
    else:
        return
    for key, part in parts:
        for path in inner_states(part):
            yield (key, *path)
        if LAYOUT in type(part).__dict__:
            yield (key,)


def _follow(value: Any, path: Path) -> Any:
    """Return what a path of an earlier trace leads to here, None if nothing."""
    try:
        for key in path:
            is_state = LAYOUT in type(value).__dict__
            value = value.__dict__[key] if is_state else value[key]
    except (KeyError, IndexError, TypeError):
        return None
    return value


def _mark(state: Any, donated: type, function: str) -> None:
    state.__dict__[_WHO] = type(state), donated, function
    try:
        _set_class(state, Consumed)
    except TypeError:  # a mixin with slots: jax's own error must do
        del state.__dict__[_WHO]


class Consumed:
    """A State that was donated to a jitted function, which reused its buffers.

    Reading, passing, copying or pickling it raises `ConsumedStateError`; its repr and
    `isinstance` still work.
    """

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return _get(self, "__dict__")[_WHO][0]
        if name in ("__dict__", "__weakref__"):
            return _get(self, name)
        return _refuse(self)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        _refuse(self)

    def __delattr__(self, name: str) -> NoReturn:
        _refuse(self)

    def __repr__(self) -> str:
        cls, _, function = _get(self, "__dict__")[_WHO]
        return f"<{cls.__name__}, donated to {function}()>"

    def __eq__(self, other: object) -> NoReturn:
        _refuse(self)

    def __hash__(self) -> NoReturn:
        _refuse(self)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        _refuse(self)

    def __copy__(self) -> NoReturn:
        _refuse(self)

    def __deepcopy__(self, memo: Any) -> NoReturn:
        _refuse(self)


def _refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise ConsumedStateError(*_get(self, "__dict__")[_WHO])


# What Python looks up on the class, for instances that had it.
_SPECIAL = """
call getitem len iter contains bool enter exit lt le gt ge neg pos abs int float
add radd sub rsub mul rmul truediv rtruediv matmul rmatmul pow rpow mod rmod
"""
for _name in _SPECIAL.split():
    setattr(Consumed, f"__{_name}__", _refuse)


def _flatten(self: Any) -> NoReturn:
    _refuse(self)


jax.tree_util.register_pytree_node(
    Consumed, _flatten, lambda aux, leaves: _flatten(aux)
)
_set_class: Any = object.__dict__["__class__"].__set__


def _is_donated(state: Any) -> bool:
    """Return whether a buffer is gone; the first array nearly always answers."""
    for leaf in state.__dict__.values():
        is_deleted = getattr(type(leaf), "is_deleted", None)
        if is_deleted is None or is_tracer(leaf):
            break
        if is_deleted(leaf):
            return True
    leaves = jax.tree.leaves(state)
    return not any(map(is_tracer, leaves)) and any(map(was_deleted, leaves))


def was_deleted(leaf: Any) -> bool:
    """Return whether a leaf is an array whose buffer is gone."""
    return not is_tracer(leaf) and bool(getattr(leaf, "is_deleted", bool)())
