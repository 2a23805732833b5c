"""Laws of `at` and `draft`: in depth, they do what `replace` does field by field."""

from typing import Any

import jax
import numpy as np

from purestate._schema.fields import is_static
from purestate._schema.leaves import is_key
from purestate._schema.marks import DRAFT, held_by, is_state
from purestate.testing._cases.fresh import fresh
from purestate.testing._cases.state import REFUSED, StateCase
from purestate.testing._cases.ways import (
    Way,
    apart,
    assign,
    follow,
    is_derived,
    nested_replace,
    text,
    ways,
)
from purestate.testing._laws.law import Broken, law, same_as
from purestate.testing._strategies.annotations import draw_value
from purestate.testing._strategies.arrays import draw_array
from purestate.testing._strategies.construct import specs_of, stored
from purestate.testing._strategies.states import trees
from purestate.testing._trees.asserts import mismatch

_ANYTHING = trees()


@law("state", promise="at(place).set(value) is a chain of replacements, inside out")
def at(case: StateCase) -> None:
    """Set a place in depth, twice, and put back what was there."""
    way = _place(case)
    if way is None:
        return
    state, place = case.state, text(case.root, way)
    first, value = _value(case, way), _value(case, way)
    here: Any = lambda s: follow(s, way)  # noqa: E731
    expected = case.tried(lambda: nested_replace(state, way, value))
    if expected is REFUSED:
        return
    after = state.at(here).set(value)
    same_as(expected, after, "by replace and by at", root=place, exact=True)
    between = case.tried(lambda: state.at(here).set(first))
    if between is not REFUSED:
        twice = between.at(here).set(value)
        same_as(expected, twice, "set once and twice", root=place, exact=True)
    same = state.at(here).apply(lambda old: old)
    same_as(state, same, "before and after apply(old -> old)", root=place, exact=True)
    for other in ways(state):
        if not apart(way, other) or is_derived(case.state, other):
            continue
        was, now = follow(state, other), follow(after, other)
        # Static values are interned: an equal one may take their place.
        if was is not now and mismatch(was, now, exact=True):
            raise Broken(text(case.root, other), f"setting {place} changed it as well.")


@law("state", promise="two places at once are one after the other")
def at_two(case: StateCase) -> None:
    """Set two places that lie apart."""
    way = _place(case)
    rest = [w for w in _places(case) if way is not None and apart(w, way)]
    if way is None or not rest:
        return
    other = case.scope.choose(rest)
    first, second = _value(case, way), _value(case, other)
    state = case.state
    both = case.tried(
        lambda: state.at(lambda s: (follow(s, way), follow(s, other))).set(
            (first, second)
        )
    )
    one = case.tried(lambda: state.at(lambda s: follow(s, way)).set(first))
    if both is REFUSED or one is REFUSED:
        return
    after = case.tried(lambda: one.at(lambda s: follow(s, other)).set(second))
    if after is not REFUSED:
        same_as(after, both, "one after the other and at once", exact=True)


@law("state", promise="a draft that is assigned to is a chain of replacements")
def draft(case: StateCase) -> None:
    """Assign in a draft, and leave its source alone."""
    way = _place(case, assignable=True)
    if way is None:
        return
    state, value = case.state, _value(case, way)
    before = fresh(state)
    expected = case.tried(lambda: nested_replace(state, way, value))

    def drafted() -> Any:
        with state.draft() as new:
            assign(new, way, value)
        return new

    found = case.tried(drafted)
    place = text(case.root, way)
    same_as(before, state, "the draft's source before and after", exact=True)
    if expected is not REFUSED and found is not REFUSED:
        same_as(expected, found, "by replace and by draft", root=place, exact=True)
        for other in [(), *ways(found)]:
            node = follow(found, other)
            if is_state(node) and DRAFT in held_by(node):
                raise Broken(text(case.root, other), "it can still be assigned to.")


@law("state", promise="a draft without changes, or whose block raises, changes nothing")
def idle_draft(case: StateCase) -> None:
    """Open drafts for nothing."""
    if not case.is_state:
        return
    before = fresh(case.state)
    with case.state.draft() as new:
        pass
    same_as(case.state, new, "the source and an idle draft", exact=True)
    try:
        with case.state.draft() as new:
            for way in _places(case, assignable=True):
                assign(new, way, None)
            raise KeyError
    except Exception:  # noqa: BLE001  # an assignment may be refused, too
        pass
    same_as(before, case.state, "the source before and after a failure", exact=True)


def _places(case: StateCase, assignable: bool = False) -> list[Way]:
    """Return the ways to what can be set in depth."""
    if not case.is_state:
        return []
    found = []
    for way in ways(case.state):
        holder = follow(case.state, way[:-1])
        if is_derived(case.state, way) or (assignable and isinstance(holder, tuple)):
            continue
        is_place = way[:1] == way or _is_open(case, way) or _is_like(case, way)
        if is_place:
            found.append(way)
    return found


def _place(case: StateCase, assignable: bool = False) -> Way | None:
    found = _places(case, assignable)
    return case.scope.choose(found) if found else None


def _is_open(case: StateCase, way: Way) -> bool:
    """Return whether the place lies in a field of the State that may hold anything."""
    spec = specs_of(case.cls)[way[0][1]]
    return spec.type in (object, Any) and not is_static(spec)


def _is_like(case: StateCase, way: Way) -> bool:
    """Return whether there is an array, which another one can be put in place of."""
    return isinstance(follow(case.state, way), jax.Array | np.ndarray)


def _value(case: StateCase, way: Way) -> Any:
    """Draw what may be put at a place."""
    if len(way) == 1:
        return case.value(way[0][1])
    holder, name = follow(case.state, way[:-1]), way[-1][1]
    specs = getattr(type(holder), "__dataclass_fields__", {})
    if name in specs and is_static(specs[name]):
        known = {p.name: p for p in stored(type(holder))}
        return draw_value(case.scope, known[name], text(case.root, way))
    if _is_open(case, way):
        return case.scope.draw(_ANYTHING)
    old = follow(case.state, way)
    if is_key(old):
        return fresh(old)
    return draw_array(case.scope.draw, old.shape, old.dtype, case.scope.specials)
