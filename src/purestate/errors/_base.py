"""What every error and warning shares: it can be made of facts, or of its text."""

import functools
from collections.abc import Callable
from typing import Any


class _FromText:
    """Lets `type(error)(str(error))` work, as pickle and those who raise again expect.

    Most of the classes are made of facts, from which they make their text. None of them
    has a text alone as its facts, so one argument that is a text is the text.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__init__" in cls.__dict__:
            cls.__init__ = _text_or_facts(cls.__init__)  # type: ignore[method-assign]


def _text_or_facts(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) == 1 and isinstance(args[0], str) and not kwargs:
            Exception.__init__(self, *args)
        else:
            init(self, *args, **kwargs)

    return __init__


class PurestateError(_FromText, Exception):
    """Base of every error that purestate raises."""


class PurestateWarning(_FromText, UserWarning):
    """Base of every warning that purestate gives."""
