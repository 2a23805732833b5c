"""How a class becomes a State class: everything that is computed once, here.

`State.__init_subclass__` calls `set_up`, which reads the body, fills the record of the
class, writes its functions and registers it with jax. There is no metaclass: classes
mix with `abc.ABC`, `typing.Generic`, `Protocol` and foreign metaclasses freely.
"""

import dataclasses
import enum
import threading
import types
from typing import Any

from purestate._instance.cached_property import guard_cached_properties
from purestate._instance.construct import WRAPS, wrapped_init
from purestate._instance.copies import wrapped_setstate
from purestate._instance.pytree import register
from purestate._instance.replace import replace
from purestate._schema.annotations import array_dtypes
from purestate._schema.aux_data import aux_table
from purestate._schema.class_body import read_body
from purestate._schema.fields import (
    as_names,
    is_initvar,
    is_static,
    is_stored,
    old_names,
    sharding_spec,
)
from purestate._schema.layout import BETWEEN, Layout, layout_of
from purestate._schema.marks import LAYOUT, is_state_class
from purestate._state.cloudpickle import is_bare, refilled
from purestate._state.dataclass import FIELDS, become_dataclass, declared_fields
from purestate._state.generated import make_init, make_replace
from purestate.errors import DeclarationError, InheritedInitError, ShardingError

_ARRAYS = "__purestate_arrays__"
_STRICT = "__purestate_strict__"
_VERSION = "__purestate_version__"
_WAS = "__purestate_was__"
_HOOKS = (
    "__getstate__",
    "__setstate__",
    "__reduce_ex__",
    "__getnewargs__",
    "__getnewargs_ex__",
)
_lock = threading.RLock()


def set_up(
    cls: type,
    root: type,
    *,
    kw_only: bool = False,
    strict: bool | None = None,
    version: int | None = None,
    was: str | tuple[str, ...] = (),
) -> None:
    """Make `cls`, whose body has been executed, a State class.

    Args:
        cls: the class.
        root: `State` itself.
        kw_only: class keyword.
        strict: class keyword, None to inherit it.
        version: class keyword, None to inherit it.
        was: class keyword, which is not inherited.

    Raises:
        DeclarationError: the body cannot become a State.
        ShardingError: a `spec=` that names no other data field.
    """
    _check_bases(cls)
    bare = is_bare(cls)
    inherited: dict[str, dataclasses.Field[Any]] = {}
    for base in cls.__mro__[:0:-1]:
        if is_state_class(base):
            # cloudpickle sets __dataclass_fields__ anew on a class that exists, to
            # copies whose MISSING is another object: the record keeps the true ones.
            awaken(base, root, in_use=False)
            inherited |= layout_of(base).specs
        else:
            inherited |= declared_fields(base)
    own = read_body(cls, inherited, kw_only=kw_only)
    if strict is not None:
        setattr(cls, _STRICT, strict)
    if version is not None:
        setattr(cls, _VERSION, _checked_version(cls, version))
    if cls.__dict__.get("__migrate__") and not getattr(cls, _VERSION, 0):
        raise DeclarationError(
            f"{cls.__name__} has __migrate__ and no version, so it would never run: "
            f"files of an older version are migrated. Write class "
            f"{cls.__name__}(..., version=1), and a higher number at each change."
        )
    if was != ():
        setattr(cls, _WAS, _checked_was(cls, was))
    layout = Layout(cls)
    setattr(cls, LAYOUT, layout)
    _fill(layout, inherited | own, own, root)
    layout.bare = bare
    if not bare:
        register(layout)


def awaken(cls: type, root: type, *, in_use: bool = True) -> None:
    """Register a class that was made empty, after reading it again if it was filled.

    Args:
        cls: a State class.
        root: `State` itself.
        in_use: whether it has an instance: then what is empty was meant to be.
    """
    layout = layout_of(cls)
    with _lock:
        if not layout.bare:
            return
        filled = refilled(layout)
        if filled is not None:
            _fill(layout, *filled, root)
        if filled is not None or in_use:
            register(layout)
            layout.bare = False


def _check_bases(cls: type) -> None:
    name = cls.__name__
    if cls.__dict__.get("__slots__"):
        raise DeclarationError(
            f"{name} declares __slots__, which State does not use: remove it, "
            f"annotated names are the fields."
        )
    for base in cls.__mro__[1:-1]:
        is_builtin = not base.__flags__ & (1 << 9)  # Py_TPFLAGS_HEAPTYPE
        if is_builtin or issubclass(base, enum.Enum):
            raise DeclarationError(
                f"{name} cannot be a State and a {base.__name__}: instances are made "
                f"in another way. Hold the {base.__name__} in a field."
            )
    check = cls.__dict__.get("__check__")
    if "__check__" in cls.__dict__ and not isinstance(check, types.FunctionType):
        raise DeclarationError(
            f"{name}.__check__ must be a method, `def __check__(self)`, and is a "
            f"{type(check).__name__}. The checks of base classes always run."
        )

    migrate = cls.__dict__.get("__migrate__")
    if migrate is not None and not isinstance(migrate, (staticmethod, classmethod)):
        raise DeclarationError(
            f"{name}.__migrate__ must be a static method, and is a "
            f"{type(migrate).__name__}: files are migrated before there is an "
            f"instance. Write @staticmethod above `def __migrate__(saved, version)`."
        )


def _checked_version(cls: type, version: object) -> int:
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise DeclarationError(
            f"{cls.__name__} has version={version!r}: give an int, 0 or more. Files "
            f"record it, and __migrate__ is told which version a file has."
        )
    return version


def _checked_was(cls: type, was: object) -> tuple[str, ...]:
    try:
        names = as_names(was)
    except DeclarationError as error:
        raise DeclarationError(f"class {cls.__name__}: {error}") from None
    if cls.__name__ in names:
        raise DeclarationError(
            f"class {cls.__name__} has its own name in was={was!r}: give the names "
            f"that it had before."
        )
    return names


def _check_old_names(layout: Layout) -> None:
    """Refuse a `was=` by which a file's field could be taken for two."""
    owner, taken = layout.cls.__name__, dict[str, str]()
    for field, spec in layout.specs.items():
        for name in old_names(spec):
            if field not in layout.stored:
                raise DeclarationError(
                    f"{owner}.{field} has was={name!r} and is not stored, so no file "
                    f"holds it: remove was=."
                )
            if name in layout.stored:
                raise DeclarationError(
                    f"{owner}.{field} has was={name!r}, which is a field of {owner}: "
                    f"a file's {name} would be meant for both. Remove was=, or move "
                    f"the value in __migrate__."
                )
            if taken.setdefault(name, field) != field:
                raise DeclarationError(
                    f"{owner}.{taken[name]} and {owner}.{field} both have "
                    f"was={name!r}: leave it to one, and make the other in "
                    f"__migrate__."
                )


def _check_mirrors(layout: Layout) -> None:
    """Refuse a `spec=` without arrays, or that mirrors no other data field."""
    specs = {name: sharding_spec(spec) for name, spec in layout.specs.items()}
    for field, spec in specs.items():
        if spec is not None and field not in layout.data:
            raise DeclarationError(
                f"{layout.cls.__name__}.{field} has a spec= and is not stored, so it "
                f"has no arrays to split: remove spec=."
            )
    mirrors = {name: spec for name, spec in specs.items() if isinstance(spec, str)}
    for field, name in mirrors.items():
        if name == field or name not in layout.data:
            raise ShardingError.not_a_field(layout.cls, field, name, layout.data)
        seen = [field]
        while seen[-1] in mirrors:
            seen.append(mirrors[seen[-1]])
            if seen[-1] == field:
                raise ShardingError.circle(layout.cls, seen)
            if seen[-1] in seen[:-1]:
                break  # the circle begins further on, and is found from there


def _fill(
    layout: Layout,
    specs: dict[str, Any],
    own: dict[str, dataclasses.Field[Any]],
    root: type,
) -> None:
    """Compute the record of a class from its fields, and write its functions."""
    cls = layout.cls
    stored = [name for name, spec in specs.items() if is_stored(spec)]
    layout.specs = specs
    layout.names = tuple(stored)
    layout.data = tuple(name for name in stored if not is_static(specs[name]))
    layout.static = tuple(name for name in stored if is_static(specs[name]))
    layout.table = aux_table(cls.__module__, cls.__qualname__, layout.static)
    layout.stored, layout.static_names = frozenset(stored), frozenset(layout.static)
    layout.arrays = cls.__dict__.get(_ARRAYS) or _arrays(cls, layout, own)
    setattr(cls, _ARRAYS, layout.arrays)  # for cloudpickle, which copies annotations
    layout.converters = {
        name: specs[name].metadata["converter"]
        for name in stored
        if specs[name].metadata.get("converter") is not None
    }
    post_init = hasattr(cls, "__post_init__")
    layout.initvars = {n: s for n, s in specs.items() if post_init and is_initvar(s)}
    computed = [n for n in stored if post_init and not specs[n].init]
    started = {n for n in computed if specs[n].metadata.get("derived") is False}
    layout.derived = tuple(name for name in computed if name not in started)
    layout.started = tuple(name for name in computed if name in started)
    layout.checks = tuple(
        (base, base.__dict__["__check__"])
        for base in cls.__mro__[::-1]
        if "__check__" in base.__dict__
    )
    layout.cached = guard_cached_properties(cls)
    layout.strict = bool(getattr(cls, _STRICT, False))
    layout.version = getattr(cls, _VERSION, 0)
    layout.was = cls.__dict__.get(_WAS, ())
    _check_old_names(layout)
    _check_mirrors(layout)
    if not all(specs[name].compare for name in layout.data):
        layout.compared = tuple(name for name in layout.data if specs[name].compare)
    else:
        layout.compared = layout.data
    layout.row_names = " ".join((*layout.data, BETWEEN, *layout.static))
    layout.plain = frozenset(layout.data) - layout.converters.keys()
    become_dataclass(layout, own, root)
    _finish_abstract(cls)
    _place_init(layout, own, root)
    _place_replace(layout)
    _place_pickling(layout, root)


def _arrays(
    cls: type, layout: Layout, own: dict[str, dataclasses.Field[Any]]
) -> dict[str, tuple[str, ...]]:
    """Return the data fields that hold arrays, with the dtypes admitted by name."""
    decided: dict[str, tuple[str, ...] | None] = {}
    for base in cls.__mro__[:0:-1]:
        if is_state_class(base):
            known = layout_of(base)
            decided |= {name: known.arrays.get(name) for name in known.names}
    arrays = {}
    for name in layout.data:
        spec = layout.specs[name]
        dtypes = decided.get(name)
        if name in own or name not in decided:
            dtypes = array_dtypes(cls, spec.type)
            if dtypes is None and spec.metadata.get("dtype") is not None:
                dtypes = ()
        if dtypes is not None:
            arrays[name] = dtypes
    return arrays


def _place_init(
    layout: Layout, own: dict[str, dataclasses.Field[Any]], root: type
) -> None:
    cls: Any = layout.cls
    written = cls.__dict__.get("__init__")
    if written is not None and not hasattr(written, "__purestate_generated__"):
        layout.init = cls
        written = getattr(written, WRAPS, written)
        cls.__init__ = wrapped_init(cls, written)
        return
    above = next((layout_of(b) for b in cls.__mro__[1:] if is_state_class(b)), None)
    if above is None or above.init is None:
        mixin = None if any(map(is_stored, own.values())) else _mixin_init(cls, root)
        if mixin is None:
            cls.__init__ = make_init(layout)
        else:
            layout.init = cls
            cls.__init__ = wrapped_init(cls, mixin)
        return
    owner: Any = above.init
    layout.init = owner
    if cls.__init__ is not owner.__init__:  # a mixin's, which calls super()'s
        owner = layout.init = cls
        cls.__init__ = wrapped_init(cls, cls.__init__)
    unset = [
        name
        for name in layout.names
        if name in own
        and layout.specs[name].default is layout.specs[name].default_factory
        and name not in (*layout.derived, *layout.started)
    ]
    if unset:
        raise InheritedInitError(cls, owner, unset)


def _mixin_init(cls: type, root: type) -> Any:
    """Return the `__init__` of a plain class that stands before the first State.

    Not that of a dataclass, whose fields are among those of the class, nor what typing
    puts on protocols.
    """
    for base in cls.__mro__[1:]:
        if is_state_class(base) or base is root:
            return None
        init = base.__dict__.get("__init__")
        is_dataclass = FIELDS in base.__dict__
        if init is not None and not is_dataclass and init.__module__ != "typing":
            return init
    return None


def _place_replace(layout: Layout) -> None:
    cls: Any = layout.cls
    if getattr(cls.replace, "__purestate_generated__", cls.replace is replace):
        cls.replace = make_replace(layout) or replace


def _place_pickling(layout: Layout, root: Any) -> None:
    cls: Any = layout.cls
    written = cls.__setstate__
    if written is not root.__setstate__ and not hasattr(written, WRAPS):
        cls.__setstate__ = wrapped_setstate(written)
    own = (getattr(cls, name, None) is not getattr(root, name, None) for name in _HOOKS)
    layout.has_pickle_hooks = any(own) or cls.__reduce__ not in (
        root.__reduce__,
        object.__reduce__,
    )
    if layout.has_pickle_hooks and cls.__reduce__ is root.__reduce__:
        cls.__reduce__ = object.__reduce__  # which asks the hooks


def _finish_abstract(cls: type) -> None:
    """Make `abc.abstractmethod` count also without `abc.ABCMeta`."""
    if hasattr(type(cls), "register"):  # ABCMeta does it itself, later
        return
    names = {n for n, v in cls.__dict__.items() if _is_abstract(v)}
    for base in cls.__bases__:
        for name in getattr(base, "__abstractmethods__", ()):
            if _is_abstract(getattr(cls, name, None)):
                names.add(name)
    if names or hasattr(cls, "__abstractmethods__"):
        cls.__abstractmethods__ = frozenset(names)  # type: ignore[attr-defined]


def _is_abstract(value: object) -> bool:
    return bool(getattr(value, "__isabstractmethod__", False))
