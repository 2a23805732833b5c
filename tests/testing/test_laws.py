"""Laws that hold for every State, whatever its fields.

`purestate.testing` draws the classes, their instances and the updates.
"""

import dataclasses
import types
from typing import NamedTuple

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import settings

import purestate as ps
import purestate.testing as pst
from purestate.testing._laws.law import LAWS
from purestate.testing._strategies.classes import draw_class
from purestate.testing._strategies.scope import Scope

IS_DEEP = settings.default.max_examples >= 1000
CLASSES = 200 if IS_DEEP else 12
EXAMPLES = 20 if IS_DEEP else 8
EAGER = [name for name, law in LAWS["state"].items() if not law.compiles]


class Pair(NamedTuple):
    first: object
    second: object = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Plain:
    held: object


class Branch(ps.State):
    left: object
    right: object = None
    tag: str = ps.static(default="t")


host_arrays = st.builds(
    lambda shape, dtype, value: np.full(shape, value, dtype),
    st.sampled_from([(), (0,), (2, 3)]),
    st.sampled_from([np.float32, np.int8, np.complex64]),
    st.sampled_from([0, 1, 2]),
)
trees = pst.trees(
    pst.arrays() | pst.keys() | host_arrays | st.none(),
    nodes=[
        lambda inner: st.builds(Pair, inner, inner),
        lambda inner: st.builds(Plain, inner),
        lambda inner: st.builds(Branch, inner, inner, st.sampled_from("tu")),
    ],
)


@pytest.mark.parametrize("number", range(CLASSES))
def test_a_drawn_class_obeys_the_laws(number):
    cls = draw_class(Scope(None, variant=number))

    report = pst.check_state(cls, examples=EXAMPLES)

    assert EXAMPLES <= min(report.examples.values())


def test_drawn_classes_are_many():
    assert len({draw_class(Scope(None, variant=n)) for n in range(200)}) > 150


@pytest.mark.parametrize(
    "holds",
    [
        lambda cls: hasattr(cls.__init__, "__wrapped__"),
        lambda cls: "started" in cls.__annotations__,
        lambda cls: "derived" in cls.__annotations__,
    ],
    ids=["a decorated constructor", "a started field", "a derived field"],
)
def test_drawn_classes_have_what_constructors_do(holds):
    found = [draw_class(Scope(None, variant=n)) for n in range(CLASSES)]

    assert any(map(holds, found))


@pytest.mark.parametrize(
    "is_one",
    [
        lambda f: isinstance(f, types.FunctionType),
        lambda f: isinstance(getattr(f, "__self__", None), type),
        lambda f: isinstance(getattr(f, "__self__", None), str),
    ],
    ids=["a function", "a method of a class", "a method of a str"],
)
def test_static_fields_are_drawn_with_functions(is_one):
    class Holds(ps.State):
        act: object = ps.static()

    found = []

    @hypothesis.given(pst.states(Holds))
    def draw(holds):
        found.append(holds.act)

    draw()

    assert any(map(is_one, found))


@pytest.mark.parametrize("law", EAGER)
def test_a_tree_of_anything_obeys_the_law(law):
    fields = {"left": trees, "right": trees, "tag": st.sampled_from("tuv")}

    report = pst.check_state(Branch, fields=fields, laws=[law])

    assert report.examples[law] >= settings.default.max_examples
