"""`ps.leaves` and `ps.floats`: which leaves of a tree are meant."""

import collections
import copy
import dataclasses
import fnmatch
import functools
import pickle

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import example, given

import purestate as ps
import purestate.testing as pst
from purestate.errors import PlaceError
from tests.helpers import exactly
from tests.state.choices import (
    Layer,
    Net,
    another,
    bools,
    choices,
    is_matrix,
    is_small,
    layer,
    net,
    nets,
    paths,
)

# --- Paths ----------------------------------------------------------------------------

ENCODER = ["encoder.kernel", "encoder.bias"]
FIRST = ["layers[0].kernel", "layers[0].bias"]
SECOND = ["layers[1].kernel", "layers[1].bias"]
ALL = [*ENCODER, *FIRST, *SECOND, "extra['a.b']", "extra['flags']", "key", "count"]


@pytest.mark.parametrize(
    ("path", "expected"),
    {
        "encoder": ENCODER,
        "encoder.kernel": ["encoder.kernel"],
        "layers": FIRST + SECOND,
        "layers.1": SECOND,
        "layers.*.kernel": ["layers[0].kernel", "layers[1].kernel"],
        "enc*": ENCODER,
        "enc*.b?as": ["encoder.bias"],
        "[ek]*.bias": ["encoder.bias"],
        "extra.a*b": ["extra['a.b']"],
        "extra.flags": ["extra['flags']"],
        "**.bias": ["encoder.bias", "layers[0].bias", "layers[1].bias"],
        "**.0.**.bias": ["layers[0].bias"],
        "**.0": FIRST,
        "encoder.**": ENCODER,
        "layers.**.bias": ["layers[0].bias", "layers[1].bias"],
        "**.**.flags": ["extra['flags']"],
        "count": ["count"],
        "*": [*ALL, "size"],
        "**": [*ALL, "size"],
    }.items(),
)
def test_a_path_means_a_leaf_or_what_is_around_it(path, expected):
    chosen, _ = ps.partition(net(), ps.leaves(path))

    assert expected == paths(chosen)


def oracle(pattern, names):
    """Return whether a pattern means a path, by trying everything."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(oracle(pattern[1:], names[i:]) for i in range(len(names) + 1))
    return (
        bool(names)
        and fnmatch.fnmatchcase(names[0], pattern[0])
        and oracle(pattern[1:], names[1:])
    )


NAMES = st.sampled_from(["a", "b", "ab"])


@given(
    st.lists(st.sampled_from(["a", "b", "*", "**", "a*", "?"]), min_size=1, max_size=6),
    st.lists(NAMES, min_size=1, max_size=6),
)
@example(["**", "a", "b"], ["a", "a", "b"])
@example(["**", "*", "**", "b"], ["b"])
def test_a_path_means_what_trying_everything_finds(pattern, names):
    tree = functools.reduce(lambda inner, name: {name: inner}, reversed(names), 1)

    found = ps.leaves(".".join(pattern))(tree)

    assert [oracle(pattern, names)] == bools(found)


def test_many_stars_take_no_longer_than_few():
    tree = functools.reduce(lambda inner, _: {"a": inner}, range(60), 1)
    choice = ps.leaves(".".join(["**.a"] * 25 + ["b"]))  # by trial, 60 over 25 ways

    assert [False] == bools(choice(tree))


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        (collections.OrderedDict(a=jnp.ones(2)), "a"),
        (optax.EmaState(count=jnp.int32(0), ema={"w": jnp.ones(2)}), "ema.w"),
        ([{"x": (jnp.ones(2),)}], "0.x.0"),
        ({3: jnp.ones(2)}, "3"),
        ({("a", "b"): jnp.ones(2)}, "*"),
        (jax.tree_util.Partial(jnp.add, jnp.ones(2)), "**.0"),
    ],
)
def test_any_pytree_has_paths(tree, path):
    found, _ = ps.partition(tree, ps.leaves(path))

    assert [(2,)] == [np.shape(leaf) for leaf in jax.tree.leaves(found)]


# --- Floats and functions -------------------------------------------------------------


@pytest.mark.parametrize(
    "leaf",
    [
        jnp.ones(2),
        jnp.bfloat16(1),
        jnp.zeros(1, jnp.float8_e4m3fn),
        np.ones(2),
        np.float32(1),
        jax.ShapeDtypeStruct((2,), jnp.float16),
    ],
)
def test_floats_are_arrays_of_any_float(leaf):
    assert [True] == bools(ps.floats([leaf]))


@pytest.mark.parametrize(
    "leaf",
    [
        1.0,
        jnp.ones(2, int),
        jnp.ones(2, bool),
        jnp.ones(2, complex),
        jax.random.key(0),
        np.array(["x"]),
        np.zeros(2, jax.dtypes.float0),
        jnp.float32,
        "1.0",
        len,
    ],
)
def test_floats_are_nothing_else(leaf):
    assert [False] == bools(ps.floats([leaf]))


def test_floats_are_seen_while_tracing():
    seen = []

    jax.jit(lambda tree: seen.append(bools(ps.floats(tree))))([1.0, jnp.ones(2, int)])

    assert [[True, False]] == seen


def test_a_function_looks_at_each_leaf():
    chosen, _ = ps.partition(net(), ps.leaves(is_matrix))

    assert ["encoder.kernel", "layers[0].kernel", "layers[1].kernel"] == paths(chosen)


def test_what_a_function_raises_says_at_which_leaf():
    note = (
        "raised by test_what_a_function_raises_says_at_which_leaf.<locals>.<lambda>, a "
        "test of ps.leaves, for Net.encoder.kernel: it looks at the shape or dtype of "
        "a leaf, not at its values."
    )

    with pytest.raises(ValueError, match="truth value of an array") as caught:
        ps.partition(net(), ps.leaves("count", lambda x: x > 0))
    assert [note] == caught.value.__notes__


def test_a_choice_is_a_mask_for_optax():
    tx = optax.masked(optax.scale(0.0), ps.leaves("**.bias"))
    grads = {"kernel": jnp.ones(2), "bias": jnp.ones(2)}

    updates, _ = tx.update(grads, tx.init(grads))

    assert ([1, 1], [0, 0]) == (updates["kernel"].tolist(), updates["bias"].tolist())


def test_a_mask_may_be_asked_about_a_tree_with_gaps():
    assert {"a": None, "b": False} == ps.leaves("a")({"a": None, "b": 1})


# --- A choice is a value --------------------------------------------------------------


@given(nets(), choices, choices)
def test_choices_are_a_boolean_algebra(tree, a, b):
    one, other = bools(a(tree)), bools(b(tree))

    assert [x and y for x, y in zip(one, other, strict=True)] == bools((a & b)(tree))
    assert [x or y for x, y in zip(one, other, strict=True)] == bools((a | b)(tree))
    assert [not x for x in one] == bools((~a)(tree))
    assert bools(ps.leaves(a, b)(tree)) == bools((a | b)(tree))
    assert a == ~~a


@given(choices)
def test_a_choice_survives_pickling_and_copies(choice):
    for same in (
        pickle.loads(pickle.dumps(choice)),
        copy.copy(choice),
        copy.deepcopy(choice),
    ):
        assert choice == same
        assert hash(choice) == hash(same)


@given(choices)
def test_a_choice_prints_as_what_makes_it(choice):
    names = {"ps": ps, "is_matrix": is_matrix, "is_small": is_small}

    assert choice == eval(repr(choice), names)


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (ps.floats, "ps.floats"),
        (~ps.floats, "~ps.floats"),
        (ps.leaves("a", "b"), "ps.leaves('a', 'b')"),
        (ps.leaves("a") & ~ps.leaves("b"), "ps.leaves('a') & ~ps.leaves('b')"),
        (~(ps.leaves("a") & ps.floats), "~(ps.leaves('a') & ps.floats)"),
        (
            ps.leaves("a") & (ps.leaves("b") | ps.floats),
            "ps.leaves('a') & (ps.leaves('b') | ps.floats)",
        ),
        (ps.leaves(is_matrix, "a"), "ps.leaves(is_matrix, 'a')"),
        (
            ps.leaves(functools.partial(isinstance, 3)),
            "ps.leaves(functools.partial(<built-in function isinstance>, 3))",
        ),
    ],
)
def test_it_prints_as_one_writes_it(choice, text):
    assert text == repr(choice)


def test_a_state_shows_the_choice_that_it_holds():
    class Trained(ps.State):
        wrt: object = ps.static()

    assert "Trained(wrt=~ps.leaves('**.bias'))" == repr(Trained(~ps.leaves("**.bias")))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ps.leaves("a"), ps.leaves("b")),
        (ps.leaves("a"), ~ps.leaves("a")),
        (ps.leaves("a") & ps.leaves("b"), ps.leaves("a") | ps.leaves("b")),
        (ps.leaves(is_matrix), ps.leaves(is_small)),
        (ps.leaves("a"), "a"),
    ],
)
def test_choices_of_other_parts_are_different(one, other):
    assert one != other


def test_equal_choices_share_a_trace():
    class Trained(ps.State):
        w: ps.Array
        wrt: object = ps.static()

        @ps.jit
        def step(self):
            traced.append(1)
            return self

    traced = []
    for _ in range(3):
        Trained(1.0, ~ps.leaves(is_matrix, "**.bias") & ps.floats).step()

    assert [1] == traced


def test_a_choice_has_no_truth_value():
    text = (
        "ps.leaves('a') chooses leaves and has no truth value: combine choices with "
        "& | ~, not with and, or, not."
    )

    for use in (bool, lambda a: a and ps.floats, lambda a: a or a, lambda a: not a):
        with pytest.raises(TypeError, match=exactly(text)):
            use(ps.leaves("a"))


@pytest.mark.parametrize("other", ["a", is_matrix, None, True])
def test_a_choice_combines_with_choices_only(other):
    with pytest.raises(TypeError, match=r"^unsupported operand"):
        ps.leaves("a") & other
    with pytest.raises(TypeError, match=r"^unsupported operand"):
        other | ps.leaves("a")


def test_a_choice_does_not_change():
    choice = ps.leaves("a")
    text = (
        "cannot assign {}: a choice of leaves does not change. Combine choices with "
        "& | ~, each of which makes a new one."
    )

    for name in ("_parts", "new"):
        with pytest.raises(AttributeError, match=exactly(text.format(name))):
            setattr(choice, name, ())
    with pytest.raises(AttributeError, match=r"^cannot delete _parts: a choice of "):
        del choice._parts
    assert choice == ps.leaves("a")


# --- Mistakes -------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", ".a", "a.", "a..b", "."])
def test_a_path_with_an_empty_name_is_refused(path):
    text = (
        f"ps.leaves({path!r}): a path is names with dots between them, as in "
        f"'layers.0.kernel' or '**.bias'."
    )

    with pytest.raises(TypeError, match=exactly(text)):
        ps.leaves("good", path)


@pytest.mark.parametrize(
    ("tests", "got"),
    [
        ((), "nothing"),
        ((3,), "3"),
        ((None,), "None"),
        (("a", ["b"]), "['b']"),
        ((b"a",), "b'a'"),
    ],
)
def test_what_is_no_test_is_refused(tests, got):
    text = (
        f"ps.leaves takes paths, as 'layers.*.kernel', functions of a leaf, as "
        f"lambda x: x.ndim > 1, and other choices, and got {got}."
    )

    with pytest.raises(TypeError, match=exactly(text)):
        ps.leaves(*tests)


@dataclasses.dataclass
class Wider:
    """A test without a hash."""

    than: int

    def __call__(self, leaf):
        return leaf.size > self.than


@pytest.mark.parametrize(
    ("test", "shown", "held"),
    [
        (functools.partial(jnp.equal, np.ones(2)), "functools.partial", "ndarray"),
        (Wider(2), "Wider(than=2)", "Wider"),
    ],
)
def test_a_test_that_is_no_value_is_named_and_not_the_ones_before_it(test, shown, held):
    with pytest.raises(TypeError) as caught:
        ps.leaves("first", test)
    text = str(caught.value)
    assert text.startswith(f"ps.leaves({shown}")
    assert (
        f"cannot be kept as a value: it holds an array, or something without a hash, "
        f"of type {held}. Give a function that looks at the shape or dtype of a leaf, "
        f"and holds nothing."
    ) in text


LISTED = [
    path.replace("['a.b']", ".a*b").replace("['flags']", ".flags") for path in ALL
]
LISTED = [path.replace("[", ".").replace("]", "") for path in [*LISTED, "size"]]


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("encodr", "did you mean 'encoder'?"),
        ("encoder.bais", "did you mean 'encoder.bias'?"),
        ("layers.*.bais", "did you mean 'layers.1.bias'?"),
        ("**.bais", "did you mean '**.bias'?"),
        ("layer.0", "did you mean 'layers.0'?"),
        ("layers.7", "did you mean 'layers.1'?"),
        ("encoder.kernel.x", "did you mean 'encoder.kernel'?"),
        ("extra.a.b", "did you mean 'extra.a*b'?"),
        ("mask", f"its leaves are {', '.join(LISTED)}."),  # None
    ],
)
@pytest.mark.parametrize("form", [ps.leaves, lambda p: ps.floats & ~ps.leaves(p)])
def test_a_path_that_leads_nowhere_has_a_hint(path, hint, form):
    choice, text = form(path), f"Net has no leaf {path!r}; {hint}"

    for use in (
        lambda: net().at(choice),
        lambda: ps.partition(net(), choice),
        lambda: ps.grad(lambda n: n.count, wrt=choice)(net()),
    ):
        with pytest.raises(PlaceError, match=exactly(text)):
            use()
    assert len(bools(choice(net()))) == len(jax.tree.leaves(net()))  # as a mask


@pytest.mark.parametrize("key", ["a.b", "w[0]", "*", "?", ""])
def test_the_hint_for_a_name_that_no_path_can_hold_works(key):
    tree = {"other": 1, "part": {key: 2}}

    with pytest.raises(PlaceError) as caught:
        ps.partition(tree, ps.leaves("zzz"))
    hint = str(caught.value).split(", ")[-1].rstrip(".")
    assert hint.startswith("part.")
    assert [2] == jax.tree.leaves(ps.partition(tree, ps.leaves(hint))[0])


def test_a_long_list_of_leaves_is_cut():
    with pytest.raises(PlaceError, match=r"its leaves are 0, 1, .*, 11, \.\.\.\.$"):
        ps.partition(list(range(40)), ps.leaves("zzz"))


def test_a_tree_that_is_a_leaf_has_no_paths():
    text = "ndarray has no leaf 'w'; it is a leaf itself."

    with pytest.raises(PlaceError, match=exactly(text)):
        ps.partition(np.ones(2), ps.leaves("w"))


def test_in_a_tree_without_leaves_any_path_is_right():
    assert ([], []) == ps.partition([], ps.leaves("w"))
    assert {"a": None} == ps.partition({"a": None}, ps.leaves("w"))[0]


# --- at -------------------------------------------------------------------------------


@given(nets(), choices)
def test_the_identity_at_any_leaves_changes_nothing(tree, choice):
    pst.assert_same(tree, tree.at(choice).apply(lambda leaf: leaf))


@given(nets(), choices)
def test_apply_takes_what_another_tree_has_there(ours, choice):
    theirs = jax.tree.map(another, ours).replace()  # with its own derived size

    found = ours.at(choice).apply(lambda old, new: new, theirs)

    chosen, _ = ps.partition(theirs, choice)
    pst.assert_same(ps.combine(chosen, ours), found)


def test_set_puts_a_value_into_each_leaf():
    after = net().at(ps.leaves("**.bias")).set(jnp.zeros(1))

    assert [(1,)] * 3 == [x.bias.shape for x in (after.encoder, *after.layers)]
    assert (2, 3) == after.encoder.kernel.shape


def test_what_is_around_no_chosen_leaf_is_shared():
    before = net()

    after = before.at(ps.leaves("layers.0.bias")).apply(lambda x: x + 1)

    assert before.encoder is after.encoder
    assert before.layers[1] is after.layers[1]
    assert before.layers[0].kernel is after.layers[0].kernel
    assert before.at(ps.leaves(is_small) & ~ps.leaves("**")).set(0) is before


def test_derived_fields_are_computed_again_and_not_set():
    class Scaled(ps.State):
        w: jax.Array
        total: jax.Array = ps.field(init=False)

        def __post_init__(self):
            self.total = self.w.sum()

    after = Scaled(jnp.ones(2)).at(ps.floats).apply(lambda x: x * 10)

    assert 20 == after.total
    assert 2 == Scaled(jnp.ones(2)).at(ps.leaves("total")).set(7.0).total


def test_a_cast_is_the_program_of_a_tree_map():
    class Cast(ps.State):
        first: Layer
        second: Layer

    def cast(x):
        return x.astype(jnp.bfloat16)

    model = Cast(layer(), layer())
    by_at = jax.make_jaxpr(lambda m: m.at(ps.floats).apply(cast))(model)
    by_map = jax.make_jaxpr(lambda m: jax.tree.map(cast, m))(model)

    assert str(by_map) == str(by_at)


def test_a_strict_class_refuses_a_cast_by_its_field():
    class Strict(ps.State, strict=True):
        w: jax.Array

    with pytest.raises(
        ps.errors.StrictFieldError,
        match=r"^Strict is strict and w would change from f32\[2\] to bf16\[2\]",
    ):
        Strict(jnp.ones(2)).at(ps.floats).apply(lambda x: x.astype(jnp.bfloat16))


def test_a_node_that_only_jax_knows_is_changed_inside():
    class Held(ps.State):
        call: object

    held = Held(jax.tree_util.Partial(jnp.add, jnp.ones(2), jnp.ones(2, int)))

    after = held.at(ps.floats).apply(lambda a, b: a + b, held)

    assert [2, 2] == after.call.args[0].tolist()
    assert held.call.args[1] is after.call.args[1]
    text = r"^apply\(\) got trees of different structure inside of a Partial: "
    other = Held(jax.tree_util.Partial(jnp.add, jnp.ones(2)))
    with pytest.raises(PlaceError, match=text):
        held.at(ps.floats).apply(lambda a, b: a + b, other)


def test_another_tree_without_the_place_is_named():
    text = (
        "apply() got a Layer without .encoder.kernel: Layer is of type Layer. Give a "
        "tree that has each place."
    )

    with pytest.raises(PlaceError, match=exactly(text)):
        net().at(ps.floats).apply(lambda a, b: a, layer())


def test_leaves_are_changed_under_jit_vmap_and_scan():
    def half(n):
        return n.at(ps.leaves("**.bias")).apply(lambda x: x / 2)

    batch = ps.stack([net(), net()])

    assert [0.5] * 3 == jax.jit(half)(net()).encoder.bias.tolist()
    assert [[0.5] * 3] * 2 == jax.vmap(half)(batch).encoder.bias.tolist()
    last, _ = jax.lax.scan(lambda n, _: (half(n), None), net(), length=2)
    assert [0.25] * 3 == last.encoder.bias.tolist()


def test_a_packed_state_is_changed_under_ps_jit():
    half = ps.jit(lambda n: n.at(ps.leaves("**.bias")).apply(lambda x: x / 2))

    assert [0.5] * 3 == half(ps.pack(net())).unpack().encoder.bias.tolist()


def test_a_donated_state_says_so():
    donated = net()
    ps.jit(lambda n: n, donate=True)(donated)

    for use in (
        lambda: donated.at(ps.floats).set(0.0),
        lambda: ps.floats(donated),
        lambda: ps.partition(donated, ps.floats),
        lambda: ps.where(True, donated, net()),
    ):
        with pytest.raises(
            ps.errors.ConsumedStateError, match=r"^this Net was donated"
        ):
            use()


def test_a_choice_may_be_called_with_a_type():
    assert ps.floats(Net) is False
