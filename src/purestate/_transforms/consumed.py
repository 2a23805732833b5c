"""What becomes of a State whose buffers were given away: it explains itself.

After a donated call the old instance still exists, with deleted arrays. It changes
class, to one that answers every use with who consumed it. Only objects that are dead
already pay for that; live ones keep their plain attribute access. `consume` walks
through all that was donated; `marking` writes what does the same for one structure.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NoReturn

import jax

from purestate._compat import is_tracer
from purestate._inspect.donations import note_lost
from purestate._pack.packed import Packed
from purestate._schema.aux_data import Aux
from purestate._schema.marks import Holder, held_by, is_state_class
from purestate.errors import ConsumedStateError

_get = object.__getattribute__


def consume(value: Any, kind: type, function: str, failure: str = "") -> bool:
    """Turn donated States into consumed ones, each that really lost a buffer.

    Nothing happens where donation had no effect: inside another trace, on a backend
    without it, or when no buffer could be reused.

    Args:
        value: what was donated: a State, or a container of them.
        kind: its class in the call; it may be marked by now.
        function: the name of the function that it was donated to.
        failure: the class of the exception, if the call failed.

    Returns:
        Whether there was one.
    """
    if issubclass(kind, Consumed):
        return False  # it was given as another argument, too
    is_one = is_state_class(kind) or kind is Packed
    found = _donated_parts(value)
    for part in found:
        own = type(part)
        _mark(part, consumed_class(own, kind if is_one else own, function, failure))
    return bool(found)


def consume_lost(value: Any, function: str, failure: str) -> None:
    """Turn States into consumed ones whose buffers went to a call that then failed.

    Args:
        value: what was donated.
        function: the name of the function that it was donated to.
        failure: the class of the exception.
    """
    gone = [leaf for leaf in jax.tree.leaves(value) if was_deleted(leaf)]
    if gone:
        note_lost(function, failure, gone)
        consume(value, type(value), function, failure)


def _donated_parts(value: Any) -> list[Any]:
    """Return the States in a value, itself included, that lost a buffer.

    All are asked before one is marked: what holds no array itself asks its leaves.
    Those that are marked already are passed through.
    """
    found: dict[int, Any] = {}  # by id: one may stand in two places
    containers: set[int] = set()  # a cached property may hold a ring
    waiting = [value]
    while waiting:
        part = waiting.pop()
        kind = type(part)
        if kind in _state_types or _is_state_type(kind):
            if id(part) in found:
                continue
            gone = False
            for held in held_by(part).values():
                inner = type(held)
                if inner in _array_types:
                    gone = gone or held.is_deleted()
                elif inner not in _ATOMS:
                    waiting.append(held)
            if gone or _lost_a_buffer(part):
                found[id(part)] = part
        elif kind is Packed:
            if _lost_a_buffer(part):
                found[id(part)] = part
        elif issubclass(kind, dict | list | tuple | Consumed):
            if id(part) in containers:
                continue
            containers.add(id(part))
            if issubclass(kind, Consumed):
                waiting.extend(held_by(part).values())
            else:
                waiting.extend(part.values() if isinstance(part, dict) else part)
    return list(found.values())


# State classes that were met: jax keeps them for ever, so this adds nothing to that.
_state_types: set[type] = set()
_ATOMS = frozenset({Aux, type(None), bool, int, float, complex, str})


def _is_state_type(kind: type) -> bool:
    if not is_state_class(kind):
        return False
    _state_types.add(kind)
    return True


_array_types: set[type] = set()  # jax's concrete arrays, as they are met


def _mark(state: Any, cls: type) -> None:
    with contextlib.suppress(TypeError):  # a mixin with slots: jax's own error must do
        set_class(state, cls)


class Consumed(Holder):
    """A State that was donated to a jitted function, which reused its buffers.

    Reading, passing, copying or pickling it raises `ConsumedStateError`; its repr and
    `isinstance` still work. Of what it held, States are marked that somebody else
    holds, too, and the others when its `__dict__` is asked for: nothing else leads to
    them. Each class, call and place has a subclass, so that a mark is one assignment.
    """

    __dataclass_fields__: Any = {}  # noqa: RUF012  # so that dataclasses asks further
    _ps_who: tuple[type, type, str, str]  # class, what was donated, function, failure

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return type(self)._ps_who[0]
        if name == "__weakref__":
            return _get(self, name)
        if name == "__dict__":
            for part in _donated_parts(self):
                _mark(part, consumed_class(type(part), *type(self)._ps_who[1:]))
            return held_by(self)
        return _refuse(self)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        _refuse(self)

    def __delattr__(self, name: str) -> NoReturn:
        _refuse(self)

    def __repr__(self) -> str:
        cls, _, function, failure = type(self)._ps_who
        outcome = ", which failed" if failure else ""
        return f"<{cls.__name__}, donated to {function}(){outcome}>"

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
    raise ConsumedStateError(*type(self)._ps_who)


# What Python looks up on the class, for instances that had it.
_SPECIAL = """
call getitem setitem delitem len iter next contains bool enter exit await index int
float round lt le gt ge neg pos abs invert add radd sub rsub mul rmul truediv rtruediv
floordiv rfloordiv mod rmod divmod rdivmod matmul rmatmul pow rpow and rand or ror xor
rxor lshift rlshift rshift rrshift
"""
for _name in _SPECIAL.split():
    setattr(Consumed, f"__{_name}__", _refuse)


def _flatten(self: Any) -> NoReturn:
    _refuse(self)


_classes: dict[tuple[type, type, str, str], type] = {}


def consumed_class(cls: type, donated: type, function: str, failure: str = "") -> type:
    """Return what a State of class `cls` becomes that was part of what was donated.

    Kept for ever, as jax keeps the State classes: one for each place in the program.
    """
    who = cls, donated, function, failure
    if who not in _classes:
        made = type("Consumed", (Consumed,), {"_ps_who": who})
        jax.tree_util.register_pytree_node(
            made, _flatten, lambda aux, leaves: _flatten(aux)
        )
        _classes[who] = made
    return _classes[who]


set_class: Callable[[Any, type], None] = object.__dict__["__class__"].__set__


def _lost_a_buffer(state: Any) -> bool:
    """Return whether a buffer is gone; the first array of its own mostly answers."""
    for leaf in held_by(state).values():
        if type(leaf) in _array_types:
            if leaf.is_deleted():
                return True
        elif isinstance(leaf, jax.Array):
            if is_tracer(leaf):
                return False
            _array_types.add(type(leaf))
            if was_deleted(leaf):
                return True
    try:
        return any(map(was_deleted, jax.tree.leaves(state)))
    except ConsumedStateError:  # a part that stands in two places is marked
        return True


def was_deleted(leaf: Any) -> bool:
    """Return whether a leaf is an array whose buffer is gone."""
    return not is_tracer(leaf) and bool(getattr(leaf, "is_deleted", bool)())
