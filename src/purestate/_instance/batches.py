"""Same-class trees by field name, and States that are stacked and taken apart.

`prefix` makes what jax's transforms expect beside a State: axes, shardings, masks. It
constructs nothing, so it works for classes whose checks would refuse an axis.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from purestate._inspect.diff import Difference, diff
from purestate._inspect.donations import explain_deleted, explaining_deleted
from purestate._inspect.key_paths import names_on, path_text
from purestate._instance.leaves import is_path, leaves
from purestate._instance.pytree import new_instance, sealed_aux
from purestate._schema.layout import state_layout
from purestate._schema.marks import AUX
from purestate._schema.text import root_name
from purestate.errors import FieldError, StackError

_S = TypeVar("_S")


def prefix(state: _S, default: Any = None, /, **by_field: Any) -> _S:
    """Return a tree of the State's class with one value for each field.

    It fits wherever jax or optax takes a prefix of the State: `in_axes`, `out_axes`,
    `in_specs`, shardings, masks. Static fields are those of the State.

    Args:
        state: the State that it goes with.
        default: the value of fields that are not named.
        **by_field: values by field; for a part of a field that is a State, another
            prefix, `opt=ps.prefix(state.opt, mu=0)`. A name with a dot or a star is a
            path as in `ps.leaves`, `**{"opt.mu": 0}`: the result then has a value for
            each leaf, and a later name wins over an earlier one.

    Raises:
        FieldError: a name that is not a data field.
        PlaceError: a path that leads to no leaf.

    >>> import jax, jax.numpy as jnp, purestate as ps
    >>> class Model(ps.State):
    ...     friction: jax.Array
    ...     mass: jax.Array
    >>> m = Model(friction=jnp.arange(3.0), mass=jnp.ones(2))
    >>> ps.prefix(m, friction=0)
    Model(friction=0, mass=None)
    >>> class System(ps.State):
    ...     link: Model
    ...     time: ps.Array
    >>> ps.prefix(System(link=m, time=0.0), **{"link.mass": 0})
    System(link=Model(friction=None, mass=0), time=None)
    """
    layout = state_layout(state, "ps.prefix")
    for name in by_field:
        if is_path(name):
            continue
        if name in layout.static:
            raise FieldError(
                f"{layout.cls.__name__}.{name} is static, so it has no place in a "
                f"prefix, which is for {', '.join(layout.data) or 'data fields'}."
            )
        if name not in layout.data:
            raise FieldError.unknown(layout.cls, name, layout.data)
    if any(map(is_path, by_field)):
        return _by_leaf(state, default, by_field)
    aux = sealed_aux(state)
    values = dict.fromkeys(layout.data, default) | by_field
    values |= dict(zip(layout.static, aux.values, strict=True)) | {AUX: aux}
    return new_instance(layout.cls, values)  # type: ignore[no-any-return]


def _by_leaf(state: _S, default: Any, by_name: dict[str, Any]) -> _S:
    """Return a tree with a value for each leaf, given by fields and paths."""
    found = jax.tree_util.tree_leaves_with_path(state)
    values = [default] * len(found)
    for name, value in by_name.items():
        if is_path(name):
            flags = leaves(name).among(state)
            values = [value if f else v for f, v in zip(flags, values, strict=True)]
            continue
        own: Any = jax.tree.broadcast(value, getattr(state, name), is_leaf=_is_none)
        spread = iter(jax.tree.leaves(own, is_leaf=_is_none))
        values = [
            next(spread) if names_on(path)[0] == name else v
            for (path, _), v in zip(found, values, strict=True)
        ]
    structure: Any = jax.tree.structure(state)
    made: _S = structure.unflatten(values)
    return made


def _is_none(value: object) -> bool:
    return value is None


def stack(states: Sequence[_S], axis: int = 0) -> _S:
    """Return one State whose leaves are those of the States, stacked.

    Args:
        states: at least one; of one class, structure and static values.
        axis: where the new axis goes.

    Returns:
        A State with leaves of shape `(len(states), *shape)`, for `axis=0`.

    Raises:
        StackError: no States, or two that differ in class, structure, static values or
            shape; it names the place and both values.

    >>> import jax, jax.numpy as jnp, purestate as ps
    >>> class P(ps.State):
    ...     x: jax.Array
    >>> ps.stack([P(x=jnp.zeros(3)), P(x=jnp.ones(3))])
    P(x=f32[2,3])
    """
    states = list(states)
    if not states:
        raise StackError("stack() needs at least one State and got none.")
    first = states[0]
    structure: Any = jax.tree.structure(first)
    for i, other in enumerate(states[1:], start=1):
        fatal = ("class", "static value", "structure", "shape")
        changes = [
            change
            for change in diff(first, other)
            if change.kind in fatal and not _is_number(change)
        ]
        if changes or jax.tree.structure(other) != structure:
            listed = "\n".join(map(str, changes)) or "the tree structure"
            raise StackError(
                f"stack() cannot put State {i} with State 0, they differ in\n{listed}\n"
                f"States in a batch share everything but their numbers."
            )
    root = root_name(first)

    def join(path: Any, *leaves: Any) -> Any:
        try:
            return jnp.stack(leaves, axis)
        except Exception as error:
            explain_deleted(error)
            error.add_note(f"raised by stack() at {path_text(path, root) or 'a leaf'}.")
            raise

    return jax.tree_util.tree_map_with_path(join, *states)  # type: ignore[no-any-return]


@explaining_deleted()
def unstack(state: _S, axis: int = 0) -> list[_S]:
    """Return the States that a batch consists of.

    Args:
        state: every leaf has the batch axis, of one size.
        axis: which axis that is.

    Raises:
        StackError: no leaves, a leaf without that axis, or different sizes.

    >>> import jax, jax.numpy as jnp, purestate as ps
    >>> class P(ps.State):
    ...     x: jax.Array
    >>> [int(p.x) for p in ps.unstack(P(x=jnp.arange(3)))]
    [0, 1, 2]
    """
    root = root_name(state)
    sizes: dict[Any, str] = {}
    for path, leaf in jax.tree.leaves_with_path(state):
        shape = jnp.shape(leaf)
        if not -len(shape) <= axis < len(shape):
            raise StackError(
                f"unstack() needs axis {axis} in every leaf, and "
                f"{path_text(path, root)} has shape {shape}."
            )
        sizes.setdefault(shape[axis], path_text(path, root))
    if len(sizes) != 1:
        listed = ", ".join(f"{place} has {size}" for size, place in sizes.items())
        raise StackError(
            f"unstack() needs leaves of one size along axis {axis}: "
            f"{listed or 'there are none'}."
        )
    (size,) = sizes
    leaves, structure = jax.tree.flatten(state)
    rows = [jnp.moveaxis(jnp.asarray(leaf), axis, 0) for leaf in leaves]
    return [
        jax.tree.unflatten(structure, [row[i] for row in rows]) for i in range(size)
    ]


def _is_number(change: Difference) -> bool:
    """Return whether numbers of different types meet, which jnp.stack promotes."""
    kinds = {"bool", "int", "float", "complex"}
    texts = (change.before, change.after)
    return change.kind == "class" and all(
        text in kinds or text.endswith("[]") for text in texts
    )
