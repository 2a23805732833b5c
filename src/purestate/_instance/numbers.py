"""Where a Python number becomes an array: in a field that is annotated as one.

`Counter(count=0)` holds `i32[]`, not `0`: its annotation asks for an array. It becomes
one in `strong`, to which all ways into a field lead: a generated constructor through
`construct.numbers`, any other through `seal`, `replace` and `at` through
`replace._arriving`, and a draft through `Draft.assign`. Unflatten stores what it gets.

The dtype is that of `ps.field(dtype=...)`; else that of the array that the number
replaces, if it can hold the number; else the first that the annotation admits; else
jax's default. It is strong: see there.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purestate._compat import array_here
from purestate._schema.layout import Layout, layout_of
from purestate._schema.marks import is_state
from purestate.errors import NumberError

_NUMBERS = (bool, int, float, complex, np.generic)
# Types of values that are no numbers, learnt as they are met: all are kept alive by jax
# or by Python. Generated source asks this set before it takes the short way.
NOT_NUMBERS: set[type] = {dict, list, tuple, str, type(None), np.ndarray}


def is_number(value: Any) -> bool:
    """Return whether a value is one number: Python's, numpy's, or of a subclass."""
    kind = type(value)
    if kind in NOT_NUMBERS:
        return False
    if isinstance(value, _NUMBERS):
        return _python_kind(value) is not None
    if isinstance(value, jax.Array) or is_state(value):
        NOT_NUMBERS.add(kind)
    return False


def holds_flags(state: Any) -> bool:
    """Return whether a State of array fields holds no array, but flags: axes, masks.

    Such trees, `jax.tree.map(lambda _: None, state)`, keep the numbers that they get.
    """
    if not layout_of(type(state)).arrays:
        return False
    arrays = (jax.Array, np.ndarray, jax.ShapeDtypeStruct)
    return not any(isinstance(leaf, arrays) for leaf in jax.tree.leaves(state))


def _python_kind(value: Any) -> type | None:
    """Return bool, int, float or complex, whichever a number is of."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return next(kind for kind in _NUMBERS if isinstance(value, kind))
    width = _width(dtype)
    return None if width is None else _NUMBERS[width]


def strong(layout: Layout, name: str, value: Any, like: Any = None) -> Any:
    """Return a Python number as an array with a dtype of its own, not a weak one.

    A weakly typed leaf changes type at its first update: the second call of a jitted
    function retraces, and `scan` refuses an integer counter (jax#9046).

    Args:
        layout: the record of the class.
        name: an array field.
        value: one for which `is_number` is true.
        like: the array that it replaces; its dtype is kept where it can hold the value.

    Raises:
        NumberError: the field's dtype cannot hold the number.
    """
    wanted = layout.specs[name].metadata.get("dtype")
    admitted = layout.arrays[name] if wanted is None else (jnp.dtype(wanted).name,)
    current = getattr(like, "dtype", None) if wanted is None else None
    wide = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
    kind: Any = _python_kind(value)
    for dtype, limits in _choices(kind, admitted, current, wide):
        if limits is not None and not limits.min <= value <= limits.max:
            continue
        return array_here(np.asarray(value, dtype))
    own = jnp.result_type(kind)
    raise NumberError(layout.cls, name, value, _described_dtypes(own, admitted))


@functools.lru_cache(maxsize=1024)
def _choices(
    kind: type, admitted: tuple[str, ...], current: Any, wide: bool
) -> tuple[tuple[Any, Any], ...]:
    """Return the dtypes to try for a number, with the range of those for integers."""
    own = jnp.result_type(kind)
    found = []
    first = [] if current is None or _width(current) is None else [current]
    for dtype in (*first, *_candidates(own, admitted)):
        actual = jax.dtypes.canonicalize_dtype(dtype)
        if _width(own) <= _width(actual):
            is_integer = jnp.issubdtype(actual, jnp.integer)
            found.append((actual, _limits(actual) if is_integer else None))
    return tuple(found)


_limits: Any = jnp.iinfo  # untyped


def _described_dtypes(own: Any, admitted: tuple[str, ...]) -> str:
    if len(admitted) > 3:
        kinds = {"u": "an unsigned", "i": "an integer", "f": "a floating-point"}
        kinds |= {"b": "a floating-point", "c": "a complex"}
        return f"{kinds.get(admitted[0][0], 'another')} dtype"
    if admitted == ("prng_key",) or not admitted:
        return admitted[0] if admitted else str(own.name)
    actual = {n: jax.dtypes.canonicalize_dtype(jnp.dtype(n)).name for n in admitted}
    off = "unless jax_enable_x64 is on"
    return " or ".join(
        n if n == actual[n] else f"{n} (which is {actual[n]} {off})" for n in admitted
    )


def _candidates(own: Any, admitted: tuple[str, ...]) -> list[Any]:
    """Return the dtypes to try for a number whose default dtype is `own`."""
    if not admitted:
        return [own]
    if len(admitted) == 1:
        return [] if admitted == ("prng_key",) else [jnp.dtype(admitted[0])]
    defaults = [own, *map(jnp.result_type, (int, np.uint32, float, complex))]
    return [dtype for dtype in defaults if dtype.name in admitted]


def _width(dtype: Any) -> Any:
    """Return how wide a kind of numbers is, None for what are no numbers."""
    kinds: tuple[Any, ...] = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    wide = (i for i, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind))
    return next(wide, None)
