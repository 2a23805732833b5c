"""What becomes of a State whose buffers were given away: it explains itself.

After a donated call the old instance still exists, with deleted arrays. It changes
class, to one that answers every use with who consumed it. Only objects that are dead
already pay for that; live ones keep their plain attribute access.
"""

from collections.abc import Iterator
from typing import Any, NoReturn

import jax

from purestate._layout import LAYOUT, layout_of
from purestate.errors import ConsumedStateError

__all__ = ["Consumed", "consume", "was_deleted"]

_WHO = "__purestate_consumed__"
_get = object.__getattribute__


def consume(state: Any, function: str) -> None:
    """Turn a State, and the States in it, into consumed ones, if it was really donated.

    Nothing happens where donation had no effect: inside another trace, on a backend
    without it, or when no buffer could be reused.
    """
    if LAYOUT not in type(state).__dict__ or not _is_donated(state):
        return
    for owner in list(_states(state)):
        cls = type(owner)
        owner.__dict__[_WHO] = cls, type(state), function
        try:
            _set_class(owner, Consumed)
        except TypeError:  # a mixin with slots: jax's own error must do
            del owner.__dict__[_WHO]


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

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(self)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        _refuse(self)

    def __copy__(self) -> NoReturn:
        _refuse(self)

    def __deepcopy__(self, memo: Any) -> NoReturn:
        _refuse(self)


def _refuse(self: Any) -> NoReturn:
    raise ConsumedStateError(*_get(self, "__dict__")[_WHO])


def _flatten(self: Any) -> NoReturn:
    _refuse(self)


jax.tree_util.register_pytree_node(
    Consumed, _flatten, lambda aux, leaves: _flatten(aux)
)
_set_class: Any = object.__dict__["__class__"].__set__


def _is_donated(state: Any) -> bool:
    """Return whether a buffer is gone; the first that can tell is enough."""
    for leaf in _leaves(state):
        if isinstance(leaf, jax.core.Tracer):
            return False
        if was_deleted(leaf):
            return True
    return False


def was_deleted(leaf: Any) -> bool:
    """Return whether a leaf is an array whose buffer is gone."""
    return bool(getattr(leaf, "is_deleted", bool)())


def _leaves(value: Any) -> Iterator[Any]:
    """Return the leaves one by one, since the first nearly always answers."""
    if LAYOUT in type(value).__dict__:
        for name in layout_of(type(value)).data:
            part = value.__dict__[name]
            if hasattr(part, "is_deleted"):
                yield part
            else:
                yield from _leaves(part)
    else:
        yield from jax.tree.leaves(value)


def _states(value: Any) -> Iterator[Any]:
    """Return a State and those in its fields and their containers, outermost first."""
    kind = type(value)
    if LAYOUT in kind.__dict__:
        yield value
        for name in layout_of(kind).data:
            yield from _states(value.__dict__[name])
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _states(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _states(part)
