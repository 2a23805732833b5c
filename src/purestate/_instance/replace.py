"""`replace`: a copy of a State with some fields changed, in full.

Classes without checks, derived fields and the like get a shorter one, generated, that
comes here for whatever is not a plain change.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from purestate._instance.checks import check_strict, run_checks
from purestate._instance.construct import failed
from purestate._instance.draft import settled
from purestate._instance.numbers import holds_flags, is_number, strong
from purestate._instance.pytree import new_instance
from purestate._instance.seal import converted, default_of, seal, store_static
from purestate._schema.fields import MISSING
from purestate._schema.layout import Layout, layout_of
from purestate._schema.marks import OPEN, held_by
from purestate._schema.view import view_names
from purestate.errors import DerivedFieldError, FieldError

_S = TypeVar("_S")

if TYPE_CHECKING:
    _P = ParamSpec("_P")

    class _Replaceable(Protocol[_P]):
        """What type checkers synthesise on a dataclass for Python 3.13 and later."""

        def __replace__(self, *args: _P.args, **kwargs: _P.kwargs) -> Any: ...

    class Typed:
        """The type of `State.replace`: names and types of `__replace__`, and `Self`."""

        @overload
        def __get__(self, instance: None, owner: type[_S], /) -> Callable[..., _S]: ...
        @overload
        def __get__(
            self, instance: _S, owner: type[_Replaceable[_P]], /
        ) -> Callable[_P, _S]: ...
        def __get__(self, instance: Any, owner: Any, /) -> Any: ...


def replace(self: _S, /, **changes: Any) -> _S:
    """Return a copy with some fields changed; everything else is shared.

    Works on data and static fields, in and out of transformed functions. Converters
    run for the changed fields, `__check__` for the result, and `__post_init__` again
    where it computes `init=False` fields. A hand-written `__init__` is never called.

    Args:
        self: the State.
        **changes: new values by field name.

    Returns:
        An instance of the same class.

    Raises:
        DerivedFieldError: a field that `__post_init__` computes.
        FieldError: a name that is not a field.
        StaticFieldError: an array or an unhashable value for a static field.
        StrictFieldError: the class is strict and a shape or dtype would change.

    >>> import jax.numpy as jnp, purestate as ps
    >>> class Counter(ps.State):
    ...     count: ps.Array
    >>> Counter(count=1).replace(count=jnp.int32(2))
    Counter(count=i32[])
    """
    return replaced(self, changes)


def replaced(self: _S, changes: dict[str, Any]) -> _S:
    """Return a copy of a State with some fields changed; `State.replace` in full.

    Raises:
        DerivedFieldError: a field that `__post_init__` computes.
        FieldError: a name that is not a field.
        StrictFieldError: the class is strict and a shape or dtype would change.
    """
    layout = layout_of(type(self))
    self = settled(self)
    held = held_by(self)
    for name in changes:
        if name not in layout.stored and name not in layout.initvars:
            views = view_names(layout.cls)
            if name in views:
                return _through_views(self, layout, changes, views)
            raise FieldError.unknown(layout.cls, name, (*layout.names, *views))
    new = {name: value for name, value in changes.items() if name in layout.stored}
    changed = [
        name for name, value in new.items() if _is_made_anew(layout, name, value)
    ]
    if changed and not holds_flags(self):
        new |= {
            name: _arriving(layout, name, new[name], held[name]) for name in changed
        }
    named = [name for name in layout.initvars if name in changes]
    if layout.derived or named:
        if not layout.derived and layout.started:
            raise FieldError.started(layout.cls, named[0], layout.started)
        initvars = _initvar_values(layout, changes)
        derived: _S = _rederived(layout, held, new, initvars)
        return derived
    if layout.strict:
        check_strict(layout, held, new)
    values = held | new
    for name in layout.cached:
        values.pop(name, None)
    if not layout.static_names.isdisjoint(new):
        store_static(layout, values)
    made: _S = new_instance(layout.cls, values)
    run_checks(made, layout)
    return made


def _through_views(
    self: _S, layout: Layout, changes: dict[str, Any], views: tuple[str, ...]
) -> _S:
    """Return a copy with some parts of fields changed, after the fields themselves."""
    made: Any = self
    if plain := {n: v for n, v in changes.items() if n not in views}:
        made = made.replace(**plain)
    for name in views:
        if name in changes:
            view = getattr(layout.cls, name)
            made = made.replace(**view.changes(made, changes[name]))
    found: _S = made
    return found


def _is_made_anew(layout: Layout, name: str, value: Any) -> bool:
    """Return whether a value is stored otherwise than it is given."""
    return name in layout.converters or (is_number(value) and name in layout.arrays)


def _arriving(layout: Layout, name: str, value: Any, old: Any) -> Any:
    if name in layout.converters:
        value = converted(layout, name, value)
    weak = name in layout.arrays and is_number(value)
    return strong(layout, name, value, old) if weak else value


def _initvar_values(layout: Layout, changes: dict[str, Any]) -> list[Any]:
    values = []
    for name, spec in layout.initvars.items():
        value = changes[name] if name in changes else default_of(spec)
        if value is MISSING:
            raise FieldError(
                f"{layout.cls.__name__}.replace runs __post_init__ again and needs its "
                f"InitVar {name}: write replace(..., {name}=...), or give {name} a "
                f"default."
            )
        values.append(value)
    return values


def _rederived(
    layout: Layout, old: dict[str, Any], new: dict[str, Any], initvars: list[Any]
) -> Any:
    """Return an instance whose derived fields `__post_init__` made again.

    A derived field that `__post_init__` leaves alone is ordinary data: it is kept.
    """
    preset = {name: default_of(layout.specs[name]) for name in layout.derived}
    start = {n: new.get(n, old[n]) for n in layout.names if n not in preset}
    start |= {n: v for n, v in preset.items() if v is not MISSING}
    made = new_instance(layout.cls, start)
    held = held_by(made)
    assigned: set[str] = set()
    held[OPEN] = assigned
    try:
        made.__post_init__(*initvars)
    except BaseException as error:
        failed(made, layout, error, "__post_init__")
        raise
    del held[OPEN]
    for name in layout.derived:
        if name in assigned or held.get(name, preset[name]) is not preset[name]:
            if name in new:
                raise DerivedFieldError(layout.cls, name)
            if name in layout.converters:
                held[name] = converted(layout, name, held[name])
        else:
            held[name] = new.get(name, old[name])
    for name in layout.started:  # what it starts them with again is dropped
        held[name] = new.get(name, old[name])
    if layout.strict:
        check_strict(layout, old, {name: held[name] for name in layout.names})
    seal(made, layout)
    return made
