"""The source of generated constructors and of the short way through `replace`.

Everything that depends on the class alone is decided while writing, so that a call does
only what its class needs: no test for hooks, defaults or static fields that the class
has not. What the source calls when something is out of the ordinary stands in
`_instance/construct`, which it knows as `_ps`.

The names of parameters are the user's, and may be `type` or `KeyError`. So whatever the
source reads besides them starts with `_ps`, which no field may.
"""

import builtins
import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from purestate._compat import fills_dict
from purestate._instance import construct
from purestate._instance.construct import Missing
from purestate._instance.numbers import NOT_NUMBERS
from purestate._instance.pytree import store_lines
from purestate._instance.replace import replace, replaced
from purestate._instance.source import define
from purestate._schema.fields import MISSING, is_initvar, is_stored
from purestate._schema.layout import Layout
from purestate._schema.marks import AUX, OPEN
from purestate._state.argument_types import argument_types
from purestate.errors import DeclarationError

_REPLACE = inspect.signature(replace)


def make_init(layout: Layout) -> Callable[..., None]:
    """Return an `__init__` that takes the fields, as `dataclasses` would write it.

    Raises:
        DeclarationError: a field without default after one with a default.
    """
    cls, specs = layout.cls, layout.specs
    taken = [s for s in specs.values() if s.init and (is_stored(s) or is_initvar(s))]
    ordered = [s for s in taken if not s.kw_only] + [s for s in taken if s.kw_only]
    _check_order(cls, taken)
    body = _Body(layout)
    parameters = [body.parameter(spec) for spec in ordered]
    split = len(taken) - sum(bool(s.kw_only) for s in taken)
    parameters.insert(split, "*_ps_more")
    function = define(
        cls,
        f"__init__({', '.join(['_ps_self', *parameters, '**_ps_unknown'])})",
        body.lines(ordered),
        layout.namespace,
    )
    types = argument_types(layout)
    types = {spec.name: types[spec.name] for spec in ordered if spec.name in types}
    function.__signature__ = _signature(ordered, types)  # type: ignore[attr-defined]
    function.__annotations__ = types | {"return": None}
    function.__purestate_generated__ = True  # type: ignore[attr-defined]
    return function


class _Body:
    """Writes the lines of one generated `__init__`.

    For `class Box(State)` with `cache: Array` and `gain: float = static(default=2.0)`:

        def __init__(_ps_self, cache=_ps_missing, gain=_ps_default_gain, *_ps_more,
                     **_ps_unknown):
            ...                                            # the way out of the ordinary
            try:
                if not (_ps_type(cache) is _ps_array):     # `arrays`
                    cache, = _ps.numbers(_ps_layout, ('cache',), _ps_locals())
                if _ps_type(_ps_self) is not _ps_cls:      # called by a subclass's
                    ...
                try:                                       # `end`
                    _ps_aux = _ps_interned[gain, _ps_type(gain)]()
                except _ps_builtins.Exception:
                    _ps_aux = None
                if _ps_aux is None:
                    ...
                _ps_set(_ps_self, '_ps_dict', {'cache': cache, ...: _ps_aux})
            except _ps_builtins.BaseException as _ps_error:
                ...                                        # freezes, explains, raises

    A class with a `__post_init__`, or with a field that only that could set, ends in
    `slow_end`: user code runs before the instance is sealed.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout, self.namespace = layout, layout.namespace
        self.where = "__post_init__" if hasattr(layout.cls, "__post_init__") else ""
        unset = [s for s in layout.specs.values() if is_stored(s) and not s.init]
        self.preset = [s for s in unset if s.default is not s.default_factory]
        self.slow = bool(self.where) or len(self.preset) < len(unset)
        self.namespace |= {
            "_ps": construct,
            "_ps_builtins": builtins,
            "_ps_locals": builtins.locals,
            "_ps_layout": layout,
            # What every construction reads, without a look into a module.
            "_ps_type": type,
            "_ps_cls": layout.cls,
            "_ps_set": object.__setattr__,
            "_ps_missing": Missing,
            "_ps_interned": layout.table.plain,
            "_ps_aux": layout.aux,
            "_ps_array": Missing,  # becomes jax's own class once an array was seen
        }

    def parameter(self, spec: dataclasses.Field[Any]) -> str:
        name = spec.name
        if spec.default_factory is not MISSING:
            self.namespace[f"_ps_factory_{name}"] = spec.default_factory
        elif spec.default is not MISSING:
            self.namespace[f"_ps_default_{name}"] = spec.default
            return f"{name}=_ps_default_{name}"
        return f"{name}=_ps_missing"

    def lines(self, ordered: list[dataclasses.Field[Any]]) -> list[str]:
        taken = ordered if self.slow else [*ordered, *self.preset]
        stored = [s.name for s in taken if is_stored(s)]
        initvars = "".join(f"{s.name}, " for s in ordered if is_initvar(s))
        lines = [
            "_ps_dict = _ps_self._ps_dict",
            # Unknown names, a second call, dataclasses.replace, a class that was filled
            # by cloudpickle after it was made: all rare, and told by truth values.
            "if _ps_unknown or _ps_dict or _ps_more or _ps_layout.bare:",
            "    if _ps.adopts(_ps_self, _ps_layout, _ps_locals()): return",
        ]
        body = [*self.required(taken)]
        # Before converters and factories, so that they do not run if one is missing.
        body += self.arrays(s for s in taken if self.is_taken_as_given(s))
        body += [line for spec in taken for line in self.value(spec)]
        body += self.arrays(s for s in taken if not self.is_taken_as_given(s))
        body += [
            # The `__init__` of a subclass called this one through super(), and seals.
            "if _ps_type(_ps_self) is not _ps_cls:",
            "    _ps_scope = _ps_locals()",
            f"    return _ps.base_init(_ps_self, _ps_layout, _ps_scope, ({initvars}))",
        ]
        body += self.slow_end(stored, initvars) if self.slow else self.end(stored)
        return [
            *lines,
            "try:",
            *(f"    {line}" for line in body),
            "except _ps_builtins.BaseException as _ps_error:",
            "    _ps_scope, _ps_where = _ps_locals(), " + repr(self.where),
            "    _ps.failed(_ps_self, _ps_layout, _ps_error, _ps_where, _ps_scope)",
            "    raise",
        ]

    def required(self, taken: list[dataclasses.Field[Any]]) -> list[str]:
        """Return one test for all fields that no later line would find missing."""
        unchecked = [
            spec.name
            for spec in taken
            if spec.init
            and spec.default is spec.default_factory is MISSING
            and (
                spec.name in self.layout.converters
                or spec.name not in self.layout.arrays
            )
        ]
        tests = " or ".join(f"{name} is _ps_no" for name in unchecked)
        lines = ["_ps_no = _ps_missing", f"if {tests}: _ps.need()"]
        return lines if unchecked else []

    def value(self, spec: dataclasses.Field[Any]) -> list[str]:
        name = spec.name
        lines = []
        if not spec.init:
            lines += [f"{name} = {self.made(spec)}"]
        elif spec.default_factory is not MISSING:
            lines += [f"if {name} is _ps_missing: {name} = _ps_factory_{name}()"]
        if name in self.layout.converters:
            lines += [f"{name} = _ps.converted(_ps_layout, {name!r}, {name})"]
        return lines

    def is_taken_as_given(self, spec: dataclasses.Field[Any]) -> bool:
        is_made = not spec.init or spec.default_factory is not MISSING
        return not is_made and spec.name not in self.layout.converters

    def arrays(self, specs: Iterable[dataclasses.Field[Any]]) -> list[str]:
        """Return one test for all array fields: they are nearly always given as such.

        One per field would double what it takes to compile the function. jax's own
        class of arrays is private, so it is learnt from the first array that comes.
        """
        names = [spec.name for spec in specs if spec.name in self.layout.arrays]
        if not names:
            return []
        types = " is ".join(f"_ps_type({name})" for name in names)
        row = "".join(f"{name}, " for name in names)
        return [
            f"if not ({types} is _ps_array):",
            f"    {row}= _ps.numbers(_ps_layout, {tuple(names)!r}, _ps_locals())",
        ]

    def made(self, spec: dataclasses.Field[Any]) -> str:
        """Return the expression for the default of an init=False field."""
        self.parameter(spec)
        is_value = spec.default is not MISSING
        return f"_ps_default_{spec.name}" if is_value else f"_ps_factory_{spec.name}()"

    def end(self, stored: list[str]) -> list[str]:
        lines = []
        if self.layout.static:
            names = self.layout.static
            key = ", ".join(f"{name}, _ps_type({name})" for name in names)
            values = ", ".join(f"{name!r}: {name}" for name in names)
            # Values that refer to nothing are looked up without a call: the dict holds
            # weak references, so a hit may be dead, and an unhashable value raises.
            lines += [
                "try:",
                f"    _ps_aux = _ps_interned[{key}]()",
                "except _ps_builtins.Exception:",
                "    _ps_aux = None",
                "if _ps_aux is None:",
                f"    _ps_aux = _ps_layout.intern({{{values}}})",
                f"    {''.join(f'{name}, ' for name in names)} = _ps_aux.values",
            ]
        lines += store_lines({name: name for name in stored} | {AUX: "_ps_aux"})
        checks = ["_ps.run_checks(_ps_self, _ps_layout)"] if self.layout.checks else []
        return lines + checks

    def slow_end(self, stored: list[str], initvars: str) -> list[str]:
        call = [f"_ps_self.__post_init__({initvars})"] if self.where else []
        return [
            *(f"_ps_dict[{name!r}] = {name}" for name in stored),
            *(f"_ps_dict[{s.name!r}] = {self.made(s)}" for s in self.preset),
            f"_ps_dict[{OPEN!r}] = True",
            *call,
            f"_ps.finish(_ps_self, {tuple(stored)!r}, {self.where!r})",
        ]


def make_replace(layout: Layout) -> Callable[..., Any] | None:
    """Return a short way through `replaced` for plain changes, if there is one."""
    if layout.checks or layout.derived or layout.cached or layout.strict:
        return None
    layout.namespace |= {
        "_ps_plain": layout.plain,
        "_ps_cls": layout.cls,
        "_ps_set": object.__setattr__,
        "_ps_replaced": replaced,
        "_ps_others": NOT_NUMBERS,
        "_ps_new": object.__new__,
    }
    # The dict of the old instance is copied whole, its mark included: the static values
    # did not change. Anything else goes the long way: an open draft, a static field, a
    # converter, a wrong name, a Python number for an array.
    numbers = [
        "for _ps_value in _ps_changes.values():",
        "    if type(_ps_value) not in _ps_others:",
        "        return _ps_replaced(_ps_self, _ps_changes)",
    ]
    build = ["_ps_set(_ps_made, '_ps_dict', {**_ps_held, **_ps_changes})"]
    if fills_dict(len(layout.names) + 1):
        build = [
            "_ps_dict = _ps_made._ps_dict",
            "_ps_dict.update(_ps_held)",
            "_ps_dict.update(_ps_changes)",
        ]
    function = define(
        layout.cls,
        "replace(_ps_self, /, **_ps_changes)",
        [
            "_ps_held = _ps_self._ps_dict",
            f"if {AUX!r} not in _ps_held or not _ps_changes.keys() <= _ps_plain:",
            "    return _ps_replaced(_ps_self, _ps_changes)",
            *(numbers if layout.arrays else []),
            "_ps_made = _ps_new(_ps_cls)",
            *build,
            "return _ps_made",
        ],
        layout.namespace,
        shared=True,
    )
    # Without its examples, which would be doctests of every class of a user.
    function.__doc__ = str(replace.__doc__).partition(">>>")[0].rstrip()
    function.__signature__ = _REPLACE  # type: ignore[attr-defined]
    function.__purestate_generated__ = True  # type: ignore[attr-defined]
    return function


def _check_order(cls: type, taken: list[dataclasses.Field[Any]]) -> None:
    last = None
    for spec in taken:
        if spec.kw_only:
            continue
        if spec.default is not spec.default_factory:
            last = spec.name
        elif last is not None:
            raise DeclarationError(
                f"{cls.__name__}.{spec.name} has no default but follows {last}, which "
                f"has one, so positions would be ambiguous: move {spec.name} up, give "
                f"it a default, or make fields keyword-only (class "
                f"{cls.__name__}(..., kw_only=True))."
            )


def _signature(
    ordered: list[dataclasses.Field[Any]], types: dict[str, Any]
) -> inspect.Signature:
    kind = inspect.Parameter
    names = [spec.name for spec in ordered]
    parameters = [
        kind("self" if "self" not in names else "_ps_self", kind.POSITIONAL_OR_KEYWORD)
    ]
    for spec in ordered:
        default = _Factory() if spec.default is MISSING else spec.default
        if spec.default is spec.default_factory is MISSING:
            default = kind.empty
        how = kind.KEYWORD_ONLY if spec.kw_only else kind.POSITIONAL_OR_KEYWORD
        annotation = types.get(spec.name, kind.empty)
        parameters.append(kind(spec.name, how, default=default, annotation=annotation))
    return inspect.Signature(parameters, return_annotation=None)


class _Factory:
    def __repr__(self) -> str:
        return "<factory>"
