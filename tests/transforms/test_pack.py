"""A packed State: fewer arguments for jax, the same State for everybody else."""

import copy
import gc
import pickle
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import purestate as ps
import purestate.testing as pst
from purestate.errors import (
    ConsumedStateError,
    FrozenStateError,
    JitDeclarationError,
    PackedAttributeError,
    PackError,
    StateDriftWarning,
    TracedEqualityError,
    UnhashableStateError,
)
from tests.transforms.packing import Opt, Pair, Train, leaf_count, train

# Some methods meet more structures in these tests than a function should in a program.
pytestmark = pytest.mark.filterwarnings("ignore::purestate.errors.RetraceWarning")
STATES = pst.state_classes().flatmap(pst.states)


# --- in and out -----------------------------------------------------------------------


def test_a_packed_state_has_one_leaf_per_dtype():
    packed = ps.pack(train())

    assert 5 == leaf_count(train())
    assert ["float32", "int32"] == [leaf.dtype.name for leaf in jax.tree.leaves(packed)]


def test_unpack_returns_the_state():
    state = train()

    assert state == ps.pack(state).unpack()
    assert not ps.diff(state, ps.pack(state).unpack())


@given(STATES)
def test_any_state_comes_back_as_it_was(state):
    there_and_back = ps.pack(state).unpack()

    as_arrays = jax.tree.map(
        lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, state
    )
    changes = ps.diff(as_arrays, there_and_back, values=True)
    assert not changes, changes


@given(STATES)
def test_a_jitted_function_returns_the_same_bits(state):
    double = ps.jit(lambda s: jax.tree.map(lambda x: x, s))

    expected, packed = double(state), double(ps.pack(state))

    changes = ps.diff(expected, packed.unpack(), values=True)
    assert not changes, changes


def test_leaves_of_many_kinds_come_back():
    class Zoo(ps.State):
        held: dict

    key = jax.random.key(3)
    weak = jnp.asarray(1.5)
    held = {
        "bool": [jnp.ones(2, bool), jnp.zeros((), bool)],
        "bf16": [jnp.ones(2, jnp.bfloat16), jnp.zeros(3, jnp.bfloat16)],
        "c64": [jnp.ones(2, jnp.complex64), jnp.full(1, 2j)],
        "int8": [jnp.ones(2, jnp.int8), jnp.zeros(1, jnp.int8)],
        "empty": [jnp.zeros((0, 3)), jnp.zeros(0)],
        "keys": [key, jax.random.split(key, 2), jax.random.PRNGKey(1)],
        "rbg": [jax.random.key(1, impl="rbg"), jax.random.key(2, impl="rbg")],
        "weak": [weak, weak * 2],
        "none": None,
        "float": 0.5,
    }
    state = Zoo(held=held)

    assert any(leaf.weak_type for leaf in held["weak"])
    assert not ps.diff(state, ps.pack(state).unpack(), values=True)
    after = ps.jit(lambda s: s)
    assert not ps.diff(after(state), after(ps.pack(state)).unpack(), values=True)


def test_weak_types_stay_weak_when_they_are_updated():
    class Weak(ps.State):
        a: object
        b: object

    packed = ps.pack(Weak(a=jnp.asarray(1.0), b=jnp.asarray(2.0)))

    new = ps.jit(lambda s: s.replace(a=s.a + 1))(packed)

    assert jax.tree.structure(packed) == jax.tree.structure(new)
    assert jax.tree.leaves(new)[0].weak_type
    assert 2 == new.a


def test_large_leaves_are_shared_not_copied():
    state = train(note=jnp.zeros(20_000))

    packed = ps.pack(state)

    assert any(leaf is state.note for leaf in jax.tree.leaves(packed))
    assert packed.unpack().note is state.note


def test_max_bytes_decides_what_is_large():
    assert 5 == leaf_count(ps.pack(train(), max_bytes=0))
    assert 4 == leaf_count(ps.pack(train(), max_bytes=4))
    assert 2 == leaf_count(ps.pack(train(), max_bytes=16))


def test_the_only_leaf_of_its_dtype_stays_as_it_is():
    state = train(note=jnp.ones(2, jnp.bfloat16))

    assert ps.pack(state).unpack().note is state.note


def test_numpy_arrays_become_arrays_of_jax():
    packed = ps.pack(train(w=np.arange(3.0, dtype=np.float32)))

    assert isinstance(packed.unpack().w, jax.Array)
    assert 2 == leaf_count(packed)


def test_a_packed_state_can_be_packed_otherwise():
    assert 5 == leaf_count(ps.pack(ps.pack(train()), max_bytes=0))


# --- what changes on the way ----------------------------------------------------------


def test_another_dtype_comes_back_unpacked_and_says_so():
    half = ps.jit(lambda train: train.replace(w=train.w.astype(jnp.bfloat16)))

    with pytest.warns(StateDriftWarning) as caught:
        out = half(ps.pack(train()))

    assert (
        "<lambda> returns its Train changed:\nTrain.w: dtype float32 -> bfloat16\nIt "
        "comes back unpacked. The next call will be traced again, and scan would "
        "refuse it. Cast or reshape inside <lambda>, or start from the type that it "
        "returns."
    ) == str(caught[0].message)
    assert Train is type(out)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s.replace(w=s.w[:2]), r"Train\.w: shape \(3,\) -> \(2,\)"),
        (lambda s: s.replace(note=s.w), r"Train\.note: class NoneType -> f32\[3\]"),
        (lambda s: s.replace(rate=0.1), r"Train\.rate: static value 0\.5 -> 0\.1"),
        (lambda s: s.replace(opt=(s.opt,)), r"Train\.opt: class Opt -> tuple"),
    ],
)
def test_another_structure_comes_back_unpacked_and_says_so(change, text):
    with pytest.warns(StateDriftWarning, match=text):
        out = ps.jit(change)(ps.pack(train()))

    assert Train is type(out)


def test_a_container_that_changed_says_so_too():
    change = ps.jit(lambda nets: [nets[0].replace(w=nets[0].w[:1])])

    with pytest.warns(StateDriftWarning, match=r"shape \(3,\) -> \(1,\)"):
        out = change(ps.pack([train()]))

    assert list is type(out)


# --- the object -----------------------------------------------------------------------


def test_attributes_read_fields():
    packed = ps.pack(train())

    assert [0, 1, 2] == packed.w.tolist()
    assert (0.5, None) == (packed.rate, packed.note)
    assert Opt(mu=jnp.ones(4)) == packed.opt


def test_attributes_read_properties_and_static_methods():
    packed = ps.pack(train())

    assert [0, 0.5, 1] == packed.half.tolist()
    assert 5 == packed.norm
    assert "train" == packed.kind()


@pytest.mark.parametrize("name", ["plain", "by_jax", "replace"])
def test_a_method_that_is_not_under_ps_jit_says_so(name):
    with pytest.raises(
        PackedAttributeError,
        match=rf"^Train\.{name} is not under ps\.jit, and only that knows packed "
        rf"States: decorate it with @ps\.jit, call it in a function that is, or call "
        rf"packed\.unpack\(\)\.{name}\(\.\.\.\)\.$",
    ):
        getattr(ps.pack(train()), name)


def test_an_unknown_attribute_names_the_nearest_field():
    with pytest.raises(
        PackedAttributeError,
        match=r"^a packed Train has no attribute 'cuont'; did you mean 'count'\?$",
    ):
        _ = ps.pack(train()).cuont


def test_a_packed_container_has_no_fields():
    with pytest.raises(
        PackedAttributeError,
        match=r"^a packed list has no attribute 'w'; use packed\.unpack\(\)\.$",
    ):
        _ = ps.pack([train()]).w


@pytest.mark.parametrize(
    ("verb", "change"),
    [
        ("assign", lambda packed: setattr(packed, "w", 1)),
        ("delete", lambda packed: delattr(packed, "w")),
    ],
)
def test_a_packed_state_is_frozen(verb, change):
    with pytest.raises(
        FrozenStateError,
        match=rf"^cannot {verb} w of a packed Train: it is frozen\. Return an updated "
        rf"one from a function under ps\.jit, or pack one: "
        rf"ps\.pack\(packed\.unpack\(\)\.replace\(w=\.\.\.\)\)\.$",
    ):
        change(ps.pack(train()))


def test_the_repr_shows_the_state():
    packed = ps.pack(Pair(a=jnp.ones(2), b=jnp.ones((2, 3))))

    assert "Packed(Pair(a=f32[2], b=f32[2,3]))" == repr(packed)


def test_the_repr_shows_keys_and_deleted_buffers():
    packed = ps.pack(Pair(a=jax.random.key(0), b=jax.random.key(1)))
    before = repr(packed)
    jax.tree.leaves(packed)[0].delete()

    assert "Packed(Pair(a=key<fry>[], b=key<fry>[]))" == before
    assert "Packed(Pair(a=key<fry>[](deleted), b=key<fry>[](deleted)))" == repr(packed)


@pytest.mark.parametrize("leaf", [None, object(), 1, jax.ShapeDtypeStruct((), int)])
def test_the_repr_never_raises(leaf):
    packed = jax.tree.map(lambda _: leaf, ps.pack(train()))

    assert repr(packed)
    assert "<Packed>" == repr(object.__new__(type(packed)))


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))]
)
def test_copies_are_equal_and_share_the_trace(copied):
    packed = ps.pack(train(note=jax.random.key(0)))

    made = copied(packed)

    assert packed == made
    assert jax.tree.structure(packed) == jax.tree.structure(made)


def test_equality_compares_values_however_they_are_packed():
    packed = ps.pack(train())

    assert packed == ps.pack(train(), max_bytes=0)
    assert packed != ps.pack(train(w=jnp.ones(3)))
    assert packed != train()
    assert ps.pack([train()]) == ps.pack([train()])
    assert ps.pack([train()]) != ps.pack([train(), train()])


def test_equality_of_tracers_is_an_error():
    with pytest.raises(TracedEqualityError):
        jax.jit(lambda a, b: a == b)(ps.pack(train()), ps.pack(train()))


def test_it_has_no_hash():
    with pytest.raises(UnhashableStateError):
        hash(ps.pack(train()))


def test_paths_name_buffers_and_the_leaves_that_were_kept():
    packed = ps.pack(train(note={"big": jnp.zeros(20_000)}))

    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(packed)]

    assert [".float32", ".int32", ".note['big']"] == paths


def test_diff_compares_packed_states():
    a, b = (
        ps.pack(Pair(jnp.ones(1), jnp.ones(1))),
        ps.pack(Pair(jnp.ones(2), jnp.ones(1))),
    )

    assert ps.diff(a, b)


def test_what_describes_the_packing_is_freed_with_the_last_state():
    class Local(ps.State):
        a: jax.Array
        b: jax.Array
        name: str = ps.static(default="only here")

    packed = ps.pack(Local(a=jnp.ones(2), b=jnp.ones(2)), max_bytes=77)
    spec = weakref.ref(jax.tree_util.tree_flatten(packed)[1].node_data()[1])
    alive = spec() is not None
    del packed
    jax.clear_caches()
    gc.collect()

    assert alive
    assert spec() is None


# --- mistakes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind"),
    [(jnp.ones(2), "ArrayImpl"), ({"a": 1.0}, "dict"), (None, "NoneType")],
)
def test_only_trees_of_states_can_be_packed(value, kind):
    with pytest.raises(
        PackError,
        match=rf"^ps\.pack takes a State or a container of States, and got an object "
        rf"of type {kind}\.$",
    ):
        ps.pack(value)


@pytest.mark.parametrize("size", [-1, 0.5, True, "64"])
def test_max_bytes_is_a_size(size):
    with pytest.raises(
        PackError,
        match=r"^max_bytes is the size in bytes up to which leaves are packed, an "
        r"integer from 0 on, and got ",
    ):
        ps.pack(train(), max_bytes=size)


def test_a_packed_state_is_nothing_to_compile():
    with pytest.raises(JitDeclarationError):
        ps.jit(ps.pack(train()))


def test_a_consumed_state_cannot_be_packed():
    state = train()
    state.donated()

    with pytest.raises(ConsumedStateError):
        ps.pack(state)


def test_calls_of_packed_states_warn_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        packed, _ = ps.pack(train()).step()

    assert 1 == packed.count
