"""How many host calls a thread has put into traces; `ps.jit` asks before and after."""

import threading


class _Bound(threading.local):
    """How many host calls this thread has put into a trace."""

    count = 0
    with_effects = 0


_bound = _Bound()


def note_call(has_effects: bool) -> None:
    """Note that a host call was put into a trace in this thread."""
    _bound.count += 1
    _bound.with_effects += has_effects


def count_calls() -> tuple[int, int]:
    """Return how many host calls this thread has put into a trace, with effects too."""
    return _bound.count, _bound.with_effects
