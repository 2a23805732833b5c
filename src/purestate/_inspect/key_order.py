"""Dicts that jax cannot flatten, for it sorts their keys: where they are."""

import collections
from typing import Any

_SORTED = (dict, collections.defaultdict)  # by jax; it keeps the order of OrderedDict


def is_unsortable(part: Any) -> bool:
    """Return whether it is a dict whose keys jax cannot sort."""
    if type(part) not in _SORTED:
        return False
    try:
        sorted(part)
    except Exception:  # noqa: BLE001  # whatever a foreign comparison raises
        return True
    return False


def order_text(place: str, found: Any) -> str:
    """Return what to say of a dict with keys that cannot be sorted."""
    keys = {type(key): repr(key) for key in found}.values()
    return (
        f"{place} is a dict with keys that cannot be sorted, {' and '.join(keys)}, and "
        f"jax sorts them. Use keys of one type, str for example."
    )
