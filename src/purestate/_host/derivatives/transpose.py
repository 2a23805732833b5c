"""The transpose of a linear map that can only be applied."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from purestate._host.call.invoke import Arrays
from purestate._host.call.leaf import Leaf

Array = np.ndarray[Any, Any]


def transposed(
    column: Callable[[int, int, complex], Arrays],
    sources: Sequence[Leaf],
    targets: Sequence[Leaf],
    given: Sequence[Array],
    batch: tuple[int, ...],
) -> Arrays:
    """Return the transpose of a map, applied to `given`.

    Args:
        column: the map's result for a unit (1, or 1j) at one element of one source.
        sources: what the map takes.
        targets: what it gives.
        given: one array per target, with the batch axes in front.
        batch: sizes of the batch axes.
    """
    made = []
    for which, leaf in enumerate(sources):
        is_complex = bool(jnp.issubdtype(leaf.dtype, np.complexfloating))
        found = np.zeros((*batch, leaf.size), np.complex128 if is_complex else float)
        for element in range(leaf.size):
            found[..., element] = _paired(column(which, element, 1.0), targets, given)
            if is_complex:
                turned = _paired(column(which, element, 1j), targets, given)
                found[..., element] -= 1j * turned
        made.append(found.reshape((*batch, *leaf.shape)))
    return made


def _paired(values: Sequence[Array], leaves: Sequence[Leaf], given: Any) -> Any:
    total: Any = 0.0
    for value, leaf, other in zip(values, leaves, given, strict=True):
        is_complex = "c" in (value.dtype.kind, other.dtype.kind)
        wide = np.complex128 if is_complex else np.float64
        terms = (value.astype(wide) * other.astype(wide)).real
        core = tuple(range(terms.ndim - len(leaf.shape), terms.ndim))
        total = total + terms.sum(axis=core)
    return total
