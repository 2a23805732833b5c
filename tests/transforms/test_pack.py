"""A packed State: fewer arguments for jax, the same State for everybody else."""

import copy
import gc
import os
import pickle
import subprocess
import sys
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

STATES = pst.state_classes().flatmap(pst.states)
# Some methods meet more structures in this file than a function should in a program.
pytestmark = pytest.mark.filterwarnings("ignore::purestate.errors.RetraceWarning")


class Opt(ps.State):
    mu: jax.Array
    name: str = ps.static(default="adam")


class Train(ps.State):
    w: jax.Array
    b: jax.Array
    opt: Opt
    count: jax.Array = 0
    seen: jax.Array = 0
    rate: float = ps.static(default=0.5)
    note: object = None

    @ps.jit
    def step(self, by=1.0):
        opt = self.opt.replace(mu=self.opt.mu * 2)
        return self.replace(w=self.w + by, opt=opt, count=self.count + 1), self.w.sum()

    @ps.jit(donate=True)
    def donated(self):
        return self.replace(w=self.w + 1, count=self.count + 1)

    @ps.jit
    def whole(self):
        return jax.tree.map(lambda leaf: leaf + leaf, self)

    @ps.jit
    @property
    def norm(self):
        return jnp.sum(self.w**2)

    @property
    def half(self):
        return self.w / 2

    def plain(self):
        return self

    @jax.jit
    def by_jax(self):
        return self

    @staticmethod
    def kind():
        return "train"


def train(**changes):
    given = {"w": jnp.arange(3.0), "b": jnp.ones((2, 2)), "opt": Opt(mu=jnp.ones(4))}
    return Train(**given | changes)


def leaf_count(tree):
    return len(jax.tree.leaves(tree))


# --- in and out -------------------------------------------------------------------------


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


# --- under ps.jit ---------------------------------------------------------------------


def test_a_function_receives_the_state_and_returns_it_packed():
    classes = []

    @ps.jit
    def step(state):
        classes.append(type(state))
        return state.replace(w=state.w * 2)

    packed = ps.pack(train())
    new = step(packed)

    assert [Train] == classes
    assert type(packed) is type(new)
    assert [0, 2, 4] == new.w.tolist()


def test_a_method_is_called_as_on_the_state():
    new, total = ps.pack(train()).step(by=2.0)
    expected, _ = train().step(by=2.0)

    assert expected == new.unpack()
    assert 3 == total


def test_a_loop_traces_once():
    traces = []

    @ps.jit
    def step(state):
        traces.append(1)
        return state.replace(w=state.w * 2, seen=state.seen + 1)

    packed = ps.pack(train())
    for _ in range(3):
        packed = step(packed)

    assert 1 == len(traces)
    assert 3 == packed.seen


def test_two_states_packed_alike_share_one_trace():
    traces = []

    @ps.jit
    def step(state):
        traces.append(1)
        return state

    step(ps.pack(train())), step(ps.pack(train(w=jnp.ones(3))))

    assert 1 == len(traces)


def test_packed_states_are_found_inside_containers_and_keywords():
    @ps.jit
    def step(pair, *, other):
        return {"first": pair[0], "sum": pair[0].w + other.w}

    out = step((ps.pack(train()), 1), other=ps.pack(train()))

    assert type(ps.pack(train())) is type(out["first"])
    assert [0, 2, 4] == out["sum"].tolist()


def test_a_container_of_states_can_be_packed():
    @ps.jit
    def step(nets):
        return {name: net.replace(w=net.w + 1) for name, net in nets.items()}

    packed = step(ps.pack({"a": train(), "b": train()}))

    assert 2 == leaf_count(packed)
    assert [1, 2, 3] == packed.unpack()["b"].w.tolist()


def test_a_part_of_the_state_comes_back_unpacked():
    assert Opt is type(ps.jit(lambda s: s.opt)(ps.pack(train())))


def test_states_may_change_places():
    swap = ps.jit(lambda s: s.replace(count=s.seen, seen=s.count))

    packed = swap(ps.pack(train(count=1, seen=2)))

    assert (2, 1) == (packed.count, packed.seen)


def test_lower_and_eval_shape_take_packed_states():
    packed = ps.pack(train())

    shapes = Train.whole.eval_shape(packed)

    assert (3,) == shapes.unpack().w.shape
    assert [0, 2, 4] == Train.whole.lower(packed).compile()(packed).w.tolist()


def test_disable_jit_gives_the_function_the_state():
    with jax.disable_jit():
        new, _ = ps.pack(train()).step()

    assert [1, 2, 3] == new.w.tolist()


def test_a_bound_method_is_jitted_for_all_packed_states():
    step = ps.jit(ps.pack(train()).donated, donate=False)

    assert [1, 2, 3] == step().w.tolist()


def test_plain_jax_jit_receives_the_packed_state():
    packed = ps.pack(train())

    assert 6 == jax.jit(lambda p: p.unpack().w.sum() + p.w.sum())(packed)


def test_a_large_leaf_is_updated_as_well():
    state = train(note=jnp.zeros(20_000))

    new = ps.pack(state).whole()

    assert state.whole() == new.unpack()


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
        (lambda s: s.replace(opt=None), r"Train\.opt: class Opt -> NoneType"),
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


# --- donation ---------------------------------------------------------------------------


def test_a_donated_packed_state_gives_its_buffers_away():
    packed = ps.pack(train())
    buffer = jax.tree.leaves(packed)[0]

    new = packed.donated()

    assert buffer.is_deleted()
    assert [1, 2, 3] == new.w.tolist()


@pytest.mark.parametrize(
    "use",
    [
        lambda packed: packed.w,
        lambda packed: packed.unpack(),
        lambda packed: packed.donated(),
        lambda packed: jax.tree.leaves(packed),
    ],
)
def test_a_donated_packed_state_explains_itself(use):
    packed = ps.pack(train())
    packed.donated()

    with pytest.raises(
        ConsumedStateError, match=r"^this Packed was donated to Train\.donated\(\); use"
    ):
        use(packed)
    assert "<Packed, donated to Train.donated()>" == repr(packed)


def test_a_donated_packed_state_in_a_container_explains_itself():
    step = ps.jit(lambda pair: pair[0].replace(w=pair[0].w + 1), donate=True)
    packed = ps.pack(train())

    step([packed])

    with pytest.raises(ConsumedStateError):
        packed.unpack()


def test_a_donated_loop_traces_once_and_keeps_its_count():
    packed = ps.pack(train())
    for _ in range(5):
        packed = packed.donated()

    assert 5 == packed.count


def test_the_state_stays_usable_when_its_packed_form_is_donated():
    state = train()

    ps.pack(state).donated()

    assert [0, 1, 2] == state.w.tolist()


# --- other transforms -------------------------------------------------------------------


def test_scan_outside_carries_a_packed_state():
    body = ps.jit(lambda state, x: (state.replace(w=state.w + x), state.count))

    last, _ = jax.lax.scan(body, ps.pack(train()), jnp.arange(3.0))

    assert [3, 4, 5] == last.w.tolist()
    assert type(ps.pack(train())) is type(last)


def test_scan_and_grad_and_vmap_work_inside():
    @ps.jit
    def step(state):
        slopes = jax.grad(lambda w: jnp.sum(w**2))(state.w)
        last, _ = jax.lax.scan(
            lambda s, x: (s.replace(w=s.w - x * slopes), None), state, jnp.ones(2)
        )
        return last.replace(b=jax.vmap(jnp.cumsum)(state.b))

    assert step(train()) == step(ps.pack(train())).unpack()


def test_vmap_over_another_argument_gives_a_batch_of_packed_states():
    moved = jax.vmap(lambda p, x: p.step(x)[0], in_axes=(None, 0))
    packed, by = ps.pack(train()), jnp.arange(2.0)

    batch = moved(packed, by)

    assert jax.vmap(lambda x: train().step(x)[0])(by) == batch.unpack()
    assert [3, 6] == jax.vmap(lambda p: p.w.sum())(batch).tolist()


def test_vmap_over_a_single_packed_state_is_an_error_with_the_way_out():
    with pytest.raises(
        PackError,
        match=r"^a buffer of a packed Pair holds 4 numbers and came with shape \(\)\. "
        r"A vmap, scan or slice over a packed State goes over its buffers, not over "
        r"its leaves: use packed\.unpack\(\) there, or vmap inside of the function "
        r"under ps\.jit\.",
    ):
        jax.vmap(ps.jit(lambda pair: pair.a))(
            ps.pack(Pair(a=jnp.ones(2), b=jnp.ones(2)))
        )


class Pair(ps.State):
    a: jax.Array
    b: jax.Array


def test_the_gradient_of_a_packed_state_is_packed():
    loss = ps.jit(lambda pair: jnp.sum(pair.a * pair.b))
    packed = ps.pack(Pair(a=jnp.ones(2), b=jnp.arange(2.0)))

    slopes = jax.grad(loss)(packed)

    assert [0, 1] == slopes.a.tolist()
    assert Pair(a=jnp.arange(2.0), b=jnp.ones(2)) == slopes.unpack()


def test_the_gradient_has_none_in_place_of_whole_numbers():
    slopes = ps.grad(ps.jit(lambda state: jnp.sum(state.w**2)))(ps.pack(train()))

    assert [0, 2, 4] == slopes.w.tolist()
    assert slopes.unpack().count is None


# --- the object -------------------------------------------------------------------------


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


# --- mistakes ---------------------------------------------------------------------------


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


# --- devices ----------------------------------------------------------------------------

TWO_DEVICES = """
import jax, jax.numpy as jnp, purestate as ps
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

class S(ps.State):
    a: jax.Array
    b: jax.Array
    c: jax.Array
    d: jax.Array
    split: jax.Array

one, two = jax.devices()[:2]
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(kind,))
    put = lambda v, *spec: jax.device_put(v, NamedSharding(mesh, P(*spec)))
    state = S(put(jnp.ones(2)), put(jnp.ones((2, 3))), put(jnp.int32(1)),
              put(jnp.int32(2)), put(jnp.arange(4.0), "x"))
    packed = ps.pack(state)
    assert 3 == len(jax.tree.leaves(packed))
    assert packed.unpack() == state
    traces = []
    @ps.jit(donate=True)
    def step(s):
        traces.append(1)
        return jax.tree.map(lambda x: x + x, s)
    for _ in range(3):
        packed = step(packed)
    assert packed.a.tolist() == [8, 8] and packed.split.tolist() == [0, 8, 16, 24]
    assert packed.split.sharding.spec == P("x")
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(packed)[:2])
    assert len(traces) == 1
apart = S(jax.device_put(1.0, one), jax.device_put(2.0, two), jax.device_put(3.0, one),
          jax.device_put(4.0, two), None)
packed = ps.pack(apart)
assert 2 == len(jax.tree.leaves(packed))
assert packed.unpack() == apart
assert packed.unpack().b.devices() == {two}
print("done")
"""


def test_buffers_stay_on_their_devices_and_split_leaves_stay_split():
    flags = (
        os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    )

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", TWO_DEVICES],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "done\n" == done.stdout, done.stderr
