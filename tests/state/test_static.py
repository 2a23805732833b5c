"""Static fields: what may be one, and when two values are the same."""

import dataclasses
import enum
import functools
import gc
import math
import typing
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import DeclarationError, StaticFieldError
from tests.helpers import aux_of, in_threads


class Scale(ps.State):
    x: jax.Array
    by: object = ps.static()


def structure(value):
    return jax.tree.structure(Scale(x=jnp.zeros(()), by=value))


def counted(function):
    traces = []

    @jax.jit
    def wrapper(*args):
        traces.append(1)
        return function(*args)

    return wrapper, traces


class Point(typing.NamedTuple):
    x: object
    y: object


class Color(enum.Enum):
    RED = 1
    ALSO_RED = True


@dataclasses.dataclass(frozen=True)
class Config:
    flag: object


@dataclasses.dataclass(frozen=True)
class WithOwnHash:
    table: dict

    def __hash__(self):
        return hash(tuple(sorted(self.table.items())))


NAN = float("nan")
DIFFERENT = [
    (True, 1),
    (1, 1.0),
    (True, 1.0),
    (0.0, -0.0),
    (0, False),
    (1.0, 1 + 0j),
    (complex(0.0, 0.0), complex(0.0, -0.0)),
    ((1, 2), (1.0, 2.0)),
    ((0.0,), (-0.0,)),
    (Point(1, 2), (1, 2)),
    (Point(1, 2), Point(1, True)),
    (frozenset({1}), frozenset({1.0})),
    (Config(True), Config(1)),
    (slice(0, 1), slice(0, True)),
    ("a", b"a"),
    (np.float32(1), 1.0),
    (functools.partial(max, 1), functools.partial(max, 2)),
    (functools.partial(max, 1), functools.partial(max, 1.0)),
    (functools.partial(max, key=1), functools.partial(max, key=True)),
    (functools.partial(max, 1), functools.partial(min, 1)),
    (Color.RED, 1),
    (int, float),
    (None, ()),
]
SAME = [
    (NAN, float("nan")),
    ((NAN, 1), (math.inf - math.inf, 1)),
    (complex(NAN, 0), complex(float("nan"), 0)),
    (np.int64(3), 3),
    (np.int8(3), np.uint16(3)),
    (np.bool_(True), True),
    ((np.int32(1), 2), (1, np.int64(2))),
    (functools.partial(max, 1, key=None), functools.partial(max, 1, key=None)),
    (slice(1, 2), slice(1, 2)),
    ("a" * 50, "".join(["a"] * 50)),
    (Config(2), Config(2)),
    (WithOwnHash({"a": 1}), WithOwnHash({"a": 1})),
    (frozenset({1, 2}), frozenset({2, 1})),
]


@pytest.mark.parametrize(("a", "b"), DIFFERENT, ids=repr)
def test_values_of_another_type_or_sign_are_different(a, b):
    assert structure(a) != structure(b)


@pytest.mark.parametrize(("a", "b"), SAME, ids=repr)
def test_equal_values_give_one_structure_and_one_trace(a, b):
    f, traces = counted(lambda s: s.x)

    f(Scale(x=jnp.zeros(()), by=a))
    f(Scale(x=jnp.zeros(()), by=b))

    assert structure(a) == structure(b)
    assert hash(structure(a)) == hash(structure(b))
    assert 1 == len(traces)


def test_numpy_integers_and_booleans_are_stored_as_pythons():
    assert int is type(Scale(x=1, by=np.int64(3)).by)
    assert bool is type(Scale(x=1, by=np.bool_(True)).by)
    assert int is type(Scale(x=1, by=2).replace(by=np.int64(3)).by)


def test_another_static_value_gives_its_own_trace_and_its_own_result():
    f, traces = counted(lambda s: s.x + (1 if s.by == "a" else 2))

    results = [float(f(Scale(x=jnp.zeros(()), by=mode))) for mode in "abab"]

    assert [1.0, 2.0, 1.0, 2.0] == results
    assert 2 == len(traces)


def test_an_update_is_used_where_a_static_self_returns_stale_results():
    class C(ps.State):
        a: int = ps.static()

        @jax.jit
        def f(self, y):
            return y + self.a

    c = C(a=100)
    c.f(1.0)
    with pytest.raises(AttributeError):
        c.a = 0
    d = c.replace(a=0)

    assert [1.0, 1.0, 101.0] == [float(d.f(1.0)), float(d.f(1.0)), float(c.f(1.0))]


def test_diff_tells_which_static_field_caused_a_retrace():
    class Shape(ps.State):
        length: jax.Array
        idx: int = ps.static()

    area, traces = counted(lambda s: s.length**2)
    for idx in (2, 3, 3):
        area(Shape(length=jnp.ones(()), idx=idx))
    why = ps.diff(Shape(length=jnp.ones(()), idx=2), Shape(length=jnp.ones(()), idx=3))

    assert 2 == len(traces)
    assert "Shape.idx: static value 2 -> 3" == str(why)


ARRAY = (
    r"^Scale\.by is a static field and got an? {kind}\. Static values are part of jit's "
    r"cache key, so they must be hashable and must not be arrays\. Make by an ordinary "
    r"field: drop ps\.static\(\) from its declaration\.$"
)


@pytest.mark.parametrize("value", [np.arange(4), jnp.arange(4)], ids=["numpy", "jax"])
def test_an_array_in_a_static_field_is_refused_at_construction(value):
    with pytest.raises(
        StaticFieldError, match=ARRAY.format(kind="(jax array|ndarray)")
    ):
        Scale(x=jnp.ones(2), by=value)


def test_an_array_in_a_static_field_is_refused_by_replace():
    with pytest.raises(StaticFieldError, match=r"^Scale\.by is a static field and got"):
        Scale(x=1, by=1).replace(by=jnp.arange(4))


def test_a_tracer_in_a_static_field_is_refused():
    with pytest.raises(
        StaticFieldError, match=r"^Scale\.by is a static field and got a tracer"
    ):
        jax.jit(lambda x: Scale(x=x, by=x))(1.0)


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (
            [1],
            r"got a list\..* Pass tuple\(\.\.\.\) instead \(converter= in ps\.static",
        ),
        ({"a": 1}, r"got a dict\..* Give a frozen dataclass, or .* by\['a'\] works as"),
        ({1}, r"got a set\..* Pass frozenset\(\.\.\.\) instead"),
        (bytearray(b"a"), r"got a bytearray\..* Pass bytes\(\.\.\.\) instead"),
        ((1, [2]), r"its part by\[1\] is a list\."),
        ((1, (2, np.ones(2))), r"its part by\[1\]\[1\] is an? ndarray\."),
        (Config([1]), r"its part by\.flag is a list\."),
        (functools.partial(max, [1]), r"its part by\.args\[0\] is a list\."),
        (functools.partial(max, key=[1]), r"its part by\.key is a list\."),
        (Scale(x=1, by=2), r"got a Scale\..* Make by an ordinary field"),
    ],
    ids=str,
)
def test_an_unhashable_static_value_says_what_to_write_instead(value, advice):
    with pytest.raises(StaticFieldError, match=advice):
        Scale(x=1, by=value)


def test_an_unhashable_object_needs_hash_and_eq():
    class Odd:
        __hash__ = None

    with pytest.raises(StaticFieldError, match=r"Give Odd a __hash__ and an __eq__ by"):
        Scale(x=1, by=Odd())


def test_a_converter_makes_a_list_hashable():
    class Net(ps.State):
        sizes: tuple = ps.static(converter=tuple)

    assert (1, 2) == Net(sizes=[1, 2]).sizes
    assert (3,) == Net(sizes=[1]).replace(sizes=[3]).sizes


def test_a_field_cannot_be_declared_static_and_not_static():
    text = r"^ps\.static\(metadata=\{'static': False\}\) says both static and not"

    with pytest.raises(DeclarationError, match=text):
        ps.static(metadata={"static": False})


def test_a_state_cannot_be_registered_again_with_other_fields():
    with pytest.raises(ValueError, match="Scale"):
        jax.tree_util.register_dataclass(Scale, data_fields=["by"], meta_fields=["x"])


@pytest.mark.parametrize(
    "specifier",
    [
        ps.static(default=1),
        ps.field(default=1, metadata={"static": True}),
        dataclasses.field(default=1, metadata={"static": True}),
        jax.tree.static(default=1)
        if hasattr(jax.tree, "static")
        else ps.static(default=1),
    ],
    ids=["static", "field", "dataclasses.field", "jax.tree.static"],
)
def test_every_spelling_of_static_makes_a_static_field(specifier):
    cls = type("Made", (ps.State,), {"__annotations__": {"n": int}, "n": specifier})

    assert [] == jax.tree.leaves(cls())
    assert 1 == cls().n


def test_jax_shows_static_values_by_name_in_its_own_errors():
    a, b = Scale(x=jnp.ones(2), by="a"), Scale(x=jnp.ones(2), by="b")

    with pytest.raises(ValueError, match=r"\(by='a'\)[\s\S]*\(by='b'\)"):
        jax.tree.map(lambda x, y: x, a, b)


def test_static_values_are_shared_and_not_kept_alive():
    class Big:
        pass

    value = Big()
    alive = weakref.ref(value)
    states = [Scale(x=1, by=value), Scale(x=2, by=value)]
    assert aux_of(states[0]) is aux_of(states[1])

    del states, value
    gc.collect()

    assert alive() is None


def test_many_threads_agree_on_one_structure():
    def make(_):
        return [structure(("fresh", i, 0.5)) for i in range(200)]

    seen = in_threads(make, range(8))

    assert 200 == len({one for structures in seen for one in structures})


def test_a_state_without_arrays_can_be_a_static_value():
    class Mode(ps.State):
        name: str = ps.static()

    assert structure(Mode(name="a")) == structure(Mode(name="a"))
    assert structure(Mode(name="a")) != structure(Mode(name="b"))


def test_static_values_are_kept_for_the_last_few_only():
    class Kept(ps.State):
        x: jax.Array
        n: int = ps.static()

    table = Kept.__purestate_layout__.table
    for n in range(1000):
        Kept(x=0.0, n=n)
    gc.collect()

    assert 8 == len(table.plain) == len(table.known)
    assert [(n,) for n in range(992, 1000)] == [aux.values for aux in table.recent]


@pytest.mark.parametrize("value", [lambda: None, "a" * 1000, 1 << 1000, (1, 2)])
def test_a_static_value_that_may_be_large_is_not_kept(value):
    class Dropped(ps.State):
        f: object = ps.static()

    Dropped(f=value)
    gc.collect()

    assert {} == Dropped.__purestate_layout__.table.known


def test_values_that_are_kept_keep_no_instance_alive():
    class Freed(ps.State):
        x: jax.Array
        n: int = ps.static()

    made = Freed(x=jnp.ones(3), n=1)
    state, array = weakref.ref(made), weakref.ref(made.x)
    del made

    assert state() is array() is None
    assert 1 == len(Freed.__purestate_layout__.table.recent)
