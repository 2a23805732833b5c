"""The invariants of a class: `__check__` of every base, and what `strict=True` says."""

from typing import Any

import jax

from purestate._compat import Tracer, untyped_jax
from purestate._inspect.key_order import is_unsortable, order_text
from purestate._inspect.key_paths import path_text
from purestate._inspect.repr import pformat
from purestate._schema.layout import Layout
from purestate.errors import CheckError, StrictFieldError

_ABSTRACT = (Tracer, jax.ShapeDtypeStruct)  # leaves without a value


def run_checks(self: Any, layout: Layout) -> None:
    """Run every base's `__check__`, base first, unless values are not there to check.

    Raises:
        CheckError: a check returned False. What a check raises passes, with a note.
    """
    if not layout.checks:
        return
    # Asked of each type once: isinstance(leaf, Tracer) takes 0.3 us, for jax overrides
    # it, and 256 leaves are mostly of one type.
    try:
        kinds = set(map(type, jax.tree.leaves(self)))
    except (ValueError, TypeError) as error:
        root = layout.cls.__name__
        for path, leaf in jax.tree.leaves_with_path(self, is_unsortable):
            if is_unsortable(leaf):
                error.add_note(order_text(path_text(path, root), leaf))
        raise
    if any(issubclass(kind, _ABSTRACT) for kind in kinds):
        return
    # All values are known, so jnp can compute with them even while jax traces.
    with jax.ensure_compile_time_eval():
        for base, check in layout.checks:
            try:
                result = check(self)
                passed = result is None or bool(result)
            except Exception as error:
                name = base.__name__
                error.add_note(f"raised by {name}.__check__ for {pformat(self)}.")
                raise
            if not passed:
                raise CheckError(layout.cls, base)


def check_strict(layout: Layout, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Compare shape, dtype and structure of changed data fields.

    Raises:
        StrictFieldError: the first difference, with its path.
    """
    for name in layout.data:
        if name not in new or new[name] is old[name]:
            continue
        was: Any
        now: Any
        before, was = jax.tree_util.tree_flatten_with_path(old[name])
        after, now = jax.tree_util.tree_flatten_with_path(new[name])
        if was != now:
            texts = pformat(old[name]), pformat(new[name])
            raise StrictFieldError(layout.cls, name, *texts)
        for (path, a), (_, b) in zip(before, after, strict=True):
            if _described(a) != _described(b):
                where = name + jax.tree_util.keystr(path)
                raise StrictFieldError(layout.cls, where, _described(a), _described(b))


def _described(leaf: Any) -> str:
    if hasattr(leaf, "dtype") and hasattr(leaf, "shape"):
        return pformat(untyped_jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    return type(leaf).__name__
