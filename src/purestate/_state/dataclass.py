"""What makes a State class a dataclass for the standard library, and keeps it a State.

`dataclasses.fields`, `match`, rich and treescope find what they look for. The methods
that the standard library writes, for mixins or for a decorator on top, do not replace
those of State.

`dataclasses.replace(state, x=1)` does not ask the object: it calls the class with the
value of every field [1]. To tell such a call, whatever is wrapped around `__init__`,
one more pseudo-field stands among them: an `InitVar` whose value, read from the
instance, is the instance. It arrives as a keyword, and `adopt` does as `replace` would.

[1] https://docs.python.org/3/library/dataclasses.html#dataclasses.replace
"""

import dataclasses
import sys
from typing import Any

from purestate._compat import decorates_frozen
from purestate._instance.construct import SOURCE
from purestate._schema.fields import MISSING, is_initvar, is_stored
from purestate._schema.layout import Layout
from purestate._schema.marks import is_state_class
from purestate.errors import DeclarationError

FIELDS = "__dataclass_fields__"
_PARAMETERS = "__dataclass_params__"
_SOURCE = (SOURCE, dataclasses.InitVar[object], dataclasses.field(default=None))
_plain: Any = dataclasses.make_dataclass("_", [_SOURCE], eq=False, kw_only=True)
# A decorator `@dataclass` on top, and make_dataclass, would add their own of these.
_OWN = (
    "__repr__",
    "__eq__",
    "__hash__",
    "__replace__",
    "__setattr__",
    "__delattr__",
)


class _Parameters:
    """What `dataclasses` asks of a base: how it was decorated."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    @property
    def frozen(self) -> bool:
        """False: a decorator on top is not frozen. One that is would break `__init__`.

        Raises:
            DeclarationError: it is asked by `@dataclass(frozen=True)`.
        """
        if decorates_frozen(sys._getframe(1)):
            raise DeclarationError(
                "@dataclass(frozen=True) on a State: a State is frozen already, and a "
                "dataclass. Leave the decorator out."
            )
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


def become_root(root: Any) -> None:
    """Make `State` itself a dataclass, one without fields.

    A decorator `@dataclass` on top collects fields from all bases, and would leave out
    the pseudo-field of a class right below State if State had it not.
    """
    root.__dataclass_fields__ = dict(getattr(_plain, FIELDS))
    root.__dataclass_params__ = _Parameters(getattr(_plain, _PARAMETERS))
    setattr(root, SOURCE, property(lambda self: self))


def declared_fields(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """Return what the standard library would call the fields of a class itself."""
    found = cls.__dict__.get(FIELDS, {})
    return {name: spec for name, spec in found.items() if name != SOURCE}


def become_dataclass(
    layout: Layout, own: dict[str, dataclasses.Field[Any]], root: type
) -> None:
    """Give the class what makes it a dataclass for the standard library and others.

    Args:
        layout: the record of the class.
        own: the fields that its body declares.
        root: `State`.
    """
    cls: Any = layout.cls
    layout.published = layout.specs | root.__dict__[FIELDS]
    cls.__dataclass_fields__ = layout.published
    cls.__dataclass_params__ = root.__dict__[_PARAMETERS]
    if "__match_args__" not in cls.__dict__:
        cls.__match_args__ = tuple(  # type: ignore[misc]
            name
            for name, spec in layout.specs.items()
            if spec.init and not spec.kw_only and (is_stored(spec) or is_initvar(spec))
        )
    if cls.__dict__.get("__doc__") is None:  # else help() shows the text of State
        cls.__doc__ = f"{cls.__name__}({', '.join(cls.__match_args__)})"
    for name, spec in own.items():
        if not (is_stored(spec) or is_initvar(spec)):  # a ClassVar
            if isinstance(cls.__dict__.get(name), dataclasses.Field):
                if spec.default is MISSING:
                    delattr(cls, name)
                else:
                    setattr(cls, name, spec.default)
            continue
        if spec.default is not MISSING:
            setattr(cls, name, spec.default)
        elif spec.default_factory is not MISSING or not spec.init:
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
            setattr(cls, name, _method(cls, name, root))


def _method(cls: type, name: str, root: type) -> Any:
    """Return a special method as inherited, but not from a plain dataclass.

    The standard library writes these for the fields that it knows of.
    """
    owner = next(base for base in cls.__mro__ if name in base.__dict__)
    if not is_state_class(owner) and _PARAMETERS in owner.__dict__:
        return root.__dict__[name]
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
