"""`ps.partition` and `ps.combine`: a tree in two parts, and together again."""

import collections
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import FrozenDict
from hypothesis import assume, given
from hypothesis import strategies as st

import purestate as ps
import purestate.testing as pst
from purestate.errors import CombineError, ConsumedStateError, FieldError, PlaceError
from tests.helpers import exactly
from tests.state.choices import Layer, Net, choices, layer, net, nets, paths, total

WHERES = {
    "choice": ps.leaves("**.bias") & ps.floats,
    "no leaf": ps.floats & ~ps.floats,
    "all leaves": ps.leaves("**"),
    "field": "encoder",
    "fields": ("encoder", "key"),
    "no field": (),
    "path": "encoder.bias",
    "paths": ["layers.*.kernel", "count"],
    "selector": lambda n: n.encoder.bias,
    "selectors": lambda n: (n.encoder, n.layers[1].bias),
    "selector of all": lambda n: n,
    "None": "mask",
    "derived": "size",
}
wheres = st.one_of(st.sampled_from(list(WHERES.values())), choices)

# --- Laws -----------------------------------------------------------------------------


@given(nets(), wheres)
def test_the_parts_together_are_the_tree(tree, where):
    parts = ps.partition(tree, where)

    for found in (ps.combine(*parts), ps.combine(*reversed(parts))):
        pst.assert_same(tree, found)
        assert jax.tree.structure(tree) == jax.tree.structure(found)
        for ours, theirs in zip(*map(jax.tree.leaves, (tree, found)), strict=True):
            assert ours is theirs


@given(nets(), wheres)
def test_each_leaf_is_in_one_part(tree, where):
    parts = ps.partition(tree, where)

    found = [leaf for part in parts for leaf in jax.tree.leaves(part)]
    assert sorted(map(id, found)) == sorted(map(id, jax.tree.leaves(tree)))


@given(nets(), choices)
def test_a_choice_counts_the_leaves_of_its_part(tree, choice):
    chosen, rest = ps.partition(tree, choice)

    assert sum(jax.tree.leaves(choice(tree))) == len(jax.tree.leaves(chosen))
    pst.assert_same(rest, ps.partition(tree, ~choice)[0])


@given(pst.trees())
def test_any_tree_is_taken_apart(tree):
    parts = ps.partition(tree, ps.floats)

    assert jax.tree.structure(tree) == jax.tree.structure(ps.combine(*parts))
    pst.assert_same(tree, ps.combine(*parts))


@given(nets(dims=(2,), dtypes=["float32"], specials=False), choices)
def test_the_gradient_of_a_part_is_that_with_respect_to_it(tree, choice):
    part, rest = ps.partition(tree, choice & ps.floats)
    assume(jax.tree.leaves(part))

    found = ps.grad(total, wrt=choice)(tree)

    expected = jax.grad(lambda one: total(ps.combine(one, rest)))(part)
    assert jax.tree.structure(part) == jax.tree.structure(found)
    pst.assert_same(expected, found)


@given(nets(), st.lists(choices, min_size=1, max_size=3))
def test_parts_of_parts_go_together_in_any_order(tree, few):
    parts, rest = [], tree
    for choice in few:
        leaves = jax.tree.leaves(choice(tree))
        assume(any(leaves))
        try:
            part, rest = ps.partition(rest, choice)
        except PlaceError:  # nothing is left of it
            assume(False)
        parts.append(part)

    pst.assert_same(tree, ps.combine(rest, *parts))
    pst.assert_same(tree, ps.combine(*parts, rest))


# --- partition ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("encoder", ["encoder.kernel", "encoder.bias"]),
        (("key", "count"), ["key", "count"]),
        (iter(["key", "count"]), ["key", "count"]),
        ({"count"}, ["count"]),
        ("layers.1", ["layers[1].kernel", "layers[1].bias"]),
        (["encoder.bias", "count"], ["encoder.bias", "count"]),
        (["encoder", "layers.*.bias"], None),
        (ps.leaves("layers.0.bias"), ["layers[0].bias"]),
        (lambda n: n.layers[0].bias, ["layers[0].bias"]),
        (lambda n: [n.key, n.count], ["key", "count"]),
        ((), []),
    ],
)
def test_where_is_what_wrt_takes(where, expected):
    if expected is None:
        expected = [
            "encoder.kernel",
            "encoder.bias",
            "layers[0].bias",
            "layers[1].bias",
        ]

    chosen, rest = ps.partition(net(), where)

    assert expected == paths(chosen)
    assert not set(expected) & set(paths(rest))


def test_names_of_fields_leave_none_for_whole_fields():
    chosen, rest = ps.partition(net(), "encoder")

    assert (None, None) == (chosen.layers, rest.encoder)
    by_choice, _ = ps.partition(net(), ps.leaves("encoder"))
    assert (Layer(None, None),) * 2 == by_choice.layers


def test_static_fields_are_in_both_parts():
    parts = ps.partition(net(name="other"), ps.floats)

    assert ["other"] * 2 == [part.name for part in parts]


def test_nothing_is_constructed():
    class Counted(ps.State):
        x: jax.Array = ps.field(converter=lambda x: ran.append("converter") or x)
        double: jax.Array = ps.field(init=False)

        def __post_init__(self):
            ran.append("post")
            self.double = 2 * self.x

        def __check__(self):
            ran.append("check")

    ran = []
    one = Counted(jnp.ones(2))
    ran.clear()

    for where in ("x", ps.leaves("x"), lambda s: s.x):
        assert one.x is ps.combine(*ps.partition(one, where)).x
    assert [] == ran


def test_it_adds_nothing_to_a_program():
    def around(n):
        return ps.combine(*ps.partition(n, ps.leaves("**.bias") & ps.floats))

    assert [] == jax.make_jaxpr(around)(net()).jaxpr.eqns


def test_a_module_of_equinox_is_taken_apart_as_by_equinox():
    model = eqx.nn.MLP(2, 2, 3, 1, key=jax.random.key(0))

    ours = ps.partition(model, ps.leaves(eqx.is_inexact_array))
    theirs = eqx.partition(model, eqx.is_inexact_array)

    for one, other in zip(ours, theirs, strict=True):
        assert eqx.tree_equal(one, other)
        assert jax.tree.structure(one) == jax.tree.structure(other)
    assert eqx.tree_equal(model, ps.combine(*theirs))
    assert eqx.tree_equal(model, eqx.combine(*ours))


Pair = collections.namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    "tree",
    [
        Pair(jnp.ones(1), 2),
        FrozenDict(a=jnp.ones(1), b={"c": 2}),
        collections.OrderedDict(b=jnp.ones(1), a=2),
        collections.defaultdict(list, a=jnp.ones(1), b=2),
        (jnp.ones(1), None, [2, {}]),
        jax.tree_util.Partial(jnp.add, jnp.ones(1), 2),
        {"spec": jax.ShapeDtypeStruct((), jnp.float32), "text": np.array(["x"])},
        [],
        None,
        jnp.ones(1),
        1,
    ],
    ids=lambda tree: type(tree).__name__,
)
def test_containers_of_any_kind_are_taken_apart(tree):
    chosen, rest = ps.partition(tree, ps.floats)

    assert jax.tree.leaves(chosen) == [
        x for x in jax.tree.leaves(tree) if hasattr(x, "shape") and x.dtype == "float32"
    ]
    found = ps.combine(rest, chosen)
    assert type(tree) is type(found)
    assert jax.tree.structure(tree) == jax.tree.structure(found)


def test_a_packed_state_is_taken_apart_by_its_buffers():
    packed = ps.pack(net())

    chosen, rest = ps.partition(packed, ps.floats)

    assert [jnp.float32] == [x.dtype for x in jax.tree.leaves(chosen)]
    pst.assert_same(net(), ps.combine(rest, chosen).unpack())


def test_the_paths_of_a_packed_state_are_those_of_its_buffers_outside_of_ps_jit():
    def biases(n):
        return ps.partition(n, ps.leaves("**.bias"))[0]

    with pytest.raises(PlaceError, match=r"^Packed has no leaf '\*\*\.bias'; its leav"):
        biases(ps.pack(net()))
    assert 3 == len(ps.jit(lambda n: jax.tree.leaves(biases(n)))(ps.pack(net())))


def test_parts_are_saved_and_mapped_like_any_tree():
    chosen, rest = ps.partition(net(), ps.leaves("**.bias"))

    doubled = jax.tree.map(lambda x: 2 * x, pickle.loads(pickle.dumps(chosen)))

    found = ps.combine(doubled, rest)
    assert [2] * 3 == found.encoder.bias.tolist()
    assert 1 == found.encoder.kernel[0, 0]


NOT_STATIC = (
    "Net.name is static, so it has no gradient and no leaves; choose from encoder, "
    "layers, extra, key, count, mask, size."
)
NO_WHERE = (
    "where takes names of fields, paths, ps.leaves(...) or a selector, and got {}."
)
NO_FIELD = "Net has no field 'encodr'; did you mean 'encoder'?"
NO_LEAF = "Net has no leaf 'encoder.bais'; did you mean 'encoder.bias'?"


@pytest.mark.parametrize(
    ("where", "error", "text"),
    [
        ("encodr", FieldError, NO_FIELD),
        (lambda n: n.encodr, PlaceError, NO_FIELD),
        ("name", FieldError, NOT_STATIC),
        (["encoder", "encoder.bais"], PlaceError, NO_LEAF),
        (3, TypeError, NO_WHERE.format(3)),
        (None, TypeError, NO_WHERE.format(None)),
        (["encoder", 1], TypeError, NO_WHERE.format(["encoder", 1])),
    ],
)
def test_a_where_that_means_nothing_is_refused(where, error, text):
    with pytest.raises(error, match=exactly(text)):
        ps.partition(net(), where)


# --- combine --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trees", "expected"),
    [
        (({"a": 1, "b": None}, {"a": None, "b": 2}), {"a": 1, "b": 2}),
        (({"a": 1}, {"a": 2}), {"a": 1}),
        (({"a": None}, {"a": {"b": 2}}), {"a": {"b": 2}}),
        (({"a": None}, {"a": None}), {"a": None}),
        (({"a": {"b": None}}, {"a": None}), {"a": {"b": None}}),
        ((None, [1]), [1]),
        ((None, None), None),
        (({"a": 0},), {"a": 0}),
        (([1, None, None], [None, 2, None], [None, None, 3]), [1, 2, 3]),
    ],
)
def test_the_first_value_that_is_not_none_is_taken(trees, expected):
    assert expected == ps.combine(*trees)


def test_a_gradient_is_completed():
    slopes = ps.grad(total, wrt="encoder")(net())

    found = ps.combine(slopes, jax.tree.map(jnp.zeros_like, net()))

    assert jax.tree.structure(net()) == jax.tree.structure(found)
    assert slopes.encoder.bias is found.encoder.bias
    assert 0 == found.layers[0].bias.sum()


@pytest.mark.parametrize(
    ("a", "b", "line"),
    [
        (net(), layer(), "Net: class Net -> Layer"),
        (net(), net(name="b"), "Net.name: static value 'net' -> 'b'"),
        (net(), net(layers=(layer(),)), "Net.layers: structure [0], [1] -> [0]"),
        (net(), net(encoder=1), "Net.encoder: class Layer -> int"),
        (
            net(),
            net(extra={"a.b": 1}),
            "Net.extra: structure ['a.b'], ['flags'] -> ['a.b']",
        ),
        ({"a": [1]}, {"a": (1,)}, "['a']: class list -> tuple"),
        ({"a": [1]}, {"b": [1]}, "structure ['a'] -> ['b']"),
        ([{"a": layer()}], [{"a": net()}], "[0]['a']: class Layer -> Net"),
    ],
)
def test_parts_of_different_trees_are_refused_by_place(a, b, line):
    text = (
        f"combine() got parts of different trees, they differ at\n{line}\nGive trees of "
        f"one structure, as ps.partition returns them; their leaves may be changed."
    )

    with pytest.raises(CombineError, match=exactly(text)):
        ps.combine(a, None, b)
    with pytest.raises(ValueError, match=r"^combine\(\) got parts of different"):
        ps.combine(b, a)


def test_a_donated_state_says_so():
    donated = layer()
    new = ps.jit(lambda one: one, donate=True)(donated)

    for use in (
        lambda: ps.partition(donated, "bias"),
        lambda: ps.partition(donated, lambda one: one.bias),
        lambda: ps.combine(donated, new),
        lambda: ps.combine(new, donated),
    ):
        with pytest.raises(ConsumedStateError, match=r"^this Layer was donated to"):
            use()


def test_a_part_is_of_the_class_of_the_tree():
    assert [Net, Net] == list(map(type, ps.partition(net(), ps.floats)))
