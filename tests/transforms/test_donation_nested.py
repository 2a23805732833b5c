"""States inside of what was donated explain themselves, too, whoever holds them."""

import functools
import gc
import weakref
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import ConsumedStateError
from tests.helpers import in_threads, through_cloudpickle
from tests.transforms.donors import Box, Opt

pytestmark = pytest.mark.filterwarnings("ignore::purestate.errors.RetraceWarning")

PART = (
    r"^this Opt was donated to step\(\) as part of a Box; use the instance that it "
    r"returned\. To keep the old one, copy it before the call: "
    r"jax\.tree\.map\(jnp\.copy, state\)\.$"
)


class Moments(NamedTuple):
    count: jax.Array
    mu: dict
    nu: list


def new_opt():
    return Opt(mu=jnp.ones(2))


def new_box():
    return Box(x=jnp.ones(3), opt=new_opt(), parts=[{"k": (new_opt(),)}, new_opt()])


def new_step():
    @ps.jit(donate=True)
    def step(tree):
        return jax.tree.map(lambda leaf: leaf + 1, tree)

    return step


def warmed(make, calls=3):
    """Return a function that donates, and a value to donate after some calls."""
    step, value = new_step(), make()
    for _ in range(calls):
        value = step(value)
    gc.collect()
    return step, value


HELD = {
    "itself": lambda box: (box.opt, lambda held: held),
    "a method": lambda box: (box.opt.replace, lambda held: held.__self__),
    "its list": lambda box: (box.parts, lambda held: held[1]),
    "a dict in a list": lambda box: (box.parts[0], lambda held: held["k"][0]),
    "a tuple in a dict": lambda box: (box.parts[0]["k"], lambda held: held[0]),
    "an iterator": lambda box: (iter(box.parts[0]["k"]), next),
    "another State": lambda box: (Box(x=jnp.ones(4), opt=box.opt), lambda b: b.opt),
    "a closure": lambda box: ((lambda opt: lambda: opt)(box.opt), lambda f: f()),
    "a weak reference": lambda box: ((weakref.ref(box.opt), box), lambda h: h[0]()),
    "the old dict": lambda box: (box, lambda box: vars(box)["opt"]),
    "the old dict, deep": lambda box: (box, lambda box: vars(box)["parts"][0]["k"][0]),
}


@pytest.mark.parametrize("calls", [0, 1, 3])
@pytest.mark.parametrize("hold", HELD.values(), ids=HELD)
def test_a_state_that_was_taken_out_before_explains_itself(hold, calls):
    step, box = warmed(new_box, calls)
    held, find = hold(box)

    box = step(box)

    inner = find(held)
    with pytest.raises(ConsumedStateError, match=PART):
        _ = inner.mu
    assert "<Opt, donated to step()>" == repr(inner)
    assert [calls + 2] * 2 == box.opt.mu.tolist()


def test_every_state_in_a_donated_container_explains_itself():
    step, old = warmed(
        lambda: Moments(
            jnp.int32(0), {"a": new_box(), "b": new_opt()}, [new_opt(), new_opt()]
        )
    )

    new = step(old)

    states = [old.mu["a"], old.mu["b"], *old.nu]
    assert ["<Box, donated to step()>", *["<Opt, donated to step()>"] * 3] == [
        repr(state) for state in states
    ]
    with pytest.raises(
        ConsumedStateError, match=r"^this Opt was donated to step\(\); "
    ):
        _ = old.nu[0].mu
    assert 4 == new.count


def test_a_part_that_another_call_reads_stays_alive_where_nothing_was_lost():
    @ps.jit(donate=True)
    def first(box):
        return box.x + 1

    opt = Opt(mu=jnp.ones(5))
    with pytest.warns(ps.errors.LostUpdateWarning):
        first(Box(x=jnp.ones(3), opt=opt))
    for _ in range(3):
        first(Box(x=jnp.ones(3), opt=opt))

    assert [1] * 5 == opt.mu.tolist()


def test_a_structure_that_is_met_later_is_marked_as_a_whole():
    step, box = warmed(new_box)
    opts = [new_opt() for _ in range(5)]
    step(box)
    for count in (5, 3, 0):
        held = Box(x=jnp.ones(3), parts=opts[:count])
        inside = list(held.parts)

        step(held)

        assert ["<Opt, donated to step()>"] * count == [repr(opt) for opt in inside]
        opts = [new_opt() for _ in range(5)]


def test_a_number_where_an_array_was_leaves_the_question_to_the_other_leaves():
    class Pair(ps.State):
        a: object
        b: object

    step, _ = warmed(lambda: Pair(a=jnp.float32(1), b=jnp.float32(2)))
    old = Pair(a=np.float32(1), b=jnp.float32(2))

    new = step(old)

    assert (2, 3) == (new.a, new.b)
    assert "<Pair, donated to step()>" == repr(old)


def test_a_state_in_a_cached_property_explains_itself():
    class Holder(ps.State):
        x: jax.Array

        @functools.cached_property
        def sub(self):
            return Opt(mu=self.x)

    step, old = warmed(lambda: Holder(x=jnp.ones(3)))
    sub = old.sub

    step(old)

    assert "<Opt, donated to step()>" == repr(sub)


def test_one_state_in_two_places_of_a_warm_call_is_one_donation():
    step, _ = warmed(lambda: [new_opt(), Box(x=jnp.ones(3), opt=new_opt())])
    opt = new_opt()

    with pytest.warns(ps.errors.SharedBufferWarning):
        step([opt, Box(x=jnp.ones(3), opt=opt)])

    assert "<Opt, donated to step()>" == repr(opt)


def test_two_donated_parameters_are_marked_by_position_and_by_name():
    both = ps.jit(
        lambda a, b: (a.replace(x=a.x + 1), b.replace(x=b.x + 1)), donate=("a", "b")
    )
    for call in (lambda a, b: both(a, b), lambda a, b: both(a, b=b)) * 2:
        a, b = new_box(), Box(x=jnp.ones(3))
        inner = a.opt
        both(new_box(), Box(x=jnp.ones(3)))

        call(a, b)

        assert ["<Box, donated to <lambda>()>"] * 2 == [repr(a), repr(b)]
        assert repr(inner).startswith("<Opt, donated to")


def test_threads_that_hold_parts_are_told():
    step, _ = warmed(new_box)

    def work(_):
        box = new_box()
        for _ in range(30):
            held = box.opt
            box = step(box)
            assert "<Opt, donated to step()>" == repr(held)

    in_threads(work, range(4))


def test_a_function_from_another_process_marks_nested_states():
    through_cloudpickle(
        """
        import jax, jax.numpy as jnp, purestate as ps

        class Inner(ps.State):
            a: jax.Array

        class Outer(ps.State):
            x: jax.Array
            inner: Inner

            @ps.jit(donate=True)
            def step(self):
                return jax.tree.map(lambda leaf: leaf + 1, self)

        def new():
            return Outer(x=jnp.ones(2), inner=Inner(a=jnp.ones(3)))

        made = Outer.step, new(), new().step()
        """,
        """
        step, outer, _ = made
        for _ in range(3):
            inner = outer.inner
            outer = step(outer)
            assert repr(inner).startswith("<Inner, donated to "), repr(inner)
        """,
    )
