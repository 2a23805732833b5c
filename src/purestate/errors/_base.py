"""What every error and warning shares: it can be made of facts, or of its text."""

import functools
import sys
import types
import warnings
from typing import Any


def _accept_text(cls: Any) -> None:
    """Let `type(error)(str(error))` work, as pickle and those who raise again expect.

    Most of the classes are made of facts, from which they make their text. None of them
    has a text alone as its facts, so one argument that is a text is the text.
    """
    init = cls.__dict__.get("__init__")
    if init is None:
        return

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) == 1 and isinstance(args[0], str) and not kwargs:
            Exception.__init__(self, *args)
        else:
            init(self, *args, **kwargs)

    cls.__init__ = __init__


class PurestateError(Exception):
    """Base of every error that purestate raises."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _accept_text(cls)


class PurestateWarning(UserWarning):
    """Base of every warning that purestate gives."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _accept_text(cls)


def warn_caller(warning: Warning) -> None:
    """Warn at the line of the user's that led here, past our frames and jax's."""
    depth, frame = 2, sys._getframe(1)  # level 1 is this function itself
    while frame.f_back is not None and _is_library(frame):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(warning, stacklevel=depth)


def _is_library(frame: types.FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] in ("purestate", "jax", "contextlib", "functools")
