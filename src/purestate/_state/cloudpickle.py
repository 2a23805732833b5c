"""Classes that cloudpickle makes empty and fills afterwards.

cloudpickle rebuilds a class from `__main__` by making it empty and assigning its
attributes [1]; a record that was computed from the empty body is then wrong. So an
empty class is not registered with jax, which cannot be taken back, before its first
instance comes to life: in a constructor, or in `__setstate__`. There `awaken`, in
`class_setup`, asks here whether it was filled. Most empty classes never are: they are
only `class Special(Base): pass`.

[1] cloudpickle, `_make_skeleton_class` and `_class_setstate`
"""

import dataclasses
from typing import Any

from purestate._compat import own_annotations, revived_field
from purestate._schema.layout import Layout
from purestate._state.dataclass import FIELDS, declared_fields

_BARE = {"__module__", "__dict__", "__weakref__", "__orig_bases__", "__parameters__"}


def is_bare(cls: type) -> bool:
    """Return whether the class body is empty, as cloudpickle's is at first."""
    return all(
        name in _BARE or (name == "__doc__" and value is None)
        for name, value in cls.__dict__.items()
    )


def refilled(
    layout: Layout,
) -> tuple[dict[str, Any], dict[str, dataclasses.Field[Any]]] | None:
    """Return all fields and the body's own of a class that was filled, else None."""
    cls = layout.cls
    if cls.__dict__[FIELDS] is layout.published:
        return None  # nobody assigned it
    found = declared_fields(cls)
    specs = {name: revived_field(spec) for name, spec in found.items()}
    annotated = own_annotations(cls)
    return specs, {name: spec for name, spec in specs.items() if name in annotated}
