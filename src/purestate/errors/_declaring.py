"""Class bodies that cannot become a State."""

from collections.abc import Iterable

from purestate.errors._base import PurestateError


class DeclarationError(PurestateError, TypeError):
    """A class body that cannot become a State."""

    @classmethod
    def keyword(cls, owner: type, name: str) -> "DeclarationError":
        """Return the error for a class keyword that nobody takes."""
        known = ("kw_only", "strict", "frozen", "version", "was")
        return cls(
            f"class {owner.__name__}(State, {name}=...): no base takes the keyword "
            f"{name!r}. State takes {', '.join(known)}."
        )


class UnannotatedArrayError(DeclarationError):
    """An array in the class body without an annotation, so not a field."""

    def __init__(self, cls: type, name: str) -> None:
        super().__init__(
            f"{cls.__name__}.{name} is an array without an annotation: every instance "
            f"would share it, and jit would compile its values into the program as "
            f"constants. Declare a field, `{name}: jax.Array = ...`, or, for a true "
            f"constant, move it out of the class."
        )


class ReservedNameError(DeclarationError):
    """A field named like something that State itself provides."""

    def __init__(self, cls: type, name: str) -> None:
        super().__init__(
            f"{cls.__name__} cannot have a field {name!r}: State has a method of that "
            f"name, which the field would hide. Choose another, such as `{name}_`."
        )


class InheritedInitError(DeclarationError):
    """An inherited hand-written `__init__` cannot set a field of the subclass."""

    def __init__(self, cls: type, base: type, names: Iterable[str]) -> None:
        listed = ", ".join(names)
        super().__init__(
            f"{cls.__name__} inherits the hand-written {base.__name__}.__init__, which "
            f"cannot set its new field {listed}. Give {listed} a default, or write "
            f"{cls.__name__}.__init__ and call super().__init__(...) in it."
        )
