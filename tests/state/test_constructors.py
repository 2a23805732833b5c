"""Constructors written by hand, and constructors that fail."""

import contextlib
import gc
import inspect
import traceback
import weakref
from typing import ClassVar

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from purestate.errors import (
    FrozenStateError,
    UndeclaredFieldError,
    UnfinishedStateError,
    UnsetFieldError,
)

# --- hand-written constructors --------------------------------------------------------


def test_any_signature_of_init_works_with_rebuild_jit_and_replace():
    class X(ps.State):
        x: jax.Array

        def __init__(self, *, y: bool):
            self.x = jnp.asarray(int(y))

    leaves, structure = jax.tree.flatten(X(y=True))

    assert 1 == int(jax.tree.unflatten(structure, leaves).x)
    assert 2 == int(jax.jit(lambda q: q.replace(x=q.x + 1))(X(y=True)).x)
    assert "(*, y: bool)" == str(inspect.signature(X))


def test_fields_that_a_hand_written_init_leaves_out_take_their_defaults():
    class M(ps.State):
        w: jax.Array
        hist: list = ps.field(default_factory=list)
        cache: object = None

        def __init__(self, w):
            self.w = w * 2

    m = M(jnp.ones(2))
    n = m.replace(cache=jnp.arange(2))

    assert ([], None) == (m.hist, m.cache)
    assert {"w", "hist", "cache"} <= vars(m).keys()
    assert 2 == len(jax.tree.leaves(n))


def test_a_field_left_unset_is_named():
    class M(ps.State):
        w: jax.Array
        b: jax.Array

        def __init__(self):
            self.w = 1

    text = (
        r"^M\.__init__ left field b without a value: assign `self\.b = \.\.\.` in it, or "
        r"give b a default\."
    )

    with pytest.raises(UnsetFieldError, match=text):
        M()


def test_an_undeclared_attribute_says_to_declare_it():
    class M(ps.State):
        weight: jax.Array

        def __init__(self):
            self.wieght = 1

    text = (
        r"^M declares no field 'wieght', so it cannot be assigned: jax would not see it\. "
        r"Declare it in the class body, `wieght: jax\.Array` \(or `= ps\.static\(\)` for "
        r"configuration\); did you mean 'weight'\?"
    )

    with pytest.raises(UndeclaredFieldError, match=text):
        M()
    with pytest.raises(AttributeError):
        M()


def test_a_class_variable_is_not_assigned_on_an_instance():
    class M(ps.State):
        count: ClassVar[int] = 0

        def __init__(self):
            self.count = 1

    text = (
        r"^M\.count is a ClassVar or an InitVar, which instances do not hold: assign it"
    )

    with pytest.raises(UndeclaredFieldError, match=text):
        M()


def test_a_field_cannot_be_deleted_while_constructing():
    class M(ps.State):
        x: int

        def __init__(self):
            self.x = 1
            del self.x

    text = r"^cannot delete M\.x: every field of a State has a value\. Assign another, such"

    with pytest.raises(FrozenStateError, match=text):
        M()


def test_a_property_setter_works_while_constructing():
    class M(ps.State):
        radius: float

        def __init__(self, d):
            self.diameter = d

        @property
        def diameter(self):
            return self.radius * 2

        @diameter.setter
        def diameter(self, value):
            self.radius = value / 2

    assert 3.0 == M(6.0).radius
    with pytest.raises(AttributeError, match=r"^cannot assign M\.diameter"):
        M(6.0).diameter = 2


def test_super_init_of_a_generated_and_of_a_hand_written_constructor():
    class A(ps.State):
        a: jax.Array

    class B(A):
        b: jax.Array

        def __init__(self, n):
            super().__init__(a=n)
            self.b = self.a + 1

    class C(B):
        c: jax.Array

        def __init__(self, n):
            self.c = n
            super().__init__(n)

    assert (1, 2, 1) == tuple(map(int, jax.tree.leaves(C(1))))


def test_a_hand_written_init_may_call_jitted_methods_once_all_is_set():
    class M(ps.State):
        x: jax.Array
        n: int = ps.static(default=2)

        def __init__(self):
            self.x = jnp.ones(2)
            self.n = 3
            self.x = self.twice()

        @jax.jit
        def twice(self):
            return self.x * self.n

    assert [3, 3] == M().x.tolist()


def test_a_half_built_state_given_to_jax_names_what_is_missing():
    class M(ps.State):
        x: jax.Array
        y: jax.Array

        def __init__(self):
            self.x = 1
            jax.tree.leaves(self)

    text = (
        r"^this M is not finished: y has no value yet, because its constructor is still"
    )

    with pytest.raises(UnfinishedStateError, match=text):
        M()


# --- failing constructors -------------------------------------------------------------


def test_an_error_in_a_constructor_keeps_its_type_and_gains_a_note():
    class Boom(Exception):
        pass

    class M(ps.State):
        x: int
        y: int

        def __init__(self):
            self.x = 1
            raise Boom("no")

    with pytest.raises(Boom) as caught:
        M()

    assert ["raised by M.__init__; it had set x."] == caught.value.__notes__


def test_reading_a_value_under_a_trace_points_to_check():
    class Geo(ps.State):
        base: jax.Array
        scale: jax.Array

        def __post_init__(self):
            if float(self.scale) <= 0:
                raise ValueError("scale must be positive")

    geo = Geo(base=jnp.zeros(3), scale=jnp.asarray(1.0))
    moved = jax.jit(lambda q, by: q.replace(base=q.base + by))(geo, 0.5)
    assert [0.5, 0.5, 0.5] == moved.base.tolist()
    with pytest.raises(ValueError, match=r"^scale must be positive"):
        Geo(base=jnp.zeros(3), scale=jnp.asarray(-1.0))

    with pytest.raises(jax.errors.ConcretizationTypeError) as caught:
        jax.jit(lambda x: Geo(base=x, scale=x))(1.0)

    assert (
        "Geo.__post_init__ read the value of a field while jax was tracing, where it has "
        "none. Put checks on values into Geo.__check__, which is skipped while tracing, "
        "and compute with jnp instead of float(), int(), bool()."
    ) in caught.value.__notes__


def test_nothing_is_kept_alive_also_after_a_constructor_that_raised():
    alive = []

    class M(ps.State):
        x: jax.Array
        n: object = ps.static(default=None)

        def __post_init__(self):
            alive.append(weakref.ref(self))
            if self.n == "bad":
                raise ValueError("no")

    for n in ("good", "bad"):
        with contextlib.suppress(ValueError):
            M(x=jnp.ones(3), n=n).replace(x=2)
    gc.collect()

    assert 2 == len(alive)
    assert [None, None] == [ref() for ref in alive]


def test_a_traceback_shows_the_lines_of_generated_code():
    def fails():
        raise ValueError("no")

    class M(ps.State):
        x: list = ps.field(default_factory=fails)

    try:
        M()
    except ValueError as error:
        text = "".join(traceback.format_exception(error))

    assert "<purestate test_constructors." in text.replace("tests.state.", "")
    assert "x = _ps_factory_x()" in text
