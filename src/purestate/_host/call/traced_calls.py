"""How many host calls a thread has put into traces; `ps.jit` asks before and after."""

import threading


class _Bound(threading.local):
    """How many host calls this thread has put into a trace."""

    count = 0


_bound = _Bound()


def note_call() -> None:
    """Note that a host call was put into a trace in this thread."""
    _bound.count += 1


def count_calls() -> int:
    """Return how many host calls this thread has put into a trace so far."""
    return _bound.count
