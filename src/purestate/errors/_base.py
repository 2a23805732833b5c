"""What every error shares, and the search for the name that was meant."""

import difflib
from collections.abc import Iterable

__all__ = [
    "PurestateError",
    "PurestateWarning",
    "nearest",
    "short",
]


class PurestateError(Exception):
    """Base of every error that purestate raises."""

    def __reduce__(self) -> tuple[object, ...]:
        # An exception is pickled as class(*args), which would pass the finished text
        # to an __init__ that wants the facts.
        return _restore, (type(self), self.args, self.__dict__)


class PurestateWarning(UserWarning):
    """Base of every warning that purestate gives."""


def short(value: object, limit: int = 60) -> str:
    """Return a value's repr, cut to `limit` characters; never raises."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # whatever a foreign object raises
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def nearest(name: str, known: Iterable[str], kind: str = "fields") -> str:
    """Return "did you mean ...?" for a close match, else the list of names."""
    names = tuple(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    if not names:
        return f"it has no {kind}."
    return f"its {kind} are {', '.join(names)}."


def _restore(
    cls: type[PurestateError], args: tuple[object, ...], state: dict[str, object]
) -> PurestateError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error
