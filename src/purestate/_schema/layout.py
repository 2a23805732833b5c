"""One record of facts per State class, computed once and asked by everything else."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from purestate._schema.aux_data import Aux, aux_table
from purestate._schema.marks import LAYOUT
from purestate._schema.static_values import Unfit, python_numbers, typed
from purestate.errors import FieldError, StaticFieldError

BETWEEN = "/"


class Layout:
    """What is known about a State class, computed once when the class is made.

    Attributes:
        cls: the class.
        specs: every declared name, `InitVar` and `ClassVar` included, in order.
        names: the stored fields, in order; `data` and `static` are its two parts.
        stored: the same names, to ask whether one is among them.
        static_names: likewise, those of `static`.
        initvars: the `InitVar`s that its `__post_init__` takes.
        arrays: data fields annotated as arrays, with the dtypes that they admit.
        converters: fields with a `converter=`.
        checks: the `__check__` functions of the class and its bases, base first.
        derived: `init=False` fields that `__post_init__` computes, at each replace too.
        started: those that it only starts, `derived=False`.
        cached: names of `functools.cached_property` attributes.
        strict: whether updates must keep shape, dtype and structure.
        version: the number that files record, and `__migrate__` is given.
        was: the names that the class had when files were saved.
        init: the class whose hand-written `__init__` constructs it, None if generated.
        plain: data fields that `replace` may store as they come.
        namespace: globals of the functions generated for the class.
        flatten: the function that jax has for instances: its data and its `Aux`.
        unflatten: the one that makes an instance of an `Aux` and data.
        row_names: the data fields, `BETWEEN`, the static ones, for pickles.
        has_pickle_hooks: whether a method of the user says what is pickled, and how.
        compared: the data fields that count for `==`.
        table: the live `Aux` objects of the class.
        aux: the only `Aux` of a class without static fields.
        published: what `dataclasses` and others find as its fields: `specs`, and the
            pseudo-field by which `dataclasses.replace` is told.
        bare: whether the class body was empty, and may yet be filled: then the class is
            not registered with jax.
    """

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.specs: dict[str, dataclasses.Field[Any]] = {}
        self.names: tuple[str, ...] = ()
        self.data: tuple[str, ...] = ()
        self.static: tuple[str, ...] = ()
        self.stored: frozenset[str] = frozenset()
        self.static_names: frozenset[str] = frozenset()
        self.initvars: dict[str, dataclasses.Field[Any]] = {}
        self.arrays: dict[str, tuple[str, ...]] = {}
        self.converters: dict[str, Callable[[Any], Any]] = {}
        self.checks: tuple[tuple[type, Callable[[Any], object]], ...] = ()
        self.derived: tuple[str, ...] = ()
        self.started: tuple[str, ...] = ()
        self.cached: frozenset[str] = frozenset()
        self.strict = False
        self.version = 0
        self.was: tuple[str, ...] = ()
        self.init: type | None = None
        self.plain: frozenset[str] = frozenset()
        self.namespace: dict[str, Any] = {}
        self.flatten: Callable[[Any], tuple[tuple[Any, ...], Aux]]
        self.unflatten: Callable[[Aux, Iterable[Any]], Any]
        self.row_names = ""
        self.has_pickle_hooks = False
        self.compared: tuple[str, ...] = ()
        self.table = aux_table(cls.__module__, cls.__qualname__, ())
        self.aux = self.table.intern(())
        self.published: dict[str, dataclasses.Field[Any]] = {}
        self.bare = False

    def __reduce__(self) -> tuple[Any, ...]:
        return layout_of, (self.cls,)

    def intern(self, values: Mapping[str, Any]) -> Aux:
        """Return the one `Aux` for the static values among `values`.

        Raises:
            StaticFieldError: a value that is an array, a tracer or unhashable.
        """
        if not self.static:
            return self.aux
        aux = self.table.found(tuple(map(values.__getitem__, self.static)))
        if aux is not None:
            return aux
        fitted = tuple(self.fit(name, values[name]) for name in self.static)
        try:
            return self.table.intern(fitted)
        except Exception as error:
            error.add_note(
                f"raised while comparing static values of {self.cls.__name__}, which "
                f"are {', '.join(self.static)}: each needs an __eq__ that returns a "
                f"bool."
            )
            raise

    def fit(self, name: str, value: Any) -> Any:
        """Return what a static field stores for a value.

        Raises:
            StaticFieldError: an array, a tracer or something unhashable.
        """
        try:
            value = python_numbers(value)
            typed(value)
        except Unfit as unfit:
            place = f"its part {name}{unfit.path}" if unfit.path else ""
            raise StaticFieldError(self.cls, name, unfit.value, place) from None
        except RecursionError:
            raise StaticFieldError(self.cls, name, value, "within itself it") from None
        return value


def layout_of(cls: type) -> Layout:
    """Return the record of a State class.

    Raises:
        KeyError: a subclass whose `__init_subclass__` did not call `super()`'s.
    """
    return cls.__dict__[LAYOUT]  # type: ignore[no-any-return]


def state_layout(state: Any, caller: str) -> Layout:
    """Return the record of a State's class, for functions that take nothing else.

    Raises:
        FieldError: something else was given to `caller`.
    """
    cls = type(state)
    if LAYOUT in cls.__dict__:
        return layout_of(cls)
    getattr(state, "replace", None)  # a donated State explains itself
    raise FieldError(
        f"{caller} takes a State, and got an object of type {cls.__name__}."
    )
