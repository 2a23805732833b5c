"""Functions and methods in static fields: what they may hold, and when two are same."""

import functools
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import StaticFieldError


class Net(ps.State):
    w: jax.Array

    def apply(self, x):
        return self.w * x

    @classmethod
    def zero(cls):
        return cls(w=0.0)

    @staticmethod
    def double(x):
        return x * 2


class Solver(ps.State):
    y: jax.Array
    rhs: object = ps.static()


class Holder(ps.State):
    y: jax.Array
    rhs: object


class Simulator:
    """An object that jax does not know, with arrays in it."""

    def __init__(self):
        self.table = jnp.ones(3)

    def step(self, x):
        return x + self.table


class Unhashable(Simulator):
    __hash__ = None


def refused(name):
    return pytest.raises(StaticFieldError, match=rf"^Solver\.rhs is .*a {name}\b")


METHOD = (
    "Solver.rhs is a static field and got a method. Static values are part of jit's "
    "cache key, so they must be hashable and must not be arrays. A method carries its "
    "object, whose arrays would be constants of the program. Make rhs an ordinary "
    "field that holds jax.tree_util.Partial(Net.apply, obj), or a property that returns "
    "the method."
)


def test_a_method_of_a_state_with_arrays_is_refused_with_the_way_out():
    with pytest.raises(StaticFieldError, match=f"^{re.escape(METHOD)}$"):
        Solver(y=1.0, rhs=Net(w=2.0).apply)


def test_the_way_out_for_methods_works_under_jit():
    held = Holder(y=1.0, rhs=jax.tree_util.Partial(Net.apply, Net(w=2.0)))

    assert 2.0 == jax.jit(lambda s: s.rhs(s.y))(held)


@pytest.mark.parametrize(
    "wrap", [lambda f: f, lambda f: functools.partial(f, 1), lambda f: (f,)]
)
def test_it_is_refused_inside_of_partial_objects_and_tuples(wrap):
    with pytest.raises(StaticFieldError, match=r"Solver\.rhs is a static field"):
        Solver(y=1.0, rhs=wrap(Net(w=2.0).apply))


def test_a_method_of_the_instance_that_is_being_built_is_refused():
    class Own(ps.State):
        y: jax.Array
        act: object = ps.static()

        def __init__(self):
            self.y = 1.0
            self.act = self.double

        def double(self, x):
            return 2 * x

    with pytest.raises(StaticFieldError, match=r"Partial\(Own\.double, obj\)"):
        Own()


@pytest.mark.parametrize("array", [jnp.ones(2), np.ones(2)], ids=["jax", "numpy"])
def test_a_method_of_an_array_is_refused(array):
    with refused("(method|builtin_function_or_method)"):
        Solver(y=1.0, rhs=array.sum)


def test_a_method_of_a_traced_state_is_refused_while_tracing():
    with refused("method"):
        jax.jit(lambda net: Solver(y=1.0, rhs=net.apply))(Net(w=2.0))


def test_a_function_that_closes_over_a_tracer_is_refused_where_it_is_stored():
    def make(x):
        y = x * 2
        return Solver(y=1.0, rhs=lambda z: z + y)

    with pytest.raises(StaticFieldError, match=r"refers to a tracer, by a closure"):
        jax.jit(make)(jnp.ones(2))
    with pytest.raises(StaticFieldError, match=r"refers to a tracer, by a closure"):
        jax.vmap(make)(jnp.ones(2))


def test_the_way_out_for_closures_works():
    def make(x):
        return Holder(y=1.0, rhs=jax.tree_util.Partial(jnp.add, x * 2))

    assert 5.0 == jax.jit(make)(2.0).rhs(1.0)


def test_a_tracer_is_found_in_defaults_partials_and_owners_at_any_depth():
    class Keeper:
        def __init__(self, x):
            self.kept = {"deep": [x]}
            self.own = self  # a cycle

        def method(self):
            return self.kept

    def in_default(x):
        def function(y, x=x):
            return y

        return function

    for store in (
        in_default,
        lambda x: functools.partial(in_default(x)),
        lambda x: Keeper(x).method,
    ):
        with pytest.raises(StaticFieldError, match=r"^Solver\.rhs is a static field"):
            jax.jit(lambda x, store=store: Solver(y=1.0, rhs=store(x)))(1.0)


def test_arrays_in_a_closure_or_in_an_object_that_jax_does_not_know_are_constants():
    table, simulator = jnp.ones(3), Simulator()

    assert 2.0 == Solver(y=1.0, rhs=lambda x: x + table).rhs(1.0)[0]
    assert 2.0 == Solver(y=1.0, rhs=simulator.step).rhs(1.0)[0]


def test_a_ref_is_refused():
    with refused("[A-Za-z]*Ref"):
        Solver(y=1.0, rhs=jax.new_ref(jnp.zeros(2)))


def same(a, b):
    return jax.tree.structure(Solver(y=1.0, rhs=a)) == jax.tree.structure(
        Solver(y=1.0, rhs=b)
    )


def test_bound_methods_of_one_owner_are_the_same_static_value():
    simulator, other, unhashable = Simulator(), Simulator(), Unhashable()

    assert same(simulator.step, simulator.step)
    assert not same(simulator.step, other.step)
    assert same(unhashable.step, unhashable.step)
    assert same("abc".upper, "abc".upper)
    assert not same("abc".upper, "xyz".upper)
    assert same(Net.zero, Net.zero)
    assert same(Net.double, Net.double)
    assert same(np.add.reduce, np.add.reduce)
    assert not same(np.add.reduce, np.multiply.reduce)
    assert same(len, len)


def test_the_apply_of_a_linen_module_is_the_same_after_pickling():
    pytest.importorskip("flax.linen", reason="flax needs the interop extra")
    from tests.state.linen import Scaled

    solver = Solver(y=1.0, rhs=Scaled(width=2).apply)

    back = pickle.loads(pickle.dumps(solver))

    assert solver == back
    assert jax.tree.structure(solver) == jax.tree.structure(back)


def test_a_mapping_is_refused_with_a_way_out_that_keeps_access_by_name():
    with pytest.raises(
        StaticFieldError,
        match=r"Give a frozen dataclass, or ps\.static\(converter=\.\.\.\) with an immutable "
        r"mapping: frozendict \(built in from Python 3\.15\), "
        r"immutabledict\.immutabledict, flax\.core\.FrozenDict; rhs\['lr'\] works as ",
    ):
        Solver(y=1.0, rhs={"lr": 0.1})


def test_a_class_that_is_defined_anew_has_the_structure_of_the_old_one():
    """As after %autoreload, which moves instances to the new class."""

    def define():
        class Train(ps.State):
            w: jax.Array
            rate: float = ps.static(default=0.1)

        return Train

    old, fresh = define()(jnp.ones(3)), define()(jnp.ones(3))
    object.__setattr__(old, "__class__", type(fresh))

    assert old == fresh
    assert jax.tree.structure(old) == jax.tree.structure(fresh)
    assert [2.0] * 3 == jax.tree.map(jnp.add, old, fresh).w.tolist()
    moved = old.replace(w=jnp.zeros(3))
    assert [1.0] * 3 == jax.tree.map(jnp.add, moved, fresh).w.tolist()
