"""`ps.where`: one of two trees by a flag, with every leaf as it was."""

import enum

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import assume, given

import purestate as ps
import purestate.testing as pst
from purestate.errors import ConsumedStateError, WhereError
from tests.helpers import exactly
from tests.state.choices import Layer, another, layer, net, nets, total

# --- Laws -----------------------------------------------------------------------------


def other(tree):
    return jax.tree.map(another, tree)


@given(nets(), st.sampled_from([bool, float, np.int32, jnp.asarray]))
def test_a_true_flag_gives_the_first_and_a_false_one_the_second(a, kind):
    b = other(a)

    pst.assert_same(a, ps.where(kind(True), a, b))
    pst.assert_same(b, ps.where(kind(False), a, b))


@given(nets(), st.booleans())
def test_of_one_tree_the_buffers_are_passed_through(a, flag):
    found = ps.where(flag, a, a)

    for ours, theirs in zip(*map(jax.tree.leaves, (a, found)), strict=True):
        assert ours is theirs


@given(nets(dims=(2,)), st.booleans())
def test_it_is_the_same_under_jit(a, flag):
    pst.assert_same(ps.where(flag, a, other(a)), jax.jit(ps.where)(flag, a, other(a)))


@given(nets(dims=(2,)), st.lists(st.booleans(), min_size=1, max_size=2))
def test_a_batch_of_flags_chooses_for_each_member(one, flags):
    a = ps.stack([one] * len(flags))
    b, flags = other(a), jnp.array(flags)

    pst.assert_same(jax.vmap(ps.where)(flags, a, b), ps.where(flags, a, b))


@given(nets(dims=(2,), specials=False), st.booleans())
def test_the_gradient_is_that_of_the_chosen_one(a, flag):
    b = other(a)
    expected = ps.grad(total)(a)

    found = ps.grad(lambda one: total(ps.where(flag, one, b)))(a)

    zero = jax.tree.map(jnp.zeros_like, expected)
    pst.assert_close(expected if flag else zero, found)


@given(nets(), nets())
def test_what_differs_in_more_than_numbers_is_refused_by_place(a, b):
    found = ps.diff(a, b)
    assume(found)

    with pytest.raises(WhereError) as caught:
        ps.where(True, a, b)
    assert sorted(map(str, found)) == sorted(str(caught.value).split("\n")[1:-1])


# --- What it computes -----------------------------------------------------------------


def operations(fn, *args):
    """Return how often each operation stands in a program, the inner ones too."""
    counts = {}

    def count(jaxpr):
        for equation in jaxpr.eqns:
            inner = [p.jaxpr for p in equation.params.values() if hasattr(p, "jaxpr")]
            for one in inner:
                count(one)
            if not inner:
                name = equation.primitive.name
                counts[name] = counts.get(name, 0) + 1

    count(jax.make_jaxpr(fn)(*args).jaxpr)
    return counts


def test_it_makes_one_select_for_each_leaf_and_nothing_else():
    a, b = (Layer(jnp.full((2, 3), x), jnp.full(3, x)) for x in (1.0, 2.0))

    assert {"select_n": 2} == operations(ps.where, True, a, b)
    assert operations(jnp.where, True, 1, jnp.int32(2)) == operations(
        lambda f, x: ps.where(f, 1, x), True, jnp.int32(2)
    )


def test_a_leaf_that_both_share_makes_no_select():
    def kept(flag, one, bias):
        return ps.where(flag, one.replace(bias=bias), one)

    assert {"select_n": 1} == operations(kept, True, layer(), jnp.zeros(3))
    assert {} == operations(lambda flag, one: ps.where(flag, one, one), True, layer())


def test_axes_behind_those_of_the_flag_are_chosen_as_a_whole():
    flags = jnp.array([[True, False]])
    a = {"x": jnp.ones((1, 2)), "y": jnp.ones((1, 2, 3))}

    found = ps.where(flags, a, jax.tree.map(jnp.zeros_like, a))

    assert [[1, 0]] == found["x"].tolist()
    assert [[[1] * 3, [0] * 3]] == found["y"].tolist()


def test_a_number_is_a_flag_as_for_jnp_where():
    pairs = [(0, 2), (0.0, 2), (-0.0, 2), (0.5, 1), (float("nan"), 1), (3, 1), (1j, 1)]

    for flag, expected in pairs:
        assert expected == ps.where(flag, 1, 2)
        assert expected == ps.where(np.asarray(flag), 1, 2)


def test_no_converter_and_no_check_runs():
    class Counted(ps.State):
        x: jax.Array = ps.field(converter=lambda x: ran.append("converter") or x)
        double: jax.Array = ps.field(init=False)

        def __post_init__(self):
            ran.append("post")
            self.double = 2 * self.x

        def __check__(self):
            ran.append("check")

    ran = []
    a, b = Counted(jnp.ones(2)), Counted(jnp.zeros(2))
    ran.clear()

    assert [2, 2] == ps.where(True, a, b).double.tolist()
    assert [] == ran


def test_a_carry_stays_what_it_was():
    def step(n, i):
        return ps.where(i % 2 == 0, n.replace(count=n.count + 1), n), None

    last, _ = jax.lax.scan(step, net(), jnp.arange(5))

    assert 3 == last.count


def test_the_strong_type_wins_over_the_weak_one():
    weak, strong = jnp.asarray(1.0), jnp.float32(2)
    assert weak.weak_type

    for pair in ((weak, strong), (strong, weak)):
        assert not ps.where(True, *pair).weak_type
    assert ps.where(True, weak, weak + 1).weak_type


def test_a_module_of_functions_and_arrays_is_chosen():
    a, b = (eqx.nn.MLP(2, 2, 3, 1, key=jax.random.key(i)) for i in range(2))

    found = ps.where(False, a, b)

    assert eqx.tree_equal(b, found)
    assert a.activation is found.activation


def test_keys_are_chosen_one_by_one():
    a, b = (jax.random.split(jax.random.key(i), 2) for i in range(2))

    found = ps.where(jnp.array([True, False]), a, b)

    assert a.dtype == found.dtype
    assert bool((found == jnp.stack([a[0], b[1]])).all())


def test_packed_states_are_chosen_by_a_scalar():
    a, b = (ps.pack(net(x)) for x in (1.0, 2.0))

    pst.assert_same(net(2.0), ps.where(False, a, b).unpack())
    pst.assert_same(net(1.0), jax.jit(ps.where)(True, a, b).unpack())


# --- What is not an array of numbers --------------------------------------------------


class Raises:
    __hash__ = None

    def __eq__(self, other):
        raise RuntimeError("no")


class Answers:
    __hash__ = None

    def __init__(self, answer):
        self.answer = answer

    def __eq__(self, other):
        return self.answer


REF, RAISES = jax.new_ref(jnp.ones(2)), Raises()
FLOAT0 = np.zeros(2, jax.dtypes.float0)
SPEC = jax.ShapeDtypeStruct((2,), jnp.float32)


EQUAL = {
    "string": ("relu", "".join(["re", "lu"])),
    "function": (len, len),
    "array of strings": (np.array(["a", "b"]), np.array(["a", "b"])),
    "array of objects": (np.array([None, 1]), np.array([None, 1])),
    "dates": (np.array(["2020"], "M8[Y]"), np.array(["2020"], "M8[Y]")),
    "float0": (FLOAT0, FLOAT0.copy()),
    "spec": (SPEC, jax.ShapeDtypeStruct((2,), jnp.float32)),
    "class": (jnp.float32, jnp.float32),
    "a numpy answer": (Answers(np.True_), Answers(np.True_)),
    "a ref": (REF, REF),
    "itself, whatever it answers": (RAISES, RAISES),
}


@pytest.mark.parametrize(("x", "y"), EQUAL.values(), ids=EQUAL)
@pytest.mark.parametrize("flag", [True, np.array([True, False])])
def test_other_leaves_that_are_equal_are_kept(x, y, flag):
    a, b = {"kept": x, "n": jnp.ones(2)}, {"kept": y, "n": jnp.zeros(2)}

    found = ps.where(flag, a, b)

    assert x is found["kept"]
    assert jnp.where(flag, a["n"], b["n"]).tolist() == found["n"].tolist()


UNEQUAL = {
    "strings": ("relu", "tanh", "value 'relu' -> 'tanh'"),
    "functions": (len, abs, f"value {len!r} -> {abs!r}"),
    "arrays of strings": (
        np.array(["a"]),
        np.array(["b"]),
        "value array(['a'], dtype='<U1') -> array(['b'], dtype='<U1')",
    ),
    "shapes of strings": (np.array(["a"]), np.array(["a", "b"]), "shape (1,) -> (2,)"),
    "lengths of strings": (np.array(["a"]), np.array(["aa"]), "dtype <U1 -> <U2"),
    "shapes of float0": (FLOAT0, FLOAT0[:1], "shape (2,) -> (1,)"),
    "float0 and float": (FLOAT0, jnp.ones(2), None),
    "specs": (SPEC, jax.ShapeDtypeStruct((3,), jnp.float32), "shape (2,) -> (3,)"),
    "spec and array": (SPEC, jnp.ones(2), None),
    "string and number": ("1", 1, "class str -> int"),
    "a comparison that raises": (RAISES, Raises(), None),
    "an array as the answer": (Answers(np.ones(2)), Answers(np.ones(2)), None),
    "a string as the answer": (Answers("yes"), Answers("yes"), None),
    "classes": (jnp.float32, jnp.int32, None),
    "refs": (REF, jax.new_ref(jnp.ones(2)), None),
    "ref and array": (REF, jnp.ones(2), None),
    "None": (None, 1, "class NoneType -> int"),
}


@pytest.mark.parametrize(("x", "y", "line"), UNEQUAL.values(), ids=UNEQUAL)
@pytest.mark.parametrize("turn", [False, True])
def test_other_leaves_that_are_not_equal_are_refused(x, y, line, turn):
    a, b = {"n": 1, "part": [x]}, {"n": 2, "part": [y]}

    with pytest.raises(WhereError, match=r"two dicts that differ in\n") as caught:
        ps.where(True, *((b, a) if turn else (a, b)))
    _, found, _ = str(caught.value).split("\n")
    assert found.startswith("['part'][0]: ")
    if line and not turn:
        assert f"['part'][0]: {line}" == found


# --- Numbers --------------------------------------------------------------------------

TAKEN = [
    (jnp.int32(1), 2),
    (jnp.int32(1), True),
    (jnp.uint8(1), 255),
    (jnp.int8(1), -128),
    (jnp.bool_(True), False),
    (jnp.float16(1), 0.5),
    (jnp.bfloat16(1), 3),
    (jnp.complex64(1), 2.0),
    (jnp.complex64(1), 1j),
    (np.float32(1), 2.0),
    (np.ones((), np.int16), 2),
]


@pytest.mark.parametrize(("x", "number"), TAKEN)
def test_a_number_meets_a_scalar_and_keeps_its_dtype(x, number):
    for found in (ps.where(False, x, number), ps.where(True, number, x)):
        assert x.dtype == found.dtype
        assert number == found
    assert x == ps.where(True, x, number)


REFUSED = [
    (jnp.int32(1), 0.5, "dtype int32 -> float 0.5"),
    (jnp.int32(1), 1.0, "dtype int32 -> float 1.0"),
    (jnp.int8(1), 300, "dtype int8 -> int 300"),
    (jnp.uint8(1), -1, "dtype uint8 -> int -1"),
    (jnp.bool_(1), 1, "dtype bool -> int 1"),
    (jnp.float32(1), 1j, "dtype float32 -> complex 1j"),
    (jax.random.key(0), 1, "dtype key<fry> -> int 1"),
    (jnp.ones(2), 1.0, "class f32[2] -> float"),
    (np.ones(2), 1, "class f64[2](numpy) -> int"),
    (1, 1.0, "dtype int 1 -> float 1.0"),
    (True, 1, "dtype bool True -> int 1"),
    (jnp.ones(2), jnp.ones(3), "shape (2,) -> (3,)"),
    (jnp.ones(1), jnp.ones(()), "shape (1,) -> ()"),
    (jnp.float32(1), jnp.bfloat16(1), "dtype float32 -> bfloat16"),
    (jnp.float32(1), np.float64(1), "dtype float32 -> float64"),
    (
        jax.random.key(0),
        jax.random.key(0, impl="rbg"),
        "dtype key<fry> -> key<rbg>",
    ),
]


@pytest.mark.parametrize(("x", "y", "line"), REFUSED)
def test_what_would_change_a_type_is_refused(x, y, line):
    a = {"same": 1, "weak": jnp.float32(1), "x": x}
    b = {"same": jnp.int32(1), "weak": jnp.asarray(1.0), "x": y}
    text = (
        f"where() cannot choose between two dicts that differ in\n['x']: {line}\nOnly "
        f"the numbers may differ. Cast or reshape one of them, or give both the same "
        f"static values."
    )

    with pytest.raises(WhereError, match=exactly(text)):
        ps.where(True, a, b)
    with pytest.raises(WhereError):
        ps.where(True, b, a)
    with pytest.raises(WhereError):  # and in a program
        jax.jit(lambda flag: ps.where(flag, x, y))(True)


class Flag(enum.IntEnum):
    UP = 1


def test_members_of_an_integer_enum_are_numbers():
    assert 1 == ps.where(Flag.UP, Flag.UP, 2)


def test_two_arrays_without_a_class_around_them_are_called_arrays():
    text = r"^where\(\) cannot choose between two arrays that differ in\nshape \(2,\) -"

    with pytest.raises(WhereError, match=text):
        ps.where(True, jnp.ones(2), jnp.ones(3))


def test_all_differences_are_listed_and_no_pair_that_fits():
    a = net()
    b = a.replace(
        encoder=Layer(jnp.ones((2, 2)), jnp.ones(3, int)), count=2, name="other", mask=1
    )

    with pytest.raises(WhereError) as caught:
        ps.where(True, a, b)
    assert [
        "Net.name: static value 'net' -> 'other'",
        "Net.mask: class NoneType -> int",
        "Net.encoder.kernel: shape (2, 3) -> (2, 2)",
        "Net.encoder.bias: dtype float32 -> int32",
    ] == str(caught.value).split("\n")[1:-1]


@pytest.mark.parametrize(
    ("a", "b", "line"),
    [
        ({"a": 1}, {"b": 1}, "structure ['a'] -> ['b']"),
        ([1], [1, 2], "structure [0] -> [0], [1]"),
        ([1], (1,), "class list -> tuple"),
        (layer(), net(), "Layer: class Layer -> Net"),
        (None, layer(), "class NoneType -> Layer"),
        (layer(), None, "Layer: class Layer -> NoneType"),
    ],
)
def test_other_structures_are_refused(a, b, line):
    with pytest.raises(WhereError) as caught:
        ps.where(True, a, b)
    assert line == str(caught.value).split("\n")[1]


def test_transformations_of_optax_are_told_from_each_other():
    class Train(ps.State):
        w: ps.Array
        tx: object = ps.static()

    a, b = (Train(1.0, optax.sgd(0.1)) for _ in range(2))

    hint = (
        r"Train\.tx: static value GradientTransformation.* -> another, and no two of "
        r"optax are equal: use purestate\.optax\.Optimizer, or "
        r"functools\.partial\(optax\.adam, 1e-3\)\n"
    )
    with pytest.raises(WhereError, match=hint):
        ps.where(True, a, b)
    with pytest.raises(ps.errors.StackError, match=hint):
        ps.stack([a, b])


# --- Flags ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "leaf", "place"),
    [
        (jnp.ones(2), {"a": jnp.ones(2), "b": jnp.ones((3, 2))}, "['b']"),
        (jnp.ones(2), {"a": jnp.ones(2), "b": jnp.ones(())}, "['b']"),
        (jnp.ones(1), {"b": jnp.ones(3)}, "['b']"),
        (jnp.ones((2, 1)), {"b": jnp.ones(2)}, "['b']"),
        (jnp.ones(2), {"b": 1.0}, "['b']"),
        (np.ones(0), jnp.ones(1), "the leaf"),
    ],
)
@pytest.mark.parametrize("is_same", [True, False])
def test_a_flag_whose_axes_are_not_the_first_is_refused(flag, leaf, place, is_same):
    shape = np.shape(leaf["b"] if isinstance(leaf, dict) else leaf)
    text = (
        f"where() got a flag of shape {flag.shape}, and {place} has shape {shape}: the "
        f"flag's shape must begin that of every leaf. Choose single States inside "
        f"jax.vmap, or reduce the flag: jnp.any(flag)."
    )

    with pytest.raises(WhereError, match=exactly(text)):
        ps.where(flag, leaf, leaf if is_same else jax.tree.map(lambda x: x + 1, leaf))


def test_the_ways_out_for_a_flag_work():
    flags = jnp.array([True, False])
    a, b = layer(1.0), layer(2.0)

    assert 1 == ps.where(jnp.any(flags), a, b).bias[0]
    each = jax.vmap(ps.where, in_axes=(0, None, None))(flags, a, b)
    assert [1, 2] == each.bias[:, 0].tolist()


NO_FLAGS = {
    "None": None,
    "text": "yes",
    "list": [True],
    "dict": {"a": 1},
    "key": jax.random.key(0),
    "strings": np.array(["x"]),
    "objects": np.array([None]),
    "float0": FLOAT0,
    "spec": jax.ShapeDtypeStruct((), bool),
    "ref": REF,
    "class": bool,
    "State": layer(),
}


@pytest.mark.parametrize("flag", NO_FLAGS.values(), ids=NO_FLAGS)
def test_what_is_no_flag_is_refused(flag):
    text = (
        r"^where\(\) got [\s\S]* as its flag\. Give a bool or a number, or an array of "
        r"them, as to jnp\.where: ps\.where\(done, first, state\)\.$"
    )

    with pytest.raises(WhereError, match=text):
        ps.where(flag, layer(1.0), layer(2.0))
    assert issubclass(WhereError, ValueError)


@pytest.mark.parametrize("place", range(3))
def test_an_array_that_was_donated_says_so(place):
    args = [jnp.bool_(True), jnp.ones(2), jnp.zeros(2)]
    args[place].delete()

    with pytest.raises(RuntimeError, match="deleted") as caught:
        ps.where(*args)
    assert any("was donated to an earlier" in note for note in caught.value.__notes__)


def test_a_donated_state_says_so():
    donated = layer()
    new = ps.jit(lambda one: one, donate=True)(donated)

    for pair in ((donated, new), (new, donated)):
        with pytest.raises(ConsumedStateError, match=r"^this Layer was donated to "):
            ps.where(True, *pair)
