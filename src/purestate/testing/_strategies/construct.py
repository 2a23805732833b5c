"""One instance of a class from drawn arguments: a State, a dataclass, a NamedTuple.

What the arguments are is asked of the constructor; what they may be is asked of the
annotations, by the function that is handed in.
"""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import hypothesis.strategies as st
from hypothesis.errors import FailedHealthCheck, UnsatisfiedAssumption

from purestate._compat import is_written_by_dataclasses, own_annotations
from purestate._instance.seal import default_of
from purestate._schema.fields import is_static
from purestate._schema.layout import layout_of
from purestate._schema.marks import is_state_class
from purestate.errors import CheckError, FieldError, StrategyError
from purestate.errors._testing import no_parameter
from purestate.errors._text import error_text
from purestate.testing._strategies.scope import Scope
from purestate.testing._trees.source_text import paste_call

ABSENT: Any = inspect.Parameter.empty
_TRIES = 3  # instances drawn until one is accepted, within one example
_MANY = 40  # instances after which a class that refuses nearly all is reported


@dataclasses.dataclass(frozen=True)
class Parameter:
    """What a constructor takes under one name, or what a field holds.

    Attributes:
        name: its name.
        annotation: as written, perhaps a string; `ABSENT` where nothing is written.
        owner: the class in whose scope a string is evaluated.
        default: its default, else `ABSENT`.
        static: whether it is a static field.
        dtype: what `ps.field(dtype=...)` says, else None.
    """

    name: str
    annotation: Any
    owner: type | None = None
    default: Any = ABSENT
    static: bool = False
    dtype: Any = None


@dataclasses.dataclass(frozen=True)
class Made:
    """An instance and the arguments that it was made from."""

    cls: Any
    given: Mapping[str, Any]
    state: Any

    def again(self, **changes: Any) -> Any:
        """Return another instance, made from the same arguments but for changes."""
        return self.cls(**{**self.given, **changes})


_Value = Callable[[Scope, Parameter, str], Any]


def construct(
    scope: Scope, cls: Any, fields: Mapping[str, Any], value: _Value, place: str = ""
) -> Made:
    """Draw arguments for a class, and call it.

    Args:
        scope: what the arguments share.
        cls: the class, or a generic one with its arguments, `Box[int]`.
        fields: strategies or values for some arguments.
        value: draws what a parameter may be.
        place: where the instance will stand, for messages.

    Raises:
        FieldError: `fields` names what the constructor does not take.
        StrategyError: the constructor raises, or its `__check__` refuses nearly all.
    """
    plain = typing.get_origin(cls) or cls
    is_part = bool(place)
    place = place or plain.__name__
    known = parameters(plain)
    for name in fields:
        if name not in known:
            home = own_init(plain)
            if home is None:
                raise FieldError.unknown(plain, name, known)
            raise no_parameter(plain, home, name, known)

    def drawn(name: str, parameter: Parameter) -> Any:
        if name in fields:
            return given_value(scope, fields[name])
        given = scope.given if is_part else f"fields={{{name!r}: ...}}"
        with scope.within(given, plain.__name__ if is_part else None):
            return value(scope, parameter, f"{place}.{name}")

    outer = scope.typevars
    scope.typevars = {**outer, **_typevars(cls)}
    scope.depth += 1
    refusal: BaseException = UnsatisfiedAssumption()
    try:
        for _ in range(_TRIES):
            given = {name: drawn(name, parameter) for name, parameter in known.items()}
            try:
                made = Made(plain, given, plain(**given))
            except Exception as error:
                if not is_refusal(plain, error):
                    text = error_text(error)
                    call = paste_call(plain.__name__, given)
                    raise StrategyError.fails(
                        plain.__name__, call, text, scope.given, is_part
                    ) from error
                refusal = error
            else:
                scope.refusals.setdefault(plain, [0, 0])[0] += 1
                return made
    finally:
        scope.typevars = outer
        scope.depth -= 1
    raise _given_up(scope, plain, refusal, is_part) from refusal


def given_value(scope: Scope, given: Any) -> Any:
    """Return what a user gave for a field or an argument, drawn if it is a strategy."""
    return scope.draw(given) if isinstance(given, st.SearchStrategy) else given


def parameters(cls: Any) -> dict[str, Parameter]:
    """Return what the constructor of a class takes, by name."""
    fields = {parameter.name: parameter for parameter in stored(cls)}
    if hasattr(cls, "__dataclass_fields__") and own_init(cls) is None:
        return {
            name: fields[name]
            for name, spec in specs_of(cls).items()
            if name in fields and spec.init
        }
    if hasattr(cls, "_fields"):  # a NamedTuple
        hints = own_annotations(cls)
        defaults = getattr(cls, "_field_defaults", {})
        return {
            n: Parameter(n, hints.get(n, object), cls, defaults.get(n, ABSENT))
            for n in cls._fields
        }
    signature = list(inspect.signature(cls.__init__).parameters.values())[1:]
    return {
        p.name: _named(cls, p, fields)
        for p in signature
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }


def own_init(cls: Any) -> type | None:
    """Return the class whose hand-written `__init__` makes instances, or None."""
    if is_state_class(cls):
        return layout_of(cls).init
    init = cls.__init__
    if hasattr(cls, "_fields") or is_written_by_dataclasses(init):
        return None
    kinds = [p.kind for p in inspect.signature(init).parameters.values()]
    if hasattr(cls, "__dataclass_fields__") and inspect.Parameter.VAR_KEYWORD in kinds:
        return None  # a library's own, around the generated one
    return next((base for base in cls.__mro__ if "__init__" in vars(base)), None)


def specs_of(cls: Any) -> Mapping[str, Any]:
    """Return the `dataclasses.Field` objects of a class by name; none for others."""
    if is_state_class(cls):
        return layout_of(cls).specs
    found: Mapping[str, Any] = getattr(cls, "__dataclass_fields__", {})
    return found


def is_started(spec: Any) -> bool:
    """Return whether a field is one that `__post_init__` only starts."""
    return spec.metadata.get("derived") is False


def stored(cls: Any) -> Iterator[Parameter]:
    """Return what is declared in the body of a class: fields and `InitVar`s."""
    for name, spec in specs_of(cls).items():
        if "CLASSVAR" in spec._field_type.name:
            continue
        owner = next(
            (b for b in cls.__mro__ if name in own_annotations(b)),
            cls,
        )
        dtype = spec.metadata.get("dtype")
        default = default_of(spec)
        default = ABSENT if default is dataclasses.MISSING else default
        yield Parameter(name, spec.type, owner, default, is_static(spec), dtype)


def _named(cls: Any, given: Any, fields: Mapping[str, Parameter]) -> Parameter:
    """Return a parameter of a hand-written `__init__`; a field of its name helps."""
    default = given.default
    if given.annotation is not given.empty:
        return Parameter(given.name, given.annotation, cls, default)
    if given.name in fields:
        field = fields[given.name]
        changes = {} if default is ABSENT else {"default": default}
        return dataclasses.replace(field, **changes)
    return Parameter(given.name, ABSENT, cls, default)


def _typevars(cls: Any) -> dict[Any, Any]:
    plain = typing.get_origin(cls) or cls
    found: dict[Any, Any] = {}
    for base in getattr(plain, "__orig_bases__", ()):
        origin = typing.get_origin(base)
        if origin not in (None, typing.Generic, typing.Protocol):
            found |= _typevars(base)
    names = getattr(plain, "__parameters__", ())
    return found | dict(zip(names, typing.get_args(cls), strict=False))


def is_refusal(cls: Any, error: BaseException) -> bool:
    """Return whether a `__check__` raised it, of this class or of one inside."""
    if isinstance(error, CheckError):
        return True
    if not is_state_class(cls):
        return False
    checks = {check.__code__ for _, check in layout_of(cls).checks}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in checks:
            return True
        trace = trace.tb_next
    return False


class NearlyAllRefused(StrategyError, FailedHealthCheck):
    """Ends a test at once: hypothesis would look for a simpler example first."""


def _given_up(scope: Scope, cls: Any, error: BaseException, is_part: bool) -> Exception:
    """Return what rejects an example, or ends a test whose class refuses nearly all."""
    counts = scope.refusals.setdefault(cls, [0, 0])
    counts[0] += _TRIES
    counts[1] += _TRIES
    tried, refused = counts
    if refused >= _MANY and refused > 0.95 * tried:
        return NearlyAllRefused.refused(
            cls.__name__, (tried, refused), error_text(error), scope.given, is_part
        )
    return UnsatisfiedAssumption()
