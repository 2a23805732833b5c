"""Drafts in transforms, in threads, and how long they live."""

import gc
import re
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import DraftError
from tests.helpers import in_threads
from tests.state.drafts import Leaf, Positive, Tree

# --- In transforms --------------------------------------------------------------------


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


# --- Memory and threads ---------------------------------------------------------------


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

    def work(seed):
        for i in range(100):
            with before.draft() as new:
                new.left[0].x = seed
                new.right["a"] = i
                new.name = f"{seed % 2}"
            assert (seed, i) == (int(new.left[0].x), new.right["a"])

    in_threads(work, range(4))

    assert (0, 0) == (int(before.left[0].x), before.right["a"])


def test_a_thread_may_write_a_draft_of_another():
    with Leaf(x=1).draft() as new:
        in_threads(lambda x: setattr(new, "x", x), [5])

    assert 5 == int(new.x)
