"""The end of the block of `draft`: checks, derived fields, and what a failure leaves."""

import pickle
from dataclasses import InitVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import (
    CheckError,
    DerivedFieldError,
    DraftError,
    FieldError,
    FrozenStateError,
    StrictFieldError,
    UnfinishedStateError,
)
from tests.helpers import exactly
from tests.state.drafts import Derived, Item, Leaf, Mutable, Positive, Tree, is_frozen

# --- The end of the block -------------------------------------------------------------


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
        "so a value given for it would be lost. Replace what it is computed from. If "
        "__post_init__ only starts it, declare it with ps.field(init=False, "
        "derived=False)."
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


# --- All or nothing -------------------------------------------------------------------


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
