"""Static values as JSON, and back where no code runs for it.

`encode` never fails: a run must not lose hours to a lambda. What can be made again
without running anyone's code is written as a value. What is or holds a callable is
written by its qualified name, and comes from the program when it is read: `decode`
returns a `Recorded` for it, and `agree` tells whether an object is the one recorded.
"""

import dataclasses
import enum
import functools
import hashlib
import json
import math
import pathlib
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec, Sharding

from purestate._compat import is_written_by_dataclasses, untyped_jax
from purestate._instance.leaves import Leaves
from purestate._schema.layout import layout_of
from purestate._schema.marks import held_by, is_state
from purestate._schema.static_values import is_value_dataclass

_BITS = 63  # of integers that every reader of JSON takes
_LONGEST = 200  # characters of a value in a message
_PLAIN = frozenset({bool, str, type(None)})
_JNP_TYPE: Any = type(jnp.float32)
_METHODS = (types.MethodType, types.BuiltinMethodType)
_PLACES = (jax.Device, Mesh, Sharding)  # of the machine that saved
_PATHS: dict[Any, str] = {
    type(pathlib.Path()): "Path",  # of whichever system
    pathlib.PurePosixPath: "PurePosixPath",
    pathlib.PureWindowsPath: "PureWindowsPath",
}
_PATH_CLASSES = {name: cls for cls, name in _PATHS.items()}
_ADDRESS = re.compile("0x[0-9a-fA-F]{4}")
_SHOWN = 1000  # characters of a repr that are kept as they are

# Of another width on every platform.
_LONG = ("longdouble", "clongdouble", "float96", "float128", "complex192", "complex256")


class Recorded:
    """A static value of which a file knows the name, or its parts by name."""

    def __init__(self, encoded: Any) -> None:
        self.encoded = encoded

    def __repr__(self) -> str:
        return value_text(self)


class _Unmakeable(Exception):
    """Internal: a value that is not made from a file."""


# --- to JSON --------------------------------------------------------------------------


def encode(value: Any) -> Any:
    """Return a static value as JSON; what is not a value, by name."""
    if type(value) in _PLAIN:
        return value
    try:
        return _encoded(value, ())
    except Exception:  # noqa: BLE001  # whatever a foreign object raises
        return {"named": _type_name(value)}


def encode_number(value: Any) -> Any:
    """Return a number or a string as JSON.

    Raises:
        TypeError: something else.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is int:
        small = value.bit_length() <= _BITS
        return value if small else {"int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind is complex:
        return {"complex": [encode_number(value.real), encode_number(value.imag)]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if isinstance(value, np.generic) and number_name(value.dtype):
        return {"scalar": [value.dtype.name, value.tobytes().hex()]}
    raise TypeError(kind.__name__)


@functools.lru_cache(maxsize=256)  # numpy makes the name anew each time, in 5 us
def number_name(dtype: Any) -> str:
    """Return the name of a dtype of numbers, "" for one that its name does not tell."""
    if not isinstance(dtype, np.dtype) or dtype.name in _LONG:
        return ""
    is_number = dtype == np.bool_ or bool(jnp.issubdtype(dtype, np.number))
    return dtype.name if is_number else ""


@functools.lru_cache(maxsize=256)
def dtype_named(name: Any) -> Any:
    """Return the dtype of numbers of that name.

    Raises:
        TypeError: there is none.
    """
    dtype: Any = np.dtype(name) if isinstance(name, str) else None
    if dtype is None or number_name(dtype) != name:
        raise TypeError(f"no dtype is called {name!r}")
    return dtype


def _encoded(value: Any, within: tuple[int, ...]) -> Any:
    if id(value) in within or len(within) > 100:
        return {"named": _type_name(value)}
    kind: Any = type(value)
    inner = functools.partial(_encoded, within=(*within, id(value)))
    if isinstance(value, enum.Enum):
        if isinstance(value, enum.Flag) and value.name not in kind._member_map_:
            members = [*value]
            rest = functools.reduce(
                lambda left, m: left & ~m.value, members, value.value
            )
            return {"flag": [_name(kind), [m.name for m in members], rest]}
        return {"enum": [_name(kind), value.name]}
    if kind is tuple:
        return {"tuple": [*map(inner, value)]}
    if is_namedtuple(kind):
        fields = dict(zip(kind._fields, map(inner, value), strict=True))
        return {"namedtuple": [_name(kind), fields]}
    if kind is frozenset:
        return {"frozenset": sorted(map(inner, value), key=json.dumps)}
    if kind is slice:
        return {"slice": [*map(inner, (value.start, value.stop, value.step))]}
    if issubclass(kind, np.dtype) and number_name(value):
        return {"dtype": value.name if value.isnative else value.str}
    if isinstance(value, _JNP_TYPE):
        return {"jnp_dtype": value.dtype.name}
    if isinstance(value, type) and issubclass(value, np.generic):
        return {"scalar_type": np.dtype(value).name}
    if kind is np.str_:
        return {"numpy_str": str(value)}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if kind is PartitionSpec and (parts := _spec_parts(value)) is not None:
        return {"partition_spec": [*map(inner, parts)]}
    if kind in _PATHS:
        return {"path": [_PATHS[kind], str(value)]}
    if kind in _METHODS and not isinstance(value.__self__, types.ModuleType | None):
        return {"method": [_name(value), inner(value.__self__)]}
    if kind is functools.partial:
        named = {k: inner(part) for k, part in sorted(value.keywords.items())}
        return {"partial": [inner(value.func), [*map(inner, value.args)], named]}
    if kind is Leaves:
        _, (how, parts) = value.__reduce__()
        return {"leaves": [how, *map(inner, parts)]}
    if is_state(value):
        held = held_by(value)
        fields = {n: inner(held[n]) for n in layout_of(kind).names}
        return {"parts": [_name(kind), fields]}
    if dataclasses.is_dataclass(kind):
        names = [f.name for f in dataclasses.fields(kind)]
        fields = {n: inner(getattr(value, n)) for n in names if hasattr(value, n)}
        made = _is_plain_dataclass(kind, value)
        return {"dataclass" if made else "parts": [_name(kind), fields]}
    try:
        return encode_number(value)
    except TypeError:
        return _named(value)


def _spec_parts(spec: Any) -> tuple[Any, ...] | None:
    """Return what a PartitionSpec is made of, None if it is made of more than that."""
    parts = tuple(spec)
    return parts if untyped_jax.sharding.PartitionSpec(*parts) == spec else None


def _is_plain_dataclass(kind: Any, value: Any) -> bool:
    """Return whether its fields are all there is to it: it can be made of them."""
    names = {f.name for f in dataclasses.fields(kind)}
    return (
        kind.__dataclass_params__.frozen
        and is_value_dataclass(value)
        and is_written_by_dataclasses(kind.__init__)
        and _held(kind, value) == names
    )


def _held(kind: Any, value: Any) -> set[str]:
    """Return the names of all that an object of a dataclass holds."""
    slots = {n for c in kind.__mro__ for n in getattr(c, "__slots__", ())}
    return slots.union(getattr(value, "__dict__", ())) - {"__dict__", "__weakref__"}


def _named(value: Any) -> Any:
    """Return the name of an object; of one without a name also how it shows itself."""
    if isinstance(value, types.ModuleType):
        return {"named": value.__name__}
    if isinstance(value, np.ufunc | jnp.ufunc):  # whose __qualname__ is new
        package = "numpy" if isinstance(value, np.ufunc) else "jax.numpy"
        return {"named": f"{package}:{getattr(value, '__name__', '')}"}
    if isinstance(value, _PLACES):
        return {"named": _name(type(value))}
    is_alias = typing.get_origin(value) is not None  # list[int] has the name of list
    if isinstance(getattr(value, "__qualname__", None), str) and not is_alias:
        return {"named": _name(value)}
    text = repr(value)
    if _ADDRESS.search(text):
        return {"named": _type_name(value)}
    if len(text) > _SHOWN:
        digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
        text = f"{text[:_SHOWN]}...{digest}"
    return {"shown": [_type_name(value), text]}


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', None) or 'builtins'}:{value.__qualname__}"


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}()"


# --- from JSON ------------------------------------------------------------------------


def decode(encoded: Any, classes: Iterable[type] = ()) -> Any:
    """Return the value that was encoded, or a `Recorded` where it is not made of JSON.

    Args:
        encoded: what `encode` returned, or what claims to be.
        classes: where to look for classes first: those of the field's annotation.

    Raises:
        Exception: of any kind, for what `encode` does not return.
    """
    try:
        return _decoded(encoded, tuple(classes))
    except _Unmakeable:
        _text(encoded)  # it may be forged
        return Recorded(encoded)


def _decoded(encoded: Any, classes: tuple[type, ...]) -> Any:
    if not isinstance(encoded, dict):
        if isinstance(encoded, list):
            raise ValueError("a list is not a value")
        return encoded
    ((tag, body),) = encoded.items()
    return _READERS[tag](body, functools.partial(_decoded, classes=classes), classes)


def _number(body: Any, inner: Any, classes: Any) -> Any:
    return float(body)


def _scalar(body: Any, inner: Any, classes: Any) -> Any:
    name, data = body
    (value,) = np.frombuffer(bytes.fromhex(data), dtype_named(name))
    return value


def _dtype(body: Any, inner: Any, classes: Any) -> Any:
    if body[0] not in "<>":  # in the order of bytes of this machine
        return dtype_named(body)
    dtype = np.dtype(body)
    dtype_named(dtype.name)
    return dtype


def _jnp_dtype(body: Any, inner: Any, classes: Any) -> Any:
    name = dtype_named(body).name
    return getattr(jnp, "bool_" if name == "bool" else name)


def _enum(body: Any, inner: Any, classes: Any) -> Any:
    cls, name = find_class(body[0], classes), body[1]
    if cls is None or not issubclass(cls, enum.Enum) or name not in cls._member_map_:
        raise _Unmakeable
    return cls._member_map_[name]


def _flag(body: Any, inner: Any, classes: Any) -> Any:
    (name, members, rest), combined = body, 0
    cls = find_class(name, classes)
    if cls is None or not issubclass(cls, enum.Flag):
        raise _Unmakeable
    usual: Any = enum.Flag._missing_  # it makes what has no name
    if cls._missing_.__func__ is not usual.__func__:
        raise _Unmakeable
    try:
        for member in members:
            combined |= cls._member_map_[member].value
        return cls(combined | rest)
    except (KeyError, ValueError):  # it has other members now
        raise _Unmakeable from None


def _partition_spec(body: Any, inner: Any, classes: Any) -> Any:
    return untyped_jax.sharding.PartitionSpec(*map(inner, body))


def _namedtuple(body: Any, inner: Any, classes: Any) -> Any:
    name, fields = body
    cls = find_class(name, classes)
    if not is_namedtuple(cls) or cls._fields != tuple(fields):
        raise _Unmakeable
    return tuple.__new__(cls, map(inner, fields.values()))


def _dataclass(body: Any, inner: Any, classes: Any) -> Any:
    name, fields = body
    cls: Any = find_class(name, classes)
    bases = getattr(cls, "__mro__", ())
    if not dataclasses.is_dataclass(cls):
        raise _Unmakeable
    # Nothing is set that may be a property, whose setter would run.
    if [f.name for f in dataclasses.fields(cls)] != [*fields]:
        raise _Unmakeable
    made: Any = object.__new__(cls)  # type: ignore[arg-type]
    for field, part in fields.items():
        held = next((c.__dict__[field] for c in bases if field in c.__dict__), None)
        is_slot = isinstance(held, types.MemberDescriptorType)
        if hasattr(type(held), "__set__") and not is_slot:
            raise _Unmakeable
        object.__setattr__(made, field, inner(part))
    if not _is_plain_dataclass(cls, made):
        raise _Unmakeable
    return made


def _never(body: Any, inner: Any, classes: Any) -> Any:
    raise _Unmakeable


_READERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "int": lambda body, *_: int(body, 16),
    "float": _number,
    "complex": lambda body, inner, _: complex(*map(inner, body)),
    "bytes": lambda body, *_: bytes.fromhex(body),
    "scalar": _scalar,
    "tuple": lambda body, inner, _: tuple(map(inner, body)),
    "frozenset": lambda body, inner, _: frozenset(map(inner, body)),
    "slice": lambda body, inner, _: slice(*map(inner, body)),
    "dtype": _dtype,
    "jnp_dtype": _jnp_dtype,
    "scalar_type": lambda body, *_: dtype_named(body).type,
    "enum": _enum,
    "flag": _flag,
    "namedtuple": _namedtuple,
    "dataclass": _dataclass,
    "numpy_str": lambda body, *_: np.str_(body),
    "range": lambda body, *_: range(*body),
    "partition_spec": _partition_spec,
    "path": lambda body, *_: _PATH_CLASSES[body[0]](body[1]),
    "method": _never,
    "partial": _never,
    "leaves": _never,
    "parts": _never,
    "named": _never,
    "shown": _never,
}


def is_namedtuple(cls: Any) -> bool:
    """Return whether it is a class that `NamedTuple` made."""
    return (
        isinstance(cls, type)
        and issubclass(cls, tuple)
        and isinstance(getattr(cls, "_fields", None), tuple)
    )


def find_class(name: str, classes: Iterable[type] = ()) -> Any:
    """Return the class of that name, `module:qualname`, or None; imports nothing.

    Args:
        name: as in a file.
        classes: where to look first: one of its module, then one of any other.
    """
    module, _, path = name.partition(":")
    named = [cls for cls in classes if cls.__qualname__ == path]
    for cls in sorted(named, key=lambda cls: cls.__module__ != module):
        return cls
    found = _found(name)
    return found if isinstance(found, type) and "<" not in path else None


def _found(name: str) -> Any:
    """Return what a name stands for, or what it lies in if that is a function."""
    module, _, path = name.removesuffix("()").partition(":")
    found: Any = sys.modules.get(module)
    for step in path.split("."):
        if step.startswith("<"):
            break
        # Not getattr, which may import what a module offers lazily.
        held = getattr(found, "__dict__", {})
        found = held.get(step) if isinstance(held, Mapping) else None
    return found


# --- comparing ------------------------------------------------------------------------


def agree(first: Any, second: Any) -> bool:
    """Return whether an encoded value of a file is the same as another one.

    Names agree in their package and in what they have there: the modules in a package
    move between its versions. `__main__` may be any module.
    """
    if isinstance(first, dict) and isinstance(second, dict):
        ((tag, one),), ((other, two),) = first.items(), second.items()
        if tag != other:
            return False
        if tag == "named":
            return same_name(one, two)
        if tag == "partial":
            return _all_agree(one[:2], two[:2]) and _fields_agree(one[2], two[2])
        if tag in ("namedtuple", "dataclass", "parts"):
            return same_name(one[0], two[0]) and _fields_agree(one[1], two[1])
        if tag in ("enum", "flag", "shown", "method"):
            return same_name(one[0], two[0]) and _all_agree(one[1:], two[1:])
        return _all_agree(one, two)
    return _all_agree(first, second)


def _all_agree(first: Any, second: Any) -> bool:
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_agree, first, second))
    return type(first) is type(second) and repr(first) == repr(second)


def _agree(first: Any, second: Any) -> bool:
    together = isinstance(first, list) or isinstance(second, list)
    return (_all_agree if together else agree)(first, second)


def _fields_agree(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(
        agree(part, second[name]) for name, part in first.items()
    )


def same_name(first: str, second: str) -> bool:
    """Return whether two names, `module:qualname`, stand for the same thing.

    Args:
        first: of a file, whose thing may have moved to another module.
        second: of the program.
    """
    if first == second:
        return True
    (one, _, path), (other, _, other_path) = first.partition(":"), second.partition(":")
    packages = {one.partition(".")[0], other.partition(".")[0]}
    if not path or path != other_path:
        return False
    if "__main__" in packages:
        return True
    there = _found(first)  # still, so that it has not moved
    return len(packages) == 1 and (there is None or there is _found(second))


def is_unnamed(encoded: Any) -> bool:
    """Return whether it holds a function that shares its name with others."""
    return any("<" in name for name in _names(encoded))


def is_vague(encoded: Any) -> bool:
    """Return whether two of it may agree and differ: nothing but a name is known."""
    return any("<" in name or name.endswith("()") for name in _names(encoded))


def _names(encoded: Any) -> Iterator[str]:
    """Yield the names of what is known by its name only."""
    if isinstance(encoded, list):
        for part in encoded:
            yield from _names(part)
    if not isinstance(encoded, dict):
        return
    ((tag, body),) = encoded.items()
    if tag == "named":
        yield body
    elif tag in ("namedtuple", "dataclass", "parts"):
        yield from _names([*body[1].values()])
    elif tag == "partial":
        yield from _names([*body[:2], *body[2].values()])
    else:
        yield from _names(body)


def value_text(value: Any) -> str:
    """Return how messages show a static value."""
    text = _text(value.encoded if isinstance(value, Recorded) else encode(value))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _text(encoded: Any) -> str:
    if not isinstance(encoded, dict):
        return repr(encoded)
    ((tag, body),) = encoded.items()
    if tag == "named":
        return f"<{str.__str__(body)}>"
    if tag == "partial":
        function, args, named = body
        shown = [*map(_text, args), *(f"{k}={_text(v)}" for k, v in named.items())]
        return f"partial({', '.join([_text(function), *shown])})"
    if tag == "leaves":
        return f"ps.leaves({', '.join(map(_text, body[1:]))})"
    if tag == "tuple":
        return f"({', '.join(map(_text, body))}{',' if len(body) == 1 else ''})"
    if tag == "enum":
        return f"{body[0].partition(':')[2]}.{body[1]}"
    if tag == "flag":
        rest = [str(body[2])] if body[2] or not body[1] else []
        return f"{body[0].partition(':')[2]}({'|'.join([*body[1], *rest])})"
    if tag == "shown":
        _, text = map(str.__str__, body)
        return text
    if tag == "method":
        return f"{_text(body[1])}.{body[0].rpartition('.')[2]}"
    if tag in ("namedtuple", "dataclass", "parts"):
        shown = [f"{k}={_text(v)}" for k, v in body[1].items()]
        return f"{body[0].partition(':')[2]}({', '.join(shown)})"
    try:
        return repr(_decoded(encoded, ()))
    except Exception:  # noqa: BLE001  # it holds a callable
        return f"{tag}{body}"
