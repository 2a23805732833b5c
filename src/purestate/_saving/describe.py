"""A tree as a manifest, which is JSON, and its arrays by name.

Nothing is read from an array here, so that describing costs microseconds a leaf, and
the arrays stay where they are.
"""

import dataclasses
import types
from collections import OrderedDict
from collections.abc import Container, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from purestate._compat import is_tracer, untyped_jax
from purestate._inspect.key_paths import names_on
from purestate._pack.packed import Packed
from purestate._saving.values import encode, encode_number, number_name
from purestate._schema.layout import layout_of
from purestate._schema.leaves import is_key
from purestate._schema.marks import is_state
from purestate.errors import SaveError

FORMAT = 1
# A key of the header of a safetensors file that stands for no array.
_NUMPY = (np.ndarray, np.memmap)  # no others, which hold more than their numbers
_TAKEN = "__metadata__"
DEEPEST = 100  # containers in each other, which Python walks through by calls


@dataclasses.dataclass
class Description:
    """What was found in a tree.

    Attributes:
        root: the tree as JSON, the first part of a manifest.
        arrays: the arrays by name: typed keys as they are.
    """

    root: Any
    arrays: dict[str, Any]

    def manifest(self, **more: Any) -> dict[str, Any]:
        """Return what a file or another engine stores beside the arrays."""
        sizes = (stored_type(array) for array in self.arrays.values())
        total = sum(dtype.itemsize * _size(shape) for shape, dtype in sizes)
        return {"purestate": FORMAT, "bytes": total, "root": self.root, **more}


def describe(tree: Any) -> Description:
    """Return a tree as JSON and arrays.

    Args:
        tree: a State, packed or not, or containers of States, arrays and numbers.

    Raises:
        SaveError: leaves that are no arrays, numbers or strings, all of them; or a tree
            that is too deep.
    """
    walk = _Walk()
    root = walk.node(tree, "")
    if walk.problems:
        if isinstance(tree, Packed):
            tree = tree.unpack()
        name = type(tree).__name__
        raise SaveError.contents(name, walk.problems, static=walk.may_be_static)
    return Description(root, walk.arrays)


def stored_type(array: Any) -> tuple[tuple[int, ...], Any]:
    """Return shape and dtype of an array as it is stored: a key as its data."""
    if is_key(array):
        array = jax.random.key_data(array)
    return array.shape, array.dtype


def registered_parts(value: Any) -> dict[str, tuple[Any, Any]] | None:
    """Return the children of a registered class, None for a leaf.

    Returns:
        Key path and child, by the path as text; which is another one for each, also
        where the class has not seen to that.
    """
    found = untyped_jax.tree_util.tree_flatten_with_path(
        value, is_leaf=lambda part: part is not value
    )[0]
    if found and found[0][0] == ():
        return None
    parts: dict[str, tuple[Any, Any]] = {}
    for path, part in found:
        name = _free(jax.tree_util.keystr(path), parts)
        parts[name] = path, part
    return parts


def static_part(value: Any) -> Any:
    """Return what a registered class holds beside its children, as static values do.

    The names of the children are left out, which are compared one by one.
    """
    structure: Any = jax.tree.structure(value, is_leaf=lambda part: part is not value)
    aux = structure.node_data()[1]
    steps = untyped_jax.tree_util.tree_flatten_with_path(
        value, is_leaf=lambda part: part is not value
    )[0]
    names = tuple(str(name) for step, _ in steps for name in names_on(step))
    if _are(names, aux):
        return None
    if type(aux) is tuple:
        return tuple(part for part in aux if not _are(names, part))
    return aux


def _are(names: tuple[str, ...], value: Any) -> bool:
    return bool(names) and type(value) is tuple and tuple(map(str, value)) == names


class _Walk:
    """One walk through a tree: the arrays met so far, and what cannot be saved."""

    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}
        self.problems: list[str] = []
        self._names: dict[int, tuple[str, Any]] = {}  # by id, which the array keeps
        self._taken = {_TAKEN}
        self.may_be_static = False  # whether one of them is a static value elsewhere
        self._depth = 0
        self._foreign = 0  # classes of other libraries around the current place

    def node(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None:
            return {"none": True}
        if isinstance(value, jax.Array) or kind in _NUMPY:
            return self._array(value, path)
        if self._depth > DEEPEST:
            raise SaveError.too_deep(f"{path[:40]}...", DEEPEST)
        self._depth += 1
        found = self._other_node(value, path)
        self._depth -= 1
        return found

    def _other_node(self, value: Any, path: str) -> Any:
        kind = type(value)
        if is_state(value):
            return self._state(value, path)
        if kind in (list, tuple):
            parts = [self.node(part, _under(path, i)) for i, part in enumerate(value)]
            return {kind.__name__: parts}
        if kind is dict or kind is OrderedDict:
            return self._dict(value, path)
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            pairs = zip(kind._fields, value, strict=True)
            fields = {name: self.node(part, _under(path, name)) for name, part in pairs}
            return {"namedtuple": class_name(kind), "fields": fields}
        if isinstance(value, Packed):
            return self.node(value.unpack(), path)
        return self._other(value, path)

    def _state(self, state: Any, path: str) -> Any:
        layout = layout_of(type(state))
        row, aux = layout.flatten(state)
        static = dict(zip(layout.static, map(encode, aux.values), strict=True))
        pairs = zip(layout.data, row, strict=True)
        data = {name: self.node(part, _under(path, name)) for name, part in pairs}
        cls = layout.cls
        return {
            "state": short_name(cls),
            "module": cls.__module__,
            "version": layout.version,
            "static": static,
            "data": data,
        }

    def _dict(self, value: Mapping[Any, Any], path: str) -> Any:
        pairs = []
        for key, part in value.items():
            pairs.append([encode(key), self.node(part, _under(path, key))])
            if type(key) is not str and _is_named(pairs[-1][0]):
                self._problem(path, f"is a dict with the key {key!r}")
        ordered = {"ordered": True} if type(value) is OrderedDict else {}
        return {"dict": pairs, **ordered}

    def _other(self, value: Any, path: str) -> Any:
        try:
            return {"value": encode_number(value)}
        except TypeError:
            pass
        parts = registered_parts(value)
        if parts is None and self._foreign and callable(value):
            return {"value": encode(value)}  # equinox has functions among its leaves
        if parts is None:
            function = isinstance(value, types.FunctionType | types.BuiltinFunctionType)
            what = (
                "a function"
                if function
                else f"an object of type {type(value).__name__}"
            )
            self._problem(path, f"holds {what}")
            # Static values are hashable, and not what stands for an array.
            is_like_array = hasattr(value, "shape") and hasattr(value, "dtype")
            if path and type(value).__hash__ is not None and not is_like_array:
                self.may_be_static = True
            return None
        self._foreign += 1
        children = [
            [name, self.node(part, _under(path, *names_on(step)))]
            for name, (step, part) in parts.items()
        ]
        self._foreign -= 1
        aux = encode(static_part(value))
        return {"tree": class_name(type(value)), "children": children, "aux": aux}

    def _array(self, array: Any, path: str) -> Any:
        known = self._names.get(id(array))
        if known is not None:
            return known[1]
        if is_tracer(array):
            return self._problem(path, "is a tracer: save outside of jit")
        kind = "numpy" if type(array) in _NUMPY else "jax"
        if kind == "jax" and array.is_deleted():
            return self._problem(path, "was donated")
        node: dict[str, Any] = {"array": "", "kind": kind, "shape": list(array.shape)}
        name = number_name(array.dtype)
        if name:
            node["dtype"] = name
            if kind == "jax" and array.weak_type:
                node["weak"] = True
        elif kind == "jax" and is_key(array):
            node |= {"kind": "key", "impl": str(jax.random.key_impl(array))}
        else:
            return self._problem(path, f"has dtype {array.dtype}")
        if kind == "jax" and (spec := _spec(array.sharding)):
            node["spec"] = spec
        node["array"] = name = self._name(path)
        self.arrays[name] = array
        self._names[id(array)] = name, node
        return node

    def _name(self, path: str) -> str:
        # A lone surrogate has no UTF-8, which the header is read as by others.
        wanted = path.encode(errors="backslashreplace").decode() or "value"
        name = _free(wanted, self._taken)
        self._taken.add(name)
        return name

    def _problem(self, path: str, text: str) -> None:
        self.problems.append(f"{path or 'the tree'} {text}")


def _free(name: str, taken: Container[str]) -> str:
    """Return a name that is not taken: the same, or with a number."""
    count = 1
    while (found := name if count == 1 else f"{name}~{count}") in taken:
        count += 1
    return found


def _under(path: str, *steps: Any) -> str:
    return ".".join([path, *map(str, steps)] if path else map(str, steps))


def _is_named(encoded: Any) -> bool:
    return isinstance(encoded, dict) and not encoded.keys().isdisjoint(
        ("named", "partial", "leaves", "parts")
    )


def _spec(sharding: Any) -> list[Any]:
    """Return how an array lies on a mesh; nothing for one that is not split."""
    if not isinstance(sharding, NamedSharding) or not any(sharding.spec):
        return []
    return [
        [*map(_axis, s)] if isinstance(s, tuple) else _axis(s) for s in sharding.spec
    ]


def _axis(name: Any) -> Any:
    # A mesh takes whatever is hashable for a name. It is only told, not read.
    return name if name is None or type(name) is str else str(name)


def _size(shape: tuple[int, ...]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total


def class_name(cls: type) -> str:
    """Return the name by which a file knows a class that is no State."""
    return f"{cls.__module__}:{cls.__qualname__}"


def short_name(cls: type) -> str:
    """Return a class's name without the function that it was defined in."""
    return cls.__qualname__.rpartition("<locals>.")[2]
