"""Static values that are unusual, each of which once went wrong."""

import dataclasses
import gc
import weakref
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import StaticFieldError
from tests.helpers import aux_of


class Scale(ps.State):
    x: jax.Array
    by: object = ps.static(default=None)


def test_numpy_integers_in_tuples_are_stored_as_pythons():
    first, second = (
        Scale(x=1, by=(np.int8(100), (True,))),
        Scale(x=1, by=(100, (True,))),
    )

    assert int is type(first.by[0])
    assert aux_of(first) is aux_of(second)
    assert 200 == second.by[0] * 2


def test_numpy_floats_keep_their_sign_and_nan_equals_itself():
    def structure(value):
        return jax.tree.structure(Scale(x=1, by=value))

    assert structure(np.float64(0.0)) != structure(np.float64(-0.0))
    assert structure(np.float32("nan")) == structure(np.float32("nan"))
    assert structure(np.complex64(complex(0, -0.0))) != structure(np.complex64(0))


@dataclasses.dataclass(frozen=True)
class Config:
    a: int


class Undecorated(Config):
    def __init__(self, a, b):
        super().__init__(a)
        object.__setattr__(self, "b", b)

    def __eq__(self, other):
        return self.b == other.b

    def __hash__(self):
        return hash(self.b)


@dataclasses.dataclass(frozen=True)
class OwnEquality:
    a: int
    b: int

    def __eq__(self, other):
        return self.b == other.b

    def __hash__(self):
        return hash(self.b)


@pytest.mark.parametrize("cls", [Undecorated, OwnEquality])
def test_a_dataclass_with_its_own_equality_is_compared_by_that(cls):
    assert 2 == Scale(x=1, by=cls(1, 2)).by.b
    assert 3 == Scale(x=1, by=cls(1, 3)).by.b


def test_an_instance_that_its_static_value_refers_to_can_die():
    class Trainer:
        def __init__(self):
            self.state = Scale(x=jnp.ones(3), by=self.apply)
            self.other = Scale(x=jnp.ones(3), by=lambda: self)

        def apply(self): ...

    trainer = Trainer()
    alive = weakref.ref(trainer), weakref.ref(trainer.state)

    del trainer
    gc.collect()

    assert (None, None) == tuple(ref() for ref in alive)


@dataclasses.dataclass(frozen=True)
class Inherits(Config):
    pass


class Bare(Config):
    pass


@dataclasses.dataclass(unsafe_hash=True)
class Hashed:
    a: object


@pytest.mark.parametrize("cls", [Config, Inherits, Bare, Hashed])
def test_fields_of_a_dataclass_are_told_apart_by_type(cls):
    @jax.jit
    def go(s):
        return s.x * 0 + jnp.asarray(s.by.a)

    zero = jnp.int32(0)

    assert jnp.int32 == go(Scale(x=zero, by=cls(1))).dtype
    assert jnp.float32 == go(Scale(x=zero, by=cls(1.0))).dtype


def test_floats_of_other_libraries_keep_their_sign():
    def structure(value):
        return jax.tree.structure(Scale(x=1, by=jnp.dtype("bfloat16").type(value)))

    assert structure(0.0) != structure(-0.0)
    assert structure(float("nan")) == structure(float("nan"))


class Broken:
    def __init__(self, hashing):
        self.hashing = hashing

    def __hash__(self):
        if self.hashing:
            raise RuntimeError("no hash")
        return 1

    def __eq__(self, other):
        raise RuntimeError("no equality")


def test_a_static_value_whose_hash_raises_is_unhashable():
    with pytest.raises(
        StaticFieldError, match=r"^Scale\.by is a static field and got a Br"
    ):
        Scale(x=1, by=Broken(hashing=True))


def test_a_static_value_whose_equality_raises_gets_a_note():
    first = Scale(x=1, by=Broken(hashing=False))

    with pytest.raises(RuntimeError) as caught:
        Scale(x=1, by=Broken(hashing=False))

    assert (
        "static values of Scale, which are by: each needs an __eq__"
        in (caught.value.__notes__[0])
    )
    assert first.by is not None


def test_a_static_value_that_contains_itself_is_refused():
    class Loop(tuple):
        __slots__ = ()

        def __iter__(self):
            return iter([self])

    with pytest.raises(StaticFieldError, match=r"^Scale\.by is a static field"):
        Scale(x=1, by=Loop())


def test_a_pytree_in_a_static_field_belongs_in_an_ordinary_one():
    class Holder(ps.State):
        w: jax.Array

    with pytest.raises(
        StaticFieldError, match=r"Make by an ordinary field: drop ps\.stat"
    ):
        Scale(x=1, by=Holder(w=1))


def test_equal_values_are_shared_between_instances():
    first = Scale(x=1, by=Decimal("1.0"))

    assert first.by is Scale(x=1, by=Decimal("1.0")).by


def test_hash_agrees_with_equality():
    class Mode(ps.State):
        name: str = ps.static()
        note: str = ps.static(default="", compare=False)

    assert Mode(name="a", note="x") == Mode(name="a", note="y")
    assert hash(Mode(name="a", note="x")) == hash(Mode(name="a", note="y"))
