"""Inside the block of `draft`: a copy that is assigned to, and nothing else changes."""

import collections
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import purestate as ps
from purestate.errors import (
    DraftError,
    FieldError,
    FrozenStateError,
    NumberError,
    StaticFieldError,
)
from tests.helpers import exactly
from tests.state.drafts import Item, Leaf, Mutable, Tree, is_frozen


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Fixed:
    value: object


# --- Inside the block -----------------------------------------------------------------


def test_a_draft_is_assigned_to_and_the_original_is_left_alone():
    before = Leaf(x=1)

    with before.draft() as new:
        new.x = jnp.int32(5)
        new.name = "new"

    assert (5, "new") == (int(new.x), new.name)
    assert (1, "leaf") == (int(before.x), before.name)


def test_a_draft_is_an_instance_of_the_same_class():
    before = Leaf(x=1)

    with before.draft() as new:
        assert Leaf is type(new)
        assert new is not before
        assert before == new


def test_nested_states_are_drafts():
    before = Tree(left=Tree(left=Leaf(x=1)))

    with before.draft() as new:
        new.left.left.x = 5

    assert (1, 5) == (int(before.left.left.x), int(new.left.left.x))


@pytest.mark.parametrize(
    ("hold", "get"),
    [
        (lambda leaf: [leaf], lambda held: held[0]),
        (lambda leaf: (leaf,), lambda held: held[0]),
        (lambda leaf: {"a": leaf}, lambda held: held["a"]),
        (lambda leaf: collections.OrderedDict(a=leaf), lambda held: held["a"]),
        (lambda leaf: collections.defaultdict(int, a=leaf), lambda held: held["a"]),
        (Item, lambda held: held.value),
        (Mutable, lambda held: held.value),
        (lambda leaf: [({"a": Item(leaf)},)], lambda held: held[0][0]["a"].value),
    ],
    ids=[
        "list",
        "tuple",
        "dict",
        "OrderedDict",
        "defaultdict",
        "NamedTuple",
        "dataclass",
        "all",
    ],
)
def test_states_in_containers_are_drafts(hold, get):
    before = Tree(left=hold(Leaf(x=1)))

    with before.draft() as new:
        get(new.left).x = 5

    assert (1, 5) == (int(get(before.left).x), int(get(new.left).x))
    assert type(before.left) is type(new.left)
    assert jax.tree.structure(before) == jax.tree.structure(new)
    assert is_frozen(get(new.left))


def test_lists_of_states_grow_shrink_and_move():
    before = Tree(left=[Leaf(x=1), Leaf(x=2), Leaf(x=3)])

    with before.draft() as new:
        new.left.append(Leaf(x=4))
        del new.left[0]
        new.left.reverse()
        new.left[-1].x = 7

    assert [1, 2, 3] == [int(leaf.x) for leaf in before.left]
    assert [4, 3, 7] == [int(leaf.x) for leaf in new.left]
    assert all(map(is_frozen, new.left))


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1], lambda held: held.append(2)),
        ({"a": 1}, lambda held: held.update(b=2)),
        ({1}, lambda held: held.add(2)),
        ([[1]], lambda held: held[0].append(2)),
        (({"a": [1]},), lambda held: held[0]["a"].append(2)),
        (Item([1]), lambda held: held.value.append(2)),
        (Mutable([1]), lambda held: held.value.append(2)),
        (Mutable(1), lambda held: setattr(held, "value", 2)),
        (np.ones(2), lambda held: held.fill(2)),
        ([np.ones(2)], lambda held: held[0].fill(2)),
        (collections.OrderedDict(a=1, b=2), lambda held: held.move_to_end("a")),
        (collections.defaultdict(list), lambda held: held["new"].append(2)),
    ],
    ids=lambda value: None if callable(value) else repr(value),
)
def test_containers_and_numpy_arrays_are_copies(value, change):
    before, was = Tree(left=value), repr(value)

    with before.draft() as new:
        change(new.left)

    assert value is before.left
    assert was == repr(before.left)
    assert was != repr(new.left)
    assert type(value) is type(new.left)


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (Fixed([1]), lambda held: held.value.append(2)),
        (collections.deque([1]), lambda held: held.append(2)),
        (bytearray(b"a"), lambda held: held.append(2)),
        (np.ma.array([1, 2]), lambda held: held.__setitem__(0, 5)),
    ],
    ids=["list in a frozen dataclass", "deque", "bytearray", "masked array"],
)
def test_other_things_that_can_change_are_copies(value, change):
    before, was = Tree(left=value), repr(value)

    with before.draft() as new:
        change(new.left)

    assert was == repr(before.left)


def test_a_counter_is_copied_and_not_added_up():
    before = Tree(left=collections.Counter(a=1, b=2))

    with before.draft() as new:
        new.left["b"] += 1

    assert {"a": 1, "b": 3} == new.left


def test_optimizer_states_are_assigned_to():
    before = Tree(right=optax.adam(1e-3).init({"w": jnp.ones(2)}))

    with before.draft() as new:
        new.right[0].mu["w"] = jnp.full(2, 5.0)

    assert [0, 0] == before.right[0].mu["w"].tolist()
    assert [5, 5] == new.right[0].mu["w"].tolist()
    assert jax.tree.structure(before) == jax.tree.structure(new)


def test_augmented_assignment_rebinds_jax_arrays_and_changes_numpy_copies():
    before = Tree(left=jnp.ones(2), right=np.ones(2))

    with before.draft() as new:
        new.left += 1
        new.right += 1
        new.right[0] *= 10

    assert ([2, 2], [20, 2]) == (new.left.tolist(), new.right.tolist())
    assert ([1, 1], [1, 1]) == (before.left.tolist(), before.right.tolist())


def test_the_sign_of_a_zero_in_a_numpy_array_is_a_change():
    with Tree(left=np.array([0.0])).draft() as new:
        new.left[0] = -0.0

    assert np.signbit(new.left[0])


def test_a_state_that_occurs_twice_becomes_two():
    shared = Leaf(x=1)

    with Tree(left=shared, right=shared).draft() as new:
        new.left.x = 5

    assert (5, 1) == (int(new.left.x), int(new.right.x))


def test_a_draft_put_in_a_second_place_is_one_object():
    with Tree(left=Leaf(x=1)).draft() as new:
        new.right = new.left
        new.left.x = 5

    assert new.left is new.right
    assert 5 == int(new.right.x)


def test_a_state_put_into_a_draft_stays_frozen():
    other = Leaf(x=1)

    with Tree().draft() as new:
        new.left = other
        with pytest.raises(FrozenStateError, match=r"^cannot assign Leaf\.x\."):
            new.left.x = 5

    assert other is new.left


def test_jax_takes_an_open_draft_like_any_state():
    with Leaf(x=2.0, y=1.0).draft() as new:
        grads = jax.grad(lambda leaf: leaf.x**2 * leaf.y)(new)
        new.x -= grads.x
        doubled = jax.tree.map(lambda value: 2 * value, new)
        jitted = jax.jit(lambda leaf: leaf.replace(y=leaf.x))(new)
        new.y = doubled.x

    assert [Leaf, Leaf, Leaf] == [type(made) for made in (grads, doubled, jitted)]
    assert (4, -2, -4) == (float(grads.x), float(new.x), float(new.y))
    assert (-4, -2) == (float(doubled.x), float(jitted.y))
    assert all(map(is_frozen, (grads, doubled, jitted)))


def test_what_jax_makes_of_an_open_draft_is_its_own():
    with Tree(left=Leaf(x=1)).draft() as new:
        mapped = jax.tree.map(lambda value: value, new)
        new.left.x = 5

    assert 1 == int(mapped.left.x)
    assert is_frozen(mapped.left)


def test_an_open_draft_has_a_repr_and_compares():
    before = Tree(left=Leaf(x=1))

    with before.draft() as new:
        assert repr(before) == repr(new)
        new.left.x = 2
        assert before != new


def test_a_static_field_of_an_open_draft_is_part_of_its_structure():
    with Leaf(x=1).draft() as new:
        new.name = "b"
        assert jax.tree.structure(Leaf(x=1, name="b")) == jax.tree.structure(new)


def test_a_cached_property_is_not_stale_while_the_draft_changes():
    class Doubling(ps.State):
        x: jax.Array

        @functools.cached_property
        def double(self):
            return 2 * self.x

    with Doubling(x=1).draft() as new:
        assert 2 == int(new.double)
        new.x = 5
        assert 10 == int(new.double)


def test_a_cached_property_is_computed_anew_after_the_block():
    class Doubling(ps.State):
        x: jax.Array

        @functools.cached_property
        def double(self):
            return 2 * self.x

    with Doubling(x=1).draft() as new:
        assert 2 == int(new.double)
        new.x = 5

    assert 10 == int(new.double)


# --- Mistakes at the line of the assignment -------------------------------------------


def test_a_typo_names_the_nearest_field():
    before = Leaf(x=1)

    with before.draft() as new:
        with pytest.raises(
            FieldError, match=exactly("Leaf has no field 'nmae'; did you mean 'name'?")
        ):
            new.nmae = "b"
        new.name = "c"

    assert "c" == new.name


def test_a_typo_in_depth_names_the_nested_class():
    with (
        Tree(left=Leaf(x=1)).draft() as new,
        pytest.raises(
            FieldError,
            match=exactly("Leaf has no field 'z'; its fields are x, y, name."),
        ),
    ):
        new.left.z = 1


@pytest.mark.parametrize(
    ("value", "kind"),
    [(jnp.ones(2), "a jax array"), (np.ones(2), "a ndarray"), ([1], "a list")],
    ids=["jax", "numpy", "list"],
)
def test_a_static_field_refuses_an_array_at_that_line(value, kind):
    with Leaf(x=1).draft() as new:
        with pytest.raises(
            StaticFieldError, match=f"^Leaf.name is a static field and got {kind}. "
        ):
            new.name = value
        assert "leaf" == new.name


def test_a_static_field_refuses_a_tracer_at_that_line():
    def step(leaf):
        with leaf.draft() as new:
            new.name = leaf.x
        return new

    with pytest.raises(
        StaticFieldError, match=r"^Leaf\.name is a static field and got a tracer\. "
    ):
        jax.jit(step)(Leaf(x=1))


def test_a_number_in_an_array_field_becomes_an_array_at_that_line():
    class Small(ps.State):
        x: jax.Array = ps.field(dtype=jnp.uint8)

    with Small(x=1).draft() as new:
        new.x = 3
        assert (jnp.uint8, False) == (new.x.dtype, new.x.weak_type)


def test_a_number_that_does_not_fit_is_refused_at_that_line():
    class Small(ps.State):
        x: jax.Array = ps.field(dtype=jnp.uint8)

    text = (
        "Small.x holds uint8 and 0.5 does not fit: pass an array, or change the dtype in "
        "the annotation or in ps.field(dtype=...)."
    )

    with Small(x=1).draft() as new:
        with pytest.raises(NumberError, match=exactly(text)):
            new.x = 0.5
        assert 1 == int(new.x)


def test_deleting_a_field_of_a_draft_is_refused():
    with (
        Leaf(x=1).draft() as new,
        pytest.raises(FrozenStateError, match=r"^cannot delete Leaf\.x: every field"),
    ):
        del new.x


def test_a_draft_without_its_with_block_says_so():
    text = r"^this draft of Leaf is not open: write `with state\.draft\(\) as new:` and use"
    draft = Leaf(x=1).draft()

    with pytest.raises(DraftError, match=text):
        draft.x = 5
    with pytest.raises(DraftError, match=text):
        _ = draft.x
