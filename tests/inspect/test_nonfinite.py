"""`find_nonfinite` says which leaf holds NaN or infinity."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate._inspect import nonfinite
from purestate._inspect.nonfinite import NonFinite
from tests.helpers import exactly, python, two_processes


class Net(ps.State):
    w: jax.Array
    b: jax.Array


class Train(ps.State):
    net: Net
    head: dict
    key: jax.Array
    count: ps.Array = 0
    rate: float = 0.1
    extra: object = None


NAN, INF = float("nan"), float("inf")


def make(w=1.0, kernel=1.0, rate=0.1, extra=None):
    return Train(
        net=Net(w=jnp.ones((2, 3)).at[1, 0].set(w), b=jnp.zeros(3)),
        head={"kernel": jnp.ones((4, 3)).at[1, 2].set(kernel)},
        key=jax.random.key(0),
        rate=rate,
        extra=extra,
    )


def texts(state):
    return [str(found) for found in ps.find_nonfinite(state)]


def test_nothing_is_found_when_all_is_well():
    assert [] == ps.find_nonfinite(make())
    assert [] == ps.find_nonfinite(None)


def test_each_bad_leaf_is_named_with_what_it_holds():
    state = make(w=NAN, kernel=-INF, rate=INF, extra=(jnp.array(NAN), 1.0))

    assert [
        "Train.net.w: 1 NaN of 6, the first at [1, 0]",
        "Train.head['kernel']: 1 inf of 12, the first at [1, 2]",
        "Train.rate: inf",
        "Train.extra[0]: NaN",
    ] == texts(state)


def test_what_is_found_is_a_value():
    bad = jnp.ones((4, 3)).at[1:3, 2].set(jnp.array([NAN, INF]))

    (found,) = ps.find_nonfinite({"w": bad})

    assert NonFinite("['w']", nans=1, infs=1, size=12, first=(1, 2)) == found
    assert "['w']: 1 NaN and 1 inf of 12, the first at [1, 2]" == str(found)


def test_an_array_by_itself_has_no_path():
    assert ["1 inf of 2, the first at [1]"] == texts(jnp.array([0, INF]))
    assert ["NaN"] == texts(NAN)


@pytest.mark.parametrize("to", [lambda x: x, np.asarray], ids=["jax", "numpy"])
@pytest.mark.parametrize(
    "dtype",
    [
        "float16",
        "bfloat16",
        "float32",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3b11fnuz",
        "float8_e8m0fnu",
    ],
)
def test_every_precision_is_looked_at(dtype, to):
    good = jnp.array([[1, 2], [4, 1]], "float32")
    bad = good.at[1, 0].set(NAN)

    assert [] == ps.find_nonfinite(to(good.astype(dtype)))
    assert ["1 NaN of 4, the first at [1, 0]"] == texts(to(bad.astype(dtype)))


def test_an_eight_bit_infinity_is_one():
    assert ["1 inf of 2, the first at [1]"] == texts(jnp.array([1, INF], "float8_e5m2"))


@pytest.mark.parametrize("to", [lambda x: x, np.asarray], ids=["jax", "numpy"])
def test_a_complex_number_is_bad_when_a_part_is(to):
    numbers = to(jnp.array([1, complex(0, NAN), complex(INF, 0), complex(INF, NAN)]))

    assert ["2 NaN and 1 inf of 4, the first at [1]"] == texts(numbers)
    assert ["[0]: inf"] == texts([complex(0, INF)])
    assert [] == ps.find_nonfinite(to(jnp.array([3e38 + 3e38j])))


def test_numbers_that_only_fit_into_numpys_arrays_are_finite():
    assert [] == ps.find_nonfinite([np.array([1e300]), np.float64(1e300)])
    assert ["[0]: 1 inf of 2, the first at [1]"] == texts([np.array([1e300, INF])])


def test_what_has_no_nan_is_left_alone():
    tree = [jnp.arange(3), jnp.ones(2, bool), jax.random.key(0), "nan", 3, True, None]
    empty = [jnp.zeros(0), np.zeros((0, 3))]

    assert [] == ps.find_nonfinite([*tree, *empty, jax.ShapeDtypeStruct((), "int32")])


def test_the_first_is_the_first_in_row_major_order():
    numbers = np.ones((3, 4, 5), np.float32)
    for index in [(2, 0, 0), (1, 3, 0), (1, 2, 4)]:
        numbers[index] = NAN

    (ours,) = ps.find_nonfinite(jnp.asarray(numbers))

    assert (1, 2, 4) == ours.first
    assert [ours] == ps.find_nonfinite(numbers)


def test_a_packed_state_is_looked_at_by_field():
    packed = ps.pack(Net(w=jnp.ones(3), b=jnp.array([1, NAN])))

    assert ["Net.b: 1 NaN of 2, the first at [1]"] == texts(packed)
    assert ["['a'][0].b: 1 NaN of 2, the first at [1]"] == texts({"a": [packed]})


@pytest.fixture
def started(monkeypatch):
    """Return the names of the programs that are started."""
    names = []

    def counted(name):
        program = getattr(nonfinite, name)
        monkeypatch.setattr(
            nonfinite, name, lambda given: names.append(name) or program(given)
        )

    counted("_any_bad")
    counted("_counts")
    return names


def test_one_program_looks_at_all_leaves_and_one_more_at_each_bad_one(started):
    leaves = [jnp.full(3, i, jnp.float32) for i in range(30)]

    assert [] == ps.find_nonfinite(leaves)
    assert ["_any_bad"] == started
    assert 2 == len(ps.find_nonfinite([*leaves, leaves[0] / 0, leaves[1] / 0]))
    assert ["_any_bad", "_counts", "_counts"] == started[1:]


def test_tracers_are_refused():
    expected = (
        "ps.find_nonfinite looks at numbers, and Train.net.w is a tracer: call it "
        "outside of jit."
    )

    with pytest.raises(TypeError, match=re.escape(expected)):
        jax.jit(ps.find_nonfinite)(make())
    with pytest.raises(TypeError, match="and this is a tracer"):
        jax.jit(ps.find_nonfinite)(1.0)
    with pytest.raises(TypeError, match="and a packed State is a tracer"):
        jax.jit(ps.find_nonfinite)(ps.pack(Net(w=jnp.ones(2), b=jnp.ones(2))))


def test_constants_are_looked_at_in_a_function_that_is_traced():
    constants, packed = [jnp.array([NAN])], ps.pack(Net(w=jnp.ones(2), b=jnp.ones(2)))
    seen = []

    @jax.jit
    def f(x):
        seen.extend([texts(constants), ps.find_nonfinite(packed)])
        return x

    f(1.0)

    assert [["[0]: 1 NaN of 1, the first at [0]"], []] == seen


def test_an_abstract_state_is_refused():
    expected = (
        "ps.find_nonfinite looks at numbers, and Train.net.w is a ShapeDtypeStruct, "
        "which has a type and no numbers."
    )

    with pytest.raises(TypeError, match=exactly(expected)):
        ps.find_nonfinite(jax.eval_shape(make))


def test_what_is_in_a_file_is_refused_until_it_is_read(tmp_path):
    net = Net(w=jnp.ones(2), b=jnp.array([1, NAN]))
    ps.save(tmp_path / "net", net)
    unread = ps.load(tmp_path / "net")
    expected = (
        "ps.find_nonfinite looks at numbers, and {} is a Saved, whose numbers were not "
        "read: ps.load(path, like) reads them."
    )

    with pytest.raises(TypeError, match=exactly(expected.format("this"))):
        ps.find_nonfinite(unread)
    with pytest.raises(TypeError, match=exactly(expected.format("['a'][0]"))):
        ps.find_nonfinite({"a": [unread]})
    assert ["Net.b: 1 NaN of 2, the first at [1]"] == texts(
        ps.load(tmp_path / "net", net)
    )


def test_a_class_is_refused_but_not_as_a_leaf():
    expected = (
        "ps.find_nonfinite looks at numbers, and Net is a class: give an instance."
    )

    with pytest.raises(TypeError, match=exactly(expected)):
        ps.find_nonfinite(Net)
    assert [] == ps.find_nonfinite([Net, np.float32, jnp.float32, np.dtype("float32")])


@pytest.mark.parametrize(
    ("leaf", "dtype"),
    [
        (np.array([NAN], object), "object"),
        (
            np.array([(1, NAN)], [("a", "i4"), ("b", "f4")]),
            "[('a', '<i4'), ('b', '<f4')]",
        ),
        (np.zeros(2, [("a", [("b", "f4", 3)])]), "[('a', [('b', '<f4', (3,))])]"),
    ],
)
def test_arrays_of_objects_and_records_are_refused(leaf, dtype):
    expected = (
        "ps.find_nonfinite looks at numbers, and ['a'] is a numpy array of "
        f"{dtype}: give arrays of numbers."
    )

    with pytest.raises(TypeError, match=exactly(expected)):
        ps.find_nonfinite({"a": leaf})
    assert [] == ps.find_nonfinite([np.zeros(2, [("a", "i4"), ("b", "U2")])])


def test_a_deleted_array_is_explained():
    class Counter(ps.State):
        c: jax.Array

        @ps.jit(donate=True)
        def step(self):
            return self.replace(c=self.c + 1)

    held = jnp.zeros((3, 7))
    Counter(c=held).step()

    with pytest.raises(RuntimeError, match="deleted") as found:
        ps.find_nonfinite([held])

    assert any("Counter.step()" in note for note in found.value.__notes__)


SPLIT = """
import jax, jax.numpy as jnp, purestate as ps
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
bad = jnp.ones((8, 6, 2)).at[5, 3, 1].set(jnp.nan).at[5, 4, 0].set(jnp.inf)
"""


def test_arrays_on_several_devices_and_meshes_are_looked_at_where_they_are():
    done = python(
        SPLIT,
        """
        for kind in (AxisType.Auto, AxisType.Explicit):
            devices = jax.devices()
            mesh, other = (
                jax.make_mesh((4, 2), ("a", "b"), axis_types=(kind,) * 2, devices=order)
                for order in (devices, devices[::-1])
            )
            leaves = [
                jax.device_put(bad, NamedSharding(mesh, P("a", "b"))),
                jax.device_put(jnp.ones(8), NamedSharding(mesh, P(("a", "b")))),
                jax.device_put(bad, NamedSharding(other, P(None, "b"))),
                jax.device_put(bad, devices[3]),
                bad,
            ]
            for found in ps.find_nonfinite(leaves):
                print(found)
        """,
        devices=8,
    )

    assert "" == done.stderr
    assert 2 * [
        f"[{i}]: 1 NaN and 1 inf of 96, the first at [5, 3, 1]" for i in (0, 2, 3, 4)
    ] == done.stdout.strip().split("\n")


def test_arrays_elsewhere_than_on_the_mesh_that_is_set_are_looked_at():
    done = python(
        SPLIT,
        """
        for kind in (AxisType.Auto, AxisType.Explicit):
            mesh = jax.make_mesh((2,), ("a",), axis_types=(kind,))
            half = jax.make_mesh((2,), ("a",), (kind,), devices=jax.devices()[2:])
            elsewhere = jax.device_put(bad, jax.devices()[3])
            split = jax.device_put(bad, NamedSharding(half, P("a")))
            with jax.set_mesh(mesh):
                for found in ps.find_nonfinite([elsewhere, split, bad]):
                    print(found.path, found.first)
                assert jax.sharding.get_abstract_mesh() == mesh.abstract_mesh
        """,
        devices=4,
    )

    assert "" == done.stderr
    assert 2 * [f"[{i}] (5, 3, 1)" for i in range(3)] == done.stdout.strip().split("\n")


def test_an_array_that_is_split_is_not_gathered():
    done = python(
        SPLIT,
        """
        from purestate._inspect import nonfinite
        mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,))
        split = jax.device_put(bad, NamedSharding(mesh, P("a")))
        for program, given in ((nonfinite._any_bad, [split]), (nonfinite._counts, split)):
            text = program.lower(given).compile().as_text()
            assert "all-reduce" in text
            assert "all-gather" not in text and "all-to-all" not in text, text
        """,
        devices=8,
    )

    assert "" == done.stderr


def test_every_process_has_the_same_answer():
    program = """
    import numpy as np
    mesh = jax.make_mesh((2,), ("a",), axis_types=(AxisType.Auto,))
    numbers = np.ones((8, 6), np.float32)
    numbers[5, 3] = np.nan
    split, good = (
        jax.make_array_from_callback((8, 6), NamedSharding(mesh, P("a")), given.__getitem__)
        for given in (numbers, np.ones((8, 6), np.float32))
    )
    assert not split.is_fully_addressable
    print(*ps.find_nonfinite({"split": split, "good": good}))
    """

    said = two_processes(SPLIT, program)

    assert 2 * ["['split']: 1 NaN of 48, the first at [5, 3]\n"] == said
