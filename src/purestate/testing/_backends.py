"""Which backends tests run on: those that were asked for and are present."""

import functools
from collections.abc import Iterable
from typing import Any

import jax

from purestate.errors import BackendError

KNOWN = ("cpu", "gpu", "tpu")
_selection: list[tuple[str, ...] | None] = [None]
ran: dict[str, int] = {}  # laws checked, by backend, for the report of the plug-in


def backends() -> tuple[str, ...]:
    """Return the backends that JAX has devices of, out of "cpu", "gpu" and "tpu".

    >>> import purestate.testing as pst
    >>> "cpu" in pst.backends()
    True
    """
    return tuple(name for name in KNOWN if _devices(name))


@functools.cache
def _devices(name: str) -> tuple[Any, ...]:
    try:
        return tuple(jax.devices(name))
    except RuntimeError:  # not there, or excluded by JAX_PLATFORMS
        return ()


def select_backends(names: Iterable[str] | None) -> None:
    """Choose the backends of all checks from now on; None for those that are present.

    Raises:
        BackendError: a name that is not known.
    """
    chosen = None if names is None else tuple(names)
    for name in chosen or ():
        if name not in KNOWN:
            listed = ", ".join(KNOWN)
            raise BackendError(f"there is no backend {name!r}; known are {listed}.")
    _selection[0] = chosen


def selected_backends(given: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the first device of each backend to run on, by name.

    Raises:
        BackendError: none of those that were asked for is present.
    """
    wanted = _selection[0] if given is None else tuple(given)
    found = {n: _devices(n)[0] for n in wanted or backends() if _devices(n)}
    if not found:
        asked = ", ".join(wanted or KNOWN)
        raise BackendError(
            f"none of the backends {asked} is present; jax has "
            f"{', '.join(backends()) or 'none'}. JAX_PLATFORMS may exclude them."
        )
    return found
