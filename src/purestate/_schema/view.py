"""Views: names for parts of a State's fields, as good as fields in an update.

`sim.qpos` may be some elements of one long array. Where a class offers such a part as a
`View`, `replace(qpos=...)`, `at(lambda s: s.qpos)` and a draft change the field that it
lies in. A view holds nothing, and is not in the tree.
"""

import abc
from typing import Any


class View(abc.ABC):
    """A descriptor that reads a part of a State, and says how to change it."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return the part; the descriptor itself, from the class."""
        return self if instance is None else self.read(instance)

    def __set__(self, instance: Any, value: Any) -> None:
        """Change the part, in a draft or while constructing."""
        for name, changed in self.changes(instance, value).items():
            setattr(instance, name, changed)

    @abc.abstractmethod
    def read(self, state: Any) -> Any:
        """Return the part of a State that this is."""

    @abc.abstractmethod
    def changes(self, state: Any, value: Any) -> dict[str, Any]:
        """Return new values, by field name, with which the part is `value`."""


def view_names(cls: type) -> tuple[str, ...]:
    """Return the names of a class's views, in the order in which they were declared."""
    names = {
        name: None
        for base in cls.__mro__[::-1]
        for name, value in base.__dict__.items()
        if isinstance(value, View)
    }
    return tuple(n for n in names if isinstance(getattr(cls, n, None), View))
