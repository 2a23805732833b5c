"""Drafts of drafts, and the other ways out of an open draft."""

import collections
import copy
import dataclasses
import pickle

import jax
import pytest

from tests.state.drafts import Item, Leaf, Mutable, Tree, is_frozen

# --- Drafts of drafts -----------------------------------------------------------------


def test_a_nested_draft_is_independent_until_assigned_back():
    with Tree(left=Leaf(x=1)).draft() as new:
        with new.left.draft() as inner:
            inner.x = 5
        assert 1 == int(new.left.x)
        new.left = inner

    assert 5 == int(new.left.x)
    assert inner is new.left


def test_a_nested_draft_starts_from_what_was_assigned():
    with Tree(left=Leaf(x=1)).draft() as new:
        new.left.x = 5
        with new.draft() as inner:
            inner.left.y = 6
        new.left.x = 7

    assert (5, 6) == (int(inner.left.x), int(inner.left.y))
    assert (7, 0) == (int(new.left.x), int(new.left.y))


def test_a_nested_draft_outlives_the_failure_of_its_source():
    before = Tree(left=Leaf(x=1))

    with pytest.raises(KeyError), before.draft() as new:  # noqa: PT012
        new.left.x = 5
        with new.left.draft() as inner:
            inner.y = 6
        raise KeyError

    assert (5, 6) == (int(inner.x), int(inner.y))
    assert is_frozen(inner)


def test_two_drafts_of_one_source_are_independent():
    before = Tree(left=Leaf(x=1), right=[1])

    with before.draft() as one, before.draft() as two:
        one.left.x, two.left.x = 2, 3
        one.right.append(2)

    assert (1, 2, 3) == tuple(int(tree.left.x) for tree in (before, one, two))
    assert ([1], [1, 2], [1]) == (before.right, one.right, two.right)


@pytest.mark.parametrize("hold", [list, tuple, lambda leaves: {"a": leaves[0]}])
def test_a_nested_draft_takes_containers_of_drafts(hold):
    with Tree(left=hold([Leaf(x=1)])).draft() as new, new.draft() as inner:
        pass

    assert new == inner
    assert all(map(is_frozen, jax.tree.leaves(inner.left, is_leaf=is_leaf)))


def is_leaf(node):
    return isinstance(node, Leaf)


@pytest.mark.parametrize(
    "hold",
    [Item, Mutable, lambda leaf: collections.OrderedDict(a=leaf)],
    ids=["NamedTuple", "dataclass", "OrderedDict"],
)
def test_a_nested_draft_takes_other_containers_of_drafts(hold):
    with Tree(left=hold(Leaf(x=1))).draft() as new, new.draft() as inner:
        pass

    assert new == inner


def test_a_finished_draft_holds_no_open_one():
    with Leaf(x=1).draft() as inner:
        with Tree().draft() as outer:
            outer.left = inner
        inner.x = 5

    assert 1 == int(outer.left.x)


# --- Other ways out of an open draft --------------------------------------------------


@pytest.mark.parametrize(
    "duplicate",
    [lambda s: pickle.loads(pickle.dumps(s)), copy.deepcopy],
    ids=["pickle", "deepcopy"],
)
def test_a_duplicate_of_an_open_draft_is_finished_and_its_own(duplicate):
    with Tree(left=Leaf(x=1), right=[1]).draft() as new:
        new.left.x = 5
        made = duplicate(new)
        new.left.x = 6
        new.right.append(2)

        assert is_frozen(made)
        assert is_frozen(made.left)

    assert (5, [1]) == (int(made.left.x), made.right)
    assert jax.tree.structure(Tree(left=Leaf(x=1), right=[1])) == jax.tree.structure(
        made
    )


@pytest.mark.parametrize(
    "update",
    [
        lambda leaf: leaf.replace(y=6),
        lambda leaf: dataclasses.replace(leaf, y=6),
        lambda leaf: leaf.at(lambda s: s.y).set(6),
    ],
    ids=["replace", "dataclasses.replace", "at"],
)
def test_an_update_of_an_open_draft_is_a_finished_state(update):
    with Leaf(x=1).draft() as new:
        new.x = 5
        made = update(new)
        new.x = 7

        assert is_frozen(made)

    assert (5, 6) == (int(made.x), int(made.y))
    assert (7, 0) == (int(new.x), int(new.y))


UPDATES = [
    lambda tree: tree.replace(right=1),
    lambda tree: tree.at(lambda s: s.right).set(1),
    copy.copy,
    lambda tree: Tree(left=tree.left),
]


# A constructor does not look for drafts in its arguments: every construction would pay.
@pytest.mark.parametrize("update", UPDATES[:3], ids=["replace", "at", "copy"])
def test_a_state_made_from_an_open_draft_does_not_change_later(update):
    with Tree(left=Leaf(x=1)).draft() as new:
        made = update(new)
        new.left.x = 5

    assert 1 == int(made.left.x)


@pytest.mark.parametrize("update", UPDATES, ids=["replace", "at", "copy", "construct"])
def test_a_state_made_from_an_open_draft_is_frozen_after_the_block(update):
    with Tree(left=Leaf(x=1)).draft() as new:
        made = update(new)

    assert is_frozen(made)
    assert is_frozen(made.left)
