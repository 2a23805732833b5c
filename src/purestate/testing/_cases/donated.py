"""What all calls that donate have in common: quiet, and no array in two places."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import jax

from purestate._compat import UNUSED_DONATION
from purestate._inspect.key_paths import path_text


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Donate without a warning: a buffer that cannot be reused is no mistake."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", UNUSED_DONATION)
        yield


def arrays_of(state: Any, root: str) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a tree, with their paths."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if isinstance(leaf, jax.Array):
            yield path_text(path, root), leaf


def shared_array(state: Any, root: str) -> tuple[str, str] | None:
    """Return two places that hold one array, which jax would not donate, or None."""
    held: dict[int, str] = {}
    for place, leaf in arrays_of(state, root):
        if id(leaf) in held:
            return held[id(leaf)], place
        held[id(leaf)] = place
    return None
