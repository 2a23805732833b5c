"""How an instance comes to be, apart from the generated source.

An instance under construction lacks its `Aux`; that is the whole mark, and it lives on
the instance. Whoever constructs, `seal` ends it. An instance whose construction failed
is frozen too.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import jax

from purestate._compat import is_tracer
from purestate._fields import is_initvar
from purestate._layout import AUX, FAILED, LAYOUT, Layout, layout_of
from purestate._pytree import adopt_values
from purestate._values import (
    NUMBERS,
    converted,
    explain,
    fill_defaults,
    seal,
    strong,
)
from purestate.errors import DeclarationError, FieldError, FrozenStateError

__all__ = [
    "ASSIGNED",
    "REPLACERS",
    "Missing",
    "adopt",
    "base_init",
    "current",
    "failed",
    "finish",
    "need",
    "number",
    "refuse",
    "restarted",
    "wrapped_init",
]

ASSIGNED = "__purestate_assigned__"  # names that a repeated __post_init__ assigned
_CONVERTED = (
    "__purestate_converted__"  # fields that a generated base __init__ converted
)
_MISSING: Any = dataclasses.MISSING
# The frames in which the standard library calls a class in order to replace.
REPLACERS = {
    f.__code__
    for f in (
        dataclasses.replace,
        getattr(dataclasses, "_replace", dataclasses.replace),
    )
}


class Missing:
    """Default of parameters that must be given; a class, so that it pickles as one."""


def wrapped_init(cls: type, init: Callable[..., None]) -> Callable[..., None]:
    """Return a hand-written `__init__` that ends by sealing the instance."""

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        layout = current(type(self))
        if layout.init is not cls:  # called through super(): the outermost one seals
            return init(self, *args, **kwargs)
        if AUX in self.__dict__:
            raise FrozenStateError.constructing(type(self))
        if sys._getframe(1).f_code in REPLACERS:
            return adopt(self, sys._getframe(1))
        try:
            init(self, *args, **kwargs)
            if any(name not in self.__dict__ for name in layout.derived):
                self.__post_init__()  # as every replace will
            finish(self, self.__dict__.pop(_CONVERTED, ()), "__init__")
        except BaseException as error:
            failed(self, layout, error, "__init__")
            raise
        return None

    __init__.__purestate_wraps__ = init  # type: ignore[attr-defined]
    return __init__


def finish(self: Any, done: Iterable[str], where: str) -> None:
    """Seal an instance after user code ran: defaults, converters, checks.

    Args:
        self: the instance.
        done: fields whose converter has run already.
        where: the name of the method that should have set all fields, empty if none.
    """
    layout = current(type(self))
    values = self.__dict__
    fill_defaults(layout, values, where)
    for name in layout.converters:
        if name not in done:
            values[name] = converted(layout, name, values[name])
    seal(self, layout)


def base_init(
    self: Any, layout: Layout, scope: dict[str, Any], initvars: tuple[Any, ...]
) -> None:
    """Run a generated `__init__` for a subclass whose own `__init__` will seal.

    Args:
        self: the instance.
        layout: the record of the class whose `__init__` it is.
        scope: the local variables of that `__init__`, parameters by name among them.
        initvars: what `__post_init__` is called with.
    """
    current(type(self))
    values = {name: scope[name] for name in layout.names if name in scope}
    held = self.__dict__
    held.update(values)
    held[_CONVERTED] = (*held.get(_CONVERTED, ()), *values)
    if hasattr(self, "__post_init__"):
        self.__post_init__(*initvars)


def adopt(self: Any, frame: Any) -> None:
    """Serve `dataclasses.replace`, which calls the class with all fields [1].

    It would run a hand-written `__init__` and reset `init=False` fields. What it was
    asked for is told by comparing with the instance that its frame names.

    [1] https://docs.python.org/3/library/dataclasses.html#dataclasses.replace
    """
    scope = frame.f_locals
    source = scope["obj"] if "obj" in scope else scope["self"]
    specs, held = layout_of(type(self)).specs, dict(source.__dict__)
    # An InitVar that was not given comes with its default.
    held |= {name: s.default for name, s in specs.items() if is_initvar(s)}
    changes = {
        name: value
        for name, value in scope["changes"].items()
        if held.get(name, _MISSING) is not value
    }
    adopt_values(self, dict(source.replace(**changes).__dict__))


def failed(self: Any, layout: Layout, error: BaseException, where: str) -> None:
    """Freeze an instance whose construction raised, and say where if user code did."""
    held = self.__dict__
    if AUX not in held:
        if where:
            explain(error, layout, where, held)
        held[FAILED] = True


def restarted(self: Any, layout: Layout, scope: dict[str, Any]) -> bool:
    """Construct again if the class was filled only after it was made.

    Args:
        self: the instance.
        layout: the record of the class.
        scope: the local variables of the generated `__init__` that called this.
    """
    if current(layout.cls).bare:
        return False  # a class that adds nothing to its bases
    unknown = scope.pop("_ps_unknown")
    given = {
        name: value
        for name, value in scope.items()
        if name in layout.specs and value is not Missing
    }
    init: Any = layout.cls.__dict__["__init__"]
    init(self, **given, **unknown)
    return True


def refuse(self: Any, unknown: dict[str, Any]) -> None:
    """Raise for a generated `__init__` called with unknown names, or a second time.

    Neither may be the case: a subclass may have set fields before it calls this one.
    """
    cls = type(self)
    if AUX in self.__dict__:
        raise FrozenStateError.constructing(cls)
    if not unknown:
        return
    name = next(iter(unknown))
    if name in layout_of(cls).names:
        raise FieldError(
            f"{cls.__name__} does not take {name!r}, which is declared with "
            f"init=False: set it in __post_init__, or drop init=False."
        )
    taken = [s.name for s in layout_of(cls).specs.values() if s.init]
    raise FieldError.unknown(cls, name, taken)


def need(layout: Layout) -> NoReturn:
    """Raise for every required parameter that a generated `__init__` did not get."""
    frame: Any = sys._getframe(1)
    while "_ps_self" not in frame.f_locals:
        frame = frame.f_back
    scope = frame.f_locals
    required = [
        s.name
        for s in layout.specs.values()
        if s.init and s.name in scope and s.default is s.default_factory is _MISSING
    ]
    unset = [name for name in required if scope[name] is Missing]
    raise FieldError.missing(type(scope["_ps_self"]), unset, required)


def number(layout: Layout, name: str, value: Any) -> Any:
    """Return what an array field stores for a value that is not a plain jax array."""
    if type(value) in NUMBERS:
        return strong(layout, name, value)
    if value is Missing:
        need(layout)
    if isinstance(value, jax.Array) and not is_tracer(value):
        layout.namespace["_ps_array"] = type(value)  # this check is skipped from now on
    return value


def current(cls: type) -> Layout:
    """Return the record of a State class, up to date."""
    if LAYOUT not in cls.__dict__:
        raise DeclarationError(
            f"{cls.__name__} was not set up as a State: an __init_subclass__ among its "
            f"bases does not call super().__init_subclass__(**kwargs)."
        )
    layout = layout_of(cls)
    if layout.bare:
        layout.functions["refresh"](cls, False)
    return layout
