"""What each mistake in a selector of `at` says."""

import dataclasses
import re

import jax.numpy as jnp
import numpy as np
import pytest

from purestate.errors import PlaceError
from tests.helpers import exactly
from tests.state.nets import Moments, Net, layer


def test_overlapping_places_are_refused():
    text = (
        "at() got overlapping places Net.head and Net.head.weight: one of them would "
        "be lost. Select each place once, and not a part of another."
    )

    with pytest.raises(PlaceError, match=exactly(text)):
        Net(head=layer()).at(lambda n: (n.head, n.head.weight))


@pytest.mark.parametrize(
    "where",
    [
        lambda n: (n.head, n.head),
        lambda n: (n.head.weight, n.head),
        lambda n: (n, n.name),
        lambda n: (n.rest[0], n.rest[-2]),
        lambda n: (n.last, n.rest[1]),
    ],
)
def test_overlaps_are_found_in_any_order_and_spelling(where):
    net = Net(head=layer(), rest=[1, 2])

    with pytest.raises(PlaceError, match=r"^at\(\) got overlapping places Net"):
        net.at(where)


def test_the_name_and_the_index_of_an_item_overlap():
    with pytest.raises(PlaceError, match=r"^at\(\) got overlapping places Net\.head"):
        Net(head=Moments(mu=1)).at(lambda n: (n.head.mu, n.head[0]))


def test_the_name_and_the_index_of_an_item_lead_to_the_same_node():
    net = Net(head=Moments(mu=layer()))

    after = net.at(lambda n: (n.head.mu.weight, n.head[0].bias)).set((5.0, 6.0))

    assert (5.0, 6.0) == (float(after.head.mu.weight), after.head.mu.bias)


SINGLE = "select single items by their index."
THROUGH = "at() goes through States, dataclasses, NamedTuples, dicts, lists and tuples."


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (
            lambda n: n.head.wieght,
            "Net.head has no field 'wieght'; did you mean 'weight'?",
        ),
        (
            lambda n: n.head.zzz,
            "Net.head has no field 'zzz'; its fields are weight, bias, name.",
        ),
        (lambda n: n.haed, "Net has no field 'haed'; did you mean 'head'?"),
        (
            lambda n: n.replace(head=1),
            "Net has no field 'replace'; its fields are head, rest, name.",
        ),
        (
            lambda n: n.rest["zzz"],
            "Net.rest has no key 'zzz'; its keys are 'momentum', 'list'.",
        ),
        (
            lambda n: n.rest["list"][0]["a"],
            "Net.rest['list'][0] has no key 'a'; it has no keys.",
        ),
        (
            lambda n: n.rest["list"][3],
            f"Net.rest['list'] has 2 items and no item 3; {SINGLE}",
        ),
        (
            lambda n: n.rest["list"][-3],
            f"Net.rest['list'] has 2 items and no item -3; {SINGLE}",
        ),
        (
            lambda n: n.rest["list"][:1],
            f"Net.rest['list'] has 2 items and no item slice(None, 1, None); {SINGLE}",
        ),
        (
            lambda n: n.rest["list"]["a"],
            f"Net.rest['list'] has 2 items and no item 'a'; {SINGLE}",
        ),
        (
            lambda n: n.rest["list"][1].var,
            "Net.rest['list'][1] has no field 'var'; its fields are mu, nu.",
        ),
        (
            lambda n: n.head.weight[0],
            "Net.head.weight is an array, whose elements are no places: write at(lambda s: ...).apply(lambda x: x.at[0].set(...)).",
        ),
        (
            lambda n: n.head.bias.scale,
            f"Net.head.bias is None and has no field 'scale' to go through; {THROUGH}",
        ),
        (lambda n: n.head.bias[0], "Net.head.bias is None, which has no items."),
        (
            lambda n: n.head.name.upper,
            f"Net.head.name is of type str and has no field 'upper' to go through; {THROUGH}",
        ),
        (lambda n: n.head["weight"], "Net.head is of type Layer, which has no items."),
        (
            lambda n: n.rest.momentum,
            f"Net.rest is of type dict and has no field 'momentum' to go through; {THROUGH}",
        ),
    ],
)
def test_a_miss_names_the_place_and_what_is_there(where, text):
    net = Net(head=layer(), rest={"momentum": 1, "list": [{}, Moments(1)]})

    with pytest.raises(PlaceError, match=exactly(text)):
        net.at(where)


def test_an_element_of_a_numpy_array_is_no_place_either():
    text = "Net.head is an array, whose elements are no places:"

    with pytest.raises(PlaceError, match=f"^{re.escape(text)}"):
        Net(head=np.ones(2)).at(lambda n: n.head[0])


def test_a_key_of_another_type_is_told_apart():
    with pytest.raises(
        PlaceError, match=exactly("Net.head has no key '1'; its keys are 1, 2.")
    ):
        Net(head={1: "a", 2: "b"}).at(lambda n: n.head["1"])


def test_a_mistyped_key_names_the_nearest_one():
    text = "Net.rest has no key 'momentun'; did you mean 'momentum'?"

    with pytest.raises(PlaceError, match=exactly(text)):
        Net(rest={"momentum": 1}).at(lambda n: n.rest["momentun"])


NO_PLACE = (
    "the selector of at() returned {} instead of a place in the Net: return what the "
    "selector's argument leads to, as in `at(lambda s: s.field)`, without computing "
    "anything."
)
RAISED = (
    "the selector of at() raised {}. It only says where, as in `at(lambda s: s.field)`; "
    "compute in apply(...)."
)

NO_SELECTOR = (
    "at() takes a selector, lambda s: s.{0}, or a choice of leaves, ps.leaves('{0}'), "
    "and got {1}."
)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (lambda n: 3, NO_PLACE.format("an object of type int")),
        (lambda n: None, NO_PLACE.format("None")),
        (lambda n: (n.head, 3), NO_PLACE.format("an object of type int")),
        (lambda n: {"a": n.head}, NO_PLACE.format("an object of type dict")),
        (
            lambda n: n.head + 1,
            RAISED.format(
                "TypeError: unsupported operand type(s) for +: '_Place' and 'int'"
            ),
        ),
        (
            lambda n: n.rest[len(n.rest) - 1],
            RAISED.format("TypeError: object of type '_Place' has no len()"),
        ),
        (lambda n: 1 / 0, RAISED.format("ZeroDivisionError: division by zero")),
        ("head.weight", NO_SELECTOR.format("head.weight", "'head.weight'")),
        (3, NO_SELECTOR.format("field", "3")),
        (None, NO_SELECTOR.format("field", "None")),
    ],
)
def test_a_selector_that_does_not_return_a_place_is_refused(where, text):
    with pytest.raises(PlaceError, match=exactly(text)):
        Net(head=1, rest=[2]).at(where)


def test_the_error_of_a_selector_is_the_cause():
    with pytest.raises(PlaceError) as caught:
        Net().at(lambda n: 1 / 0)

    assert ZeroDivisionError is type(caught.value.__cause__)


def test_a_property_that_computes_is_no_place():
    text = RAISED.format(
        "TypeError: unsupported operand type(s) for *: '_Place' and 'int'"
    )

    with pytest.raises(PlaceError, match=exactly(text)):
        Net(head=layer()).at(lambda n: n.head.double)


def test_a_selector_that_assigns_is_refused():
    def where(n):
        n.head = 3

    text = (
        "cannot assign head in the selector of at(): it only says where. Pass the value "
        "to set(value)."
    )

    with pytest.raises(PlaceError, match=exactly(text)):
        Net().at(where)


def test_a_selector_that_assigns_an_item_is_refused():
    def where(n):
        n.head["a"] = 3

    with pytest.raises(
        PlaceError, match=r"does not support item assignment\. It only says"
    ):
        Net(head={"a": 1}).at(where)


@pytest.mark.parametrize(
    "where",
    [
        lambda n: n.head if n.head else n.rest,
        lambda n: n.head if n.head == 0 else n.rest,
        lambda n: n.rest if "a" in n.rest else n.head,
    ],
    ids=["truth", "==", "in"],
)
def test_a_selector_that_asks_for_a_value_is_refused(where):
    text = (
        r"^<place Net\.(head|rest)> has no truth value: the selector of at\(\) says "
        r"where, and cannot decide by what is there\. Decide outside of it\.$"
    )

    with pytest.raises(PlaceError, match=text):
        Net(head=0, rest={"a": 1}).at(where)


@pytest.mark.parametrize(
    ("value", "got"),
    [((1,), "1"), ((1, 2, 3), "3"), (1, "no tuple"), (jnp.ones(2), "no tuple")],
    ids=["fewer", "more", "a number", "an array"],
)
def test_set_wants_one_value_for_each_place(value, got):
    text = (
        f"at(Net) selects 2 places and set() got {got}: pass a tuple with one value for "
        f"each place."
    )

    with pytest.raises(PlaceError, match=exactly(text)):
        Net().at(lambda n: (n.head, n.rest)).set(value)


def test_a_place_error_is_a_lookup_error():
    with pytest.raises(LookupError, match=r"^Net has no field 'x'"):
        Net().at(lambda n: n.x)


@pytest.mark.parametrize("how", ["init", "init=False"])
def test_it_goes_through_a_dataclass_with_its_own_constructor(how):
    @dataclasses.dataclass
    class Doubled:
        w: int
        cache: int = dataclasses.field(init=False, default=3)

        if how == "init":

            def __init__(self, n):
                self.w, self.cache = 2 * n, 3

    before = Net(head=Doubled(1))

    assert 5 == before.at(lambda n: n.head.cache).set(5).head.cache


def test_a_place_shows_where_it_is():
    shown = []

    Net(head={"a": layer()}).at(lambda n: shown.append(repr(n.head["a"].weight)) or n)

    assert ["<place Net.head['a'].weight>"] == shown
