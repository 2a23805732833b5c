"""Laws of copies: what is copied, pickled or compared stays what it was."""

import copy
import importlib.util
import json
import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from hypothesis.errors import HypothesisException

from purestate._saving.load import from_dict
from purestate._saving.save import to_dict
from purestate._schema.fields import is_static
from purestate._schema.layout import layout_of
from purestate._schema.leaves import is_key
from purestate._schema.marks import is_state_class
from purestate.errors import SaveError
from purestate.errors._text import error_text
from purestate.testing._cases.state import REFUSED, StateCase
from purestate.testing._cases.ways import follow, is_compared, text, ways
from purestate.testing._laws.law import Broken, Skip, law, same_as
from purestate.testing._strategies.annotations import draw_value
from purestate.testing._strategies.construct import ABSENT, specs_of, stored
from purestate.testing._trees.leaves import is_numeric, wrap_key_data


# deepcopy compiles a copy for each shape.
@law(
    "state",
    promise="copies have the structure and the bits of their source",
    compiles=True,
)
def copies(case: StateCase) -> None:
    """Copy and deepcopy."""
    for make in (copy.copy, copy.deepcopy):
        name = make.__name__
        try:
            duplicate = make(case.state)
        except Exception as error:
            raise Broken("", f"copy.{name} raised {error_text(error)}") from error
        same_as(case.state, duplicate, f"the source and copy.{name}", exact=True)
        _same_structure(case, duplicate, f"copy.{name}")


@law("state", promise="unpickled instances have the structure and bits of their source")
def pickles(case: StateCase) -> None:
    """Pickle, with cloudpickle where a class cannot be found by its name."""
    dumps = _pickler(case.cls)
    if dumps is None:
        return
    try:
        duplicate = pickle.loads(dumps(case.state))
    except Exception as error:
        raise Broken("", f"pickling raised {error_text(error)}") from error
    same_as(case.state, duplicate, "the source and its pickle", exact=True)
    _same_structure(case, duplicate, "pickle")


@law("state", promise="what is saved comes back with the structure and bits it had")
def saves(case: StateCase) -> None:
    """Save as arrays and a manifest, of which a file is made, and load."""
    try:
        arrays, manifest = to_dict(case.state)
    except SaveError as error:
        raise Skip(str(error)) from None
    try:
        text = json.dumps(manifest)
        duplicate = from_dict(json.loads(text), case.state, arrays)
    except Exception as error:
        raise Broken("", f"loading raised {error_text(error)}") from error
    same_as(case.state, duplicate, "the source and what was loaded", exact=True)
    _same_structure(case, duplicate, "loading")


def _pickler(cls: type) -> Any:
    module = sys.modules.get(cls.__module__)
    found: Any = module
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    if found is cls:
        return pickle.dumps
    # cloudpickle sets the attributes of a class again when it is found to exist, which
    # spoils the fields of a plain dataclass: their MISSING becomes a copy of it.
    is_one = is_state_class(cls)
    if not is_one or importlib.util.find_spec("cloudpickle") is None:
        return None
    import cloudpickle

    return cloudpickle.dumps


def _same_structure(case: StateCase, duplicate: Any, how: str) -> None:
    before: Any = jax.tree.structure(case.state)
    after: Any = jax.tree.structure(duplicate)
    if before != after or hash(before) != hash(after):
        raise Broken("", f"jit would compile again for what {how} made: {after}")


@law("state", promise="== is one bool that follows from fields and values")
def equality(case: StateCase) -> None:
    """Compare with itself, with copies, and with instances that differ."""
    if not case.is_state:
        return
    state = case.state
    # NaN is not equal to itself, and neither is what holds one.
    is_equal = None if any(map(_has_nan, jax.tree.leaves(state))) else True
    twins = ((state, "itself"), (case.made.again(), "its own copy"))
    for other, name in (*twins, (copy.copy(state), "its own copy")):
        _compare(state, other, is_equal, "", name)
    if _takes_anything(state):
        raise Broken("", "== says True of an object of another class.")
    for place, other in _different(case):
        _compare(state, other, False, place, "another one")


def _compare(
    state: Any, other: Any, expected: bool | None, place: str, name: str
) -> None:
    """Compare both ways round."""
    there, back = state == other, other == state
    for answer in (there, back):
        if type(answer) is not bool:
            kind = type(answer).__name__
            raise Broken(
                place, f"== {name} gives an object of type {kind}, and not one bool."
            )
    if expected is True and not (there and back):
        raise Broken(place, f"{state!r} == {name} is not True.")
    if expected is False and (there or back):
        raise Broken(
            place,
            "== does not see that it differs. A field that does not count says so: "
            "ps.field(compare=False).",
        )
    if there is not back:
        raise Broken(place, f"a == b is {there}, and b == a is {back}.")
    if (state != other) is not (not there):
        raise Broken(place, f"== {name} is {there}, and != is not the opposite.")


def _takes_anything(state: Any) -> bool:
    try:
        return bool(state == object())
    except Exception:  # noqa: BLE001  # it need not know other classes
        return False


def _different(case: StateCase) -> Iterator[tuple[str, Any]]:
    """Yield instances that differ in one place, which they name."""
    specs = specs_of(case.cls)
    name = case.field
    if name is not None and specs[name].compare:
        after = case.replace(case.state, **{name: case.value(name)})
        first: Any = jax.tree.structure(case.state)
        if after is not REFUSED and first != jax.tree.structure(after):
            yield f"{case.root}.{name}", after
    for name in case.settable():
        if specs[name].compare and is_static(specs[name]):
            yield from _with_another_static(case, name)
    yield from _with_another_number(case)


def _with_another_static(case: StateCase, name: str) -> Iterator[tuple[str, Any]]:
    """Yield an instance with another static value than the default, if one may be."""
    asked = {p.name: p for p in stored(case.cls)}[name]
    place = f"{case.root}.{name}"
    try:
        value = draw_value(case.scope, replace(asked, default=ABSENT), place)
        after = case.replace(case.state, **{name: value})
    except HypothesisException:
        raise
    except Exception:  # noqa: BLE001  # the class need not know what to do with it
        return
    first: Any = jax.tree.structure(case.state)
    if after is not REFUSED and first != jax.tree.structure(after):
        yield place, after


def _with_another_number(case: StateCase) -> Iterator[tuple[str, Any]]:
    """Yield an instance with one number changed, in one of its leaves."""
    leaves = jax.tree.leaves(case.state)
    places = [
        way
        for way in ways(case.state)
        if is_compared(case.state, way)
        and any(follow(case.state, way) is leaf for leaf in leaves)
        and _has_numbers(follow(case.state, way))
    ]
    if places:
        way = case.scope.choose(places)
        old = follow(case.state, way)
        new = _another(old, case.scope.choose((0, -1)))
        other = jax.tree.map(lambda leaf: new if leaf is old else leaf, case.state)
        yield text(case.root, way), other


def _has_numbers(leaf: Any) -> bool:
    return is_numeric(leaf) and (is_key(leaf) or np.size(leaf) > 0)


def _another(leaf: Any, index: int) -> Any:
    """Return a leaf with another number, which no rounding makes the old one."""
    if is_key(leaf):
        words = np.array(jax.random.key_data(leaf))
        words.flat[index] ^= 1
        return wrap_key_data(words, impl=jax.random.key_impl(leaf))
    array = np.array(leaf)
    array.flat[index] = bool(abs(array.flat[index].item()) < 0.5)
    if isinstance(leaf, jax.Array):
        return jax.device_put(array)
    return array if isinstance(leaf, np.ndarray) else array.item()


def _has_nan(leaf: Any) -> bool:
    if is_key(leaf):
        return False
    array = np.asarray(leaf)
    return array.dtype != object and bool(np.any(array != array))


@law("state", promise="a class without arrays has a hash that agrees with ==")
def hashes(case: StateCase) -> None:
    """Hash an instance and its twin."""
    if not case.is_state or not is_state_class(case.cls):
        return
    if layout_of(case.cls).data:
        return
    twin = case.made.again()
    if case.state == twin and hash(case.state) != hash(twin):
        raise Broken("", "equal instances have different hashes.")


@law("state", promise="repr returns text for an instance, and for one with odd leaves")
def shows(case: StateCase) -> None:
    """Print."""
    odd = jax.tree.map(lambda _: object(), case.state)
    for instance in (case.state, odd):
        try:
            repr(instance)
        except Exception as error:
            raise Broken("", f"repr raised {error_text(error)}") from error
