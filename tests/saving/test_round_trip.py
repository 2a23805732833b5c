"""Everything that a State may hold comes back as it was."""

import functools
from collections import OrderedDict, defaultdict
from dataclasses import InitVar
from typing import Any, Generic, NamedTuple, TypeVar

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import purestate as ps
import purestate.testing as pst
from purestate.errors import CheckError, LoadError
from purestate.optax import Optimizer
from tests.helpers import python


@pytest.fixture
def path(tmp_path):
    return tmp_path / "t.safetensors"


class Box(ps.State):
    x: Any


def through_file(path, state, like):
    ps.save(path, state)
    return ps.load(path, like)


def same(before, after):
    """Compare two trees: structure, kinds of leaves, dtypes, weak types and all bits."""
    assert jax.tree.structure(before) == jax.tree.structure(after)
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert type(a) is type(b)
        assert getattr(a, "dtype", None) == getattr(b, "dtype", None)
        assert getattr(a, "weak_type", None) == getattr(b, "weak_type", None)
        if isinstance(a, jax.Array):
            assert a.committed == b.committed
            if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
                a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.shape(a) == np.shape(b)
        if hasattr(a, "dtype"):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
        else:
            assert repr(a) == repr(b)


# --- leaves -----------------------------------------------------------------------------

JAX_DTYPES = [
    "bool",
    "int4",
    "uint4",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "float16",
    "bfloat16",
    "float32",
    "complex64",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3b11fnuz",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "int2",
    "uint2",
    "float8_e3m4",
    "float8_e8m0fnu",
    "float4_e2m1fn",
]
WIDE = ("int64", "uint64", "float64", "complex128")
SHAPES = [(), (0,), (3, 0, 2), (1,), (1, 1), (5,), (2, 3, 4), (70_001,)]


def dtypes_here(names):
    """Return the dtypes of these names that this version of jax and numpy has."""
    found = []
    for name in names:
        try:
            jnp.zeros(1, name)
            found.append(name)
        except (TypeError, ValueError, NotImplementedError, AttributeError):
            continue
    return found


def numbers(dtype, shape):
    bits = np.random.default_rng(0).integers(0, 2, shape)
    return np.asarray(bits).astype(jnp.dtype(dtype))


def likes(state):
    return type(state), state, jax.eval_shape(lambda: state)


@pytest.mark.parametrize("dtype", dtypes_here(JAX_DTYPES))
def test_arrays_of_jax_come_back(path, dtype):
    box = Box(x=[jnp.asarray(numbers(dtype, shape)) for shape in SHAPES])

    for like in likes(box):
        same(box, through_file(path, box, like))


@pytest.mark.parametrize("dtype", [*dtypes_here(JAX_DTYPES), *WIDE])
def test_arrays_of_numpy_come_back(path, dtype):
    box = Box(x=[numbers(dtype, shape) for shape in SHAPES])

    for like in (Box, box):
        after = through_file(path, box, like)
        same(box, after)
        assert all(leaf.flags.writeable for leaf in after.x)


def test_arrays_of_numpy_come_back_next_to_an_abstract_instance(path):
    box = Box(x=[np.arange(3), np.float32(2) * np.ones(2, np.float32), np.arange(2.0)])

    same(box, through_file(path, box, jax.eval_shape(lambda: box)))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 2)])
def test_keys_come_back(path, impl, shape):
    keys = jax.random.split(jax.random.key(0, impl=impl), shape or 1)
    box = Box(x=keys if shape else keys[0])

    for like in likes(box):
        same(box, through_file(path, box, like))


def test_weak_types_come_back(path):
    box = Box(x=[jnp.asarray(2.0), jnp.asarray(3), jnp.float32(2), jnp.arange(3) * 1.0])
    assert [True, True, False, True] == [*[leaf.weak_type for leaf in box.x][:3], True]

    for like in likes(box):
        same(box, through_file(path, box, like))


NUMBERS = [
    True,
    0,
    -(2**70),
    3**300,
    0.1,
    -0.0,
    float("nan"),
    float("-inf"),
    complex(1, -0.0),
    "text \n é",
    b"\0\xff",
    np.float32(0.1),
    np.int8(-3),
    np.bool_(True),
    np.complex128(1j),
    None,
]


def test_numbers_and_texts_come_back(path):
    box = Box(x=NUMBERS)

    for like in (Box, box):
        same(box, through_file(path, box, like))


def test_numbers_come_back_next_to_an_abstract_instance(path):
    box = Box(x=[True, 3, 2.5, 1j, None])

    same(box, through_file(path, box, jax.eval_shape(lambda: box)))


def test_arrays_that_are_not_contiguous_come_back(path):
    base = np.arange(24, dtype=np.int16).reshape(4, 6)
    box = Box(x=[base.T, base[::2, ::-1], np.asfortranarray(base), base.astype(">i4")])

    after = through_file(path, box, Box)

    for a, b in zip(box.x, after.x, strict=True):
        np.testing.assert_array_equal(a, b)
        assert b.dtype.isnative


def test_an_array_in_several_places_is_stored_once_and_comes_back_as_one(path):
    w, n = jnp.arange(1000.0), np.arange(1000.0)
    box = Box(x={"a": w, "b": [w, n], "c": n})

    for like in (Box, box):
        after = through_file(path, box, like).x
        assert after["a"] is after["b"][0]
        assert after["c"] is after["b"][1]
    assert path.stat().st_size < 4000 + 8000 + 2000


def test_equal_arrays_in_several_places_stay_apart(path):
    box = Box(x=[jnp.arange(3.0), jnp.arange(3.0)])

    after = through_file(path, box, Box).x

    assert after[0] is not after[1]


# --- containers -------------------------------------------------------------------------


class Pair(NamedTuple):
    a: Any
    b: Any = None


CONTAINERS = {
    "nested": {"a": [1, (2, {"b": ()})], "c": []},
    "int keys": {0: 1, 10: 2, -1: 3},
    "keys of other types": {(1, "a"): 1, (2, "b"): 2},
    "bool keys": {True: 1, False: 2},
    "keys that clash": {"a.b": np.ones(1), "a": {"b": np.ones(2)}, "a/b": np.ones(3)},
    "an empty key": {"": np.ones(1), "x": {"": np.ones(2)}},
    "an ordered dict": OrderedDict(b=1, a=np.ones(2)),
    "a named tuple": Pair(1, Pair(np.ones(2))),
    "None": [None, {"a": None}],
}


@pytest.mark.parametrize("tree", CONTAINERS.values(), ids=CONTAINERS)
def test_containers_come_back(path, tree):
    box = Box(x=tree)

    for like in (Box, box):
        after = through_file(path, box, like)
        same(box, after)
        assert type(tree) is type(after.x)
        if isinstance(tree, dict):
            assert list(tree) == list(after.x)
            assert [*map(type, tree)] == [*map(type, after.x)]


def test_registered_containers_come_back_next_to_an_instance(path):
    box = Box(
        x=[defaultdict(list, a=np.ones(2)), jax.tree_util.Partial(max, np.ones(1))]
    )

    same(box, through_file(path, box, box))


@pytest.mark.parametrize(
    "tree",
    [{"a": jnp.ones(2)}, [jnp.ones(2), 3], (1, {"b": None}), jnp.ones(2), 3, None],
    ids=str,
)
def test_a_tree_without_a_state_comes_back(path, tree):
    like = [tree]  # None as like would ask for no class at all
    ps.save(path, tree)

    if tree is not None:
        same(tree, ps.load(path, tree))
        same(tree, ps.load(ps.load(path), tree))
    same([tree], through_file(path, [tree], like))


def test_states_in_containers_come_back_by_class(path):
    tree = {"a": Box(x=1), "b": [Box(x=np.ones(2)), 3.0]}

    same(tree, through_file(path, tree, {"a": Box, "b": [Box, 0.0]}))


# --- classes ----------------------------------------------------------------------------

T = TypeVar("T")


class Generic_(ps.State, Generic[T]):
    value: T


class Seeded(ps.State):
    seed: InitVar[int | None] = None
    scale: float = ps.static(default=2.0)
    w: jax.Array = ps.field(init=False, derived=False)
    total: jax.Array = ps.field(init=False)

    def __post_init__(self, seed=None):
        if seed is not None:
            self.w = jnp.full(3, float(seed))
        self.total = self.w.sum()


class Cached(ps.State):
    w: jax.Array

    @functools.cached_property
    def norm(self):
        return jnp.sqrt((self.w**2).sum())


class Strict(ps.State, strict=True):
    w: jax.Array


class Positive(ps.State):
    w: jax.Array

    def __check__(self):
        assert (self.w > 0).all(), "not positive"


class Written(ps.State):
    w: jax.Array
    n: int = ps.static()

    def __init__(self, n):
        self.w = jnp.zeros(n)
        self.n = n


def seeded():
    made = Seeded(seed=3)
    return made.replace(w=made.w * 2)


INSTANCES = {
    "generic": Generic_[int](value=np.arange(3)),
    "InitVar, started and derived fields": seeded(),
    "strict": Strict(w=jnp.ones(2)),
    "a hand-written __init__": Written(3).replace(w=jnp.ones(3)),
    "checked": Positive(w=jnp.ones(2)),
    "nested": Box(x=Box(x=[Strict(w=jnp.ones(2))])),
    "flags": jax.tree.map(lambda _: True, Strict(w=jnp.ones(2))),
    "axes": jax.tree.map(lambda _: None, Strict(w=jnp.ones(2))),
    "empty": type("Empty", (ps.State,), {})(),
}


@pytest.mark.parametrize("state", INSTANCES.values(), ids=INSTANCES)
def test_instances_come_back(path, state):
    for like in (type(state), state):
        same(state, through_file(path, state, like))


def test_a_generic_class_with_its_argument_is_a_class(path):
    state = Generic_(value=np.arange(3))

    same(state, through_file(path, state, Generic_[int]))


def test_no_constructor_runs(path, monkeypatch):
    state = seeded()
    ps.save(path, state)
    for name in ("__init__", "__post_init__"):
        monkeypatch.setattr(Seeded, name, lambda *_: pytest.fail("it ran"))

    same(state, ps.load(path, Seeded))


def test_a_derived_field_is_loaded_as_it_was_saved(path):
    state = jax.tree.map(lambda leaf: leaf + 1, seeded())

    assert float(state.total) == float(through_file(path, state, Seeded).total)
    assert float(state.total) != float(state.w.sum())


def test_cached_properties_are_not_saved(path):
    state = Cached(w=jnp.ones(3))
    assert state.norm is state.norm

    after = through_file(path, state, Cached)

    assert ["w"] == list(ps.load(path))
    assert "norm" not in vars(after)
    assert state.norm == after.norm


def test_a_check_that_fails_fails_the_load(path):
    wrong = jax.tree.unflatten(
        jax.tree.structure(Positive(w=jnp.ones(1))), [-jnp.ones(1)]
    )
    ps.save(path, Box(x=[wrong]))

    for like in (Box, Box(x=[wrong])):
        with pytest.raises(AssertionError, match="not positive") as error:
            ps.load(path, like)
        assert f"raised while {path} was loaded." in error.value.__notes__


def test_a_check_that_says_no_fails_the_load(path):
    class Never(ps.State):
        w: Any

        def __check__(self):
            return self.w is None

    ps.save(path, jax.tree.unflatten(jax.tree.structure(Never(w=None)), []))
    assert None is ps.load(path, Never).w
    wrong = Never(w=None)
    manifest = ps.to_dict(wrong)[1]
    manifest["root"]["data"]["w"] = {"value": 3}

    with pytest.raises(CheckError):
        ps.from_dict(manifest, Never, {})


def test_a_packed_state_is_saved_as_the_state_and_comes_back_as_either(path):
    state = Box(x=[jnp.ones(2), jnp.arange(3), jax.random.key(1)])
    packed = ps.pack(state)

    ps.save(path, packed)

    assert state == ps.load(path, Box)
    after = ps.load(path, packed)
    assert type(packed) is type(after)
    assert jax.tree.structure(packed) == jax.tree.structure(after)
    assert packed == after
    ps.save(path, Box(x=packed))
    assert Box(x=state) == ps.load(path, Box)


def test_a_packed_state_inside_comes_back_as_the_instance_has_it(path):
    box = Box(x={"a": ps.pack(Box(x=[jnp.ones(2), jax.random.key(1)])), "b": [3]})
    ps.save(path, box)

    for like in (box, jax.eval_shape(lambda: box)):
        same(box, ps.load(path, like))


def test_a_misfit_of_a_packed_state_has_its_path(path):
    ps.save(path, Box(x=ps.pack(Box(x=jnp.ones(2)))))

    for source, like in ((path, Box(x=ps.pack(Box(x=jnp.ones(3))))),):
        with pytest.raises(LoadError, match=r"does not fit Box:\n  Box\.x\.x: shape"):
            ps.load(source, like)
    with pytest.raises(LoadError, match=r"does not fit Box:\n  Box\.x: shape"):
        ps.load(ps.load(path)["x"], ps.pack(Box(x=jnp.ones(3))))


def test_a_sharding_of_more_axes_than_the_array_is_named_before_anything_is_read(
    path, monkeypatch
):
    from purestate._saving.file import File

    ps.save(path, Box(x={"a": jnp.ones(2), "b": jnp.ones((2, 2)), "n": np.ones(2)}))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("x", "y"))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", "y"))
    monkeypatch.setattr(File, "read", lambda *_: pytest.fail("an array was read"))

    with pytest.raises(LoadError) as error:
        ps.load(path, Box, sharding=sharding)
    _, line = str(error.value).splitlines()
    assert line.startswith("  Box.x['a']: shape (2,) does not fit its sharding (")


def test_a_sharding_of_an_abstract_mesh_is_named(path):
    box = Box(x=jnp.ones(2))
    ps.save(path, box)
    mesh = jax.sharding.AbstractMesh((1,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    like = Box(x=jax.ShapeDtypeStruct((2,), jnp.float32, sharding=sharding))

    with pytest.raises(LoadError) as error:
        ps.load(path, like)

    assert str(error.value).splitlines()[1:] == [
        (
            "  Box.x: its sharding is of an abstract mesh, without devices (give "
            "sharding=)"
        )
    ]
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    assert box == ps.load(path, like, sharding=here)


def test_a_sharding_that_does_not_divide_is_named():
    code = """
    import jax, jax.numpy as jnp, numpy as np, os, tempfile, purestate as ps
    class Box(ps.State):
        x: jax.Array
        y: jax.Array
    path = os.path.join(tempfile.mkdtemp(), "t")
    ps.save(path, Box(x=jnp.ones(3), y=jnp.ones(4)))
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    try:
        ps.load(path, Box, sharding=sharding)
    except ps.errors.LoadError as error:
        _, line = str(error).splitlines()
        assert line.startswith("  Box.x: shape (3,) does not fit its sharding ("), line
    else:
        raise SystemExit("nothing was raised")
    """
    process = python(code, devices=2)

    assert 0 == process.returncode, process.stderr


def test_scalars_of_numpy_come_back_next_to_an_abstract_instance(path):
    box = Box(x=[np.bool_(True), np.float32(2), np.int64(3), np.float64(0.1)])

    same(box, through_file(path, box, jax.eval_shape(lambda: box)))


# --- other libraries --------------------------------------------------------------------


def label(tree):
    return jax.tree.map(lambda x: "a" if x.ndim else "b", tree)


OPTIMIZERS = {
    "adam": lambda: optax.adam(1e-3),
    "a chain": lambda: optax.chain(optax.clip(1.0), optax.adamw(1e-3), optax.ema(0.9)),
    "masked": lambda: optax.masked(optax.adam(1e-3), {"w": True, "b": False}),
    "multi_transform": lambda: optax.multi_transform(
        {"a": optax.adam(1e-3), "b": optax.sgd(0.1, momentum=0.9)}, label
    ),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(1e-3),
    "multi_steps": lambda: optax.MultiSteps(optax.adam(1e-3), 2),
    "a schedule": lambda: optax.sgd(optax.cosine_decay_schedule(0.1, 10)),
    "lbfgs": optax.lbfgs,
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_states_of_optax_come_back(path, make):
    params = {"w": jnp.ones((2, 2)), "b": jnp.float32(0)}
    box = Box(x=make().init(params))

    for like in likes(box):
        same(box, through_file(path, box, like))


class Net(ps.State):
    w: jax.Array


class Train(ps.State):
    net: Net
    opt: Optimizer
    key: jax.Array

    @ps.jit
    def step(self):
        grads = jax.grad(lambda net: (net.w**2).sum())(self.net)
        opt, net = self.opt.update(self.net, grads=grads)
        return self.replace(net=net, opt=opt, key=jax.random.split(self.key)[0])


def make():
    net = Net(w=jnp.arange(3.0))
    return Train(net=net, opt=Optimizer(net, optax.adam, 0.1), key=jax.random.key(0))


def test_a_training_state_goes_on_as_if_nothing_had_happened(path):
    before = make().step()
    after = through_file(path, before, jax.eval_shape(make))

    same(before.step().step(), after.step().step())


def test_a_loaded_state_compiles_nothing(path):
    traces = []

    @jax.jit
    def step(state):
        traces.append(state)
        return state.replace(count=state.count + 1, w=state.w * 2.0)

    class Plain(ps.State):
        w: jax.Array
        count: ps.Array = 0
        weak: Any = None
        n: int = ps.static(default=3)

    def new():
        return Plain(w=jnp.ones(3), weak=jnp.asarray(1.0), n=4)

    step(new())
    ps.save(path, new())
    for like in (Plain, new(), jax.eval_shape(new)):
        step(ps.load(path, like))

    assert 1 == len(traces)
    assert 1 == step._cache_size()


class Twins:
    """A class with two children of one name."""

    def __init__(self, a, b):
        self.a, self.b = a, b


X = jax.tree_util.GetAttrKey("x")
jax.tree_util.register_pytree_with_keys(
    Twins, lambda t: (((X, t.a), (X, t.b)), None), lambda _, parts: Twins(*parts)
)


def test_children_of_one_name_stay_apart(path):
    before = Box(x=Twins(np.ones(2), np.zeros(3)))

    same(before, through_file(path, before, before))


def test_modules_of_flax_come_back(path):
    struct = pytest.importorskip("flax.struct", reason="flax needs the interop extra")
    linen = pytest.importorskip("flax.linen", reason="flax needs the interop extra")

    @struct.dataclass
    class Inside:
        w: Any
        n: int = struct.field(pytree_node=False, default=3)

    module = linen.Dense(3)
    params = module.init(jax.random.key(0), jnp.ones((1, 2)))
    box = Box(x={"inside": Inside(w=jnp.ones(2)), "params": params})

    for like in (box, jax.eval_shape(lambda: box)):
        same(box, through_file(path, box, like))


# --- drawn ------------------------------------------------------------------------------


class Drawn(ps.State):
    a: jax.Array
    inner: Net
    many: list[Net]
    named: dict[str, jax.Array]
    maybe: Net | None
    number: float
    width: int = ps.static(default=1)
    name: str = ps.static(default="a")
    sizes: tuple[int, ...] = ps.static(default=())


@pytest.fixture(scope="module")
def quick_path(tmp_path_factory):
    """A file that need not be on the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)
        yield tmp_path_factory.mktemp("drawn") / "t.safetensors"


@hypothesis.given(state=pst.states(Drawn))
def test_drawn_states_come_back(quick_path, state):
    ps.save(quick_path, state)

    for like in likes(state):
        same(state, ps.load(quick_path, like))
    arrays, manifest = ps.to_dict(state)
    same(state, ps.from_dict(manifest, Drawn, arrays))


TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.integers(0, 3).map(np.arange),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.dictionaries(st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@hypothesis.given(tree=TREES)
def test_drawn_trees_come_back(quick_path, tree):
    box = Box(x=tree)

    for like in (Box, box):
        same(box, through_file(quick_path, box, like))


# --- without a class --------------------------------------------------------------------


def test_a_file_tells_what_it_holds_without_the_class(path):
    ps.save(path, make(), extra={"epoch": 3, "rng": [1, 2.5, None]})

    saved = ps.load(path)

    assert ("Train", __name__, 0, {"epoch": 3, "rng": [1, 2.5, None]}, str(path)) == (
        (saved.name, saved.module, saved.version, saved.extra, saved.path)
    )
    assert ["net", "opt", "key"] == list(saved)
    assert (3,) == saved["net"]["w"].shape
    assert jnp.float32 == saved["net"]["w"].dtype
    np.testing.assert_array_equal([0, 1, 2], saved["net"]["w"])
    np.testing.assert_array_equal([0, 1, 2], jnp.asarray(saved["net"]["w"]))
    assert 12 == saved["net"]["w"].nbytes
    assert (True,) == saved["opt"]["trained"]
    assert make().key == jnp.asarray(saved["key"])


def test_what_a_file_holds_is_printed_as_a_table(path):
    ps.save(
        path,
        Drawn(
            a=jnp.ones((2, 3)),
            inner=Net(w=jnp.arange(3)),
            many=[Net(w=np.ones(1))],
            named={"a": jax.random.key(0)},
            maybe=None,
            number=2.5,
        ),
    )

    assert (
        str(ps.load(path))
        == """\
field    type        numbers  bytes
-----------------------------------
a        f32[2,3]          6   24 B
inner    Net of 1          3   12 B
  w      i32[3]            3   12 B
many     list of 1         1    8 B
  [0]    Net of 1          1    8 B
named    dict of 1         1    8 B
  ['a']  key<fry>[]        1    8 B
maybe    None
number   float             1
-----------------------------------
Drawn    5 leaves         12   52 B
width  1
name   'a'
sizes  ()"""
    )
    assert repr(ps.load(path)["inner"]) == "<Saved Net: w>"


def test_a_part_can_be_loaded(path):
    ps.save(path, {"train": make(), "many": [Net(w=jnp.ones(2))] * 2})

    saved = ps.load(path)

    assert make().net == ps.load(saved["train"]["net"], Net)
    assert [Net(w=jnp.ones(2))] * 2 == ps.load(saved["many"], [Net, Net])
    assert (
        jnp.arange(3.0).tolist()
        == ps.load(saved["train"]["net"]["w"], jnp.zeros(3)).tolist()
    )


def test_a_part_needs_to_be_told_what_it_is(path):
    ps.save(path, make())

    with pytest.raises(TypeError, match="a class or an instance as like"):
        ps.load(ps.load(path)["net"])


# --- the process ------------------------------------------------------------------------


def test_nothing_else_is_imported(tmp_path):
    done = python(
        f"""
        import sys

        for name in ("safetensors", "orbax", "tensorstore", "flax", "rich"):
            sys.modules[name] = None
        import jax.numpy as jnp
        import purestate as ps

        assert not [name for name in sys.modules if name.startswith("purestate._saving")]

        class Net(ps.State):
            w: ps.Array

        path = {str(tmp_path / "t.safetensors")!r}
        ps.save(path, Net(w=jnp.ones(3)))
        assert ps.load(path, Net) == Net(w=jnp.ones(3))
        arrays, manifest = ps.to_dict(Net(w=jnp.ones(3)))
        assert ps.from_dict(manifest, Net, arrays) == Net(w=jnp.ones(3))
        """
    )

    assert 0 == done.returncode, done.stderr
