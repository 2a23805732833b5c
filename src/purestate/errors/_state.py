"""Mistakes in constructing, updating and comparing States."""

import dataclasses
import types
from collections.abc import Iterable, Mapping

import jax

from purestate._compat import is_tracer
from purestate.errors._base import PurestateError
from purestate.errors._text import nearest, short


class FieldError(PurestateError, TypeError):
    """A name that the class does not have, or a required field that was not given."""

    @classmethod
    def unknown(cls, owner: type, name: str, known: Iterable[str]) -> "FieldError":
        """Return the error for a name that is not a field of `owner`."""
        known = tuple(known)
        if name in getattr(owner, "__dataclass_fields__", {}) and name not in known:
            return cls(
                f"{owner.__name__}.{name} is a ClassVar or an InitVar, which instances "
                f"do not hold: set it on the class, or declare it as a field."
            )
        specs = getattr(owner, "__dataclass_fields__", {})
        if name in specs and name not in known:
            return cls(
                f"{owner.__name__}.{name} is a ClassVar or an InitVar, so instances do "
                f"not hold it: set it on the class, or declare it as a field."
            )
        return cls(f"{owner.__name__} has no field {name!r}; {nearest(name, known)}")

    @classmethod
    def missing(
        cls, owner: type, names: Iterable[str], known: Iterable[str]
    ) -> "FieldError":
        """Return the error for required fields that a call left out."""
        listed, example = tuple(names), tuple(known)
        some = "field" if len(listed) == 1 else "fields"
        call = f"{owner.__name__}({', '.join(f'{n}=...' for n in example)})"
        return cls(
            f"{owner.__name__} needs a value for {some} {', '.join(listed)}: "
            f"write {call}, or give {listed[0]} a default."
        )

    @classmethod
    def started(cls, owner: type, name: str, fields: Iterable[str]) -> "FieldError":
        """Return the error for an `InitVar` in an update that has no use for it."""
        listed = ", ".join(fields)
        return cls(
            f"{owner.__name__}.replace was given the InitVar {name}, which starts "
            f"{listed} when a {owner.__name__} is made and has no effect later: "
            f"replace {listed}, or construct another."
        )


class UndeclaredFieldError(FieldError, AttributeError):
    """Assignment, while constructing, to a name that is not a declared field."""

    def __init__(
        self, cls: type, name: str, known: Iterable[str], *, is_pseudo: bool = False
    ) -> None:
        if is_pseudo:
            super().__init__(
                f"{cls.__name__}.{name} is a ClassVar or an InitVar, which instances "
                f"do not hold: assign it on the class, or declare it as a field."
            )
            return
        super().__init__(
            f"{cls.__name__} declares no field {name!r}, so it cannot be assigned: jax "
            f"would not see it. Declare it in the class body, `{name}: jax.Array` (or "
            f"`= ps.static()` for configuration); {nearest(name, known)}"
        )


class UnsetFieldError(FieldError):
    """A constructor ended without giving every field a value."""

    def __init__(self, cls: type, names: Iterable[str], where: str) -> None:
        listed = tuple(names)
        some = "field" if len(listed) == 1 else "fields"
        if not where:
            super().__init__(
                f"{cls.__name__} declares {', '.join(listed)} with init=False, and "
                f"nothing sets it: give it a default, set it in __post_init__, or drop "
                f"init=False."
            )
            return
        super().__init__(
            f"{cls.__name__}.{where} left {some} {', '.join(listed)} without a value: "
            f"assign `self.{listed[0]} = ...` in it, or give {listed[0]} a default."
        )


class DerivedFieldError(FieldError):
    """`replace` was given a field that `__post_init__` computes."""

    def __init__(self, cls: type, name: str) -> None:
        super().__init__(
            f"{cls.__name__}.{name} is computed in __post_init__, which runs again at "
            f"every replace, so a value given for it would be lost. Replace what it is "
            f"computed from. If __post_init__ only starts it, declare it with "
            f"ps.field(init=False, derived=False)."
        )


class NumberError(PurestateError, TypeError):
    """A Python number that does not fit the dtype of its array field."""

    def __init__(self, cls: type, name: str, value: object, dtype: object) -> None:
        super().__init__(
            f"{cls.__name__}.{name} holds {dtype} and {short(value)} does not fit: "
            f"pass an array, or change the dtype in the annotation or in "
            f"ps.field(dtype=...)."
        )


class StaticFieldError(PurestateError, TypeError):
    """A static field was given an array, a tracer or something unhashable."""

    def __init__(self, cls: type, name: str, value: object, place: str = "") -> None:
        kind = _kind(value)
        advice = _static_advice(name, value)
        inside = f"{place} is" if place else "got"
        super().__init__(
            f"{cls.__name__}.{name} is a static field and {inside} {_article(kind)}. "
            f"Static values are part of jit's cache key, so they must be hashable and "
            f"must not be arrays. {advice}"
        )


class FrozenStateError(PurestateError, dataclasses.FrozenInstanceError):
    """Assignment to, or deletion of, an attribute of a finished State."""

    @classmethod
    def changing(
        cls, owner: type, verb: str, name: str, known: Iterable[str]
    ) -> "FrozenStateError":
        """Return the error for `verb` ("assign", "delete") on attribute `name`."""
        known = tuple(known)
        if name not in known and hasattr(owner, name):
            return cls(
                f"cannot {verb} {owner.__name__}.{name}, which is no field but an "
                f"attribute of the class: a State is frozen. Return "
                f"self.replace(field=...) with what it depends on."
            )
        what = (
            f"cannot {verb} {owner.__name__}.{name}. Inside jit, grad, vmap and scan a "
            f"method works on a copy of its object, so the value would be lost, or "
            f"leak as a tracer."
        )
        if name not in known:
            return cls(
                f"{what} {name!r} is not a field either: declare it in the class body, "
                f"then return self.replace({name}=...); {nearest(name, known)}"
            )
        variable = owner.__name__.lower()
        return cls(
            f"{what} Return an updated instance:\n"
            f"    return self.replace({name}=...), out\n"
            f"and at the call:  {variable}, out = {variable}.method(...)"
        )

    @classmethod
    def unmade(cls, owner: type, name: str) -> "FrozenStateError":
        """Return the error for assigning to an instance that no constructor makes."""
        return cls(
            f"cannot assign {owner.__name__}.{name}: this {owner.__name__} was made by "
            f"object.__new__, and no constructor of it is running. Construct it, "
            f"{owner.__name__}(...)."
        )

    @classmethod
    def deleting(cls, owner: type, name: str) -> "FrozenStateError":
        """Return the error for deleting an attribute before the instance is frozen."""
        return cls(
            f"cannot delete {owner.__name__}.{name}: every field of a State has a "
            f"value. Assign another, such as None."
        )

    @classmethod
    def packed(cls, owner: type, verb: str, name: str) -> "FrozenStateError":
        """Return the error for `verb` on attribute `name` of a packed State."""
        return cls(
            f"cannot {verb} {name} of a packed {owner.__name__}: it is frozen. Return "
            f"an updated one from a function under ps.jit, or pack one: "
            f"ps.pack(packed.unpack().replace({name}=...))."
        )

    @classmethod
    def constructing(cls, owner: type) -> "FrozenStateError":
        """Return the error for running `__init__` on a finished instance."""
        return cls(
            f"cannot run {owner.__name__}.__init__ on a finished instance: a State is "
            f"frozen. Construct another, {owner.__name__}(...), or use replace(...)."
        )


class UnfinishedStateError(PurestateError, AttributeError):
    """An instance was used as a pytree before its constructor had set every field."""

    def __init__(self, cls: type, names: Iterable[str]) -> None:
        unset = tuple(names)
        what = f"{', '.join(unset)} has no value yet" if unset else "it is half built"
        super().__init__(
            f"this {cls.__name__} is not finished: {what}, because its constructor is "
            f"still running, or raised. Set every field before passing self to jax."
        )


class CheckError(PurestateError, ValueError):
    """A `__check__` returned False."""

    def __init__(self, cls: type, base: type) -> None:
        super().__init__(
            f"{base.__name__}.__check__ returned False for this {cls.__name__}: its "
            f"invariant does not hold. Raise an error with your own text in __check__ "
            f"to say which one."
        )


class StrictFieldError(PurestateError, TypeError):
    """A strict class was given a value of another shape, dtype or structure."""

    def __init__(self, cls: type, path: str, old: str, new: str) -> None:
        super().__init__(
            f"{cls.__name__} is strict and {path} would change from {old} to {new}. "
            f"Cast or reshape the value, construct a new {cls.__name__}, or drop "
            f"strict=True from the class."
        )


class TracedEqualityError(PurestateError, TypeError):
    """`==` between States was asked for while their values are tracers."""

    def __init__(self, cls: type, path: str) -> None:
        super().__init__(
            f"cannot compare {cls.__name__} with == here: {path} is a tracer, so its "
            f"values are not known while jax traces. Compare outside the transformed "
            f"function, or compare fields with jnp.array_equal and use jnp.where."
        )


class UnhashableStateError(PurestateError, TypeError):
    """A State with data fields was hashed."""

    def __init__(self, cls: type) -> None:
        super().__init__(
            f"{cls.__name__} holds arrays and has no hash. Do not mark it static: "
            f"remove static_argnums/static_argnames for it and pass it as an ordinary "
            f"argument, jit traces a State's arrays and keys its cache on the static "
            f"fields. To jit an instance that is itself callable: ps.jit(state). As a "
            f"key of a dict or of a cache use id(state), or its static fields."
        )


def _static_advice(name: str, value: object) -> str:
    is_array = hasattr(value, "shape") and hasattr(value, "dtype")
    is_node = not jax.tree_util.all_leaves([value])
    if is_array or (is_node and not isinstance(value, list | dict | set | tuple)):
        return f"Make {name} an ordinary field: drop ps.static() from its declaration."
    containers: Mapping[type, str] = {
        list: "tuple(...)",
        set: "frozenset(...)",
        bytearray: "bytes(...)",
    }
    for kind, instead in containers.items():
        if isinstance(value, kind):
            return (
                f"Pass {instead} instead (converter= in ps.static() can do that), or "
                f"make {name} an ordinary field if it holds arrays."
            )
    if isinstance(value, dict):
        key = next(iter(value), "lr")
        return (
            f"Give a frozen dataclass, or ps.static(converter=...) with an immutable "
            f"mapping: frozendict (built in from Python 3.15), "
            f"immutabledict.immutabledict, flax.core.FrozenDict; {name}[{key!r}] works "
            f"as before. Make {name} an ordinary field if it holds arrays."
        )
    if isinstance(value, types.MethodType | types.BuiltinMethodType):
        owner = type(value.__self__).__name__
        what = f"{owner}.{value.__name__}, obj"
        if isinstance(value.__self__, jax.Array):
            what = f"jnp.{value.__name__}, array"
        return (
            f"A method carries its object, whose arrays would be constants of the "
            f"program. Make {name} an ordinary field that holds "
            f"jax.tree_util.Partial({what}), or a property that returns the method."
        )
    if isinstance(value, types.FunctionType):
        return (
            f"It refers to a tracer, by a closure or a default, and would outlive it. "
            f"Make {name} an ordinary field that holds "
            f"jax.tree_util.Partial(function, value), with the traced value as an "
            f"argument."
        )
    return (
        f"Give {type(value).__name__} a __hash__ and an __eq__ by value, or make "
        f"{name} an ordinary field."
    )


def _article(kind: str) -> str:
    return f"an {kind}" if kind[:1].lower() in "aeiou" else f"a {kind}"


def _kind(value: object) -> str:
    if is_tracer(value):
        return "tracer"
    return "jax array" if isinstance(value, jax.Array) else type(value).__name__
