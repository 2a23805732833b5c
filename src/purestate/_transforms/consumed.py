"""What becomes of a State whose buffers were given away: it explains itself.

After a donated call the old instance still exists, with deleted arrays. It changes
class, to one that answers every use with who consumed it. Only objects that are dead
already pay for that; live ones keep their plain attribute access.
"""

from typing import Any, NoReturn

import jax

from purestate._compat import is_tracer
from purestate._inspect.donations import note_lost
from purestate._instance.containers import parts
from purestate._pack.packed import Packed, is_state_or_packed
from purestate._schema.aux_data import Aux
from purestate._schema.marks import Holder, held_by, is_state_class
from purestate.errors import ConsumedStateError

_WHO = "__purestate_consumed__"
_get = object.__getattribute__


def consume(
    value: Any, function: str, holds_states: bool, seen: dict[type, tuple[Any, ...]]
) -> None:
    """Turn donated States into consumed ones, each that really lost a buffer.

    Nothing happens where donation had no effect: inside another trace, on a backend
    without it, or when no buffer could be reused.

    Args:
        value: what was donated: a State, or a container of them.
        function: the name of the function that it was donated to.
        holds_states: whether other States may be inside.
        seen: what was marked before at this place, by class; kept by the caller.
    """
    kind = type(value)
    mark = seen.get(kind)
    if mark is not None and not holds_states:  # the usual case, in half a microsecond
        held = held_by(value)
        first: Any = next(iter(held.values()), None)
        if type(first) in _array_types and first.is_deleted():
            held[_WHO] = mark
            _set_class(value, Consumed)
            return
        if kind is Packed and first and was_deleted(first[0]):
            held[_WHO] = mark
            _set_class(value, Consumed)
            return
    is_one = is_state_class(kind) or kind is Packed
    if holds_states:
        donated = _donated_parts(value)
    else:
        donated = [value] if is_one and _is_donated(value) else []
    for part in donated:
        own = type(part)
        if own is Consumed:
            continue  # it stood in two places
        _mark(part, kind if is_one else own, function)
        if own is kind and type(part) is Consumed:
            seen[kind] = (kind, kind, function, "")


def consume_lost(value: Any, function: str, failure: str) -> None:
    """Turn States into consumed ones whose buffers went to a call that then failed.

    Args:
        value: what was donated.
        function: the name of the function that it was donated to.
        failure: the class of the exception.
    """
    kind = type(value)
    gone = [leaf for leaf in jax.tree.leaves(value) if was_deleted(leaf)]
    if gone:
        note_lost(function, failure, gone)
        for part in _donated_parts(value):
            is_one = is_state_class(kind) or kind is Packed
            _mark(part, kind if is_one else type(part), function, failure)


def _donated_parts(value: Any) -> list[Any]:
    """Return the States in a value, itself included, that lost a buffer.

    All are asked before one is marked: what holds no array itself asks its leaves.
    """
    found, waiting = [], [value]
    while waiting:
        part = waiting.pop()
        kind = type(part)
        if kind in _state_types or _is_state_type(kind):
            gone = False
            for held in held_by(part).values():
                inner = type(held)
                if inner in _array_types:
                    gone = gone or held.is_deleted()
                elif inner not in _ATOMS:
                    waiting.append(held)
            if gone or _is_donated(part):
                found.append(part)
        elif kind is dict or isinstance(part, dict):
            waiting.extend(part.values())
        elif kind is list or isinstance(part, list | tuple):
            waiting.extend(part)
        elif kind is Packed and _is_donated(part):
            found.append(part)
    return found


# State classes that were met: jax keeps them for ever, so this adds nothing to that.
_state_types: set[type] = set()
_ATOMS = frozenset({Aux, type(None), bool, int, float, complex, str})


def _is_state_type(kind: type) -> bool:
    if not is_state_class(kind):
        return False
    _state_types.add(kind)
    return True


_array_types: set[type] = set()  # jax's concrete arrays, as they are met


def holds_states(value: Any) -> bool:
    """Return whether there are States within a State or a container."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        for part in parts(waiting.pop()):
            if is_state_or_packed(part):
                return True
            if id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)
    return False


def _mark(state: Any, donated: type, function: str, failure: str = "") -> None:
    held_by(state)[_WHO] = type(state), donated, function, failure
    try:
        _set_class(state, Consumed)
    except TypeError:  # a mixin with slots: jax's own error must do
        del held_by(state)[_WHO]


class Consumed(Holder):
    """A State that was donated to a jitted function, which reused its buffers.

    Reading, passing, copying or pickling it raises `ConsumedStateError`; its repr and
    `isinstance` still work.
    """

    __dataclass_fields__: Any = {}  # noqa: RUF012  # so that dataclasses asks further

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return held_by(self)[_WHO][0]
        if name == "__weakref__":
            return _get(self, name)
        if name == "__dict__":
            return held_by(self)
        return _refuse(self)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        _refuse(self)

    def __delattr__(self, name: str) -> NoReturn:
        _refuse(self)

    def __repr__(self) -> str:
        cls, _, function, failure = held_by(self)[_WHO]
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
    raise ConsumedStateError(*held_by(self)[_WHO])


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


jax.tree_util.register_pytree_node(
    Consumed, _flatten, lambda aux, leaves: _flatten(aux)
)
_set_class: Any = object.__dict__["__class__"].__set__


def _is_donated(state: Any) -> bool:
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
    return any(map(was_deleted, jax.tree.leaves(state)))


def was_deleted(leaf: Any) -> bool:
    """Return whether a leaf is an array whose buffer is gone."""
    return not is_tracer(leaf) and bool(getattr(leaf, "is_deleted", bool)())
