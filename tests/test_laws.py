"""Laws that hold for every State, whatever its fields."""

import copy
import pickle

import hypothesis.strategies as st
import jax
import numpy as np
from hypothesis import given

import purestate as ps
from tests.strategies import state_classes, states, values


def same(a, b):
    """Return whether two trees agree bit for bit; NaN equals NaN here."""
    first, was = jax.tree.flatten(a)
    second, now = jax.tree.flatten(b)
    return was == now and all(map(same_leaf, first, second))


def same_leaf(a, b):
    if a is b:
        return True
    if not hasattr(a, "dtype"):
        return type(a) is type(b) and a == b
    if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    facts = [(x.dtype, x.shape, getattr(x, "weak_type", False)) for x in (a, b)]
    return facts[0] == facts[1] and np.asarray(a).tobytes() == np.asarray(b).tobytes()


def settable(state):
    derived = [] if "made" not in vars(state) else ["made"]
    return [name for name in vars(state) if name[0] == "f" and name not in derived]


@given(states())
def test_rebuilding_is_the_identity(state):
    leaves, structure = jax.tree.flatten(state)

    rebuilt = jax.tree.unflatten(structure, leaves)

    assert type(state) is type(rebuilt)
    assert vars(state).keys() == vars(rebuilt).keys()
    assert all(x is y for x, y in zip(leaves, jax.tree.leaves(rebuilt), strict=True))
    assert structure == jax.tree.structure(rebuilt)
    assert hash(structure) == hash(jax.tree.structure(rebuilt))


@given(states())
def test_rebuilding_takes_any_leaf(state):
    structure = jax.tree.structure(state)
    leaves = [object() for _ in range(structure.num_leaves)]

    rebuilt = structure.unflatten(leaves)

    assert leaves == jax.tree.leaves(rebuilt)
    assert isinstance(repr(rebuilt), str)


@given(states())
def test_key_paths_are_unique_and_agree_with_the_leaves(state):
    with_path, structure = jax.tree.flatten_with_path(state)

    paths = [jax.tree_util.keystr(path) for path, _ in with_path]

    assert len(set(paths)) == len(paths)
    assert jax.tree.structure(state) == structure
    for path, leaf in zip(paths, jax.tree.leaves(state), strict=True):
        assert leaf is eval(f"state{path}", {"state": state})


@given(states(), st.data())
def test_get_after_put_returns_what_was_put(state, data):
    name = data.draw(st.sampled_from(settable(state)))
    value = data.draw(values(type(state).kinds[int(name[1:])]))

    after = state.replace(**{name: value})

    assert same(getattr(after, name), value)
    for other in settable(state):
        if other != name:
            assert getattr(after, other) is getattr(state, other)


@given(states(), st.data())
def test_putting_back_what_is_there_changes_nothing(state, data):
    name = data.draw(st.sampled_from(settable(state)))

    assert same(state, state.replace(**{name: getattr(state, name)}))


@given(states(), st.data())
def test_the_second_put_wins(state, data):
    name = data.draw(st.sampled_from(settable(state)))
    strategy = values(type(state).kinds[int(name[1:])])
    first, second = data.draw(strategy), data.draw(strategy)

    twice = state.replace(**{name: first}).replace(**{name: second})

    assert same(twice, state.replace(**{name: second}))


@given(states(), st.data())
def test_replace_agrees_with_constructing_anew(state, data):
    name = data.draw(st.sampled_from(settable(state)))
    value = data.draw(values(type(state).kinds[int(name[1:])]))
    held = {n: getattr(state, n) for n in settable(state)}

    assert same(type(state)(**held | {name: value}), state.replace(**{name: value}))


@given(states())
def test_copies_and_pickles_keep_structure_and_bits(state):
    for duplicate in (copy.copy, copy.deepcopy, lambda s: s.replace()):
        assert same(state, duplicate(state))
    if "static" not in type(state).kinds:  # a drawn class cannot be found by name
        unpickled = type(state).__new__(type(state))
        unpickled.__setstate__(pickle.loads(pickle.dumps(state.__getstate__())))
        assert same(state, unpickled)


@given(states())
def test_jit_vmap_and_tree_map_return_the_class(state):
    mapped = jax.tree.map(lambda leaf: leaf, state)
    jitted = jax.jit(lambda s: s)(state)

    assert same(state, mapped)
    assert type(state) is type(jitted)
    assert jax.tree.structure(state) == jax.tree.structure(jitted)


@given(state_classes(), st.data())
def test_equal_arguments_share_their_auxiliary_data(cls, data):
    given = {f"f{i}": data.draw(values(kind)) for i, kind in enumerate(cls.kinds)}

    a, b = cls(**given), cls(**given)

    assert vars(a)["__purestate_aux__"] is vars(b)["__purestate_aux__"]
    assert not ps.diff(a, b)
