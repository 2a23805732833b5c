"""What `purestate.testing` draws from annotations, and what it says when it cannot."""

import dataclasses
import enum
import re
import typing
from typing import Generic, Literal, NamedTuple, TypeVar

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from jaxtyping import Array, Float, Int, Key

import purestate as ps
import purestate.testing as pst
from purestate.testing._strategies import registered
from purestate.testing._trees.source_text import paste

T = TypeVar("T")


class Mode(enum.Enum):
    FAST = 1
    SAFE = 2


class Dense(ps.State):
    w: Float[Array, "n m"]
    b: Float[Array, "m"]


class Box(ps.State, Generic[T]):
    held: T


class Node(ps.State):
    value: jax.Array
    left: "Node | None" = None
    right: "Node | None" = None


class Pair(NamedTuple):
    first: Int[Array, ""]
    second: jax.Array | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Plain:
    x: jax.Array


class Rich(ps.State):
    dense: Dense
    layers: list[Dense]
    table: dict[str, jax.Array]
    pair: Pair
    plain: Plain
    key: jax.Array
    dropout_key: Key[Array, ""]
    host: np.ndarray
    odd: tuple[jax.Array, float]
    maybe: jax.Array | None
    box: Box[int]
    mode: Mode = ps.static()
    kind: Literal["p", "q"] = ps.static(default="p")
    width: int = ps.static(default=7)
    count: jax.Array = 0
    byte: jax.Array = ps.field(default=3, dtype=jnp.uint8)
    total: jax.Array = ps.field(init=False)

    def __post_init__(self):
        self.total = self.count + 1


def drawn(strategy, examples=50):
    """Return what a strategy draws."""
    found = []

    @settings(max_examples=examples, derandomize=True, database=None)
    @given(strategy)
    def draw(value):
        found.append(value)

    draw()
    return found


@given(pst.states(Rich))
def test_annotations_are_kept(rich):
    assert rich.dense.w.shape[1:] == rich.dense.b.shape
    assert all(rich.dense.w.shape == layer.w.shape for layer in rich.layers)
    assert isinstance(rich.pair, Pair)
    assert isinstance(rich.plain, Plain)
    assert isinstance(rich.host, np.ndarray)
    assert isinstance(rich.mode, Mode)
    assert type(rich.box.held) is int
    assert jnp.issubdtype(rich.key.dtype, jax.dtypes.prng_key)
    assert jnp.issubdtype(rich.dropout_key.dtype, jax.dtypes.prng_key)
    assert jnp.issubdtype(rich.dense.w.dtype, jnp.floating)
    assert rich.kind in ("p", "q")


@given(pst.states(Rich))
def test_a_default_says_dtype_and_shape(rich):
    assert ("int32", ()) == (rich.count.dtype, rich.count.shape)
    assert ("uint8", ()) == (rich.byte.dtype, rich.byte.shape)


@given(pst.states(Rich))
def test_a_static_field_keeps_its_default(rich):
    assert 7 == rich.width


@pytest.mark.parametrize(
    "wanted",
    [
        lambda s: s.maybe is None,
        lambda s: s.maybe is not None,
        lambda s: s.mode is Mode.SAFE,
        lambda s: s.kind == "q",
        lambda s: len(s.layers) == 0,
        lambda s: len(s.layers) == 2,
        lambda s: s.dense.w.dtype == jnp.bfloat16,
        lambda s: s.dense.w.shape[0] != s.dense.w.shape[1],
        lambda s: s.odd[0].shape == (0,),
        lambda s: s.odd[1] != s.odd[1],
    ],
)
def test_every_choice_comes_up(wanted):
    # About one float in a hundred is nan, and nothing else is as rare.
    draws = settings(
        max_examples=2000, derandomize=True, database=None, phases=[Phase.generate]
    )

    found = hypothesis.find(pst.states(Rich), wanted, settings=draws)

    assert wanted(found)


@given(pst.states(Node))
def test_recursive_classes_end(node):
    assert len(jax.tree.leaves(node)) < 20


@given(pst.states(Box[Float[Array, "3"]]))
def test_a_generic_class_takes_arguments(box):
    assert (3,) == box.held.shape


@given(pst.states(Dense, dims={"n": 5, "m": [7]}, dtypes=["float16"]))
def test_dims_and_dtypes_can_be_chosen(dense):
    assert (5, 7) == dense.w.shape
    assert "float16" == dense.w.dtype


@given(pst.states(Dense, fields={"w": jnp.ones((1, 4)), "b": pst.arrays((4,), "int8")}))
def test_fields_take_values_and_strategies(dense):
    assert (1, 4) == dense.w.shape
    assert "int8" == dense.b.dtype


@given(pst.states(Dense, specials=False))
def test_without_specials_numbers_are_small(dense):
    assert np.all(np.abs(np.asarray(dense.w, np.float64)) <= 4)


class Shapes(ps.State):
    a: Float[Array, "... 4"]
    b: Float[Array, "*batch n"]
    c: Float[Array, "n+1 d=2 _"]


@given(pst.states(Shapes))
def test_all_of_jaxtypings_dimensions_are_understood(s):
    assert 4 == s.a.shape[-1]
    assert (s.b.shape[-1] + 1, 2) == s.c.shape[:2]


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        ("float32", lambda x: np.isnan(x).any()),
        ("float32", lambda x: np.isinf(x).any()),
        ("bfloat16", lambda x: (np.signbit(x) & (x == 0)).any()),
        ("float16", lambda x: (np.abs(x) == np.finfo(np.float16).max).any()),
        ("float32", lambda x: ((x != 0) & (np.abs(x) < 1e-38)).any()),
        ("int8", lambda x: (x == -128).any()),
        ("uint8", lambda x: (x == 255).any()),
        ("complex64", lambda x: np.isnan(x).any()),
        ("bool", lambda x: x.any()),
    ],
)
def test_special_values_come_up(dtype, wanted):
    assert any(wanted(np.asarray(x)) for x in drawn(pst.arrays((3,), dtype), 300))


def test_special_values_come_in_small_doses():
    found = [np.asarray(x) for x in drawn(pst.arrays((4,), "float32"))]

    assert np.mean([np.isfinite(x) & (np.abs(x) <= 4) for x in found]) > 0.7


@given(pst.arrays())
def test_arrays_are_strongly_typed(x):
    assert not x.weak_type


@given(pst.keys((2,)))
def test_arrays_of_keys_have_a_shape(keys):
    assert (2,) == keys.shape


@given(pst.trees(nodes=[lambda inner: st.builds(Pair, inner, inner)]))
def test_trees_are_rebuilt_from_their_leaves(tree):
    leaves, structure = jax.tree.flatten(tree)

    pst.assert_same(tree, structure.unflatten(leaves))


def test_a_counterexample_shrinks_to_the_simplest_instance():
    @given(pst.states(Rich))
    def fails(rich):
        smallest.append(paste(rich))
        assert not (rich.layers and float(rich.layers[0].b.sum()) >= 1)

    smallest = []
    with pytest.raises(AssertionError):
        fails()

    # The lowest version of hypothesis stops at an axis of 1, which is as simple.
    dense = r"dense=Dense\(w=jnp\.zeros\(\(2, [12]\), 'float32'\), b="
    assert re.search(dense, smallest[-1])
    assert smallest[-1].count("Dense(") <= 3
    assert len(smallest[-1]) < 1100


class Angle:
    def __init__(self, turns):
        self.turns = turns


class Right(Angle):
    pass


class Turn(ps.State):
    angle: Angle = ps.static()
    right: Right = ps.static()


def test_register_strategy_teaches_a_class_and_its_subclasses():
    pst.register_strategy(Angle, lambda kind: st.builds(kind, st.integers(0, 3)))

    turns = drawn(pst.states(Turn))

    assert {Angle} == {type(turn.angle) for turn in turns}
    assert {Right} == {type(turn.right) for turn in turns}


def test_register_strategy_refuses_anything_else():
    with pytest.raises(
        ps.errors.StrategyError,
        match=r"takes a strategy, or a function that returns one, and got an object of type int",
    ):
        pst.register_strategy(Angle, 3)


class Opaque(ps.State):
    x: "SomethingElse"


def test_an_unknown_annotation_is_named_with_the_way_out():
    with pytest.raises(
        ps.errors.StrategyError,
        match=r"cannot draw a value for Opaque\.x, annotated SomethingElse\. Give a "
        r"strategy or a value: fields=\{'x': \.\.\.\} for a field",
    ):
        drawn(pst.states(Opaque))


class Listed(ps.State):
    x: list[type]


def test_an_unknown_part_of_an_annotation_is_named():
    with pytest.raises(
        ps.errors.StrategyError, match=r"a value for Listed\.x\[0\], annotated type"
    ):
        drawn(pst.states(Listed))


class Ordered(ps.State):
    low: jax.Array
    high: jax.Array

    def __check__(self):
        if not np.all(np.asarray(self.low) <= np.asarray(self.high)):
            raise ValueError(f"{self.low} is above {self.high}")


@given(pst.states(Ordered, dtypes=["float32"]))
def test_instances_that_a_check_refuses_are_drawn_again(s):
    assert np.all(s.low <= s.high)


class Picky(ps.State):
    x: jax.Array

    def __check__(self):
        raise ValueError("never good enough")


def test_a_class_that_refuses_nearly_all_is_reported():
    with pytest.raises(
        ps.errors.StrategyError,
        match=r"(?s)Picky\.__check__ refused (\d+) of the \1 instances drawn.*"
        r"ValueError: never good enough.*fields=\{\.\.\.\} takes a strategy",
    ):
        drawn(pst.states(Picky))


class Fragile(ps.State):
    x: Float[Array, "n"]

    def __post_init__(self):
        raise KeyError("no")


def test_a_constructor_that_raises_is_shown_with_its_arguments():
    with pytest.raises(
        ps.errors.StrategyError,
        match=r"(?s)Fragile\(\.\.\.\) raised KeyError: 'no'\nwhen it was called as\n"
        r"    Fragile\(x=jnp\.zeros\(\(2,\), 'float32'\)\)",
    ):
        drawn(pst.states(Fragile))


def test_an_unknown_field_name_is_refused():
    with pytest.raises(ps.errors.FieldError, match="did you mean 'w'"):
        drawn(pst.states(Dense, fields={"ww": 1}))


class Written(ps.State):
    kernel: jax.Array
    name: str = ps.static(default="")

    def __init__(self, key, n: int = 3, *, kernel=None):
        self.kernel = jax.random.normal(key, (3,)) if kernel is None else kernel


def test_a_parameter_without_annotation_is_named():
    with pytest.raises(
        ps.errors.StrategyError,
        match=r"Written\.key, which has neither annotation nor default",
    ):
        drawn(pst.states(Written))


def test_a_hand_written_constructor_gets_what_its_annotations_say():
    found = drawn(pst.states(Written, fields={"key": pst.keys(), "n": 3}))

    assert all(isinstance(s, Written) for s in found)


@given(st.one_of(pst.states(Rich), pst.trees(), pst.arrays()))
def test_pasted_text_makes_the_value_again(value):
    names = {"jax": jax, "jnp": jnp, "np": np, **globals(), "nan": jnp.nan}

    pst.assert_same(value, eval(paste(value), names))


# --- constructors of one's own, and parts that cannot be drawn ------------------------------


class Wall(ps.State):
    rho: jax.Array

    def __init__(self, grid):
        self.rho = jnp.ones(len(grid))


class Cavity(ps.State):
    f: jax.Array
    walls: tuple[Wall, ...]
    omega: jax.Array = 1.0

    def __init__(self, omega: float, n=3):
        self.omega = omega
        self.f = jnp.ones(n)
        self.walls = (Wall(range(3)),)


class Deep(Cavity):
    pass


@dataclasses.dataclass
class Foreign:
    f: jax.Array

    def __init__(self, omega: float):
        self.f = jnp.full(2, omega)


jax.tree_util.register_dataclass(Foreign, ["f"], [])


@pytest.mark.parametrize(
    ("cls", "home", "listed"),
    [
        (Cavity, "Cavity", "omega, n"),
        (Deep, "Cavity", "omega, n"),
        (Foreign, "Foreign", "omega"),
    ],
)
def test_a_field_that_the_constructor_does_not_take_is_told_so(cls, home, listed):
    with pytest.raises(ps.errors.FieldError) as caught:
        drawn(pst.states(cls, fields={"f": jnp.ones(3)}))

    assert str(caught.value) == (
        f"{cls.__name__} is made by {home}.__init__: fields= takes the parameters of "
        f"that, which are {listed}. 'f' is not one of them."
    )


@pytest.mark.parametrize("cls", [Cavity, Foreign])
def test_the_parameters_of_the_constructor_are_given_by_fields(cls):
    found = drawn(pst.states(cls, fields={"omega": 0.5}))

    assert all(isinstance(s, cls) for s in found)


class Room(ps.State):
    walls: list[Wall]
    size: Float[Array, ""] = 0.0

    def painted(self, wall: Wall):
        return self.replace(size=self.size + wall.rho.sum())


# What is checked, the place that cannot be drawn, and what else helps.
GIVE = "; or give a strategy or a value: "
PARTS = {
    "of a field": (
        lambda: pst.check_state(Room),
        "Room.walls[0].grid",
        GIVE + "fields={'walls': ...}",
    ),
    "of an argument": (
        lambda: pst.check_method(Room.painted, fields={"walls": [Wall(range(2))]}),
        "Room.painted.wall.grid",
        GIVE + "args={'wall': ...}",
    ),
    "that only a law draws": (
        lambda: pst.check_state(Cavity),
        "Cavity.walls[0].grid",
        "",
    ),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_cannot_be_drawn_is_told_with_what_helps(part):
    check, place, give = PARTS[part]
    with pytest.raises(ps.errors.StrategyError) as caught:
        check()

    assert str(caught.value) == (
        f"cannot draw a value for {place}, which has neither annotation nor default. "
        f"Annotate it, or teach all tests how a Wall is made: "
        f"register_strategy(Wall, st.builds(Wall, grid=...)){give}."
    )


@pytest.fixture
def teach(monkeypatch):
    """Registers strategies, for one test."""
    monkeypatch.setattr(registered, "_registered", dict(registered._registered))
    return pst.register_strategy


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_drawn_as_the_error_says(part, teach):
    teach(Wall, st.builds(Wall, grid=st.sampled_from([range(2), range(3)])))

    report = PARTS[part][0]()

    assert min(report.examples.values()) > 0


def test_a_part_is_given_as_the_error_says():
    walls = [Wall(range(2))]

    pst.check_state(Room, fields={"walls": walls}, examples=5)
    pst.check_method(
        Room.painted, fields={"walls": walls}, args={"wall": walls[0]}, examples=5
    )


class Sealed:
    pass


class Vault(ps.State):
    x: jax.Array
    seal: Sealed = ps.static()

    def __init__(self, x: jax.Array):
        self.x, self.seal = x, Sealed()


def test_a_field_that_only_a_law_draws_is_told_with_what_helps(teach):
    with pytest.raises(
        ps.errors.StrategyError,
        match=r"^cannot draw a value for Vault\.seal, annotated Sealed\. Teach all tests "
        r"with register_strategy\(Sealed, \.\.\.\)\.$",
    ):
        pst.check_state(Vault, laws=["get_put"])

    teach(Sealed, st.sampled_from([Sealed(), Sealed()]))
    pst.check_state(Vault, laws=["get_put", "shares_the_rest", "at"])


class Keyed(ps.State):
    held: Sealed = ps.static()


class Holder(ps.State):
    keyed: Keyed


def test_an_unknown_annotation_within_a_part_is_told_with_what_helps():
    with pytest.raises(
        ps.errors.StrategyError,
        match=r"^cannot draw a value for Holder\.keyed\.held, annotated Sealed\. Teach "
        r"all tests with register_strategy\(Sealed, \.\.\.\) or "
        r"register_strategy\(Keyed, \.\.\.\); or give a strategy or a value: "
        r"fields=\{'keyed': \.\.\.\}\.",
    ):
        drawn(pst.states(Holder))


class Odd(ps.State):
    n: int = ps.static()

    def __post_init__(self):
        if self.n < 100:
            raise KeyError(self.n)


class HoldsOdd(ps.State):
    odd: Odd


def test_a_part_whose_constructor_raises_is_told_with_what_helps(teach):
    with pytest.raises(
        ps.errors.StrategyError,
        match=r"(?s)^Odd\(\.\.\.\) raised KeyError.*say what it takes: "
        r"register_strategy\(Odd, \.\.\.\); or give a strategy or a value: "
        r"fields=\{'odd': \.\.\.\}\. Values",
    ):
        drawn(pst.states(HoldsOdd))

    teach(Odd, st.builds(Odd, n=st.integers(100, 102)))
    assert {100, 101, 102} == {s.odd.n for s in drawn(pst.states(HoldsOdd))}


class HoldsPicky(ps.State):
    picky: Picky


def test_a_part_that_refuses_nearly_all_is_told_with_what_helps():
    with pytest.raises(
        ps.errors.StrategyError,
        match=r"(?s)^Picky\.__check__ refused .*Draw what it accepts: "
        r"register_strategy\(Picky, \.\.\.\) one for the whole class; or give a "
        r"strategy or a value: fields=\{'picky': \.\.\.\}\.",
    ):
        drawn(pst.states(HoldsPicky))


# --- names of axes ----------------------------------------------------------------------------


class Tree(ps.State):
    dense: Dense
    rest: "list[Tree] | None"
    wide: Float[Array, "*batch n+k _ d=2"]
    bare: jax.Array

    def times(self, x: Float[Array, "p"]):
        return self.replace(bare=self.bare * x.sum())

    def grown(self, x: "NotThereYet"):
        return self


@pytest.mark.parametrize(
    "check", [pst.check_state, lambda *a, **k: drawn(pst.states(*a, **k))]
)
def test_an_unknown_axis_is_named_with_those_that_there_are(check):
    with pytest.raises(
        ps.errors.StrategyError,
        match=r"^Tree has no axis 'q'; its axes are n, m, batch, k\.",
    ):
        check(Tree, dims={"n": 3, "q": 2})


def test_axes_of_arguments_and_of_the_state_are_known():
    dims = {"p": 2, "n": 3, "batch": (2,), "...": (2,)}

    pst.check_method(Tree.times, dims=dims, laws=["repeats"], examples=2)
    with pytest.raises(
        ps.errors.StrategyError,
        match=r"^Tree\.times has no axis 'q'; its axes are n, m, batch, k, p\.$",
    ):
        pst.check_method(Tree.times, dims={"q": 3})


def test_axes_are_not_checked_where_an_annotation_cannot_be_read():
    pst.check_method(
        Tree.grown, dims={"q": 3}, args={"x": 1.0}, laws=["repeats"], examples=2
    )


def test_a_class_without_axes_says_so():
    with pytest.raises(
        ps.errors.StrategyError, match=r"^Node has no axis 'n'; it has no axes\.$"
    ):
        pst.check_state(Node, dims={"n": 3})


def test_a_method_of_a_str_is_pasted_with_its_str():
    assert "'a'.upper" == paste("a".upper)


class Imported(typing.NamedTuple):
    x: Float[Array, "n"]


def test_axes_are_shared_between_the_parts_of_an_instance():
    class Both(ps.State):
        dense: Dense
        one: Imported

    for both in drawn(pst.states(Both)):
        assert both.dense.w.shape[0] == both.one.x.shape[0]
