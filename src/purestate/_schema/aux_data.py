"""One shared object per set of static values.

jit compares the static values of a State at every call. They are therefore interned:
equal values are the same `Aux` object, so that the comparison is one of identity. The
objects are held weakly, but for the last few of each class: a State that is made in a
loop and dropped each time finds them again, in a tenth of the time that making one
takes. Those hold numbers and short strings; nothing here keeps a value alive that could
refer to a State.
"""

import functools
import threading
import weakref
from collections import deque
from typing import Any

from purestate._schema.static_values import is_plain, typed
from purestate.errors._text import short

_lock: Any = threading.RLock()
_RECENT = 8  # objects that a table keeps alive
_LONGEST = 256  # characters, or bits of an integer, of a value in one of them


class Aux:
    """The static values of a State: jax's auxiliary data, compared by identity."""

    __slots__ = ("__weakref__", "key", "table", "values")

    def __init__(
        self, table: "AuxTable", values: tuple[Any, ...], key: tuple[Any, ...]
    ) -> None:
        self.table, self.values, self.key = table, values, key

    def __repr__(self) -> str:
        # jax quotes this in its own errors about mismatched trees.
        pairs = zip(self.table.names, self.values, strict=True)
        return f"({', '.join(f'{name}={short(value)}' for name, value in pairs)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return AuxTable.intern, (self.table, self.values)


class PlainAux(dict[Any, "weakref.ref[Aux]"]):
    """Live `Aux` objects by (value, type, ...), where each value refers to nothing.

    What generated constructors look up without a call.
    """

    __slots__ = ("table",)

    def __init__(self, table: "AuxTable") -> None:
        super().__init__()
        self.table = table

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.table, "plain")


class AuxTable:
    """The live `Aux` objects of the classes of one name with the same static fields.

    Where a class is defined anew, as when a notebook reloads its module, its instances
    and those of the old class that were moved to it have the same tree structure.

    Attributes:
        names: the static fields.
        plain: those whose values are plain, by value and type.
        recent: the last few with values that take little memory, and hold nothing.
        known: all, by the hash of their key: the key itself may refer to an instance,
            which it must not keep alive from here.
    """

    def __init__(self, module: str, qualname: str, names: tuple[str, ...]) -> None:
        self._of = (module, qualname, names)
        self.names = names
        self.plain = PlainAux(self)
        self.recent: deque[Aux] = deque(maxlen=_RECENT)
        self.known: dict[int, list[weakref.ref[Aux]]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return aux_table, self._of

    def found(self, values: tuple[Any, ...]) -> Aux | None:
        """Return the `Aux` of plain values if it lives: a look into a dict."""
        try:
            return self.plain[
                tuple(x for value in values for x in (value, type(value)))
            ]()
        except Exception:  # noqa: BLE001  # it is not there, or what __hash__ raises
            return None

    def intern(self, values: tuple[Any, ...]) -> Aux:
        """Return the one `Aux` for these values, each as `python_numbers` returns it.

        Raises:
            Unfit: a value that cannot be static.
        """
        key = tuple(map(typed, values))
        number = hash(key)
        with _lock:
            for ref in self.known.get(number, ()):
                aux: Aux | None = ref()
                if aux is not None and aux.key == key:
                    return aux
            aux = Aux(self, values, key)
            forget = functools.partial(_forget, self, number)
            self.known.setdefault(number, []).append(weakref.ref(aux, forget))
            if values and all(map(is_plain, values)):
                plain = tuple(x for value in values for x in (value, type(value)))
                forget = functools.partial(_forget_plain, self.plain, plain)
                self.plain[plain] = weakref.ref(aux, forget)
                if all(map(_is_small, values)):
                    self.recent.append(aux)
        return aux


def _is_small(value: Any) -> bool:
    if isinstance(value, str | bytes):
        return len(value) <= _LONGEST
    if isinstance(value, int):
        return value.bit_length() <= _LONGEST
    return value is None or isinstance(value, float)  # no function: it has globals


_tables: "weakref.WeakValueDictionary[Any, AuxTable]" = weakref.WeakValueDictionary()


def aux_table(module: str, qualname: str, names: tuple[str, ...]) -> AuxTable:
    """Return the one table for classes of this name with these static fields."""
    with _lock:
        key = (module, qualname, names)
        found = _tables.get(key)
        if found is None:
            found = _tables[key] = AuxTable(*key)
    return found


def _forget(table: AuxTable, number: int, dead: "weakref.ref[Aux]") -> None:
    if _lock is None:
        return  # the process ends, and has already cleared this module
    with _lock:
        alive = [ref for ref in table.known.get(number, ()) if ref is not dead]
        if alive:
            table.known[number] = alive
        else:
            table.known.pop(number, None)


def _forget_plain(plain: PlainAux, key: Any, dead: "weakref.ref[Aux]") -> None:
    if _lock is None:
        return
    with _lock:
        if plain.get(key) is dead:
            del plain[key]
