"""What happens to a value on its way into a field, and to an instance before its seal.

Converters, Python numbers in array fields, defaults, strict classes and `__check__`:
the parts that construction and `replace` share. Unflatten uses none of them.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purestate._compat import fills_dict, is_tracer
from purestate._layout import AUX, Layout
from purestate._repr import pformat
from purestate.errors import CheckError, NumberError, StrictFieldError, UnsetFieldError

__all__ = [
    "NUMBERS",
    "check_strict",
    "converted",
    "default_of",
    "explain",
    "fill_defaults",
    "run_checks",
    "seal",
    "strong",
]

NUMBERS = frozenset({bool, int, float, complex})
_READS_A_TRACER = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def strong(layout: Layout, name: str, value: Any, like: Any = None) -> Any:
    """Return a Python number as an array with a dtype of its own, not a weak one.

    A weakly typed leaf changes type at its first update: the second call of a jitted
    function retraces, and `scan` refuses an integer counter (jax#9046).

    Args:
        layout: the record of the class.
        name: an array field.
        value: a bool, int, float or complex.
        like: the array that it replaces; its dtype is kept where it can hold the value.

    Raises:
        NumberError: the field's dtype cannot hold the number.
    """
    wanted = layout.specs[name].metadata.get("dtype")
    admitted = layout.arrays[name] if wanted is None else (jnp.dtype(wanted).name,)
    current = getattr(like, "dtype", None) if wanted is None else None
    wide = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
    kind: Any = type(value)
    for dtype, limits in _choices(kind, admitted, current, wide):
        if limits is not None and not limits.min <= value <= limits.max:
            continue
        return jnp.array(np.asarray(value, dtype))
    own = jnp.result_type(type(value))
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


def converted(layout: Layout, name: str, value: Any) -> Any:
    """Return what the field's converter makes of a value; a note names the field."""
    try:
        return layout.converters[name](value)
    except Exception as error:
        error.add_note(
            f"raised by the converter of {layout.cls.__name__}.{name}, which was given "
            f"{pformat(value)}."
        )
        raise


def default_of(spec: dataclasses.Field[Any]) -> Any:
    """Return a field's default, made anew where it has a factory, else MISSING."""
    if spec.default_factory is not dataclasses.MISSING:
        return spec.default_factory()
    return spec.default


def fill_defaults(layout: Layout, values: dict[str, Any], where: str) -> None:
    """Give every field that a constructor did not set its default.

    Raises:
        UnsetFieldError: fields that have neither; `where` names the constructor.
    """
    unset = []
    for name in layout.names:
        if name not in values:
            value = default_of(layout.specs[name])
            if value is dataclasses.MISSING:
                unset.append(name)
            else:
                values[name] = value
    if unset:
        raise UnsetFieldError(layout.cls, unset, where)


def seal(self: Any, layout: Layout) -> None:
    """End an instance's construction: intern its static values, freeze it, check it."""
    values = self.__dict__
    for name in layout.cached:
        values.pop(name, None)  # computed before all fields had their final values
    for name in layout.arrays:
        if type(values[name]) in NUMBERS:
            values[name] = strong(layout, name, values[name])
    aux = layout.intern(values)
    values.update(zip(layout.static, aux.values, strict=False))
    if fills_dict(len(values)):
        values[AUX] = aux
    else:
        ordered = {name: values[name] for name in layout.names}
        object.__setattr__(self, "__dict__", {**ordered, AUX: aux})
    run_checks(self, layout)


def run_checks(self: Any, layout: Layout) -> None:
    """Run every base's `__check__`, base first, unless values are not there to check.

    Raises:
        CheckError: a check returned False. What a check raises passes, with a note.
    """
    if not layout.checks or any(map(_is_abstract, jax.tree.leaves(self))):
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


def _is_abstract(leaf: object) -> bool:
    return is_tracer(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


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
        struct: Any = jax.ShapeDtypeStruct  # untyped in some versions of jax
        return pformat(struct(leaf.shape, leaf.dtype))
    return type(leaf).__name__


def explain(
    error: BaseException, layout: Layout, where: str, held: Iterable[str]
) -> None:
    """Add a note to an error from a user's constructor: what was made, and how far."""
    name = layout.cls.__name__
    if isinstance(error, _READS_A_TRACER):
        error.add_note(
            f"{name}.{where} read the value of a field while jax was tracing, where it "
            f"has none. Put checks on values into {name}.__check__, which is skipped "
            f"while tracing, and compute with jnp instead of float(), int(), bool()."
        )
    elif isinstance(error, Exception):
        done = [field for field in layout.names if field in set(held)]
        so_far = f"it had set {', '.join(done)}" if done else "it had set no field"
        error.add_note(f"raised by {name}.{where}; {so_far}.")
