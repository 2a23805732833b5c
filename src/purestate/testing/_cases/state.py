"""One drawn instance under test, and what the laws of States may ask of it."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from purestate._schema.fields import is_initvar, is_stored
from purestate._schema.marks import is_state_class
from purestate.errors import (
    CheckError,
    DerivedFieldError,
    NumberError,
    StrictFieldError,
)
from purestate.testing._strategies.annotations import draw_value
from purestate.testing._strategies.construct import (
    Made,
    given_value,
    is_refusal,
    is_started,
    parameters,
    specs_of,
    stored,
)
from purestate.testing._strategies.scope import Scope
from purestate.testing._strategies.states import Drawing
from purestate.testing._trees.source_text import paste_call

REFUSED: Any = object()


@dataclasses.dataclass
class StateCase:
    """One instance, with all that a law needs.

    Attributes:
        drawing: how instances are drawn.
        scope: what the instance shares with values that are drawn later.
        made: the instance and its arguments.
        device: where its arrays are.
        memo: jitted functions and the like, kept from one example to the next.
    """

    drawing: Drawing
    scope: Scope
    made: Made
    device: Any
    memo: dict[Any, Any]

    @property
    def state(self) -> Any:
        """The instance."""
        return self.made.state

    @property
    def cls(self) -> Any:
        """Its class."""
        return self.made.cls

    @property
    def root(self) -> str:
        """The class by name, which paths start with."""
        return str(self.cls.__name__)

    @property
    def is_state(self) -> bool:
        """Whether the class is a State, and not another library's."""
        return is_state_class(self.cls)

    @property
    def example(self) -> str:
        """Source text that makes the instance."""
        return paste_call(self.root, self.made.given)

    def again(self) -> Any:
        """Construct another one, from the same arguments."""
        return self.made.again()

    def names(self) -> list[str]:
        """Return the names of all stored fields."""
        specs = specs_of(self.cls)
        return [n for n, s in specs.items() if is_stored(s) and not is_initvar(s)]

    def settable(self) -> list[str]:
        """Return the fields that `replace` takes."""
        specs = specs_of(self.cls)
        return [n for n in self.names() if specs[n].init or is_started(specs[n])]

    @functools.cached_property
    def field(self) -> str | None:
        """The name of a field that can be replaced, drawn, or None.

        One for all laws: then the first one that breaks is the one it is about.
        """
        names = self.settable()
        return self.scope.choose(names) if names else None

    def value(self, name: str) -> Any:
        """Draw another value for a field."""
        fields: Mapping[str, Any] = self.drawing.fields or {}
        if name in fields:
            return given_value(self.scope, fields[name])
        known = parameters(self.cls)
        given = f"fields={{{name!r}: ...}}" if name in known else None
        known |= {p.name: p for p in stored(self.cls)}
        with self.scope.within(given):
            return draw_value(self.scope, known[name], f"{self.root}.{name}")

    def replace(self, state: Any, **changes: Any) -> Any:
        """Return the State with changes, or `REFUSED` if its checks do not allow it."""
        update = getattr(state, "replace", None)
        return self.tried(
            lambda: (
                dataclasses.replace(state, **changes)
                if update is None
                else update(**changes)
            )
        )

    def tried(self, make: Callable[[], Any]) -> Any:
        """Return what a function makes, or `REFUSED` if a check does not allow it."""
        try:
            return make()
        except (CheckError, NumberError, DerivedFieldError, StrictFieldError):
            return REFUSED
        except Exception as error:
            if is_refusal(self.cls, error):
                return REFUSED
            raise

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what a function made the first time, for all examples."""
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]
