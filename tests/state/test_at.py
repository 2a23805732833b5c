"""`at`: updates in depth, and what each mistake in a selector says."""

import collections
import dataclasses
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import purestate as ps
from purestate.errors import (
    CheckError,
    ConsumedStateError,
    DerivedFieldError,
    PlaceError,
    StaticFieldError,
    StrictFieldError,
    UnfinishedStateError,
)


class Moments(NamedTuple):
    mu: object
    nu: object = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Frozen:
    w: object
    rest: object = None


class Layer(ps.State):
    weight: jax.Array
    bias: object = None
    name: str = ps.static(default="layer")

    @property
    def first(self):
        return self.weight

    @property
    def double(self):
        return self.weight * 2


class Net(ps.State):
    head: object = None
    rest: object = None
    name: str = ps.static(default="net")

    @property
    def last(self):
        return self.rest[-1]


def layer(value=1.0):
    return Layer(weight=jnp.full(2, value))


def exactly(text):
    return f"^{re.escape(text)}$"


# Where it goes


def test_set_changes_a_field_in_depth_and_leaves_the_original_alone():
    before = Net(head=layer(1.0))

    after = before.at(lambda n: n.head.weight).set(jnp.zeros(2))

    assert [0, 0] == after.head.weight.tolist()
    assert [1, 1] == before.head.weight.tolist()
    assert (Net, Layer) == (type(after), type(after.head))


def test_everything_beside_the_way_is_shared():
    before = Net(head=[layer(), Layer(weight=1.0, bias=jnp.ones(2))], rest=[layer()])

    after = before.at(lambda n: n.head[1].weight).set(2.0)

    assert before.rest is after.rest
    assert before.head[0] is after.head[0]
    assert before.head[1].bias is after.head[1].bias


@pytest.mark.parametrize(
    ("container", "where"),
    [
        ({"a": 1, "b": 2}, lambda n: n.head["b"]),
        ([1, 2], lambda n: n.head[1]),
        ((1, 2), lambda n: n.head[1]),
        (Moments(1, 2), lambda n: n.head.nu),
        (Moments(1, 2), lambda n: n.head[1]),
        (Frozen(1, 2), lambda n: n.head.rest),
        (collections.OrderedDict(a=1, b=2), lambda n: n.head["b"]),
        (collections.defaultdict(int, a=1, b=2), lambda n: n.head["b"]),
    ],
    ids=[
        "dict",
        "list",
        "tuple",
        "NamedTuple by name",
        "NamedTuple by index",
        "dataclass",
        "OrderedDict",
        "defaultdict",
    ],
)
def test_it_goes_through_containers_and_keeps_their_type(container, where):
    before = Net(head=container)
    kept = repr(container)

    after = before.at(where).set(5)

    assert type(container) is type(after.head)
    assert jax.tree.structure(before) == jax.tree.structure(after)
    assert [1, 5] == jax.tree.leaves(after)
    assert kept == repr(before.head)


def test_a_defaultdict_keeps_its_factory():
    before = Net(head=collections.defaultdict(list, a=1))

    assert list is before.at(lambda n: n.head["a"]).set(2).head.default_factory


def test_a_defaultdict_gains_no_key():
    before = Net(head=collections.defaultdict(list, weight=1))
    text = "Net.head has no key 'b'; its keys are 'weight'."

    with pytest.raises(PlaceError, match=exactly(text)):
        before.at(lambda n: n.head["b"])
    assert ["weight"] == list(before.head)


def test_an_ordered_dict_keeps_its_order():
    before = Net(head=collections.OrderedDict(z=1, a=2))

    assert ["z", "a"] == list(before.at(lambda n: n.head["z"]).set(3).head)


def test_a_plain_dataclass_need_not_be_a_pytree():
    @dataclasses.dataclass
    class Config:
        rate: float
        steps: int = 3

    before = Net(head=Config(rate=0.1))

    after = before.at(lambda n: n.head.rate).set(0.2)

    assert Config(rate=0.2) == after.head
    assert Config(rate=0.1) == before.head


def test_derived_fields_of_a_plain_dataclass_follow():
    @dataclasses.dataclass
    class Config:
        steps: int
        total: int = dataclasses.field(init=False)

        def __post_init__(self):
            self.total = 10 * self.steps

    after = Net(head=Config(steps=1)).at(lambda n: n.head.steps).set(2)

    assert 20 == after.head.total


def test_it_goes_through_all_kinds_in_one_path():
    before = Net(head={"a": [Frozen(w=(Moments(mu=layer()),))]})

    after = before.at(lambda n: n.head["a"][0].w[0].mu.weight).set(jnp.zeros(2))

    assert jax.tree.structure(before) == jax.tree.structure(after)
    assert [0, 0] == after.head["a"][0].w[0].mu.weight.tolist()


def test_it_goes_through_optimizer_states():
    optimizer = optax.chain(optax.clip(1.0), optax.adam(1e-3))
    before = Net(head=optimizer.init({"w": jnp.ones(2)}))

    after = before.at(lambda n: n.head[1][0].mu["w"]).set(jnp.ones(2))

    assert [1, 1] == after.head[1][0].mu["w"].tolist()
    assert jax.tree.structure(before) == jax.tree.structure(after)


def test_a_negative_index_counts_from_the_end():
    before = Net(rest=[1, 2, 3])

    assert [1, 2, 9] == before.at(lambda n: n.rest[-1]).set(9).rest
    assert [9, 2, 3] == before.at(lambda n: n.rest[-3]).set(9).rest


def test_a_property_may_lead_to_a_place():
    before = Net(rest=[layer(), layer()])

    after = before.at(lambda n: n.last.first).set(jnp.zeros(2))

    assert [0, 0] == after.rest[1].weight.tolist()
    assert [1, 1] == after.rest[0].weight.tolist()


def test_a_none_is_filled_and_emptied_again():
    before = Net(head=Net())

    filled = before.at(lambda n: n.head.head).set(jnp.ones(2))
    emptied = filled.at(lambda n: n.head.head).set(None)

    assert (0, 1) == (len(jax.tree.leaves(before)), len(jax.tree.leaves(filled)))
    assert jax.tree.structure(before) == jax.tree.structure(emptied)


def test_a_place_may_get_another_structure():
    after = Net(head=layer()).at(lambda n: n.head).set({"w": [1, 2]})

    assert {"w": [1, 2]} == after.head


def test_a_static_field_is_a_place():
    before = Net(head=layer())

    after = before.at(lambda n: n.head.name).set("first")

    assert Net(head=Layer(weight=1.0, name="first")).head.name == after.head.name
    assert jax.tree.structure(before) != jax.tree.structure(after)


def test_an_array_in_a_static_field_is_refused():
    with pytest.raises(
        StaticFieldError, match=r"^Layer\.name is a static field and got a jax array\."
    ):
        Net(head=layer()).at(lambda n: n.head.name).set(jnp.ones(2))


def test_the_whole_state_is_a_place():
    other = Net(head=2)

    assert other is Net(head=1).at(lambda n: n).set(other)


# Several places


def test_a_tuple_of_places_takes_a_tuple_of_values():
    after = Net(head=1, rest=[2, 3]).at(lambda n: (n.head, n.rest[1])).set((4, 5))

    assert (4, [2, 5]) == (after.head, after.rest)


def test_a_list_of_places_takes_a_list_of_values():
    after = Net(rest=[1, 2]).at(lambda n: [n.rest[0], n.rest[1]]).set([4, 5])

    assert [4, 5] == after.rest


def test_the_places_may_come_from_a_loop_over_a_container():
    before = Net(rest=(layer(), layer(), layer()))

    after = before.at(lambda n: [each.weight for each in n.rest]).apply(jnp.zeros_like)

    assert [0] * 6 == [float(w) for each in after.rest for w in each.weight]


def test_a_tuple_for_a_single_place_is_the_value():
    assert (1, 2) == Net().at(lambda n: n.head).set((1, 2)).head


def test_no_places_change_nothing():
    before = Net(head=1)

    assert before == before.at(lambda n: ()).set(())


def test_places_in_one_node_rebuild_it_once():
    checked = []

    class Interval(ps.State):
        low: jax.Array
        high: jax.Array

        def __check__(self):
            checked.append((int(self.low), int(self.high)))
            return self.low <= self.high

    before = Net(head=Interval(low=0, high=1))
    checked.clear()

    before.at(lambda n: (n.head.low, n.head.high)).set((5, 6))

    assert [(5, 6)] == checked


# apply


def test_apply_computes_from_what_is_there():
    after = Net(head=layer(3.0)).at(lambda n: n.head.weight).apply(lambda w: 2 * w)

    assert [6, 6] == after.head.weight.tolist()


def test_apply_treats_each_of_several_places():
    after = Net(head=1, rest=[2]).at(lambda n: (n.head, n.rest[0])).apply(lambda v: -v)

    assert (-1, [-2]) == (after.head, after.rest)


def test_apply_on_a_container_adds_a_key():
    after = Net(head={"a": 1}).at(lambda n: n.head).apply(lambda d: d | {"b": 2})

    assert {"a": 1, "b": 2} == after.head


def test_apply_gets_the_real_value():
    held = layer()
    seen = []

    Net(head=held).at(lambda n: n.head).apply(seen.append)

    assert held is seen[0]


def test_what_apply_raises_passes():
    def fail(value):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match=r"^mine$"):
        Net(head=1).at(lambda n: n.head).apply(fail)


def test_one_place_serves_many_updates():
    place = Net(head=1).at(lambda n: n.head)

    assert (2, 3, -1) == (
        place.set(2).head,
        place.set(3).head,
        place.apply(lambda v: -v).head,
    )


# The rules of every State on the way


class Positive(ps.State):
    value: jax.Array

    def __check__(self):
        return self.value > 0


class Outer(ps.State):
    inner: Positive
    total: jax.Array = ps.field(init=False)

    def __post_init__(self):
        self.total = 10 * self.inner.value

    def __check__(self):
        if self.inner.value > 5:
            raise ValueError("more than five")


def test_a_check_in_depth_runs():
    with pytest.raises(
        CheckError, match=r"^Positive\.__check__ returned False for this Positive:"
    ):
        Outer(inner=Positive(value=1)).at(lambda o: o.inner.value).set(-1)


def test_the_check_of_a_state_around_the_place_runs():
    with pytest.raises(ValueError, match=r"^more than five"):
        Outer(inner=Positive(value=1)).at(lambda o: o.inner.value).set(6)


def test_derived_fields_around_the_place_follow():
    after = Outer(inner=Positive(value=1)).at(lambda o: o.inner.value).set(3)

    assert 30 == int(after.total)


def test_a_derived_field_is_no_place_to_set():
    text = (
        "Outer.total is computed in __post_init__, which runs again at every replace, "
        "so a value given for it would be lost. Replace what it is computed from, or "
        "declare it without init=False."
    )

    with pytest.raises(DerivedFieldError, match=exactly(text)):
        Outer(inner=Positive(value=1)).at(lambda o: o.total).set(3)


def test_the_converter_of_the_place_runs_once_and_no_other():
    class Image(ps.State):
        pixels: object = ps.field(converter=lambda v: [*v, "converted"])
        mask: object = ps.field(converter=lambda v: [*v, "converted"])

    before = Net(head=Image(pixels=["a"], mask=["b"]))

    after = before.at(lambda n: n.head.pixels).set(["c"])

    assert ["c", "converted"] == after.head.pixels
    assert ["b", "converted"] == after.head.mask


def test_a_strict_state_in_depth_refuses_another_shape():
    class Weights(ps.State, strict=True):
        w: jax.Array

    with pytest.raises(
        StrictFieldError,
        match=r"^Weights is strict and w would change from f32\[3\] to",
    ):
        Net(head=Weights(w=jnp.ones(3))).at(lambda n: n.head.w).set(jnp.ones(4))


def test_a_strict_state_compares_below_its_own_fields():
    class Weights(ps.State, strict=True):
        tree: object

    before = Weights(tree={"a": layer()})
    text = r"^Weights is strict and tree\['a'\]\.weight would change from f32\[2\] to f32\[3\]"

    with pytest.raises(StrictFieldError, match=text):
        before.at(lambda w: w.tree["a"].weight).set(jnp.ones(3))


def test_a_number_in_an_array_field_keeps_its_dtype():
    after = Net(head=layer()).at(lambda n: n.head.weight).set(3)

    assert (jnp.float32, False) == (
        after.head.weight.dtype,
        after.head.weight.weak_type,
    )


def test_the_values_of_a_strict_class_may_change():
    class Weights(ps.State, strict=True):
        w: jax.Array

    after = (
        Net(head=Weights(w=jnp.ones(3))).at(lambda n: n.head.w).apply(jnp.zeros_like)
    )

    assert [0, 0, 0] == after.head.w.tolist()


class Counting(ps.State):
    value: int
    updates: int = 0

    def replace(self, **changes):
        return super().replace(updates=self.updates + 1, **changes)


def test_a_users_own_replace_is_the_one_that_runs():
    after = Net(head=Counting(value=1)).at(lambda n: n.head.value).set(2)

    assert (2, 1) == (after.head.value, after.head.updates)


def test_a_half_built_self_with_all_fields_set_is_updated():
    class Built(ps.State):
        x: jax.Array
        y: jax.Array

        def __init__(self):
            self.x, self.y = 1, 2
            self.y = self.at(lambda b: b.y).apply(lambda y: 10 * y).y

    assert (1, 20) == (int(Built().x), int(Built().y))


def test_a_half_built_self_without_all_fields_is_not_updated():
    class Built(ps.State):
        x: jax.Array
        y: jax.Array

        def __init__(self):
            self.x = 1
            self.at(lambda b: b.x).set(2)

    text = (
        "this Built is not finished: y has no value yet, because its constructor is "
        "still running, or raised. Set every field before passing self to jax."
    )

    with pytest.raises(UnfinishedStateError, match=f"^{re.escape(text)}"):
        Built()


def test_a_donated_state_explains_itself():
    spent = layer()
    ps.jit(lambda one: one.replace(weight=one.weight + 1), donate=True)(spent)

    with pytest.raises(
        ConsumedStateError, match=r"^this Layer was donated to <lambda>"
    ):
        spent.at(lambda one: one.weight)


# Mistakes


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
        ("head.weight", RAISED.format("TypeError: 'str' object is not callable")),
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


# In transforms


def test_at_under_jit():
    @jax.jit
    def step(net):
        return net.at(lambda n: (n.head.weight, n.head.name)).set((net.rest, "new"))

    after = step(Net(head=layer(), rest=jnp.ones(3)))

    assert ([1, 1, 1], "new") == (after.head.weight.tolist(), after.head.name)


def test_at_under_vmap():
    nets = Net(head=Layer(weight=jnp.arange(3.0)))

    after = jax.vmap(lambda n: n.at(lambda n: n.head.weight).apply(lambda w: 2 * w))(
        nets
    )

    assert [0, 2, 4] == after.head.weight.tolist()


def test_at_under_scan():
    def body(net, x):
        return net.at(lambda n: n.head.weight).apply(lambda w: w + x), net.head.weight

    after, seen = jax.lax.scan(body, Net(head=Layer(weight=0.0)), jnp.arange(4.0))

    assert 6 == float(after.head.weight)
    assert [0, 0, 1, 3] == seen.tolist()


def test_grad_flows_through_the_value_and_the_rest():
    def loss(value, net):
        net = net.at(lambda n: n.head.weight).set(value)
        return net.head.weight * net.rest

    net = Net(head=Layer(weight=7.0), rest=jnp.asarray(3.0))

    by_value, by_net = jax.grad(loss, argnums=(0, 1))(2.0, net)

    assert 3 == float(by_value)
    assert (0, 2) == (float(by_net.head.weight), float(by_net.rest))


def test_a_jitted_step_with_at_is_traced_once():
    traces = []

    @jax.jit
    def step(net):
        traces.append(1)
        return net.at(lambda n: n.head.weight).apply(lambda w: w + 1)

    net = Net(head=Layer(weight=0))
    for _ in range(3):
        net = step(net)

    assert 3 == int(net.head.weight)
    assert 1 == len(traces)


def test_checks_are_skipped_while_tracing():
    outer = jax.jit(lambda o: o.at(lambda o: o.inner.value).set(7))(
        Outer(inner=Positive(value=1))
    )

    assert (7, 70) == (int(outer.inner.value), int(outer.total))


def test_no_tracer_outlives_a_trace():
    with jax.checking_leaks():
        after = jax.jit(lambda n: n.at(lambda n: n.head.weight).set(n.rest))(
            Net(head=layer(), rest=jnp.ones(2))
        )

    assert [1, 1] == after.head.weight.tolist()
