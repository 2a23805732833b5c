"""How a State becomes leaves and comes back: the only place that registers with jax.

What happens when a jitted method returns a State: jax calls `flatten`, which gives the
data fields in order and the instance's `Aux`, one object per set of static values. jax
keeps the structure, class and `Aux`, with the compiled program. After each later call
it gives new arrays to `unflatten`, which puts them into a new instance beside the
values that the `Aux` holds. No constructor, converter or check runs: they ran, if at
all, on tracers, while the method was traced.

Unflatten puts whatever it is given into the instance, since jax also rebuilds with
`object()`, None, tracers and shape structs (jax#12319, jax#7546). Both directions are
written out field by field per class: jit runs them at every call.
"""

from typing import Any

import jax

from purestate._compat import fills_dict
from purestate._instance.source import define
from purestate._schema.layout import Layout, layout_of
from purestate._schema.marks import AUX, FAILED, held_by, store
from purestate.errors import UnfinishedStateError

_new: Any = object.__new__


def register(layout: Layout) -> None:
    """Register the class of `layout` as a pytree with named keys."""
    cls, namespace = layout.cls, layout.namespace
    namespace |= {
        "_ps_cls": cls,
        "_ps_new": _new,
        "_ps_set": object.__setattr__,
        "_ps_unsealed": _unsealed,
    }
    namespace["_ps_keys"] = tuple(map(jax.tree_util.GetAttrKey, layout.data))
    flatten = define(cls, "flatten(_ps_self)", _flatten_lines(layout.data), namespace)
    namespace["_ps_flatten"] = flatten
    keyed = [
        "_ps_row, _ps_aux = _ps_flatten(_ps_self)",
        "return tuple(zip(_ps_keys, _ps_row)), _ps_aux",
    ]
    flatten_with_keys = define(
        cls, "flatten_with_keys(_ps_self)", keyed, namespace, shared=True
    )
    lines = _unflatten_lines(layout)
    unflatten = define(cls, "unflatten(_ps_aux, _ps_leaves)", lines, namespace)
    layout.flatten, layout.unflatten = flatten, unflatten
    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


def store_lines(values: dict[str, str]) -> list[str]:
    """Return source that fills a new `_ps_self`: names with the expressions for them.

    The expressions must be local variables, since their order of evaluation is free;
    `_ps_dict` is the instance's dict.
    """
    if fills_dict(len(values)):
        return [f"_ps_dict[{name!r}] = {value}" for name, value in values.items()]
    literal = ", ".join(f"{name!r}: {value}" for name, value in values.items())
    return [f"_ps_set(_ps_self, '_ps_dict', {{{literal}}})"]


def new_instance(cls: type, values: dict[str, Any]) -> Any:
    """Return an instance of `cls` that holds `values`, without running its code."""
    self = _new(cls)
    if fills_dict(len(values)):
        held_by(self).update(values)
    else:
        store(self, values)
    return self


def adopt_values(self: Any, values: dict[str, Any]) -> None:
    """Give an instance these attributes in place of the ones that it has."""
    if fills_dict(len(values)):
        held = held_by(self)
        held.clear()
        held.update(values)
    else:
        store(self, values)


def sealed_aux(self: Any) -> Any:
    """Return the `Aux` of an instance, also while it is under construction.

    Raises:
        UnfinishedStateError: a field has no value yet.
    """
    values = held_by(self)
    if AUX in values:
        return values[AUX]
    layout = layout_of(type(self))
    unset = [name for name in layout.names if name not in values]
    if unset or FAILED in values:
        raise UnfinishedStateError(type(self), unset)
    return layout.intern(values)


def _flatten_lines(names: tuple[str, ...]) -> list[str]:
    # One attribute read per field, and one for the mark of a sealed instance, whose
    # absence is the exception: an instance under construction, or an open draft.
    row = "".join(f"_ps_self.{name}, " for name in names)
    return [
        "try:",
        f"    return ({row}), _ps_self.{AUX}",
        "except AttributeError:",
        "    return _ps_unsealed(_ps_self)",
    ]


def _unsealed(self: Any) -> tuple[tuple[Any, ...], Any]:
    """Flatten an instance that is not finished."""
    aux, held = sealed_aux(self), held_by(self)
    return tuple(held[name] for name in layout_of(type(self)).data), aux


def _unflatten_lines(layout: Layout) -> list[str]:
    # A finished dict put in place at once, or the fields one by one into the dict that
    # the instance has: see `fills_dict` for which is faster where.
    made = "_ps_self = _ps_new(_ps_cls)"
    if not fills_dict(len(layout.names) + 1):
        names = {name: name for name in (*layout.data, *layout.static)}
        lines = [
            made,
            *_unpack_lines(layout, "{}"),
            *store_lines(names | {AUX: "_ps_aux"}),
        ]
        return [*lines, "return _ps_self"]
    return [
        made,
        "_ps_dict = _ps_self._ps_dict",
        *_unpack_lines(layout, "_ps_dict['{}']"),
        f"_ps_dict[{AUX!r}] = _ps_aux",
        "return _ps_self",
    ]


def _unpack_lines(layout: Layout, target: str) -> list[str]:
    sources = (layout.data, "_ps_leaves"), (layout.static, "_ps_aux.values")
    return [
        "".join(f"{target.format(name)}, " for name in names) + f"= {source}"
        for names, source in sources
        if names
    ]
