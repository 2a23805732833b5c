"""What makes a State class a dataclass for the standard library, and keeps it a State.

`dataclasses.fields`, `match`, rich and treescope find what they look for. The methods
that the standard library writes, for mixins or for a decorator on top, do not replace
those of State.
"""

import dataclasses
from typing import Any

from purestate._fields import is_initvar, is_stored
from purestate._layout import LAYOUT, Layout

__all__ = ["become_dataclass"]

_PARAMETERS = "__dataclass_params__"
_PARAMS: Any = getattr(dataclasses.make_dataclass("_", [], eq=False), _PARAMETERS)
# A decorator `@dataclass` on top, and make_dataclass, would add their own of these.
_OWN = (
    "__repr__",
    "__eq__",
    "__hash__",
    "__replace__",
    "__setattr__",
    "__delattr__",
)


def become_dataclass(layout: Layout, own: dict[str, dataclasses.Field[Any]]) -> None:
    """Give the class what makes it a dataclass for the standard library and others."""
    cls: Any = layout.cls
    cls.__dataclass_fields__ = layout.specs
    cls.__dataclass_params__ = _PARAMS
    if "__match_args__" not in cls.__dict__:
        cls.__match_args__ = tuple(  # type: ignore[misc]
            name
            for name, spec in layout.specs.items()
            if spec.init and not spec.kw_only and (is_stored(spec) or is_initvar(spec))
        )
    for name, spec in own.items():
        if not (is_stored(spec) or is_initvar(spec)):
            continue
        if spec.default is not dataclasses.MISSING:
            setattr(cls, name, spec.default)
        elif spec.default_factory is not dataclasses.MISSING or not spec.init:
            setattr(cls, name, _Unset(spec))
        elif name in cls.__dict__:
            delattr(cls, name)
    for name in layout.names:
        above = next(
            (b.__dict__[name] for b in cls.__mro__ if name in b.__dict__), None
        )
        if hasattr(type(above), "__set__") or getattr(
            above, "__isabstractmethod__", False
        ):
            # A property, abstract or not, or a slot, which a field overrides.
            setattr(cls, name, _Unset(layout.specs[name]))
    for name in _OWN:
        if name not in cls.__dict__:
            setattr(cls, name, _method(layout, name))


def _method(layout: Layout, name: str) -> Any:
    """Return a special method as inherited, but not from a plain dataclass.

    The standard library writes these for the fields that it knows of.
    """
    owner = next(base for base in layout.cls.__mro__ if name in base.__dict__)
    if LAYOUT not in owner.__dict__ and _PARAMETERS in owner.__dict__:
        return layout.namespace["_ps_root"].__dict__[name]
    return owner.__dict__[name]


class _Unset:
    """Stands on the class where a field has no default value to stand there.

    The class attribute is the field's specifier, so that `dataclasses.dataclass` finds
    it when it is applied on top. On an instance without a value it is unset.
    """

    def __init__(self, spec: dataclasses.Field[Any]) -> None:
        self.spec = spec

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self.spec
        raise AttributeError(
            f"{owner.__name__}.{self.spec.name} has no value yet: its constructor is "
            f"still running, or raised."
        )
