"""Who took an array: what can be said of one that was donated and is gone.

jax says "Array has been deleted" and no more, wherever such an array is met. Functions
under `ps.jit` leave here which types of arrays they donate, once per trace, and which
arrays a call took that then failed. A call that succeeds leaves nothing: a record of
each array would cost more than the rest of the marking.
"""

import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import Any

from purestate._compat import DELETED

_SHOWN = 5  # functions named in a note
_donors: dict[str, dict[str, None]] = {}  # type of array: the functions
_lost: dict[int, tuple[Any, str, str]] = {}  # by id: weak reference, type, what failed


def note_donor(function: str, leaves: list[Any]) -> None:
    """Remember that a function donates arrays of these types."""
    for leaf in leaves:
        if hasattr(leaf, "shape"):
            _donors.setdefault(_type_text(leaf), {})[function] = None


def note_lost(function: str, failure: str, leaves: list[Any]) -> None:
    """Remember the arrays that a call took, which then failed."""
    call = f"{function}(), which failed with {failure}"
    for leaf in leaves:
        kept = weakref.ref(leaf, functools.partial(_forget, id(leaf)))
        _lost[id(leaf)] = kept, _type_text(leaf), call


def _forget(key: int, _: object) -> None:
    _lost.pop(key, None)


def explain_deleted(error: BaseException) -> None:
    """Add to an error about a deleted array a note that tells who took it."""
    found = DELETED.search(str(error))
    if found is None:
        return
    kind = found[1]
    calls = [call for _, other, call in list(_lost.values()) if other == kind]
    note = f"an array of type {kind} was {_fate(kind, calls[-1] if calls else '')}"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


@contextlib.contextmanager
def explaining_deleted() -> Iterator[None]:
    """Have errors about deleted arrays in a function explained, as a decorator."""
    try:
        yield
    except RuntimeError as error:
        explain_deleted(error)
        raise


def fate(leaf: Any) -> str:
    """Return what became of a deleted array, to stand behind its place."""
    ref, _, call = _lost.get(id(leaf), (lambda: None, "", ""))
    return _fate(_type_text(leaf), call if ref() is leaf else "")


def _fate(kind: str, failed: str) -> str:
    if failed:
        return (
            f"donated to {failed} and gave nothing back. To go on after a "
            f"failure, copy with jnp.copy before the call, or leave out donate."
        )
    some = [f"{name}()" for name in _donors.get(kind, ())][:_SHOWN]
    by = f" ({' or '.join(some)} donates {kind})" if some else ""
    return (
        f"donated to an earlier jitted call{by}, which reused the memory. Use "
        f"the State that this call returned, or copy with jnp.copy before donating."
    )


def _type_text(leaf: Any) -> str:
    """Return a type as jax's error about a deleted array spells it."""
    return f"{leaf.dtype.name}[{','.join(map(str, leaf.shape))}]"
