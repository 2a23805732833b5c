"""What `purestate.testing` finds, and what it needs to be told."""

import textwrap

from purestate.errors._base import PurestateError


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
    def unknown(cls, place: str, annotation: str) -> "StrategyError":
        """For an annotation that no strategy is known for."""
        name = place.rpartition(".")[2].partition("[")[0]
        return cls(
            f"cannot draw a value for {place}, annotated {annotation}. Give a strategy "
            f"or a value: fields={{{name!r}: ...}} for a field, args={{{name!r}: ...}} "
            f"for an argument; or teach all tests with register_strategy(...)."
        )

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
    def unannotated(cls, place: str) -> "StrategyError":
        """For a parameter that says nothing at all."""
        name = place.rpartition(".")[2]
        return cls(
            f"cannot draw a value for {place}, which has neither annotation nor "
            f"default. Annotate it, or give a strategy or a value: "
            f"fields={{{name!r}: ...}} for a constructor, args={{{name!r}: ...}} for a "
            f"method."
        )

    @classmethod
    def refused(cls, name: str, refused: int, tried: int, last: str) -> "StrategyError":
        """For a class whose `__check__` lets almost nothing pass."""
        return cls(
            f"{name}.__check__ refused {refused} of the {tried} instances drawn. The "
            f"last time it raised\n{textwrap.indent(last, '    ')}\n"
            f"Draw what it accepts: fields={{...}} takes a strategy or a value for "
            f"each field, or register_strategy({name}, ...) one for the whole class."
        )

    @classmethod
    def fails(cls, name: str, given: str, error: str) -> "StrategyError":
        """For a constructor that raises on drawn values."""
        made = cls(
            f"{name}(...) raised {error}\nwhen it was called as\n"
            f"{textwrap.indent(given, '    ')}\n"
            f"If it cannot take such values, say what it takes: fields={{...}} for a "
            f"constructor, args={{...}} for a method. Values that a class must refuse "
            f"are best refused in __check__: those are drawn again."
        )
        made.example = given
        return made
