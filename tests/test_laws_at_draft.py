"""Laws of `at` and `draft`: in depth, they do what `replace` does field by field."""

import copy
import dataclasses
import functools

import hypothesis.strategies as st
import jax
import numpy as np
from hypothesis import given

import purestate as ps
from tests.strategies import Branch, branches, states, trees, values
from tests.test_laws import same, settable

# A way is a tuple of steps from the root: (".", name) or ("[", key).


def steps(node):
    """Return the steps that lead on from a node, with the static fields of a State."""
    if isinstance(node, ps.State):
        return [(".", field.name) for field in dataclasses.fields(node)]
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return [(".", name) for name in node._fields]
    if dataclasses.is_dataclass(node):
        return [(".", field.name) for field in dataclasses.fields(node)]
    if isinstance(node, dict):
        return [("[", key) for key in node]
    if isinstance(node, list | tuple):
        return [("[", index) for index in range(len(node))]
    return []


def go(node, step):
    kind, key = step
    return getattr(node, key) if kind == "." else node[key]


def follow(root, way):
    return functools.reduce(go, way, root)


def ways(root, way=()):
    """Return the ways to everything below the root."""
    found = []
    for step in steps(follow(root, way)):
        found += [(*way, step), *ways(root, (*way, step))]
    return found


def ends_in_tag(way):
    return (".", "tag") == way[-1]


def is_assignable(root, way):
    return not isinstance(follow(root, way[:-1]), tuple)


def assign(root, way, value):
    holder, (kind, key) = follow(root, way[:-1]), way[-1]
    if kind == ".":
        setattr(holder, key, value)
    else:
        holder[key] = value


def nested_replace(node, way, value):
    """Return what `at(way).set(value)` should: a chain of replacements, inside out."""
    if not way:
        return value
    (_, key), *rest = way
    new = nested_replace(go(node, way[0]), rest, value)
    if isinstance(node, ps.State):
        return node.replace(**{key: new})
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return node._replace(**{key: new})
    if dataclasses.is_dataclass(node):
        return dataclasses.replace(node, **{key: new})
    if isinstance(node, dict):
        return node | {key: new}
    return type(node)(new if i == key else item for i, item in enumerate(node))


@st.composite
def updates(draw, *, accept=lambda root, way: True):
    """Draw a nested State, a way into it and two values for the place."""
    root = draw(branches)
    way = draw(st.sampled_from([way for way in ways(root) if accept(root, way)]))
    new = st.sampled_from("tuv") if ends_in_tag(way) else trees
    return root, way, draw(new), draw(new)


@given(updates())
def test_get_after_put_returns_what_was_put(update):
    root, way, value, _ = update

    after = root.at(lambda s: follow(s, way)).set(value)

    assert value is follow(after, way)


@given(updates())
def test_putting_back_what_is_there_changes_nothing(update):
    root, way, _, _ = update

    assert same(root, root.at(lambda s: follow(s, way)).set(follow(root, way)))
    assert same(root, root.at(lambda s: follow(s, way)).apply(lambda old: old))


@given(updates())
def test_the_second_put_wins(update):
    root, way, first, second = update

    once = root.at(lambda s: follow(s, way)).set(second)
    twice = root.at(lambda s: follow(s, way)).set(first)
    twice = twice.at(lambda s: follow(s, way)).set(second)

    assert same(once, twice)


@given(updates())
def test_at_equals_nested_replace(update):
    root, way, value, _ = update

    after = root.at(lambda s: follow(s, way)).set(value)

    assert same(nested_replace(root, way, value), after)


@given(updates())
def test_everything_beside_the_way_is_shared(update):
    root, way, value, _ = update

    after = root.at(lambda s: follow(s, way)).set(value)

    for other in ways(root):
        if other[: len(way)] != way and way[: len(other)] != other:
            assert follow(root, other) is follow(after, other)


@given(updates())
def test_at_leaves_its_source_alone(update):
    root, way, value, _ = update
    held = {other: follow(root, other) for other in ways(root)}

    root.at(lambda s: follow(s, way)).set(value)

    assert held.keys() == set(ways(root))
    assert all(follow(root, other) is old for other, old in held.items())


@given(branches, st.data())
def test_many_places_at_once_equal_one_after_the_other(root, data):
    one = data.draw(st.sampled_from(ways(root)))
    apart = [
        way
        for way in ways(root)
        if way[: len(one)] != one and one[: len(way)] != way and not ends_in_tag(way)
    ]
    other = data.draw(st.sampled_from(apart or [one]))
    first = "v" if ends_in_tag(one) else data.draw(trees)
    second = first if other == one else data.draw(trees)

    after = root.at(lambda s: follow(s, one)).set(first)
    after = after.at(lambda s: follow(s, other)).set(second)

    if apart:
        at = root.at(lambda s: (follow(s, one), follow(s, other)))
        assert same(after, at.set((first, second)))


@given(updates(accept=is_assignable))
def test_a_draft_equals_nested_replace(update):
    root, way, value, _ = update

    with root.draft() as new:
        assign(new, way, value)

    assert same(nested_replace(root, way, value), new)


@given(updates(accept=is_assignable))
def test_the_last_assignment_in_a_draft_wins(update):
    root, way, first, second = update

    with root.draft() as new:
        assign(new, way, first)
        assign(new, way, second)

    assert same(nested_replace(root, way, second), new)


@given(branches)
def test_a_draft_without_changes_is_the_identity(root):
    with root.draft() as new:
        pass

    assert same(root, new)
    assert jax.tree.structure(root) == jax.tree.structure(new)
    assert vars(root)["__purestate_aux__"] is vars(new)["__purestate_aux__"]


@given(branches)
def test_an_open_draft_is_the_same_tree(root):
    with root.draft() as new:
        assert same(root, new)
        assert same(root, jax.tree.map(lambda leaf: leaf, new))


def scramble(node):
    """Change, in place and in depth, whatever can be changed."""
    for step in steps(node):
        scramble(go(node, step))
    if isinstance(node, np.ndarray):
        node.fill(7)
    elif isinstance(node, list):
        node[:] = [len(node)]
    elif isinstance(node, dict):
        node["new"] = node.clear()
    elif not isinstance(node, tuple):
        for _, name in steps(node):
            setattr(node, name, "scrambled")


@given(branches)
def test_a_draft_leaves_its_source_bit_identical(root):
    before = copy.deepcopy(root)
    held = {way: follow(root, way) for way in ways(root)}

    with root.draft() as new:
        scramble(new)

    assert same(before, root)
    assert held.keys() == set(ways(root))
    assert all(follow(root, way) is old for way, old in held.items())
    assert ("scrambled",) * 3 == (new.left, new.right, new.tag)


@given(branches)
def test_a_draft_whose_block_raises_leaves_its_source_bit_identical(root):
    before = copy.deepcopy(root)

    try:
        with root.draft() as new:
            scramble(new)
            raise KeyError
    except KeyError:
        pass

    assert same(before, root)


@given(branches)
def test_everything_in_a_finished_draft_is_frozen(root):
    with root.draft() as new:
        new.right = Branch(left=new.left)

    for way in [(), *ways(new)]:
        node = follow(new, way)
        if isinstance(node, ps.State):
            assert "__purestate_aux__" in vars(node)
            assert "__purestate_draft__" not in vars(node)


@given(states(), st.data())
def test_at_and_draft_agree_with_replace_on_every_class(state, data):
    name = data.draw(st.sampled_from(settable(state)))
    value = data.draw(values(type(state).kinds[int(name[1:])]))
    expected = state.replace(**{name: value})

    with state.draft() as new:
        setattr(new, name, value)

    assert same(expected, state.at(lambda s: getattr(s, name)).set(value))
    assert same(expected, new)


@given(states())
def test_a_draft_without_changes_is_the_identity_on_every_class(state):
    with state.draft() as new:
        pass

    assert same(state, new)
    assert list(vars(state)) == list(vars(new))
    assert all(getattr(state, name) is getattr(new, name) for name in vars(state))
