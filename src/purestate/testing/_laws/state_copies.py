"""Laws of copies: what is copied, pickled or compared stays what it was."""

import copy
import importlib.util
import pickle
import sys
from typing import Any

import jax
import numpy as np

from purestate._schema.layout import layout_of
from purestate._schema.leaves import is_key
from purestate._schema.marks import is_state_class
from purestate.errors._text import error_text
from purestate.testing._cases.state import REFUSED, StateCase
from purestate.testing._laws.law import Broken, law, same_as
from purestate.testing._strategies.construct import specs_of


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
            text = error_text(error)
            raise Broken("", f"copy.{name} raised {text}") from error
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
        text = error_text(error)
        raise Broken("", f"pickling raised {text}") from error
    same_as(case.state, duplicate, "the source and its pickle", exact=True)
    _same_structure(case, duplicate, "pickle")


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
    """Compare with a copy, and with an instance that differs."""
    if not case.is_state:
        return
    state = case.state
    twin = case.made.again()
    leaves = jax.tree.leaves(state)
    if not any(map(_has_nan, leaves)):
        for other in (twin, copy.copy(state)):
            if (state == other) is not True:
                raise Broken("", f"{state!r} == its own copy is not True.")
    name = case.field
    if name is None:
        return
    after = case.replace(state, **{name: case.value(name)})
    if after is REFUSED or not specs_of(case.cls)[name].compare:
        return
    first: Any = jax.tree.structure(state)
    second: Any = jax.tree.structure(after)
    if first != second and (state == after) is not False:
        raise Broken(f"{case.root}.{name}", "== does not see that it differs.")


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
            text = error_text(error)
            raise Broken("", f"repr raised {text}") from error
