"""`Saved`: what a file holds, without the classes that it was made of.

States, named tuples and foreign classes are dicts here, and arrays are `Leaf` objects,
which read their numbers when numpy or jax asks. `__migrate__` gets such a tree and may
change it.
"""

import copy
import functools
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from purestate._compat import untyped_jax
from purestate._inspect.repr import pformat
from purestate._inspect.summary import summary
from purestate._saving.describe import FORMAT
from purestate._saving.values import Recorded, decode, dtype_named, value_text
from purestate.errors import LoadError

if TYPE_CHECKING:
    from typing import Self


class Source(Protocol):
    """Where the numbers of leaves come from.

    Attributes:
        name: of the file, or what stands for it in messages.
    """

    name: str

    def check(self, leaf: "Leaf") -> None:
        """Raise an error of any kind if it has no such leaf."""

    def close(self) -> None:
        """Let go of the file: nothing is read after this."""

    def read(self, leaves: list["Leaf"], shardings: list[Any]) -> Iterator[Any]:
        """Yield each leaf with its numbers as they are stored."""
        ...


class Leaf(np.lib.mixins.NDArrayOperatorsMixin):
    """An array that was saved: `numpy.asarray` and `jnp.asarray` read it.

    So do operators, indices, and the functions of numpy, as if it were its numbers.

    Attributes:
        shape: its shape.
        dtype: its dtype.
    """

    __slots__ = ("dtype", "impl", "kind", "name", "shape", "source", "stored", "weak")

    def __init__(self, node: Mapping[str, Any], source: Source) -> None:
        """Make a leaf of its description.

        Raises:
            Exception: of any kind, if it is none.
        """
        self.name: str = node["array"]
        self.kind: str = node["kind"]  # "jax", "numpy", "key"
        self.shape = tuple(node["shape"])
        self.weak = node.get("weak") is True
        self.source = source
        self.impl: str | None = node["impl"] if self.kind == "key" else None
        if any(type(n) is not int or n < 0 for n in self.shape):
            raise ValueError(f"{self.name} has the shape {self.shape}")
        if self.kind not in ("jax", "numpy", "key"):
            raise ValueError(f"{self.name} is of kind {self.kind!r}")
        shape = self.shape
        if self.impl is None:
            self.dtype: Any = dtype_named(node["dtype"])
            dtype = self.dtype
        else:
            self.dtype, inner, dtype = _of_impl(self.impl)
            shape = (*shape, *inner)
        self.stored = shape, dtype  # of its numbers: of a key those of its data
        source.check(self)

    def __hash__(self) -> int:
        return object.__hash__(self)  # numpy's operators bring an __eq__ without one

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes its numbers take."""
        return int(math.prod(self.stored[0]) * self.stored[1].itemsize)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        ((_, numbers),) = self.source.read([self], [None])
        return np.asarray(numbers, dtype)

    def __array_ufunc__(
        self, function: Any, method: str, *inputs: Any, **options: Any
    ) -> Any:
        numbers = [np.asarray(x) if isinstance(x, Leaf) else x for x in inputs]
        return getattr(function, method)(*numbers, **options)

    def __getattr__(self, name: str) -> Any:
        text = f"a Leaf has no {name}"
        if hasattr(np.ndarray, name):
            text += f", and numpy.asarray(leaf).{name} reads it first"
        raise AttributeError(text)

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(np.asarray(self))

    def __float__(self) -> float:
        return float(np.asarray(self))

    def __int__(self) -> int:
        return int(np.asarray(self))

    def __jax_array__(self) -> Any:
        array = jnp.array(np.asarray(self))
        return array if self.impl is None else wrapped(array, self.impl)

    def __repr__(self) -> str:
        return pformat(self)


@functools.cache
def _of_impl(impl: str) -> tuple[Any, tuple[int, ...], Any]:
    key = jax.eval_shape(functools.partial(untyped_jax.random.key, impl=impl), 0)
    data = jax.eval_shape(jax.random.key_data, key)
    return key.dtype, data.shape, data.dtype


def wrapped(data: Any, impl: str) -> Any:
    """Return a key that has these numbers."""
    return untyped_jax.random.wrap_key_data(data, impl=impl)


class Saved(dict[Any, Any]):
    """A State as a file has it: a dict of its fields, static ones too.

    What lies in them are other `Saved`, lists, tuples, dicts, numbers and `Leaf`
    objects for arrays. A named tuple or a class of another library is a `Saved`, too.

    Attributes:
        name: of the class.
        module: where it was defined.
        version: of the class, when it was saved.
        extra: what was given to `ps.save` as that.
        path: of the file.
    """

    def __init__(self, fields: Mapping[Any, Any], kind: str, name: str = "") -> None:
        super().__init__(fields)
        self.kind, self.name = kind, name
        self.module = self.path = ""
        self.source: Source | None = None
        self.version = 0
        self.extra: Any = None
        self.data: dict[str, Any] = {}  # what was saved as data, to tell it from static
        self.aux: Recorded | None = None  # beside the children of a class of others

    def close(self) -> None:
        """Close the file, from which no array can be read then; `with` does it, too.

        Without it the file is closed when neither this nor an array of it is left.
        """
        if self.source is not None:
            self.source.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        rows = [*_static_rows(self, "")]
        if self.version:
            rows.insert(0, ("version", str(self.version)))
        width = max((len(name) for name, _ in rows), default=0)
        lines = (f"{name:<{width}}  {text}" for name, text in rows)
        return "\n".join([str(summary(self)), *lines])

    def __purestate_shown__(self) -> tuple[str, dict[str, Any]]:
        """Return what `ps.summary` shows: a name, and the parts by step."""
        name = self.name.rpartition(":")[2] or self.kind
        if self.kind == "state":
            return name, {f".{x}": self[x] for x in self if x in self.data}
        if self.kind == "namedtuple":
            return name, {f".{x}": part for x, part in self.items()}
        if self.kind == "tree":  # its keys are steps
            return name, dict(self)
        return name, {f"[{x!r}]": part for x, part in self.items()}

    def __repr__(self) -> str:
        return f"<Saved {self.name or self.kind}: {', '.join(map(str, self))}>"


def _static_rows(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the static values of the States in a tree, by path."""
    if isinstance(value, Saved):
        _, parts = value.__purestate_shown__()
        if value.kind == "state":
            for name in (x for x in value if x not in value.data):
                yield f"{path}.{name}".removeprefix("."), value_text(value[name])
    elif isinstance(value, dict):
        parts = {f"[{key!r}]": part for key, part in value.items()}
    elif isinstance(value, list | tuple):
        parts = {f"[{i}]": part for i, part in enumerate(value)}
    else:
        return
    for step, part in parts.items():
        yield from _static_rows(part, path + step)


def saved_tree(manifest: Any, source: Source) -> Saved:
    """Return what a manifest describes.

    Raises:
        Exception: of any kind, for something that is no manifest.
        LoadError: a manifest of a later version.
    """
    number = manifest["purestate"]
    if type(number) is not int or number > FORMAT:
        raise LoadError.newer(source.name, number, FORMAT)
    found = _tree(manifest["root"], source)
    if not isinstance(found, Saved):
        items: Any = {"": found}
        if isinstance(found, dict | list | tuple):
            items = found if isinstance(found, dict) else dict(enumerate(found))
        found = Saved(items, type(found).__name__)
    found.extra = manifest.get("extra")
    found.path, found.source = source.name, source
    return found


def copied(part: Any) -> Any:
    """Return a part with copies of its containers, which a migration may change."""
    if isinstance(part, Saved):
        made = copy.copy(part)
        same = {id(value): copied(value) for value in part.values()}
        for key, value in part.items():
            made[key] = same[id(value)]
        made.data = {key: same.get(id(value)) for key, value in part.data.items()}
        return made
    if isinstance(part, dict):
        return type(part)((key, copied(value)) for key, value in part.items())
    return type(part)(map(copied, part)) if type(part) in (list, tuple) else part


def as_it_was(part: Any) -> Any:
    """Return a part of a file, where it is no State as the container that it was."""
    if not isinstance(part, Saved) or part.kind in ("state", "namedtuple", "tree"):
        return part
    if part.kind in ("list", "tuple"):
        return (list if part.kind == "list" else tuple)(part.values())
    if part.kind in ("dict", "OrderedDict"):
        return (OrderedDict if part.kind == "OrderedDict" else dict)(part)
    return part[""]


def _tree(node: Any, source: Source) -> Any:
    if "array" in node:
        return Leaf(node, source)
    if "value" in node:
        return decode(node["value"])
    if "none" in node:
        return None
    if "state" in node:
        data = {n: _tree(part, source) for n, part in node["data"].items()}
        static = {n: decode(value) for n, value in node["static"].items()}
        found = Saved(data | static, "state", _checked(node["state"], str))
        found.module, found.data = _checked(node["module"], str), data
        found.version = _checked(node["version"], int)
        found.path, found.source = source.name, source
        return found
    if "dict" in node:
        pairs = [(decode(k), _tree(part, source)) for k, part in node["dict"]]
        return OrderedDict(pairs) if node.get("ordered") else dict(pairs)
    for kind in (list, tuple):
        if kind.__name__ in node:
            return kind(_tree(part, source) for part in node[kind.__name__])
    if "namedtuple" in node:
        parts = node["fields"].items()
    else:
        parts = node["children"]
    kind_name = "namedtuple" if "namedtuple" in node else "tree"
    fields = {name: _tree(part, source) for name, part in parts}
    found = Saved(fields, kind_name, _checked(node[kind_name], str))
    if "aux" in node:
        decode(node["aux"])  # it is a value
        found.aux = Recorded(node["aux"])
    found.path, found.source = source.name, source
    return found


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} in the place of a {kind.__name__}")
    return value
