"""The models that programs name by number.

A program must hold no address: it may come out of a cache, made by another process. It
holds a number made of all that a step depends on, and a process that steps such a model
has an entry under that number. Code of numba looks it up without Python: entries hang
in lists, one for each last digits of the number, and are never freed, only emptied.
"""

import dataclasses
import hashlib
import threading
import weakref
from typing import Any

import numpy as np

from purestate.mujoco._native.library import free_space
from purestate.mujoco._package import mujoco

BUCKETS = 1024  # a power of two; more models than that make lists longer, no more
SLOTS = 64  # work spaces that an entry keeps; further ones are made and freed
# The words of an entry, of 64 bits; the slots come last, each with the address of an
# `mjData`, or 0.
KEY, NEXT, MODEL, USERS, SIZE, SUBSTEPS, WARNINGS, LIMITED, SLOT = range(9)
_WORDS = SLOT + SLOTS

_heads = np.zeros(BUCKETS, np.int64)
_lock = threading.RLock()
_entries: dict[int, "_Entry"] = {}


@dataclasses.dataclass
class _Entry:
    """An entry, and what keeps its addresses valid.

    Attributes:
        words: what code of numba reads.
        held: the model and the array at the addresses; empty once nobody steps it.
        owners: those who can take a step in Python, weakly.
    """

    words: Any
    held: tuple[Any, ...] = ()
    owners: list[Any] = dataclasses.field(default_factory=list)


def address() -> int:
    """Return where the lists begin."""
    return int(_heads.ctypes.data)


def number(model: Any, *facts: Any) -> int:
    """Return the number of a model and of what else a step depends on."""
    whole = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, whole)
    text = repr((mujoco.__version__, *facts)).encode()
    digest = hashlib.blake2b(whole.tobytes() + text, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def enter(
    key: int, owner: Any, model: Any, size: int, substeps: int, limited: Any
) -> None:
    """Have programs step a model as long as its owner lives.

    Args:
        key: the number.
        owner: can take a step in Python.
        model: the `mujoco.MjModel`.
        size: of the state vector.
        substeps: of a step.
        limited: for each element of the vector, whether MuJoCo limits it; uint8.
    """
    with _lock:
        _sweep()
        entry = _entries.get(key)
        if entry is None:
            entry = _entries[key] = _Entry(np.zeros(_WORDS, np.int64))
            bucket = key & (BUCKETS - 1)
            entry.words[KEY] = key
            entry.words[NEXT] = _heads[bucket]
            _heads[bucket] = entry.words.ctypes.data
        if not entry.held:
            data = mujoco.MjData(model)
            number = data.warning.number
            entry.held = (model, limited)
            entry.words[SIZE] = size
            entry.words[SUBSTEPS] = substeps
            entry.words[WARNINGS] = number.ctypes.data - data._address
            entry.words[LIMITED] = limited.ctypes.data
            entry.words[MODEL] = model._address  # last: from now on it is stepped
        entry.owners.append(weakref.ref(owner))
        # Not at exit: a program may still be stepping then.
        weakref.finalize(owner, _leave, key).atexit = False


def owner(key: int) -> Any:
    """Return who takes a step of a model in Python, None if nobody is left."""
    with _lock:
        owners = _entries[key].owners if key in _entries else []
        return next(filter(None, (each() for each in owners)), None)


def count_data() -> int:
    """Return how many work spaces are kept."""
    with _lock:
        words = (entry.words[SLOT:] for entry in _entries.values())
        return sum(int(np.count_nonzero(each)) for each in words)


def _leave(key: int) -> None:
    with _lock:
        entry = _entries[key]
        entry.owners = [each for each in entry.owners if each() is not None]
        if not entry.owners:
            entry.words[MODEL] = 0
            _sweep()


def _sweep() -> None:
    """Free what belongs to models that nobody steps any more."""
    for entry in _entries.values():
        if entry.owners or not entry.held or entry.words[USERS]:
            continue
        for slot in np.flatnonzero(entry.words[SLOT:]):
            free_space(int(entry.words[SLOT + slot]))
        entry.words[SLOT:] = 0
        entry.held = ()
