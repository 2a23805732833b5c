"""How an instance comes to be: what generated and wrapped constructors call.

An instance under construction lacks its `Aux`, and is marked `OPEN` while code of the
user runs; the marks live on the instance. Whoever constructs, `seal` ends it. An
instance whose construction failed is frozen too. Generated source reaches this file as
`_ps`: `_ps.need` there is `need` here.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import jax

from purestate._compat import is_tracer
from purestate._inspect.donations import explain_deleted
from purestate._instance.checks import run_checks as run_checks  # generated source's
from purestate._instance.numbers import NOT_NUMBERS, is_number, strong
from purestate._instance.pytree import adopt_values
from purestate._instance.seal import converted, fill_defaults, seal
from purestate._schema.fields import MISSING, is_initvar, is_stored
from purestate._schema.layout import Layout, layout_of
from purestate._schema.marks import AUX, FAILED, OPEN, held_by, is_state_class
from purestate.errors import DeclarationError, FieldError, FrozenStateError

CONVERTED = "__purestate_converted__"  # fields that a base's __init__ converted
# By this keyword `dataclasses.replace` hands over what it copies: `_state/dataclass`.
SOURCE = "_ps_source"
_READS_A_TRACER = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
WRAPS = "__purestate_wraps__"  # on a wrapped method: the user's


class Missing:
    """Default of parameters that must be given; a class, so that it pickles as one."""


class ArgumentMissing(Exception):
    """Internal: a required parameter was not given; `failed` tells which ones."""


def layout_for(self: Any) -> Layout:
    """Return the record of the class of an instance that is being made.

    Raises:
        DeclarationError: the class was never set up.
    """
    cls = type(self)
    if not is_state_class(cls):
        raise DeclarationError(
            f"{cls.__name__} was not set up as a State: an __init_subclass__ among its "
            f"bases does not call super().__init_subclass__(**kwargs)."
        )
    return layout_of(cls)


def wrapped_init(cls: type, init: Callable[..., None]) -> Callable[..., None]:
    """Return a hand-written `__init__` that ends by sealing the instance."""

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        run_init(self, cls, init, args, kwargs)  # cloudpickle carries these lines

    setattr(__init__, WRAPS, init)
    return __init__


def run_init(
    self: Any,
    cls: type,
    init: Callable[..., None],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Run the hand-written `__init__` of `cls`, and seal if it is the outermost one."""
    layout = layout_for(self)
    if layout.bare:
        layout.cls._ps_awaken()  # type: ignore[attr-defined]
    if layout.init is not cls:  # called through super(): the outermost one seals
        return init(self, *args, **kwargs)
    held = held_by(self)
    if AUX in held:
        raise FrozenStateError.constructing(type(self))
    if SOURCE in kwargs:
        return adopt(self, kwargs.pop(SOURCE), kwargs)
    held[OPEN] = True
    try:
        init(self, *args, **kwargs)
        if any(name not in held for name in (*layout.derived, *layout.started)):
            self.__post_init__()  # as every replace will
        finish(self, held.pop(CONVERTED, ()), "__init__")
    except BaseException as error:
        failed(self, layout, error, "__init__")
        raise
    return None


def need() -> NoReturn:
    """Stop a generated `__init__` that lacks a required parameter."""
    raise ArgumentMissing


def numbers(
    layout: Layout, names: tuple[str, ...], scope: Mapping[str, Any]
) -> list[Any]:
    """Return what array fields store, where not all values are plain jax arrays."""
    if layout.namespace["_ps_array"] is Missing:
        return [_number(layout, name, scope[name]) for name in names]
    return [
        scope[name]
        if type(scope[name]) in NOT_NUMBERS
        else _number(layout, name, scope[name])
        for name in names
    ]


def _number(layout: Layout, name: str, value: Any) -> Any:
    if is_number(value):
        return strong(layout, name, value)
    if value is Missing:
        raise ArgumentMissing
    if isinstance(value, jax.Array) and not is_tracer(value):
        layout.namespace["_ps_array"] = type(value)  # arrays no longer come here
    return value


def adopts(self: Any, layout: Layout, given: dict[str, Any]) -> bool:
    """Return whether a generated `__init__` is done: it served `dataclasses.replace`.

    Or the class was to be read again, and another constructor did the work. Called for
    unknown names and for an instance that is not empty, too: a subclass may have set
    fields before it calls the `__init__` of its base.

    Args:
        self: the instance.
        layout: the record of the class whose `__init__` it is.
        given: the local variables of that `__init__`, parameters by name among them.

    Raises:
        FieldError: a name that is not a field, or is declared with `init=False`.
        FrozenStateError: the instance is constructed already.
        TypeError: too many positional arguments.
    """
    if layout.bare:
        _awakened(self, layout, given)
        return True
    cls, unknown = type(self), given["_ps_unknown"]
    if AUX in held_by(self):
        raise FrozenStateError.constructing(cls)
    if SOURCE in unknown:
        source = unknown.pop(SOURCE)
        specs = layout_of(cls).specs
        fields = {n: v for n, v in given.items() if n in specs and v is not Missing}
        adopt(self, source, fields | unknown)
        return True
    if given["_ps_more"]:
        raise _too_many(layout, len(given["_ps_more"]))
    if not unknown:
        return False
    name = next(iter(unknown))
    if name in layout_of(cls).names:
        raise FieldError(
            f"{cls.__name__} does not take {name!r}, which is declared with "
            f"init=False: set it in __post_init__, or drop init=False."
        )
    raise FieldError.unknown(cls, name, _parameters(layout_of(cls)))


def _awakened(self: Any, layout: Layout, scope: dict[str, Any]) -> None:
    """Construct with the `__init__` that a class has once it has come to life."""
    cls: Any = layout.cls
    cls._ps_awaken()
    unknown, more = scope.pop("_ps_unknown"), scope.pop("_ps_more")
    given = {
        name: value
        for name, value in scope.items()
        if name in layout.specs and value is not Missing
    }
    if more:
        raise _too_many(layout, len(more))
    cls.__dict__["__init__"](self, **given, **unknown)


def _too_many(layout: Layout, more: int) -> TypeError:
    """Return the error that Python gives, which would count optional what is not."""
    specs = [layout.specs[name] for name in _parameters(layout)]
    positional = [spec for spec in specs if not spec.kw_only]
    most = len(positional) + 1  # self is counted
    least = most - sum(s.default is not s.default_factory for s in positional)
    takes = f"{most}" if least == most else f"from {least} to {most}"
    return TypeError(
        f"{layout.cls.__qualname__}.__init__() takes {takes} positional "
        f"argument{'s' if most != 1 else ''} but {most + more} were given"
    )


def _parameters(layout: Layout) -> list[str]:
    specs = layout.specs.values()
    return [s.name for s in specs if s.init and (is_stored(s) or is_initvar(s))]


def adopt(self: Any, source: Any, given: Mapping[str, Any]) -> None:
    """Serve `dataclasses.replace`, which calls the class with all fields [1].

    To run a constructor would run converters and hooks again, reset `init=False` fields
    and compare no types. What was asked for is told by comparing with the source.

    [1] https://docs.python.org/3/library/dataclasses.html#dataclasses.replace
    """
    layout, held = layout_of(type(self)), dict(held_by(source))
    for name in given.keys() - _parameters(layout):
        raise FieldError.unknown(layout.cls, name, layout.names)
    # An InitVar that was not given comes with its default; without a __post_init__ it
    # does nothing.
    unused = {
        n for n, s in layout.specs.items() if is_initvar(s)
    } - layout.initvars.keys()
    held |= {name: spec.default for name, spec in layout.initvars.items()}
    changes = {
        name: value
        for name, value in given.items()
        if name not in unused and held.get(name, MISSING) is not value
    }
    adopt_values(self, dict(held_by(source.replace(**changes))))


def base_init(
    self: Any, layout: Layout, scope: Mapping[str, Any], initvars: tuple[Any, ...]
) -> None:
    """Run a generated `__init__` for a subclass whose own `__init__` will seal.

    Args:
        self: the instance.
        layout: the record of the class whose `__init__` it is.
        scope: the local variables of that `__init__`, parameters by name among them.
        initvars: what `__post_init__` is called with.
    """
    layout_for(self)
    values = {name: scope[name] for name in layout.names if name in scope}
    held = held_by(self)
    held.update(values)
    held[CONVERTED] = (*held.get(CONVERTED, ()), *values)
    if hasattr(self, "__post_init__"):
        self.__post_init__(*initvars)


def finish(self: Any, done: Iterable[str], where: str) -> None:
    """Seal an instance after user code ran: defaults, converters, checks.

    Args:
        self: the instance.
        done: fields whose converter has run already.
        where: the name of the method that should have set all fields, or empty.
    """
    layout = layout_of(type(self))
    values = held_by(self)
    fill_defaults(layout, values, where)
    for name in layout.converters:
        if name not in done:
            values[name] = converted(layout, name, values[name])
    seal(self, layout)


def failed(
    self: Any,
    layout: Layout,
    error: BaseException,
    where: str,
    scope: Mapping[str, Any] | None = None,
) -> None:
    """Freeze an instance whose construction raised, and say where if user code did.

    Args:
        self: the instance.
        layout: the record of the class whose constructor raised.
        error: what it raised.
        where: the name of the user's method that may have raised, or empty.
        scope: the local variables of a generated `__init__`.

    Raises:
        FieldError: for an `ArgumentMissing`, with the name of every one.
    """
    held = held_by(self)
    explain_deleted(error)
    if AUX not in held:
        if where:
            note_construction(error, layout, where, held)
        held.pop(OPEN, None)
        held[FAILED] = True
    if type(error) is ArgumentMissing and scope is not None:
        required = [
            s.name
            for s in layout.specs.values()
            if s.init and s.name in scope and s.default is s.default_factory is MISSING
        ]
        unset = [name for name in required if scope[name] is Missing]
        raise FieldError.missing(type(self), unset, required) from None


def note_construction(
    error: BaseException, layout: Layout, where: str, held: Iterable[str]
) -> None:
    """Add a note to an error from a user's constructor: what was made, and how far."""
    name = layout.cls.__name__
    if isinstance(error, _READS_A_TRACER):
        error.add_note(
            f"{name}.{where} read the value of a field while jax was tracing, where it "
            f"has none. Put checks on values into {name}.__check__, which is skipped "
            f"while tracing, and compute with jnp instead of float(), int(), bool()."
        )
    elif isinstance(error, Exception) and type(error) is not ArgumentMissing:
        done = [field for field in layout.names if field in set(held)]
        so_far = f"it had set {', '.join(done)}" if done else "it had set no field"
        error.add_note(f"raised by {name}.{where}; {so_far}.")
