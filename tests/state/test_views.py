"""Views: parts of a field under names of their own."""

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from purestate._schema.view import View, view_names


class Part(View):
    def __init__(self, index):
        self.index = index

    def read(self, state):
        return state.values[self.index]

    def changes(self, state, value):
        return {"values": state.values.at[self.index].set(value)}


class Pair(ps.State):
    values: jax.Array
    name: str = ps.static(default="pair")

    first = Part(0)
    second = Part(1)

    def __check__(self):
        return self.values[0] <= self.values[1]


def pair():
    return Pair(values=jnp.array([1.0, 2.0]))


def test_a_view_reads_its_part():
    assert (1.0, 2.0) == (pair().first, pair().second)
    assert ("first", "second") == view_names(Pair)


def test_replace_changes_fields_and_then_views():
    found = pair().replace(name="new", second=5.0, values=jnp.array([3.0, 4.0]))

    assert [3.0, 5.0] == found.values.tolist()
    assert "new" == found.name


def test_at_and_a_draft_go_through_views():
    with pair().draft() as new:
        new.second += 1.0

    assert [1.0, 3.0] == new.values.tolist()
    assert [0.0, 2.0] == pair().at(lambda p: p.first).set(0.0).values.tolist()


def test_a_view_is_not_in_the_tree():
    assert 1 == len(jax.tree.leaves(pair()))


def test_checks_run_after_a_change_through_a_view():
    with pytest.raises(ps.errors.CheckError):
        pair().replace(first=9.0)


def test_a_view_cannot_be_assigned():
    with pytest.raises(ps.errors.FrozenStateError, match=r"self\.replace\(first="):
        pair().first = 3.0
