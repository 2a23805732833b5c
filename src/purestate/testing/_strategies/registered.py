"""What users have said about annotations that say too little by themselves."""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st

from purestate.errors import StrategyError

_registered: dict[Any, Any] = {}


def register_strategy(
    annotation: Any, strategy: "st.SearchStrategy[Any] | Callable[[Any], Any]"
) -> None:
    """Say how values for an annotation are drawn, in all tests from now on.

    Args:
        annotation: a class, or any other annotation; for a class, its subclasses count.
        strategy: a strategy, or a function from the annotation that is met to one.

    Raises:
        StrategyError: it is neither.

    >>> import hypothesis.strategies as st, purestate.testing as pst
    >>> class Angle(float): ...
    >>> pst.register_strategy(Angle, st.floats(0, 3).map(Angle))
    """
    if not isinstance(strategy, st.SearchStrategy) and not callable(strategy):
        raise StrategyError(
            f"register_strategy takes a strategy, or a function that returns one, and "
            f"got an object of type {type(strategy).__name__}."
        )
    _registered[annotation] = strategy


def registered(annotation: Any) -> Any:
    """Return the registered strategy for an annotation or a base of it, else None."""
    try:
        found = _registered.get(annotation)
    except TypeError:  # unhashable
        return None
    if found is None and isinstance(annotation, type):
        bases = (b for b in annotation.__mro__[1:] if b in _registered)
        found = _registered.get(next(bases, None))
    if found is None or isinstance(found, st.SearchStrategy):
        return found
    return found(annotation)
