"""`at` keeps the rules of every State on the way to a place."""

import re

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from purestate.errors import (
    CheckError,
    ConsumedStateError,
    DerivedFieldError,
    StrictFieldError,
    UnfinishedStateError,
)
from tests.helpers import exactly
from tests.state.nets import Net, Outer, Positive, layer


def test_a_check_in_depth_runs():
    with pytest.raises(
        CheckError, match=r"^Positive\.__check__ returned False for this Positive:"
    ):
        Outer(inner=Positive(value=1)).at(lambda o: o.inner.value).set(-1)


def test_the_check_of_a_state_around_the_place_runs():
    with pytest.raises(ValueError, match=r"^more than five"):
        Outer(inner=Positive(value=1)).at(lambda o: o.inner.value).set(6)


def test_derived_fields_around_the_place_follow():
    after = Outer(inner=Positive(value=1)).at(lambda o: o.inner.value).set(3)

    assert 30 == int(after.total)


def test_a_derived_field_is_no_place_to_set():
    text = (
        "Outer.total is computed in __post_init__, which runs again at every replace, "
        "so a value given for it would be lost. Replace what it is computed from. If "
        "__post_init__ only starts it, declare it with ps.field(init=False, "
        "derived=False)."
    )

    with pytest.raises(DerivedFieldError, match=exactly(text)):
        Outer(inner=Positive(value=1)).at(lambda o: o.total).set(3)


def test_the_converter_of_the_place_runs_once_and_no_other():
    class Image(ps.State):
        pixels: object = ps.field(converter=lambda v: [*v, "converted"])
        mask: object = ps.field(converter=lambda v: [*v, "converted"])

    before = Net(head=Image(pixels=["a"], mask=["b"]))

    after = before.at(lambda n: n.head.pixels).set(["c"])

    assert ["c", "converted"] == after.head.pixels
    assert ["b", "converted"] == after.head.mask


def test_a_strict_state_in_depth_refuses_another_shape():
    class Weights(ps.State, strict=True):
        w: jax.Array

    with pytest.raises(
        StrictFieldError,
        match=r"^Weights is strict and w would change from f32\[3\] to",
    ):
        Net(head=Weights(w=jnp.ones(3))).at(lambda n: n.head.w).set(jnp.ones(4))


def test_a_strict_state_compares_below_its_own_fields():
    class Weights(ps.State, strict=True):
        tree: object

    before = Weights(tree={"a": layer()})
    text = r"^Weights is strict and tree\['a'\]\.weight would change from f32\[2\] to f32\[3\]"

    with pytest.raises(StrictFieldError, match=text):
        before.at(lambda w: w.tree["a"].weight).set(jnp.ones(3))


def test_a_number_in_an_array_field_keeps_its_dtype():
    after = Net(head=layer()).at(lambda n: n.head.weight).set(3)

    assert (jnp.float32, False) == (
        after.head.weight.dtype,
        after.head.weight.weak_type,
    )


def test_the_values_of_a_strict_class_may_change():
    class Weights(ps.State, strict=True):
        w: jax.Array

    after = (
        Net(head=Weights(w=jnp.ones(3))).at(lambda n: n.head.w).apply(jnp.zeros_like)
    )

    assert [0, 0, 0] == after.head.w.tolist()


class Counting(ps.State):
    value: int
    updates: int = 0

    def replace(self, **changes):
        return super().replace(updates=self.updates + 1, **changes)


def test_a_users_own_replace_is_the_one_that_runs():
    after = Net(head=Counting(value=1)).at(lambda n: n.head.value).set(2)

    assert (2, 1) == (after.head.value, after.head.updates)


def test_a_half_built_self_with_all_fields_set_is_updated():
    class Built(ps.State):
        x: jax.Array
        y: jax.Array

        def __init__(self):
            self.x, self.y = 1, 2
            self.y = self.at(lambda b: b.y).apply(lambda y: 10 * y).y

    assert (1, 20) == (int(Built().x), int(Built().y))


def test_a_half_built_self_without_all_fields_is_not_updated():
    class Built(ps.State):
        x: jax.Array
        y: jax.Array

        def __init__(self):
            self.x = 1
            self.at(lambda b: b.x).set(2)

    text = (
        "this Built is not finished: y has no value yet, because its constructor is "
        "still running, or raised. Set every field before passing self to jax."
    )

    with pytest.raises(UnfinishedStateError, match=f"^{re.escape(text)}"):
        Built()


def test_a_donated_state_explains_itself():
    spent = layer()
    ps.jit(lambda one: one.replace(weight=one.weight + 1), donate=True)(spent)

    with pytest.raises(
        ConsumedStateError, match=r"^this Layer was donated to <lambda>"
    ):
        spent.at(lambda one: one.weight)
