"""What happens to a value on its way into a field, and to an instance before its seal.

Converters, Python numbers in array fields, defaults, strict classes and `__check__`:
the parts that construction and `replace` share. Unflatten uses none of them.
"""

import dataclasses
from typing import Any

from purestate._compat import fills_dict
from purestate._inspect.donations import explain_deleted
from purestate._inspect.repr import pformat
from purestate._instance.checks import run_checks
from purestate._instance.numbers import is_number, strong
from purestate._schema.layout import Layout
from purestate._schema.marks import AUX, OPEN, held_by, store
from purestate.errors import UnsetFieldError


def converted(layout: Layout, name: str, value: Any) -> Any:
    """Return what the field's converter makes of a value; a note names the field."""
    try:
        return layout.converters[name](value)
    except Exception as error:
        explain_deleted(error)
        error.add_note(
            f"raised by the converter of {layout.cls.__name__}.{name}, which was given "
            f"{pformat(value)}."
        )
        raise


def default_of(spec: dataclasses.Field[Any]) -> Any:
    """Return a field's default, made anew where it has a factory, else MISSING."""
    if spec.default_factory is not dataclasses.MISSING:
        return spec.default_factory()
    return spec.default


def fill_defaults(layout: Layout, values: dict[str, Any], where: str) -> None:
    """Give every field that a constructor did not set its default.

    Raises:
        UnsetFieldError: fields that have neither; `where` names the constructor.
    """
    unset = []
    for name in layout.names:
        if name not in values:
            value = default_of(layout.specs[name])
            if value is dataclasses.MISSING:
                unset.append(name)
            else:
                values[name] = value
    if unset:
        raise UnsetFieldError(layout.cls, unset, where)


def seal(self: Any, layout: Layout) -> None:
    """End an instance's construction: numbers become arrays, freeze it, check it."""
    values = held_by(self)
    for name in layout.arrays:
        if is_number(values[name]):
            values[name] = strong(layout, name, values[name])
    freeze(self, layout)
    run_checks(self, layout)


def freeze(self: Any, layout: Layout) -> None:
    """Intern the static values of an instance, and mark it as finished."""
    values = held_by(self)
    values.pop(OPEN, None)
    for name in layout.cached:
        values.pop(name, None)  # computed before all fields had their final values
    if fills_dict(len(values)):
        store_static(layout, values)
    else:
        ordered = {name: values[name] for name in layout.names}
        store_static(layout, ordered)
        store(self, ordered)


def store_static(layout: Layout, values: dict[str, Any]) -> None:
    """Intern the static values among an instance's, and store what came of it."""
    aux = layout.intern(values)
    values.update(zip(layout.static, aux.values, strict=True))
    values[AUX] = aux
