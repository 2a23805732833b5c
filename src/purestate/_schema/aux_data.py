"""One shared object per set of static values.

jit compares the static values of a State at every call. They are therefore interned:
equal values are the same `Aux` object, so that the comparison is one of identity. The
objects are held weakly; nothing here keeps a value alive that could refer to a State.
"""

import functools
import threading
import weakref
from typing import Any

from purestate._schema.static_values import is_plain, typed
from purestate.errors._text import short

_lock: Any = threading.RLock()


class Aux:
    """The static values of a State: jax's auxiliary data, compared by identity."""

    __slots__ = ("__weakref__", "key", "layout", "values")

    def __init__(
        self, layout: Any, values: tuple[Any, ...], key: tuple[Any, ...]
    ) -> None:
        self.layout, self.values, self.key = layout, values, key

    def __repr__(self) -> str:
        # jax quotes this in its own errors about mismatched trees.
        pairs = zip(self.layout.static, self.values, strict=False)
        return f"({', '.join(f'{name}={short(value)}' for name, value in pairs)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return interned_aux, (self.layout, self.values)


class Interned(dict[Any, "weakref.ref[Aux]"]):
    """Live `Aux` objects by (value, type, ...), where each value refers to nothing.

    What generated constructors look up without a call.
    """

    __slots__ = ("layout",)

    def __init__(self, layout: Any) -> None:
        super().__init__()
        self.layout = layout

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.layout, "interned")


def interned_aux(layout: Any, values: tuple[Any, ...]) -> Aux:
    """Return the one `Aux` of a class's record for these static values."""
    key = tuple(map(typed, values))
    number = hash(key)
    with _lock:
        for ref in layout.known.get(number, ()):
            aux: Aux | None = ref()
            if aux is not None and aux.key == key:
                return aux
        aux = Aux(layout, values, key)
        forget = functools.partial(_forget, layout, number)
        layout.known.setdefault(number, []).append(weakref.ref(aux, forget))
        if values and all(map(is_plain, values)):
            plain = tuple(x for value in values for x in (value, type(value)))
            forget = functools.partial(_forget_plain, layout.interned, plain)
            layout.interned[plain] = weakref.ref(aux, forget)
    return aux


def _forget(layout: Any, number: int, dead: "weakref.ref[Aux]") -> None:
    if _lock is None:
        return  # the process ends, and has already cleared this module
    with _lock:
        alive = [ref for ref in layout.known.get(number, ()) if ref is not dead]
        if alive:
            layout.known[number] = alive
        else:
            layout.known.pop(number, None)


def _forget_plain(interned: Interned, key: Any, dead: "weakref.ref[Aux]") -> None:
    if _lock is None:
        return
    with _lock:
        if interned.get(key) is dead:
            del interned[key]
