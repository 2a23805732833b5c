"""What `purestate.testing` finds, and what it needs to be told."""

import textwrap
from collections.abc import Iterable

from purestate.errors._base import PurestateError
from purestate.errors._state import FieldError


class BackendError(PurestateError, RuntimeError):
    """None of the backends that were asked for is present."""


class LawError(PurestateError, AssertionError):
    """A class, a method or a function breaks a law.

    Attributes:
        law: the law's name, as `without=` takes it.
        subject: what was checked, such as `Counter` or `Counter.step`.
        path: the place in the instance or in the result, or empty.
        backend: where it ran.
        example: source text that makes the smallest instance found, and the arguments.
    """

    law = subject = path = backend = example = ""

    def __init__(
        self,
        law: str,
        promise: str,
        subject: str,
        path: str,
        backend: str,
        what: str,
        example: str,
    ) -> None:
        self.law, self.subject, self.path = law, subject, path
        self.backend, self.example = backend, example
        at = f" at {path}" if path else ""
        shown = f"\nFound with:\n{textwrap.indent(example, '    ')}" if example else ""
        super().__init__(
            f"{subject} breaks the law {law!r}{at}, on {backend}.\n"
            f"The law: {promise}.\n"
            f"{what}{shown}"
        )


class StrategyError(PurestateError, TypeError):
    """Values cannot be drawn: an annotation says too little, or all are refused.

    Attributes:
        example: source text of the call that raised, or empty.
    """

    example = ""

    @classmethod
    def unknown(
        cls, place: str, annotation: str, given: str | None, part: str | None
    ) -> "StrategyError":
        """For an annotation that no strategy is known for.

        Args:
            place: the field or the argument.
            annotation: its annotation.
            given: what would give a value for all that the place is in, if any would.
            part: the class within the value whose place it is, if it is one within.
        """
        text = f"cannot draw a value for {place}, annotated {annotation}. "
        if given is not None and part is None:
            name = place.rpartition(".")[2].partition("[")[0]
            return cls(
                f"{text}Give a strategy or a value: fields={{{name!r}: ...}} for a "
                f"field, args={{{name!r}: ...}} for an argument; or teach all tests "
                f"with register_strategy(...)."
            )
        teach = f"Teach all tests with register_strategy({annotation}, ...)"
        whole = f" or register_strategy({part}, ...)" if part else ""
        return cls(f"{text}{teach}{whole}{_or_give(given)}.")

    @classmethod
    def unknown_name(
        cls, subject: str, kind: str, name: str, kinds: str, known: Iterable[str]
    ) -> "StrategyError":
        """For a name that is not among those that something has."""
        listed = ", ".join(known)
        those = f"its {kinds} are {listed}" if listed else f"it has no {kinds}"
        return cls(f"{subject} has no {kind} {name!r}; {those}.")

    @classmethod
    def no_class(cls, value: object) -> "StrategyError":
        """For what is neither a State class nor a dataclass."""
        text = "check_state takes a State class, or a dataclass"
        if isinstance(value, type):
            return cls(f"{text}: {value.__name__} has no fields.")
        kind = type(value).__name__
        hint = (
            f": write check_state({kind})" if hasattr(value, "__match_args__") else ""
        )
        return cls(f"{text}, and got an object of type {kind}{hint}.")

    @classmethod
    def unannotated(
        cls, place: str, given: str | None = None, part: str | None = None
    ) -> "StrategyError":
        """For a parameter that says nothing at all; the arguments as for `unknown`."""
        name = place.rpartition(".")[2]
        if part is not None:
            return cls(
                f"cannot draw a value for {place}, which has neither annotation nor "
                f"default. Annotate it, or teach all tests how a {part} is made: "
                f"register_strategy({part}, st.builds({part}, {name}=...))"
                f"{_or_give(given)}."
            )
        return cls(
            f"cannot draw a value for {place}, which has neither annotation nor "
            f"default. Annotate it, or give a strategy or a value: "
            f"fields={{{name!r}: ...}} for a constructor, args={{{name!r}: ...}} for a "
            f"method."
        )

    @classmethod
    def refused(
        cls,
        name: str,
        counts: tuple[int, int],
        last: str,
        given: str | None,
        part: bool,
    ) -> "StrategyError":
        """For a class whose `__check__` lets almost nothing pass.

        Args:
            name: the class.
            counts: how many instances were drawn, and how many of them were refused.
            last: what it raised.
            given: as for `unknown`.
            part: whether the instances are a part of something else.
        """
        tried, refused = counts
        fields = "fields={...} takes a strategy or a value for each field, or "
        return cls(
            f"{name}.__check__ refused {refused} of the {tried} instances drawn. The "
            f"last time it raised\n{textwrap.indent(last, '    ')}\n"
            f"Draw what it accepts: {'' if part else fields}"
            f"register_strategy({name}, ...) one for the whole class"
            f"{_or_give(given if part else None)}."
        )

    @classmethod
    def fails(
        cls,
        name: str,
        call: str,
        error: str,
        given: str | None = None,
        part: bool = False,
    ) -> "StrategyError":
        """For a constructor or a method that raises on drawn values.

        Args:
            name: what was called.
            call: source text of the call.
            error: what it raised.
            given: as for `unknown`.
            part: whether it is the class of a part of something else.
        """
        takes = "fields={...} for a constructor, args={...} for a method"
        if part:
            takes = f"register_strategy({name}, ...){_or_give(given)}"
        made = cls(
            f"{name}(...) raised {error}\nwhen it was called as\n"
            f"{textwrap.indent(call, '    ')}\n"
            f"If it cannot take such values, say what it takes: {takes}. Values that a "
            f"class must refuse are best refused in __check__: those are drawn again."
        )
        made.example = call
        return made


def no_parameter(cls: type, home: type, name: str, known: Iterable[str]) -> FieldError:
    """Return the error for `fields=` with a name that a hand-written `__init__` lacks.

    Args:
        cls: the class to be made.
        home: the class whose `__init__` makes it.
        name: what was given.
        known: the parameters.
    """
    listed = ", ".join(known)
    those = f", which are {listed}" if listed else ", and it has none"
    return FieldError(
        f"{cls.__name__} is made by {home.__name__}.__init__: fields= takes the "
        f"parameters of that{those}. {name!r} is not one of them."
    )


def _or_give(given: str | None) -> str:
    return "" if given is None else f"; or give a strategy or a value: {given}"
