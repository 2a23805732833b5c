"""`at`: updates in depth."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import optax
import pytest

import purestate as ps
from purestate.errors import PlaceError, StaticFieldError
from tests.helpers import exactly
from tests.state.nets import Frozen, Layer, Moments, Net, Outer, Positive, layer

# --- Where it goes --------------------------------------------------------------------


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


# --- Several places -------------------------------------------------------------------


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


# --- apply ----------------------------------------------------------------------------


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


def test_apply_takes_what_other_trees_have_in_the_place():
    ours, theirs = (Net(head=layer(x), rest=[layer(x)]) for x in (1.0, 2.0))

    one = ours.at(lambda n: n.head.weight).apply(
        lambda a, b, c: a + b * c, theirs, ours
    )
    two = ours.at(lambda n: (n.head.weight, n.rest[0].weight)).apply(jnp.add, theirs)

    assert [3, 3] == one.head.weight.tolist()
    assert [3, 3] == two.head.weight.tolist() == two.rest[0].weight.tolist()


class Head(ps.State):
    head: Layer


def test_another_tree_may_be_of_another_class_that_has_the_place():
    place = Net(head=layer()).at(lambda n: n.head.weight)

    after = place.apply(jnp.add, Head(head=layer()))

    assert [2, 2] == after.head.weight.tolist()
    with pytest.raises(
        PlaceError, match=r"^apply\(\) got a Frozen without \.head\.weight: Frozen is"
    ):
        place.apply(jnp.add, Frozen(w=layer()))


# --- In transforms --------------------------------------------------------------------


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
