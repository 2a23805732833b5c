"""Laws of updates: what `replace` puts in comes out, and nothing else changes."""

import copy
import dataclasses
from typing import Any

import jax
import numpy as np

from purestate._schema.fields import is_static
from purestate._schema.layout import layout_of
from purestate.testing._cases.state import REFUSED, StateCase
from purestate.testing._laws.law import Broken, law, same_as
from purestate.testing._strategies.classes import Inner
from purestate.testing._strategies.construct import parameters, specs_of
from purestate.testing._trees.asserts import mismatch
from purestate.testing._trees.leaves import flattened


@law("state", promise="after replace, the field holds what was given")
def get_put(case: StateCase) -> None:
    """Replace a field and read it."""
    name = case.field
    if name is None:
        return
    value = case.value(name)
    after = case.replace(case.state, **{name: value})
    if after is not REFUSED and not _converts(case, name):
        place = f"{case.root}.{name}"
        same_as(value, getattr(after, name), "given and read", root=place)


def _converts(case: StateCase, name: str) -> bool:
    return "converter" in specs_of(case.cls)[name].metadata


@law("state", promise="replacing a field by its own value changes nothing")
def put_get(case: StateCase) -> None:
    """Replace a field by what it holds."""
    name = case.field
    if name is None or _converts(case, name):
        return
    after = case.replace(case.state, **{name: getattr(case.state, name)})
    if after is not REFUSED:
        same_as(case.state, after, f"before and after replace({name}=...)", exact=True)


@law("state", promise="of two replacements the second one counts")
def put_put(case: StateCase) -> None:
    """Replace a field twice, and once."""
    name = case.field
    if name is None:
        return
    first, second = case.value(name), case.value(name)
    between = case.replace(case.state, **{name: first})
    if between is REFUSED:
        return
    twice = case.replace(between, **{name: second})
    once = case.replace(case.state, **{name: second})
    if twice is not REFUSED and once is not REFUSED:
        same_as(once, twice, f"replace({name}=...) once and twice", exact=True)


@law("state", promise="replace shares all fields that it does not change")
def shares_the_rest(case: StateCase) -> None:
    """Compare the other fields by identity."""
    name = case.field
    if name is None:
        return
    after = case.replace(case.state, **{name: case.value(name)})
    if after is REFUSED:
        return
    for other in case.settable():
        was, now = getattr(case.state, other), getattr(after, other)
        if other != name and was is not now and mismatch(was, now, exact=True):
            place = f"{case.root}.{other}"
            raise Broken(place, f"replace({name}=...) changed it as well.")


@law("state", promise="replace leaves the instance that it is called on alone")
def leaves_the_source(case: StateCase) -> None:
    """Compare the fields of the instance before and after."""
    name = case.field
    if name is None:
        return
    before = {n: getattr(case.state, n) for n in case.names()}
    leaves, structure = flattened(case.state)
    copy = structure.unflatten(leaves)
    case.replace(case.state, **{name: case.value(name)})
    for other, value in before.items():
        if getattr(case.state, other) is not value:
            raise Broken(f"{case.root}.{other}", "it changed in place.")
    same_as(copy, case.state, "before and after", exact=True)


@law("state", promise="replace makes what the constructor makes, derived fields too")
def constructs(case: StateCase) -> None:
    """Compare replace with constructing anew, where a constructor takes all fields."""
    known = parameters(case.cls)
    names = [name for name in case.settable() if name in known]
    if set(known) != set(names) or set(names) != set(case.settable()) or not names:
        return
    if any(_converts(case, name) for name in names):
        return
    name = case.field
    if name is None:
        return
    value = case.value(name)
    held: dict[str, Any] = {n: getattr(case.state, n) for n in names}
    made = case.tried(lambda: case.cls(**{**held, name: value}))
    after = case.replace(case.state, **{name: value})
    if made is not REFUSED and after is not REFUSED:
        same_as(
            made,
            after,
            f"{case.root}(...) and replace({name}=...), from the same values",
        )


@law("state", promise="dataclasses.replace gives what replace gives, or refuses")
def dataclass_replace(case: StateCase) -> None:
    """Replace a field in the ways of the standard library."""
    name = case.field
    if not case.is_state or name is None:
        return
    value = case.value(name)
    after = case.replace(case.state, **{name: value})
    if after is REFUSED:
        return
    newer: Any = getattr(copy, "replace", None)  # from Python 3.13 on
    ways: list[Any] = [dataclasses.replace, *([newer] if newer else [])]
    for way in ways:
        try:
            found = way(case.state, **{name: value})
        except (TypeError, ValueError):
            continue
        text = f"replace({name}=...) of the State and of {way.__module__}"
        same_as(after, found, text, exact=True)


@law("state", promise="a tree of flags keeps the flags that it is given")
def flags(case: StateCase) -> None:
    """Put flags in place of all leaves, and replace one of them."""
    name = case.field
    if not case.is_state or name is None or is_static(specs_of(case.cls)[name]):
        return
    layout = layout_of(case.cls)
    if not layout.arrays or layout.derived:  # what is derived need not take flags
        return
    for old, new in ((None, 0), (False, True), (0, None)):
        tree = jax.tree.map(lambda _, old=old: old, case.state)
        after = case.replace(tree, **{name: new})
        if after is REFUSED:
            continue
        for other in case.names():
            given = new if other == name else getattr(tree, other)
            found = getattr(after, other)
            if found is not given:
                raise Broken(
                    f"{case.root}.{other}",
                    f"in a tree of {old!r}, replace({name}={new!r}) made {found!r} of "
                    f"{given!r}.",
                )


@law("state", promise="a static field refuses methods of what holds arrays")
def static_methods(case: StateCase) -> None:
    """Replace static fields by methods of an array and of a State."""
    if not case.is_state:
        return
    array: Any = jax.device_put(np.ones(2, np.float32))
    specs = specs_of(case.cls)
    for name in case.settable():
        if not is_static(specs[name]) or _converts(case, name):
            continue
        for owner, method in (
            ("a State", Inner(inner=array).replace),
            ("an array", array.sum),
        ):
            try:
                case.state.replace(**{name: method})
            except Exception:  # noqa: BLE001  # whoever refuses it first
                continue
            raise Broken(
                f"{case.root}.{name}",
                f"it took a method of {owner}: jit would compile the arrays of that "
                f"into the program.",
            )
