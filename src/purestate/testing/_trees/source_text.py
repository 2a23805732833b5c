"""Values as source text: what a person pastes into a prompt to have them again."""

import dataclasses
import enum
import types
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from purestate._schema.fields import is_initvar, is_stored
from purestate._schema.layout import layout_of
from purestate._schema.leaves import is_key
from purestate._schema.marks import is_state
from purestate.errors._text import short

_WIDTH = 72


def paste(value: Any) -> str:
    """Return source text for a value, as after `import jax, jax.numpy as jnp`.

    >>> print(paste({"x": jnp.float32(-0.0), "key": jax.random.key(3)}))
    {'x': jnp.asarray(-0.0, 'float32'), 'key': jax.random.key(3)}
    """
    if isinstance(value, jax.Array | np.ndarray):
        return _array(value)
    if isinstance(value, float | complex):
        return _number(value)
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, dict):
        items = [f"{paste(k)}: {paste(v)}" for k, v in value.items()]
        return _bracketed("{", items, "}")
    names: Any = getattr(value, "_fields", None)
    if isinstance(value, tuple) and names is not None:
        return paste_call(type(value).__name__, dict(zip(names, value, strict=True)))
    if isinstance(value, list | tuple | set | frozenset):
        return _container(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return paste_call(type(value).__name__, _arguments(value))
    is_method = isinstance(value, types.BuiltinMethodType)
    if is_method and isinstance(value.__self__, str | bytes):
        return f"{paste(value.__self__)}.{value.__name__}"
    if callable(value):
        return str(getattr(value, "__qualname__", short(value)))
    return short(value, 200)


def paste_call(name: str, given: Mapping[str, Any]) -> str:
    """Return source text for a call with keyword arguments.

    >>> paste_call("Box", {"n": 3})
    'Box(n=3)'
    """
    return _bracketed(f"{name}(", [f"{k}={paste(v)}" for k, v in given.items()], ")")


def _arguments(value: Any) -> dict[str, Any]:
    specs = type(value).__dataclass_fields__
    if is_state(value) and layout_of(type(value)).init is not None:
        # A hand-written constructor takes something else: this is at least all of it.
        return {name: getattr(value, name) for name in layout_of(type(value)).names}
    return {
        name: getattr(value, name, None)
        for name, spec in specs.items()
        if spec.init and is_stored(spec) and not is_initvar(spec)
    }


def _container(value: Any) -> str:
    items = [paste(item) for item in value]
    if isinstance(value, list):
        return _bracketed("[", items, "]")
    if isinstance(value, tuple):
        return f"({items[0]},)" if len(items) == 1 else _bracketed("(", items, ")")
    name = type(value).__name__
    return f"{name}()" if not items else _bracketed(f"{name}({{", items, "})")


def _array(value: Any) -> str:
    if getattr(value, "is_deleted", bool)():
        return f"<a deleted array, {value.dtype}{list(value.shape)}>"
    if is_key(value):
        return _key(value)
    home = "np" if isinstance(value, np.ndarray) else "jnp"
    array = np.asarray(value)
    dtype = f"{value.dtype.name!r}"
    if array.size == 0 or (array.shape and not any(array.tobytes())):
        return f"{home}.zeros({array.shape}, {dtype})"
    first = array.flat[0]
    if array.size > 1 and array.tobytes() == first.tobytes() * array.size:
        return f"{home}.full({array.shape}, {_number(first.item())}, {dtype})"
    return f"{home}.asarray({_nested(array.tolist())}, {dtype})"


def _nested(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_nested, value))}]"
    return _number(value)


def _number(value: Any) -> str:
    if isinstance(value, complex):
        return f"complex({_number(value.real)}, {_number(value.imag)})"
    text = repr(value)
    if text.lstrip("-") in ("nan", "inf"):
        return text.replace("nan", "jnp.nan").replace("inf", "jnp.inf")
    return text


def _key(value: Any) -> str:
    words = np.asarray(jax.random.key_data(value))
    impl = str(jax.random.key_impl(value))
    if impl == "threefry2x32" and words.shape == (2,) and words[0] == 0:
        return f"jax.random.key({int(words[1])})"
    listed = _nested(words.tolist())
    return f"jax.random.wrap_key_data(jnp.asarray({listed}, 'uint32'), impl={impl!r})"


def _bracketed(begin: str, items: list[str], end: str) -> str:
    line = f"{begin}{', '.join(items)}{end}"
    if len(line) <= _WIDTH and "\n" not in line:
        return line
    inner = ("    " + item.replace("\n", "\n    ") + ",\n" for item in items)
    return f"{begin}\n{''.join(inner)}{end}"
