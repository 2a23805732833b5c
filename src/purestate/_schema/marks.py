"""The marks on State classes and instances, and the way to an instance's attributes.

What an instance is at the moment stands in its `__dict__`, beside its fields: the mark
`AUX` on a finished one, `OPEN` while a constructor runs, `DRAFT` in a draft, `FAILED`
after a constructor that raised. Users do not see the marks: `vars(state)` is a copy of
the fields, see `visible`. So everything here that reads or writes a mark goes through
`held_by` and `store`, or in generated source through the attribute `_ps_dict`, which
costs what `__dict__` does elsewhere.
"""

from collections.abc import Callable
from typing import Any

LAYOUT = "__purestate_layout__"  # on a class: its record
AUX = "__purestate_aux__"  # its static values; the instance is finished
OPEN = "__purestate_open__"  # user code makes it: True, or a set for what it assigns
DRAFT = "__purestate_draft__"  # it is a draft: its block and its source
FAILED = "__purestate_failed__"  # its constructor raised
# On a class that stands for a State, packed or in a file: a method that returns a name
# for it, and its parts by step, with shapes and dtypes in place of its arrays.
SHOWN = "__purestate_shown__"


class Holder:
    """What adds the `__dict__` to `State`, whose own `__dict__` is a property.

    A slot for the mark would hide it as well, but then CPython 3.13 does not keep the
    attributes inside of the object, and unflatten takes 1.3 times as long.
    """


_dict: Any = Holder.__dict__["__dict__"]
Holder._ps_dict = _dict  # type: ignore[attr-defined]
held_by: Callable[[Any], dict[str, Any]] = _dict.__get__
store: Callable[[Any, dict[str, Any]], None] = _dict.__set__


def visible(self: Any) -> dict[str, Any]:
    """Return what `vars(state)` shows: a copy of the fields of a finished State.

    While it is being made it is the true dict, for `self.__dict__.update(...)`.
    """
    held = held_by(self)
    if AUX not in held:
        return held
    return {name: held[name] for name in getattr(type(self), LAYOUT).names}


def is_state_class(cls: type) -> bool:
    """Return whether a class was set up as a State class: not `State` itself."""
    return LAYOUT in cls.__dict__


def is_state(value: object) -> bool:
    """Return whether a value is an instance of a State class."""
    return LAYOUT in type(value).__dict__
