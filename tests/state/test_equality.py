"""Equality, hash, copies and pickles."""

import copy
import copyreg
import dataclasses
import functools
import math
import pickle
import sys
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import (
    FieldError,
    FrozenStateError,
    PurestateError,
    PurestateWarning,
    TracedEqualityError,
    UnhashableStateError,
)
from tests.helpers import through_cloudpickle


class Box(ps.State):
    x: jax.Array
    tree: dict = ps.field(default_factory=dict)
    n: float = ps.static(default=1.0)

    @functools.cached_property
    def twice(self):
        return self.x * 2


class Sub(Box):
    pass


class Mode(ps.State):
    name: str = ps.static()


BASE = {"x": jnp.arange(3.0), "tree": {"a": np.ones(2), "k": jax.random.key(0)}}


def test_states_with_equal_values_are_equal():
    assert Box(**BASE) == Box(**BASE)
    assert Box(**BASE) == Box(BASE["x"] + 0, jax.tree.map(lambda v: v, BASE["tree"]))


@pytest.mark.parametrize(
    "change",
    [
        {"x": jnp.arange(3.0) + 1},
        {"x": jnp.arange(3)},
        {"x": jnp.arange(3.0)[None]},
        {"x": None},
        {"tree": {}},
        {"tree": {"a": np.ones(2), "k": jax.random.key(1)}},
        {"tree": {"a": [1, 1], "k": jax.random.key(0)}},
        {"n": 2.0},
        {"n": True},
        {"n": 1},
    ],
    ids=str,
)
def test_any_difference_makes_states_unequal(change):
    assert Box(**BASE) != Box(**BASE).replace(**change)


def test_other_classes_are_unequal():
    assert Box(**BASE) != Sub(**BASE)
    assert Box(**BASE) != 3


def test_nan_is_unequal_in_data_as_everywhere_in_numpy():
    assert Box(x=jnp.nan) != Box(x=jnp.nan)


def test_fields_with_compare_false_do_not_count():
    class S(ps.State):
        x: jax.Array
        note: object = ps.field(default=0, compare=False)
        label: str = ps.static(default="a", compare=False)
        mode: str = ps.static(default="m")

    assert S(x=1) == S(x=1, note=5, label="b")
    assert S(x=1) != S(x=1, mode="n")


def test_comparing_tracers_is_a_clear_error():
    text = (
        r"^cannot compare Box with == here: Box\.x is a tracer, so its values are not "
        r"known while jax traces\. Compare outside the transformed function, or compare "
        r"fields with jnp\.array_equal and use jnp\.where\."
    )

    with pytest.raises(TracedEqualityError, match=text):
        jax.jit(lambda s: s == s.replace())(Box(**BASE))


HASHING = (
    r"Box holds arrays and has no hash\. Do not mark it static: remove static_argnums/"
    r"static_argnames for it and pass it as an ordinary argument, jit traces a State's "
    r"arrays and keys its cache on the static fields\. "
)


def test_hashing_a_state_with_data_says_what_to_do():
    with pytest.raises(UnhashableStateError, match=f"^{HASHING}"):
        hash(Box(**BASE))


def test_the_advice_comes_out_at_the_end_of_jaxs_own_error():
    with pytest.raises(ValueError, match=f"{HASHING}[^\n]*$"):
        jax.jit(lambda s: s.x, static_argnums=0)(Box(**BASE))


def test_a_state_without_data_has_a_hash_by_value():
    assert hash(Mode(name="a")) == hash(Mode(name="a"))
    assert 2 == len({Mode(name="a"), Mode(name="b"), Mode(name="a")})
    assert 1.0 == jax.jit(lambda m, x: x, static_argnums=0)(Mode(name="a"), 1.0)


COPIES = [
    copy.copy,
    copy.deepcopy,
    lambda s: pickle.loads(pickle.dumps(s)),
    lambda s: pickle.loads(pickle.dumps(s, protocol=2)),
]


@pytest.mark.parametrize("duplicate", COPIES, ids=["copy", "deepcopy", "pickle", "two"])
def test_copies_keep_class_structure_and_values_and_add_no_trace(duplicate):
    traces = []

    @jax.jit
    def f(s):
        traces.append(1)
        return s.x.sum()

    box = Sub(**BASE, n=float("nan"))
    f(box)

    same = duplicate(box)
    f(same)

    assert Sub is type(same)
    assert jax.tree.structure(box) == jax.tree.structure(same)
    assert box == same
    assert 1 == len(traces)


def test_deepcopy_copies_the_data_and_shares_static_values():
    function = functools.partial(max, 1)
    box = Box(x=np.ones(2), tree={"a": np.ones(1)}, n=function)

    same = copy.deepcopy(box)
    same.x[:] = 5

    assert [1, 1] == box.x.tolist()
    assert box.tree["a"] is not same.tree["a"]
    assert function is same.n


def test_copy_shares_the_data():
    box = Box(**BASE)

    assert box.tree is copy.copy(box).tree


def test_cached_properties_are_not_copied_nor_leaves():
    box = Box(**BASE)
    assert box.twice is box.twice

    for same in [box.replace(n=2.0), *(duplicate(box) for duplicate in COPIES)]:
        assert box.twice is not same.twice
    assert box.twice is not jax.tree.map(lambda leaf: leaf, box).twice
    assert 3 == len(jax.tree.leaves(box))


def test_a_cached_property_never_keeps_a_tracer():
    box = Box(**BASE)

    traced = jax.jit(lambda: box.twice)()

    assert [0, 2, 4] == traced.tolist()
    assert [0, 2, 4] == box.twice.tolist()


def test_an_old_pickle_without_a_new_field_takes_its_default():
    def rebuild(cls, values):
        made = copyreg.__newobj__(cls)
        made.__setstate__(dict(values))
        return made

    cls, values = Box, Box(**BASE).__getstate__()
    del values["n"]

    assert 1.0 == rebuild(cls, values).n
    with pytest.raises(
        FieldError, match=r"^Box has no field 'gone'; its fields are x, tr"
    ):
        rebuild(cls, values | {"gone": 1})
    del values["x"]
    with pytest.raises(FieldError, match=r"^Box needs a value for field x"):
        rebuild(cls, values)


@pytest.mark.parametrize(
    "function", [jax.nn.relu, jnp.tanh, jax.lax.add, max, str.upper]
)
def test_functions_of_jax_can_be_pickled_in_static_fields(function):
    mode = Mode(name=function)

    same = pickle.loads(pickle.dumps(mode))

    assert function is same.name
    assert jax.tree.structure(mode) == jax.tree.structure(same)


@dataclasses.dataclass(frozen=True)
class Config:
    act: object = jax.nn.relu
    width: int = 3


class Layers(typing.NamedTuple):
    first: object
    second: object


NESTED = {
    "tuple": (jax.nn.relu, jnp.tanh),
    "named tuple": Layers(jax.nn.relu, (jax.nn.gelu,)),
    "dataclass": Config(),
    "partial": functools.partial(jax.nn.leaky_relu, negative_slope=0.1),
    "partial of a dataclass": functools.partial(max, Config(), key=jax.nn.relu),
    "function of a submodule": jnp.linalg.norm,
}


@pytest.mark.parametrize("value", NESTED.values(), ids=NESTED)
def test_functions_of_jax_can_be_pickled_inside_of_static_values(value):
    mode = Mode(name=value)

    same = pickle.loads(pickle.dumps(mode))

    assert mode == same
    assert jax.tree.structure(mode) == jax.tree.structure(same)


def test_cloudpickle_carries_a_class_from_main_to_a_fresh_process():
    through_cloudpickle(
        """
        import functools, jax, jax.numpy as jnp, purestate as ps

        class A(ps.State):
            x: jax.Array
            y: float = 1.0
            n: int = ps.static(default=3)
            h: list = ps.field(default_factory=list)

            def __check__(self):
                if self.x.ndim != 1:
                    raise ValueError("ndim")

            @functools.cached_property
            def twice(self):
                return self.x * 2

        class B(A):
            z: jax.Array = ps.field(init=False)

            def __post_init__(self):
                self.z = self.x + 1

        class C(A, strict=True):
            def __init__(self, k):
                self.x = jnp.ones(k)

        states = [A(x=jnp.ones(2)), B(x=jnp.ones(2), n=4), C(2)]
        made = states, A, B, C
        """,
        """
        import jax, jax.numpy as jnp

        states, A, B, C = made
        again = [A(x=jnp.ones(2)), B(x=jnp.ones(2), n=4), C(2)]
        for old, new in zip(states, again):
            traces = []
            f = jax.jit(lambda s: (traces.append(1), s.replace(x=s.x * 3))[1])
            assert f(old) == f(new) and 1 == len(traces), (old, new)
            assert [2, 2] == old.twice.tolist()
        assert [3, 3] == again[1].replace(x=jnp.full(2, 2.0)).z.tolist()
        for wrong, text in [
            (lambda: A(x=jnp.ones((2, 2))), "ndim"),
            (lambda: again[2].replace(x=jnp.ones(3)), "strict"),
            (lambda: setattr(again[0], "x", 1), "cannot assign A.x"),
            (lambda: A(), "needs a value for field x"),
            (lambda: A(x=1, z=2), "no field 'z'"),
        ]:
            try:
                wrong()
            except Exception as error:
                assert text in str(error), error
            else:
                raise SystemExit(f"no error: {text}")
        """,
    )


def test_cloudpickle_carries_a_local_class_within_a_process():
    cloudpickle = pytest.importorskip(
        "cloudpickle", reason="cloudpickle needs the interop extra"
    )

    class Local(ps.State):
        x: jax.Array

    same = cloudpickle.loads(cloudpickle.dumps(Local(x=jnp.ones(2))))

    assert 2.0 == float(jax.jit(lambda s: s.x.sum())(same))


def every_error():
    yield from (
        cls
        for cls in vars(ps.errors).values()
        if isinstance(cls, type) and issubclass(cls, (PurestateError, PurestateWarning))
    )


def test_errors_can_be_pickled():
    try:
        Box(**BASE).x = 1
    except ps.errors.FrozenStateError as error:
        same = pickle.loads(pickle.dumps(error))

    assert ps.errors.FrozenStateError is type(same)
    assert str(same).startswith("cannot assign Box.x.")


def test_every_error_is_exported_and_documented():
    assert set(ps.errors.__all__) == {cls.__name__ for cls in every_error()}
    assert all(cls.__doc__ for cls in every_error())


def test_a_checkpoint_keeps_integer_keys(tmp_path):
    ocp = pytest.importorskip(
        "orbax.checkpoint", reason="orbax-checkpoint needs the interop extra"
    )

    class S(ps.State):
        d: dict[typing.Any, jax.Array]

    s = S(d={0: jnp.zeros(2), 10: jnp.ones(2), 2: jnp.full(2, 2.0)})
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "c", s)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "c", jax.tree.map(jnp.zeros_like, s))

    assert [0, 2, 10] == sorted(restored.d)
    assert s == restored


class Changing(ps.State):
    x: object
    n: int = ps.static(default=1)


def test_a_pickle_of_a_class_that_has_changed_since_is_fitted_or_refused(monkeypatch):
    before = pickle.dumps(Changing(x=2.5, n=3))

    class Grown(ps.State):
        y: object = 7
        n: int = ps.static(default=1)
        x: object = None

    class Shrunk(ps.State):
        n: int = ps.static(default=1)

    class Needy(Changing):
        z: object = ps.field(kw_only=True)

    monkeypatch.setattr(sys.modules[__name__], "Changing", Grown)
    assert Grown(x=2.5, n=3) == pickle.loads(before)
    monkeypatch.setattr(sys.modules[__name__], "Changing", Shrunk)
    with pytest.raises(
        FieldError, match=r"^Shrunk has no field 'x'; its fields are n\.$"
    ):
        pickle.loads(before)
    monkeypatch.setattr(sys.modules[__name__], "Changing", Needy)
    with pytest.raises(FieldError, match=r"^Needy needs a value for field z"):
        pickle.loads(before)


def test_a_field_that_became_static_is_found_in_an_old_pickle(monkeypatch):
    before = pickle.dumps(Changing(x=2, n=3))

    class Other(ps.State):
        x: int = ps.static()
        n: object

    monkeypatch.setattr(sys.modules[__name__], "Changing", Other)

    assert Other(x=2, n=3) == pickle.loads(before)


def test_a_state_in_a_cycle_can_be_pickled():
    around = []
    around.append(Changing(x=around))

    back = pickle.loads(pickle.dumps(around[0]))

    assert back is back.x[0]


class Halved(ps.State):
    x: object

    def __reduce_ex__(self, protocol):
        make, args, state = super().__reduce_ex__(protocol)[:3]
        return make, args, state | {"x": state["x"] // 2}


class Doubled(ps.State):
    x: object

    def __getstate__(self):
        return {"x": 2 * super().__getstate__()["x"]}


class Raised(ps.State):
    x: object

    def __setstate__(self, state):
        super().__setstate__({"x": state["x"] + 1})


class Called(ps.State):
    x: object

    def __reduce__(self):
        return type(self), (self.x + 5,)


@pytest.mark.parametrize(
    ("cls", "expected"), [(Halved, 4), (Doubled, 16), (Raised, 9), (Called, 13)]
)
def test_methods_that_say_what_is_pickled_get_and_give_fields_by_name(cls, expected):
    assert cls(expected) == pickle.loads(pickle.dumps(cls(8)))


def test_a_pickle_of_a_draft_that_is_open_holds_what_it_is_then():
    with Changing(x=Changing(x=1.0)).draft() as new:
        new.x.x = 2.0
        back = pickle.loads(pickle.dumps(new))
        new.x.x = 3.0

    assert Changing(x=Changing(x=2.0)) == back
    with pytest.raises(FrozenStateError):
        back.x.x = 1


def test_python_values_are_equal_by_type_and_value():
    for same, other in [(1.5, 2.5), (1, 1.0), (True, 1), ("a", b"a"), (1, None)]:
        assert Changing(x=same) == Changing(x=same)
        assert Changing(x=same) != Changing(x=other)
    assert Changing(x=0.0) == Changing(x=-0.0)
    assert Changing(x=math.nan) == Changing(x=math.nan)
    assert Changing(x=float("nan")) != Changing(x=float("nan"))
    assert Changing(x=1, n=2) != Changing(x=1, n=3)
