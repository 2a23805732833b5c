"""One record of facts per class, and one shared object per set of static values.

jit compares the static values of a State at every call. They are therefore interned:
equal values are the same `Aux` object, so that the comparison is one of identity.
"""

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from purestate._static import Unfit, is_plain, plain_number, short, typed
from purestate.errors import StaticFieldError

__all__ = ["AUX", "DRAFT", "FAILED", "LAYOUT", "Aux", "Layout", "layout_of"]

AUX = "__purestate_aux__"  # in an instance's __dict__: present once it is sealed
DRAFT = "__purestate_draft__"  # likewise: a draft, with its block and its source
FAILED = "__purestate_failed__"  # likewise: its constructor raised
LAYOUT = "__purestate_layout__"  # on the class

_lock = threading.RLock()


class Aux:
    """The static values of a State: jax's auxiliary data, compared by identity."""

    __slots__ = ("__weakref__", "layout", "values")

    def __init__(self, layout: "Layout", values: tuple[Any, ...]) -> None:
        self.layout = layout
        self.values = values

    def __repr__(self) -> str:
        # jax quotes this in its own errors about mismatched trees.
        pairs = zip(self.layout.static, self.values, strict=False)
        return f"({', '.join(f'{name}={short(value)}' for name, value in pairs)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _intern, (self.layout, self.values)


class Interned(dict[tuple[Any, ...], "weakref.ref[Aux]"]):
    """The live `Aux` objects of a class, held weakly."""

    __slots__ = ("layout",)

    def __init__(self, layout: "Layout") -> None:
        super().__init__()
        self.layout = layout

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.layout, "interned")


class Layout:
    """What is known about a State class, computed once when the class is made.

    Attributes:
        cls: the class.
        specs: every declared name, `InitVar` and `ClassVar` included, in order.
        names: the stored fields, in order; `data` and `static` are its two parts.
        arrays: data fields annotated as arrays, with the dtypes that they admit.
        converters: fields with a `converter=`.
        checks: the `__check__` functions of the class and its bases, base first.
        derived: `init=False` fields of a class with a `__post_init__`.
        cached: names of `functools.cached_property` attributes.
        strict: whether updates must keep shape, dtype and structure.
        init: the class whose hand-written `__init__` constructs it, None if generated.
        plain: data fields that `replace` may store as they come.
        namespace: globals of the functions generated for the class.
        interned: the live `Aux` objects by their key.
        aux: the only `Aux` of a class without static fields.
        functions: the functions registered with jax, by name.
        size: number of names in an empty class body, to notice one filled later.
    """

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.specs: dict[str, dataclasses.Field[Any]] = {}
        self.names: tuple[str, ...] = ()
        self.data: tuple[str, ...] = ()
        self.static: tuple[str, ...] = ()
        self.arrays: dict[str, tuple[str, ...]] = {}
        self.converters: dict[str, Callable[[Any], Any]] = {}
        self.checks: tuple[tuple[type, Callable[[Any], object]], ...] = ()
        self.derived: tuple[str, ...] = ()
        self.cached: frozenset[str] = frozenset()
        self.strict = False
        self.init: type | None = None
        self.plain: frozenset[str] = frozenset()
        self.namespace: dict[str, Any] = {}
        self.interned = Interned(self)
        self.aux = _intern(self, ())
        self.functions: dict[str, Any] = {}
        self.size: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return layout_of, (self.cls,)

    def intern(self, values: Mapping[str, Any]) -> Aux:
        """Return the one `Aux` for the static values among `values`.

        Raises:
            StaticFieldError: a value that is an array, a tracer or unhashable.
        """
        if not self.static:
            return self.aux
        return _intern(
            self, tuple(self.fit(name, values[name]) for name in self.static)
        )

    def fit(self, name: str, value: Any) -> Any:
        """Return what a static field stores for a value.

        Raises:
            StaticFieldError: an array, a tracer or something unhashable.
        """
        try:
            typed(value)
        except Unfit as unfit:
            place = f"its part {name}{unfit.path}" if unfit.path else ""
            raise StaticFieldError(self.cls, name, unfit.value, place) from None
        return plain_number(value)


def layout_of(cls: type) -> Layout:
    """Return the record of a State class.

    Raises:
        KeyError: a subclass whose `__init_subclass__` did not call `super()`'s.
    """
    return cls.__dict__[LAYOUT]  # type: ignore[no-any-return]


def _intern(layout: Layout, values: tuple[Any, ...]) -> Aux:
    keys = [tuple(map(typed, values))]
    if all(map(is_plain, values)):
        # What generated constructors look up without a call.
        keys.append(tuple(x for value in values for x in (value, type(value))))
    interned = layout.interned
    with _lock:
        known = interned.get(keys[0])
        aux = None if known is None else known()
        if aux is None:
            aux = Aux(layout, values)
            for key in keys:
                forget = functools.partial(_forget, interned, key)
                interned[key] = weakref.ref(aux, forget)
    return aux


def _forget(
    interned: Interned,
    key: tuple[Any, ...],
    dead: weakref.ref[Aux],
) -> None:
    with _lock:
        if interned.get(key) is dead:
            del interned[key]
