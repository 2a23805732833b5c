"""Notes on the errors of jitted functions: which field it was, and what to do.

All but the search for shared buffers runs in an `except`. An exception keeps its type
and its text; help comes as a note below it. Two texts of jax are continued instead: one
says nothing of where, and one advises what would be refused.
"""

import functools
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purestate._compat import (
    DELETED,
    DONATED_TWICE,
    NEEDS_A_VALUE,
    is_tracer,
    is_tracing,
)
from purestate._inspect.donations import explain_deleted, fate
from purestate._inspect.key_order import is_unsortable, order_text
from purestate._inspect.key_paths import path_text
from purestate._schema.marks import is_state, is_state_class
from purestate._schema.static_values import Unfit, typed
from purestate._transforms.consumed import was_deleted
from purestate.errors import ConsumedStateError, SharedBufferWarning
from purestate.errors._base import warn_caller


def add_notes(
    error: Exception, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Add to an exception what is known about the arguments that caused it."""
    if getattr(error, "__purestate_explained__", None) is not None:
        return  # by the innermost jitted function, which knows best
    try:
        leaves = list(_leaves(args, kwargs))
        refusals = list(_refusals(error, leaves))
        notes = list(_notes(error, name, leaves))
        if isinstance(error, TypeError):
            notes += _untraceable(leaves, (*args, *kwargs.values()))
        error.__purestate_explained__ = name  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001  # an argument that cannot even be flattened
        return
    if refusals:
        error.args = ("\n".join([str(error), *refusals]),)
    for note in notes:
        error.add_note(note)


def is_donated_twice(error: BaseException) -> bool:
    """Return whether the runtime refused a buffer that it was given twice."""
    return any(text in str(error) for text in DONATED_TWICE)


def is_of_deleted(error: BaseException) -> bool:
    """Return whether a call was refused an array that was gone before."""
    return isinstance(error, ConsumedStateError) or bool(DELETED.search(str(error)))


def without_shared_buffers(
    name: str, donated: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments with donated buffers copied that something else holds too.

    None if no buffer is shared, or if an outer function is being traced, which donates
    nothing.
    """
    if is_tracing() or bool(jax.config.jax_disable_jit):  # type: ignore[attr-defined]
        return None
    positions = {parameter.position for parameter in donated}
    names = {parameter.name for parameter in donated}
    uses: dict[Any, list[tuple[str, bool, Any]]] = {}
    for path, leaf in jax.tree.leaves_with_path((args, kwargs)):
        if not isinstance(leaf, jax.Array) or is_tracer(leaf) or was_deleted(leaf):
            continue
        which, key = path[0].idx, path[1]
        given = key.idx in positions if which == 0 else key.key in names
        place = _place(path, args, kwargs)
        uses.setdefault(_buffer(leaf), []).append((place, given, tuple(path)))
    shared, copied = [], set()
    for users in uses.values():
        givers = [path for _, given, path in users if given]
        if len(users) > 1 and givers:
            shared.append(" and ".join(place for place, _, _ in users))
            # The one that is donated may stay only if nobody else reads it.
            copied |= set(givers[1:] if len(givers) == len(users) else givers)
    if not shared:
        return None
    warn_caller(SharedBufferWarning(name, shared))

    def separate(path: Any, leaf: Any) -> Any:
        return leaf.copy() if tuple(path) in copied else leaf

    made, named = jax.tree_util.tree_map_with_path(separate, (args, kwargs))
    # Static arguments stay the objects that they are.
    return (
        tuple(made[i] if i in positions else arg for i, arg in enumerate(args)),
        {key: named[key] if key in names else arg for key, arg in kwargs.items()},
    )


def _refusals(error: Exception, leaves: list[tuple[str, Any]]) -> Iterator[str]:
    """Say where what jax refused stands: a dict without an order, a method."""
    for place, leaf in leaves:
        if is_unsortable(leaf):  # so it is this that was refused
            yield order_text(place, leaf)
    if type(error) is TypeError:
        for place, leaf in leaves:
            if partial := _partial(leaf):
                yield (
                    f"{place} holds a {type(leaf).__name__} with arrays in it, and as "
                    f"a static value it would be refused. Keep it as data, "
                    f"`{_field(place)}={partial}`, or write a method or property that "
                    f"calls it."
                )


def _partial(leaf: Any) -> str:
    """Return how to keep a callable that holds arrays as data, empty for others."""
    owner = getattr(leaf, "__self__", None)
    if isinstance(leaf, functools.partial):
        held = [*leaf.args, *leaf.keywords.values()]
        return (
            f"jax.tree_util.Partial({getattr(leaf.func, '__name__', 'f')}, ...)"
            if any(map(_has_arrays, held))
            else ""
        )
    if not callable(leaf) or owner is None or not _has_arrays(owner):
        return ""
    cls, method = type(owner).__name__, getattr(leaf, "__name__", "...")
    if not is_state(owner) and hasattr(owner, "dtype"):
        method = method.lstrip("_")  # jax's Array.sum is named _sum
        function = f"jnp.{method}" if hasattr(jnp, method) else f"type(x).{method}"
        return f"jax.tree_util.Partial({function}, x)"
    return f"jax.tree_util.Partial({cls}.{method}, {cls.lower()})"


def _has_arrays(value: Any) -> bool:
    return any(
        hasattr(leaf, "dtype") and not isinstance(leaf, type)
        for leaf in jax.tree.leaves(value)
    )


def _notes(error: Exception, name: str, leaves: list[tuple[str, Any]]) -> Iterator[str]:
    gone: dict[str, list[str]] = {}
    for place, leaf in leaves:
        if was_deleted(leaf):
            gone.setdefault(fate(leaf), []).append(place)
    for text, places in gone.items():
        was = "was" if len(places) == 1 else "were"
        yield f"{_and(places)} {was} {text}"
    if not gone:
        explain_deleted(error)  # of an array that the function closes over
    if NEEDS_A_VALUE in str(error):
        for place, leaf in leaves:
            field = place.rpartition(".")[2]
            meant = rf"argument[s]? .*\b\w+\.{re.escape(field)}\b"
            if type(leaf) in (bool, int) and re.search(meant, str(error)):
                yield (
                    f"{place} is data, which jit traces, so it has no value here. If "
                    f"it is configuration, declare it static: `{field}: "
                    f"{type(leaf).__name__} = ps.static()`."
                )
    if isinstance(error, jax.errors.TracerArrayConversionError):
        yield (
            f"{name} gave a traced value to numpy, or to code that needs numbers: "
            f"under jit it has none yet. Use jnp in place of np, or "
            f"ps.host_function(code) to call the code when the program runs."
        )


def _untraceable(
    leaves: list[tuple[str, Any]], arguments: tuple[Any, ...]
) -> Iterator[str]:
    """Name the leaves that are no arrays, and what to do with them."""
    labels: dict[int, None] = {}
    for arg in arguments:
        inside = jax.tree.leaves(arg) if is_state(arg) and callable(arg) else []
        if inside and all(type(leaf) is str for leaf in inside):
            labels |= dict.fromkeys(map(id, inside))
            yield (
                f"this {type(arg).__name__} holds only strings, as labels do that "
                f"ps.prefix made. It has a __call__, so optax.multi_transform takes it "
                f"for a function: give it `lambda _: labels`."
            )
    for place, leaf in leaves:
        explained = _partial(leaf) or is_unsortable(leaf) or id(leaf) in labels
        if _is_traceable(leaf) or explained:
            continue
        if "." not in place:
            advice = ": name it in static_argnames"
        elif _fits_static(leaf):
            advice = (
                f": declare it static, `{_field(place)}: ... = ps.static()`, if it is "
                f"configuration"
            )
        else:
            advice = ", and which has no hash, so that it cannot be static either"
        yield f"{place} holds a {type(leaf).__name__}, which jax cannot trace{advice}."


def _fits_static(leaf: Any) -> bool:
    try:
        typed(leaf)
    except Unfit:
        return False
    return True


def _leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree.leaves_with_path((args, kwargs), is_unsortable):
        yield _place(path, args, kwargs), leaf


def _field(place: str) -> str:
    return re.sub(r"(\[[^\]]*\])*$", "", place).rpartition(".")[2]


def _place(path: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return a leaf's place, from its class if one State in the call has it."""
    which, key, *rest = path
    if which.idx == 0:
        argument, root = args[key.idx], f"argument {key.idx}"
    else:
        argument, root = kwargs[key.key], f"argument {key.key!r}"
    cls = type(argument)
    if is_state_class(cls):
        others = [type(other) for other in (*args, *kwargs.values())]
        alone = others.count(cls) == 1
        root = cls.__name__ if alone else f"{root}, {cls.__name__}"
    return path_text(rest, root)


def _is_traceable(leaf: Any) -> bool:
    numbers = (bool, int, float, complex)
    is_array = hasattr(leaf, "dtype") and not isinstance(leaf, type | np.dtype)
    return isinstance(leaf, numbers) or is_array


def _buffer(leaf: Any) -> Any:
    try:
        return leaf.unsafe_buffer_pointer()
    except Exception:  # noqa: BLE001  # on several devices: the same object at least
        return id(leaf)


def _and(places: list[str], most: int = 5) -> str:
    shown = places[:most]
    more = len(places) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
