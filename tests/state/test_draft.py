"""`draft`: a block in which a copy can be assigned to, and nothing else changes."""

import collections
import copy
import dataclasses
import functools
import gc
import pickle
import re
import threading
import weakref
from dataclasses import InitVar
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import purestate as ps
from purestate.errors import (
    CheckError,
    DerivedFieldError,
    DraftError,
    FieldError,
    FrozenStateError,
    NumberError,
    StaticFieldError,
    StrictFieldError,
    UnfinishedStateError,
)


class Item(NamedTuple):
    value: object
    note: object = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Mutable:
    value: object


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Fixed:
    value: object


class Leaf(ps.State):
    x: jax.Array
    y: jax.Array = 0
    name: str = ps.static(default="leaf")


class Tree(ps.State):
    left: object = None
    right: object = None
    name: str = ps.static(default="tree")


class Positive(ps.State):
    value: jax.Array

    def __check__(self):
        return self.value > 0


class Derived(ps.State):
    x: object
    made: object = ps.field(init=False)

    def __post_init__(self):
        self.made = self.make()

    def make(self):
        return 10 * self.x


def exactly(text):
    return f"^{re.escape(text)}$"


def is_frozen(state):
    try:
        state.x = 1
    except FrozenStateError:
        return True
    return False


# Inside the block


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


# Mistakes at the line of the assignment


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


# The end of the block


def test_a_draft_is_frozen_after_the_block():
    text = (
        "cannot assign Leaf.x. Inside jit, grad, vmap and scan a method works on a copy "
        "of its object, so the value would be lost, or leak as a tracer. Return an "
        "updated instance:\n"
        "    return self.replace(x=...), out\n"
        "and at the call:  leaf, out = leaf.method(...)"
    )

    with Leaf(x=1).draft() as new:
        new.x = 2

    with pytest.raises(FrozenStateError, match=exactly(text)):
        new.x = 3


def test_children_are_frozen_after_the_block():
    with Tree(left=Leaf(x=1), right=[Leaf(x=2)]).draft() as new:
        new.left.x = 5

    assert is_frozen(new.left)
    assert is_frozen(new.right[0])


def test_a_child_that_was_taken_out_is_frozen_after_the_block():
    with Tree(left=Leaf(x=1)).draft() as new:
        child = new.left
        new.left = None

    assert is_frozen(child)
    assert 1 == int(child.x)
    assert jax.tree.structure(Leaf(x=1)) == jax.tree.structure(child)


def test_a_child_that_was_taken_out_keeps_what_was_assigned():
    with Tree(left=Leaf(x=1)).draft() as new:
        child = new.left
        child.x = 5
        new.left = None

    assert 5 == int(child.x)


def test_a_child_that_moves_into_a_new_state_keeps_what_was_assigned():
    with Tree(left=Leaf(x=1)).draft() as new:
        new.left.x = 5
        new.right = Tree(left=new.left)
        new.left = None

    assert 5 == int(new.right.left.x)


def test_a_child_that_moves_within_the_draft_keeps_what_was_assigned():
    with Tree(left=Leaf(x=1)).draft() as new:
        new.left.x = 5
        new.left, new.right = None, {"moved": [new.left]}

    assert 5 == int(new.right["moved"][0].x)
    assert is_frozen(new.right["moved"][0])


def test_a_finished_draft_is_like_any_state():
    before = Tree(left=Leaf(x=1), right=2)

    with before.draft() as new:
        new.left.x = jnp.int32(5)
        new.name = "b"

    assert Tree(left=Leaf(x=5), right=2, name="b") == new
    assert list(vars(before)) == list(vars(new))
    assert new == pickle.loads(pickle.dumps(new))
    assert 6 == int(new.left.replace(x=6).x)


def test_what_did_not_change_is_shared_with_the_source():
    before = Tree(left=Tree(left=Leaf(x=1), right={"a": [1]}), right=np.ones(2))

    with before.draft() as new:
        new.left.left.x = 5

    assert before.right is new.right
    assert before.left.right is new.left.right
    assert before.left.left.y is new.left.left.y


def test_a_draft_without_changes_shares_everything():
    before = Tree(left=Leaf(x=1), right=[{"a": np.ones(2)}, Item(Leaf(x=2))])

    with before.draft() as new:
        pass

    assert before == new
    assert before.left is new.left
    assert before.right is new.right


def test_a_value_put_back_is_no_change():
    before = Tree(left=[1, 2])

    with before.draft() as new:
        new.left.append(3)
        new.left.pop()

    assert before.left is new.left


def test_a_return_in_the_block_hands_out_the_frozen_result():
    def step(leaf):
        with leaf.draft() as new:
            new.x = 5
            return new

    after = step(Leaf(x=1))

    assert 5 == int(after.x)
    assert is_frozen(after)


def test_checks_run_at_the_end_and_only_then():
    class Interval(ps.State):
        low: jax.Array
        high: jax.Array

        def __check__(self):
            return self.low <= self.high

    with Interval(low=0, high=1).draft() as new:
        new.low = 5
        new.high = 6

    assert (5, 6) == (int(new.low), int(new.high))


def test_checks_run_for_every_state_that_changed_children_first():
    checked = []

    class Checked(ps.State):
        name: str
        child: object = None

        def __check__(self):
            checked.append(self.name)

    before = Checked("root", [Checked("left", Checked("leaf")), Checked("right")])
    checked.clear()

    with before.draft() as new:
        new.child[0].child.name = "new leaf"

    assert ["new leaf", "left", "root"] == checked


def test_derived_fields_are_computed_at_the_end():
    with Derived(x=1).draft() as new:
        new.x = 3
        assert 10 == new.made

    assert 30 == new.made


def test_derived_fields_follow_a_change_in_depth():
    class Sum(ps.State):
        parts: list
        total: jax.Array = ps.field(init=False)

        def __post_init__(self):
            self.total = sum(part.x for part in self.parts)

    with Sum(parts=[Leaf(x=1), Leaf(x=2)]).draft() as new:
        new.parts[0].x = 5

    assert 7 == int(new.total)


def test_a_derived_field_cannot_be_assigned():
    text = (
        "Derived.made is computed in __post_init__, which runs again at every replace, "
        "so a value given for it would be lost. Replace what it is computed from, or "
        "declare it without init=False."
    )

    with (
        pytest.raises(DerivedFieldError, match=exactly(text)),
        Derived(x=1).draft() as new,
    ):
        new.made = 3


class NanDerived(Derived):
    def make(self):
        return np.array([np.nan, self.x])


class SetDerived(Derived):
    def make(self):
        return {self.x}


class DataclassDerived(Derived):
    def make(self):
        return Mutable(self.x)


@pytest.mark.parametrize("cls", [NanDerived, SetDerived, DataclassDerived])
def test_a_derived_field_may_hold_anything(cls):
    with cls(x=1).draft() as new:
        new.x = 2

    assert repr(cls(x=2).made) == repr(new.made)


def test_a_converter_runs_once_for_a_changed_field_and_not_for_others():
    class Image(ps.State):
        pixels: object = ps.field(converter=lambda v: [*v, "converted"])
        mask: object = ps.field(converter=lambda v: [*v, "converted"])

    before = Image(pixels=["a"], mask=["b"])

    with before.draft() as new:
        new.pixels = ["c"]
        new.pixels = ["d"]

    assert ["d", "converted"] == new.pixels
    assert ["b", "converted"] == new.mask


@pytest.mark.parametrize(
    "value", [np.array([np.nan]), {1}, Mutable(1)], ids=["NaN", "set", "dataclass"]
)
def test_a_converter_does_not_run_again_for_a_field_that_did_not_change(value):
    converted = []

    class Holder(ps.State):
        held: object = ps.field(converter=lambda v: converted.append(v) or v)
        other: int = 0

    before = Holder(held=value)

    with before.draft() as new:
        new.other = 1

    assert 1 == len(converted)


@pytest.mark.parametrize(
    ("spec", "annotation", "given", "stored"),
    [
        (ps.static(converter=tuple), tuple, ["a"], ("a",)),
        (
            ps.field(converter=lambda v: min(v, 255), dtype=jnp.uint8),
            jax.Array,
            300,
            255,
        ),
    ],
    ids=["static", "number"],
)
def test_a_draft_takes_what_the_converter_takes(spec, annotation, given, stored):
    cls = type(
        "Converting",
        (ps.State,),
        {"__annotations__": {"value": annotation}, "value": spec},
    )
    before = cls(value=cls(value=given).value)

    with before.draft() as new:
        new.value = given

    assert stored == new.value


def test_a_strict_class_refuses_another_shape_at_the_end():
    class Weights(ps.State, strict=True):
        w: jax.Array

    text = (
        "Weights is strict and w would change from f32[3] to f32[4]. Cast or reshape the "
        "value, construct a new Weights, or drop strict=True from the class."
    )
    before = Weights(w=jnp.ones(3))

    with pytest.raises(StrictFieldError, match=exactly(text)), before.draft() as new:
        new.w = jnp.ones(4)


def test_a_strict_class_may_be_of_another_shape_in_between():
    class Weights(ps.State, strict=True):
        w: jax.Array

    with Weights(w=jnp.ones(3)).draft() as new:
        new.w = jnp.ones(4)
        new.w = new.w[:3]

    assert (3,) == new.w.shape


class Counting(ps.State):
    value: int
    updates: int = 0

    def replace(self, **changes):
        return super().replace(updates=self.updates + 1, **changes)


def test_a_users_own_replace_is_the_one_that_runs():
    with Counting(value=1).draft() as new:
        new.value = 2

    assert (2, 1) == (new.value, new.updates)


def test_a_class_with_a_required_initvar_says_that_it_needs_it():
    class Scaled(ps.State):
        x: int
        by: InitVar[int]
        y: int = ps.field(init=False)

        def __post_init__(self, by):
            self.y = self.x * by

    with (
        pytest.raises(FieldError, match=r"^Scaled\.replace runs __post_init__ again"),
        Scaled(1, 2).draft() as new,
    ):
        new.x = 3


# All or nothing


def test_an_exception_in_the_block_passes_and_changes_nothing():
    before = Tree(left=Leaf(x=1), right=[1])

    with pytest.raises(KeyError, match=r"^'mine'$"), before.draft() as new:  # noqa: PT012
        new.left.x = 5
        new.right.append(2)
        raise KeyError("mine")

    assert (1, [1]) == (int(before.left.x), before.right)


def test_assigning_after_an_exception_says_that_the_draft_is_lost():
    text = (
        "cannot assign Leaf.x in this draft: its block raised KeyError, so the value "
        "would be lost. Assign inside the `with state.draft() as new:` block."
    )

    with pytest.raises(KeyError), Leaf(x=1).draft() as new:
        raise KeyError

    with pytest.raises(DraftError, match=exactly(text)):
        new.x = 5


def test_a_failing_check_at_the_end_changes_nothing():
    before = Tree(left=Leaf(x=1), right=Positive(value=1))

    text = r"^Positive\.__check__ returned False for this Positive"

    with pytest.raises(CheckError, match=text), before.draft() as new:  # noqa: PT012
        new.left.x = 5
        new.right.value = -1

    assert (1, 1) == (int(before.left.x), int(before.right.value))


def test_assigning_after_a_failing_check_says_that_the_draft_is_lost():
    text = (
        "cannot assign {} in this draft: it could not be frozen: CheckError, so the "
        "value would be lost. Assign inside the `with state.draft() as new:` block."
    )

    before = Tree(left=Leaf(x=1), right=Positive(value=1))

    with pytest.raises(CheckError), before.draft() as new:  # noqa: PT012
        new.left.x = 5
        new.right.value = -1

    for draft, name in [(new, "name"), (new.left, "x"), (new.right, "value")]:
        where = f"{type(draft).__name__}.{name}"
        with pytest.raises(DraftError, match=exactly(text.format(where))):
            setattr(draft, name, 1)


def test_a_lost_draft_still_prints_and_flattens():
    before = Tree(left=Leaf(x=1))

    with pytest.raises(KeyError), before.draft() as new:
        raise KeyError

    assert repr(before) == repr(new)
    assert [1, 0] == [int(leaf) for leaf in jax.tree.leaves(new)]


def test_the_source_can_be_drafted_again_after_an_exception():
    before = Leaf(x=1)

    with pytest.raises(KeyError), before.draft():
        raise KeyError
    with before.draft() as new:
        new.x = 5

    assert 5 == int(new.x)


def test_an_exception_caught_inside_the_block_is_no_failure():
    with Leaf(x=1).draft() as new:
        try:
            new.x = 5
            raise KeyError
        except KeyError:
            new.y = 6

    assert (5, 6) == (int(new.x), int(new.y))


def test_a_draft_is_entered_once():
    text = "this draft of Leaf was entered already: call .draft() anew for every block."
    block = Leaf(x=1).draft()

    with block:
        pass

    with pytest.raises(DraftError, match=exactly(text)), block:
        pass


def test_a_draft_is_not_entered_within_itself():
    block = Leaf(x=1).draft()

    with block as new:
        with pytest.raises(
            DraftError, match=r"^this draft of Leaf was entered already"
        ):
            block.__enter__()
        new.x = 5

    assert 5 == int(new.x)


def test_a_half_built_self_is_not_drafted():
    class Built(ps.State):
        x: jax.Array
        y: jax.Array

        def __init__(self):
            self.x = 1
            self.draft().__enter__()

    with pytest.raises(
        UnfinishedStateError, match=r"^this Built is not finished: y has"
    ):
        Built()


# Drafts of drafts


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


# Other ways out of an open draft


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


# In transforms


def step(leaf, by=1):
    with leaf.draft() as new:
        new.x = leaf.x + by
        new.y += 1
    return new


def test_draft_under_jit():
    after = jax.jit(step)(Leaf(x=1))

    assert (2, 1) == (int(after.x), int(after.y))


def test_a_jitted_step_with_a_draft_is_traced_once():
    traces = []

    @jax.jit
    def counted(leaf):
        traces.append(1)
        return step(leaf)

    leaf = Leaf(x=1)
    for _ in range(3):
        leaf = counted(leaf)

    assert (4, 3) == (int(leaf.x), int(leaf.y))
    assert 1 == len(traces)


def test_draft_under_scan():
    def body(leaf, x):
        return step(leaf, x), leaf.x

    after, seen = jax.lax.scan(body, Leaf(x=0), jnp.arange(4))

    assert (6, 4) == (int(after.x), int(after.y))
    assert [0, 0, 1, 3] == seen.tolist()


def test_draft_under_vmap():
    after = jax.vmap(step)(Leaf(x=jnp.arange(3), y=jnp.zeros(3)))

    assert [1, 2, 3] == after.x.tolist()


def test_draft_under_grad():
    def loss(leaf):
        with leaf.draft() as new:
            new.x = 3 * new.x
        return new.x**2 + new.y

    grads = jax.jit(jax.grad(loss))(Leaf(x=2.0, y=1.0))

    assert (36, 1) == (float(grads.x), float(grads.y))


def test_a_method_may_draft_self():
    class Counter(ps.State):
        count: jax.Array = 0

        @jax.jit
        def advance(self, by):
            with self.draft() as new:
                new.count += by
            return new, new.count

    counter, out = Counter().advance(3)

    assert (3, 3) == (int(counter.count), int(out))


def test_checks_are_skipped_while_tracing():
    @jax.jit
    def negated(positive):
        with positive.draft() as new:
            new.value = -new.value
        return new

    assert -1 == int(negated(Positive(value=1)).value)


def test_a_draft_opened_inside_jit_leaves_the_argument_of_the_trace_alone():
    @jax.jit
    def both(tree):
        with tree.draft() as new:
            new.right["a"] = 5
            new.left.x += 1
        return tree, new

    old, new = both(Tree(left=Leaf(x=1), right={"a": 1}))

    assert (1, 1) == (int(old.left.x), int(old.right["a"]))
    assert (2, 5) == (int(new.left.x), int(new.right["a"]))


ELSEWHERE = (
    "cannot assign Leaf.x in this draft: it was opened outside of the function that jax "
    "is tracing now, so the value would leak as a tracer. Open the draft inside that "
    "function and return the State from it."
)


@pytest.mark.parametrize(
    "transform",
    [
        lambda write: jax.jit(write)(1.0),
        lambda write: jax.vmap(write)(jnp.ones(2)),
        lambda write: jax.grad(write)(1.0),
        lambda write: jax.lax.scan(lambda c, x: (write(x), None), 0.0, jnp.ones(2)),
        lambda write: jax.lax.fori_loop(0, 2, lambda i, c: write(c), 0.0),
        lambda write: jax.lax.cond(True, write, write, 1.0),
        lambda write: jax.eval_shape(write, 1.0),
        lambda write: jax.checkpoint(write)(1.0),
    ],
    ids=["jit", "vmap", "grad", "scan", "fori_loop", "cond", "eval_shape", "remat"],
)
@pytest.mark.parametrize("outer", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_writing_in_another_trace_is_refused_at_that_line(transform, outer):
    def run(leaf):
        with leaf.draft() as new:

            def write(value):
                new.x = value
                return value

            transform(write)
        return new

    with pytest.raises(DraftError, match=f"^{re.escape(ELSEWHERE)}"):
        outer(run)(Leaf(x=1.0))


def test_writing_a_nested_draft_in_another_trace_is_refused():
    with (
        Tree(left=[Leaf(x=1)]).draft() as new,
        pytest.raises(DraftError, match=f"^{re.escape(ELSEWHERE)}"),
    ):
        jax.jit(lambda value: setattr(new.left[0], "x", value))(1.0)


def test_reading_in_another_trace_is_fine():
    with Leaf(x=2.0).draft() as new:
        new.y = jax.jit(lambda value: value * new.x)(3.0)

    assert 6 == float(new.y)


def test_a_tracer_put_into_a_container_in_another_trace_is_refused():
    text = (
        r"^Tree\.left\['a'\] is a tracer: it was put there by a function that jax traced, "
        r"and would leak\. Return values from that function, and assign them here\.$"
    )

    with pytest.raises(DraftError, match=text), Tree(left={"a": 1.0}).draft() as new:
        jax.jit(lambda value: new.left.update(a=value))(2.0)


@pytest.mark.parametrize(
    "context",
    [
        lambda: jax.named_scope("scope"),
        lambda: jax.default_matmul_precision("float32"),
        lambda: jax.debug_nans(True),
        lambda: jax.disable_jit(),
        lambda: jax.default_device(jax.devices()[0]),
    ],
    ids=["named_scope", "precision", "debug_nans", "disable_jit", "default_device"],
)
@pytest.mark.parametrize("outer", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_setting_of_jax_is_not_another_trace(context, outer):
    def run(leaf):
        with leaf.draft() as new, context():
            new.x = 5.0
        return new

    assert 5 == float(outer(run)(Leaf(x=1.0)).x)


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "raises"])
def test_no_tracer_outlives_a_trace(fails):
    @jax.jit
    def run(tree):
        try:
            with tree.draft() as new:
                new.left.x *= 2
                if fails:
                    raise KeyError
        except KeyError:
            return tree
        return new

    with jax.checking_leaks():
        after = run(Tree(left=Leaf(x=1)))

    assert (1 if fails else 2) == int(after.left.x)


# Memory and threads


def test_a_finished_draft_does_not_keep_its_source():
    before = Tree(left=Leaf(x=jnp.ones(3) + 1), right=np.ones(3))
    gone = [weakref.ref(before), weakref.ref(before.left), weakref.ref(before.left.x)]

    with before.draft() as new:
        new.left.x = jnp.zeros(3)
    del before

    assert [None] * 3 == [ref() for ref in gone]
    assert [0, 0, 0] == new.left.x.tolist()


def test_a_finished_draft_is_kept_by_nobody():
    with Tree(left=Leaf(x=jnp.ones(3) + 1)).draft() as new:
        new.left.y = jnp.zeros(3)
    gone = [weakref.ref(new), weakref.ref(new.left), weakref.ref(new.left.y)]

    del new

    assert [None] * 3 == [ref() for ref in gone]


def test_a_weak_reference_to_a_draft_follows_it_through_the_end():
    with Tree(left=Leaf(x=1)).draft() as new:
        root, child = weakref.ref(new), weakref.ref(new.left)
        new.left.x = 5

    assert new is root()
    assert new.left is child()


def test_a_lost_draft_is_kept_by_nobody():
    before = Tree(left=Leaf(x=jnp.ones(3) + 1))
    with pytest.raises(KeyError), before.draft() as new:
        raise KeyError
    gone = [weakref.ref(before), weakref.ref(new), weakref.ref(new.left)]

    del before, new
    gc.collect()

    assert [None] * 3 == [ref() for ref in gone]


def test_a_lost_draft_does_not_keep_its_source():
    before = Leaf(x=1)
    try:
        with before.draft() as new:
            raise KeyError
    except KeyError:
        pass
    gone = weakref.ref(before)

    del before
    gc.collect()

    assert gone() is None
    assert 1 == int(new.x)


def test_threads_draft_one_source_at_the_same_time():
    before = Tree(left=[Leaf(x=0)], right={"a": 0}, name="shared")
    failures, start = [], threading.Barrier(4)

    def work(seed):
        start.wait()
        try:
            for i in range(100):
                with before.draft() as new:
                    new.left[0].x = seed
                    new.right["a"] = i
                    new.name = f"{seed % 2}"
                assert (seed, i) == (int(new.left[0].x), new.right["a"])
        except Exception as error:  # noqa: BLE001  # a thread's error is reported below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]

    assert [] == failures
    assert (0, 0) == (int(before.left[0].x), before.right["a"])


def test_a_thread_may_write_a_draft_of_another():
    with Leaf(x=1).draft() as new:
        thread = threading.Thread(target=lambda: setattr(new, "x", 5))
        thread.start()
        thread.join()

    assert 5 == int(new.x)


def test_a_draft_without_its_with_block_says_so():
    text = r"^this draft of Leaf is not open: write `with state\.draft\(\) as new:` and use"
    draft = Leaf(x=1).draft()

    with pytest.raises(DraftError, match=text):
        draft.x = 5
    with pytest.raises(DraftError, match=text):
        _ = draft.x
