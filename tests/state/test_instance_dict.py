"""What `vars(state)` shows, and what people do with it."""

import functools
import pickle

import jax
import jax.numpy as jnp
import pytest

import purestate as ps


class Box(ps.State):
    x: jax.Array
    n: int = ps.static(default=2)


class WithoutFunction(ps.State):
    x: jax.Array
    fn: object = ps.static(default=None)

    def __getstate__(self):
        kept = self.__dict__.copy()
        kept["fn"] = None
        return kept


def test_vars_shows_the_fields_and_nothing_else():
    assert {"x": 1.0, "n": 2} == vars(Box(x=1.0))


def test_vars_can_be_given_to_the_constructor():
    box = Box(x=jnp.ones(2), n=5)

    again = Box(**vars(box))

    assert box == again
    assert jax.tree.structure(box) == jax.tree.structure(again)


def test_what_is_written_into_vars_does_not_reach_the_state():
    box = Box(x=1.0)

    vars(box)["x"] = 7.0

    assert 1.0 == box.x


def test_vars_does_not_show_cached_properties():
    class Cached(Box):
        @functools.cached_property
        def twice(self):
            return self.x * 2

    cached = Cached(x=1.0)
    assert 2.0 == cached.twice

    assert ["x", "n"] == list(vars(cached))


def test_the_recipe_of_pickle_for_what_cannot_be_pickled_works():
    made = WithoutFunction(jnp.ones(2), fn=lambda x: x)

    back = pickle.loads(pickle.dumps(made))

    assert back.fn is None
    assert [1.0, 1.0] == back.x.tolist()
    assert jax.tree.structure(WithoutFunction(x=0)) == jax.tree.structure(back)
    with pytest.raises(AttributeError):
        back.x = 2


def test_a_constructor_can_write_into_its_dict():
    class Written(ps.State):
        x: jax.Array

        def __init__(self, **given):
            self.__dict__.update(given)

    assert 3.0 == Written(x=3.0).x
