"""What a generated `__init__` says of the types of its arguments.

A number becomes an array only inside, and a converter takes what it likes. A run-time
type checker that holds the argument against the field's annotation would refuse both
(jaxtyping#114). So for such fields it is told of a type that asks what will be stored.
"""

from typing import Any

import jax

from purestate._instance.numbers import is_number, strong
from purestate._schema.layout import Layout

_ARRAY_OR_NUMBER = jax.Array | bool | int | float | complex


class _Stored(type):
    """The type of what is stored as an instance of the field's annotation."""

    layout: Layout
    field: str
    annotation: Any

    def __instancecheck__(cls, value: Any) -> bool:
        layout, name = cls.layout, cls.field
        try:
            if name in layout.converters:
                value = layout.converters[name](value)
            if name in layout.arrays and is_number(value):
                value = strong(layout, name, value)
        except Exception:  # noqa: BLE001  # the constructor will raise it, with a note
            return True
        return isinstance(value, cls.annotation)


def argument_types(layout: Layout) -> dict[str, Any]:
    """Return a type for each field that a constructor takes, as far as there is one."""
    found = {}
    for name, spec in layout.specs.items():
        if name not in layout.converters and name not in layout.arrays:
            found[name] = spec.type
        elif spec.type is jax.Array and name not in layout.converters:
            found[name] = _ARRAY_OR_NUMBER
        elif isinstance(spec.type, type):
            facts = {"layout": layout, "field": name, "annotation": spec.type}
            named = {"__module__": spec.type.__module__}
            found[name] = _Stored(spec.type.__name__, (), facts | named)
    return found
