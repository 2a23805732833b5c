"""Pieces of messages: a value cut short, the name that was meant, a missing extra."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator


def short(value: object, limit: int = 60) -> str:
    """Return a value's repr, cut to `limit` characters; never raises."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # whatever a foreign object raises
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def error_text(error: BaseException) -> str:
    """Return an error as the last line of a traceback has it; never raises."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as other:  # noqa: BLE001  # whatever a user's __str__ raises
        return f"{type(error).__name__}, whose text raises {type(other).__name__}"


def nearest(name: str, known: Iterable[str], kind: str = "fields") -> str:
    """Return "did you mean ...?" for a close match, else the list of names."""
    names = tuple(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    if not names:
        return f"it has no {kind}."
    return f"its {kind} are {', '.join(names)}."


@contextlib.contextmanager
def needs_extra(module: str, extra: str, *packages: str) -> Iterator[None]:
    """Have an import that fails name the extra that a module needs.

    Args:
        module: what cannot be imported without it.
        extra: its name.
        packages: what it installs, and the block imports.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        raise ModuleNotFoundError(
            f"{module} needs {' and '.join(packages)}, the extra `{extra}`: "
            f"pip install {' '.join(packages)}.",
            name=error.name,
        ) from error
