"""A donated call that fails: what it took is gone, and says so."""

import gc
import pickle
import weakref

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from purestate.errors import ConsumedStateError
from tests.transforms.counters import notes_of


class Stop(Exception):
    """What the host function raises."""


@ps.host_function(out=lambda x: x)
def fail(x):
    if x[0] > 1:
        raise Stop("diverged")
    return x


@ps.host_function(out=lambda x: x)
def interrupt(x):
    if x[0] > 1:
        raise KeyboardInterrupt
    return x


class Opt(ps.State):
    mu: jax.Array


class Walk(ps.State):
    x: jax.Array
    opt: Opt | None = None

    @ps.jit(donate=True)
    def step(self):
        return jax.tree.map(lambda leaf: leaf + 1, self.replace(x=fail(self.x)))

    @ps.jit(donate=True)
    def stopped(self):
        return self.replace(x=interrupt(self.x) + 1)

    @ps.jit
    def seen(self):
        return self.x + 1


def lost(**parts):
    """Return a State whose donated step fails at its second call, when jax is warm."""
    walk = Walk(x=jnp.ones(37), **parts).step()
    with pytest.raises(Stop, match=r"^diverged$"):
        walk.step()
    return walk


FAILED = (
    r"^this Walk was donated to Walk\.step\(\), in a call that failed with Stop and gave "
    r"nothing back\. To go on after a failure, copy it before the call, "
    r"jax\.tree\.map\(jnp\.copy, state\), or leave out donate\.$"
)


@pytest.mark.parametrize(
    "use",
    [lambda s: s.x + 1, lambda s: s.step(), lambda s: jax.jit(lambda s: s.x)(s)],
    ids=["read", "retry", "jit"],
)
def test_a_state_that_a_failed_call_took_says_that_nothing_came_back(use):
    with pytest.raises(ConsumedStateError, match=FAILED):
        use(lost())


def test_so_it_does_when_the_first_call_fails():
    walk = Walk(x=jnp.full(37, jnp.float32(2)))
    with pytest.raises(Stop):
        walk.step()

    with pytest.raises(ConsumedStateError, match=FAILED):
        walk.step()


def test_the_repr_says_that_the_call_failed():
    assert "<Walk, donated to Walk.step(), which failed>" == repr(lost())


def test_a_part_of_it_says_so_too():
    walk = lost(opt=Opt(mu=jnp.ones(2)))

    with pytest.raises(
        ConsumedStateError,
        match=r"^this Opt was donated to Walk\.step\(\) as part of a Walk, in a call that "
        r"failed with Stop and gave nothing back",
    ):
        _ = walk.__dict__["opt"].mu


def test_an_interrupt_in_a_host_function_is_a_failure():
    walk = Walk(x=jnp.full(37, jnp.float32(2)))
    with pytest.raises(KeyboardInterrupt):
        walk.stopped()

    with pytest.raises(ConsumedStateError, match=r"failed with KeyboardInterrupt and"):
        walk.stopped()


def test_an_interrupt_while_the_call_waits_is_a_failure(monkeypatch):
    def interrupted(value):
        raise KeyboardInterrupt

    walk = Walk(x=jnp.zeros(37)).step()
    monkeypatch.setattr(jax, "block_until_ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        walk.step()

    with pytest.raises(ConsumedStateError, match=r"failed with KeyboardInterrupt and"):
        _ = walk.x


def test_a_copy_made_before_the_call_survives():
    walk = Walk(x=jnp.full(37, jnp.float32(2)))
    kept = jax.tree.map(jnp.copy, walk)
    with pytest.raises(Stop):
        walk.step()

    assert 2 == kept.x[0]


def test_without_donate_the_state_survives():
    walk = Walk(x=jnp.full(37, jnp.float32(2)))
    with pytest.raises(Stop):
        ps.jit(Walk.step.__wrapped__)(walk)

    assert 2 == walk.x[0]


def test_an_error_while_tracing_takes_nothing():
    @ps.jit(donate=True)
    def step(walk, by):
        return walk.replace(x=walk.x + by)

    walk = step(Walk(x=jnp.ones(37)), 1.0)
    with pytest.raises(TypeError, match="shape"):
        step(walk, jnp.ones(5))

    assert 2 == walk.x[0]


def test_a_call_with_an_array_that_was_gone_before_is_not_blamed():
    walk = Walk(x=jnp.ones(37))
    walk.x.delete()

    for _ in range(2):
        with pytest.raises(RuntimeError, match="has been deleted"):
            walk.step()


NOTE = (
    "{} was donated to advance(), which failed with Stop and gave nothing back. To go on "
    "after a failure, copy with jnp.copy before the call, or leave out donate."
)


@ps.jit(donate=True)
def advance(tree):
    return {"x": fail(tree["x"]) + 1}


@pytest.mark.parametrize(
    ("use", "place"),
    [
        (lambda tree: advance(tree), "argument 0['x']"),
        (lambda tree: Walk(x=tree["x"]).seen(), "Walk.x"),
    ],
    ids=["retry", "in a State"],
)
def test_an_array_that_a_failed_call_took_is_told_from_one_that_came_back(use, place):
    tree = {"x": jnp.full(39, jnp.float32(2))}
    with pytest.raises(Stop):
        advance(tree)

    with pytest.raises(RuntimeError, match="has been deleted") as caught:
        use(tree)

    assert [NOTE.format(place)] == notes_of(caught.value)


def test_a_failed_call_keeps_nothing_alive():
    def use():
        walk = Walk(x=jnp.full(37, jnp.float32(2)))
        with pytest.raises(Stop):
            walk.step()
        return weakref.ref(walk), weakref.ref(walk.__dict__["x"])

    alive = use()
    gc.collect()

    assert [None, None] == [ref() for ref in alive]


def test_the_error_can_be_pickled():
    with pytest.raises(ConsumedStateError) as caught:
        _ = lost().x

    assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value)))


# --- arrays of a donated State that are met elsewhere ---------------------------------


class Start(ps.State):
    c: jax.Array

    @ps.jit(donate=True)
    def step(self):
        return self.replace(c=self.c + 1)


class Doubled(ps.State):
    c: jax.Array

    def __init__(self, c):
        self.c = jnp.asarray(c) * 2


class Derived(ps.State):
    c: jax.Array
    d: jax.Array = ps.field(init=False)

    def __post_init__(self):
        self.d = self.c * 2


class Converted(ps.State):
    c: jax.Array = ps.field(converter=lambda c: c * 2)


class Checked(ps.State):
    c: jax.Array

    def __check__(self):
        return bool((self.c > 0).all())


@pytest.mark.parametrize(
    "use",
    [
        Doubled,
        Derived,
        Converted,
        Checked,
        lambda c: Converted(c=1.0).replace(c=c),
        lambda c: Checked(c=1.0).replace(c=c),
        lambda c: ps.stack([Start(c), Start(c)]),
        lambda c: ps.unstack(Start(c)),
        lambda c: ps.pack(Walk(x=c, opt=Opt(mu=c))),
        lambda c: ps.donation_report(Start.step, Start(c)),
        lambda c: ps.grad(lambda s: s.c.sum())(Start(c)),
        lambda c: ps.vmap(lambda s: s.c + 1)(Start(c)),
        lambda c: ps.jit(lambda x: c + x)(1.0),
    ],
    ids=[
        "__init__",
        "__post_init__",
        "converter",
        "__check__",
        "converter in replace",
        "__check__ in replace",
        "stack",
        "unstack",
        "pack",
        "donation_report",
        "grad",
        "vmap",
        "closure under ps.jit",
    ],
)
def test_an_array_that_was_donated_names_who_donates_its_type(use):
    c = jnp.ones((3, 11))
    Start(c).step()

    with pytest.raises(RuntimeError, match="has been deleted") as caught:
        use(c)

    assert (
        "an array of type float32[3,11] was donated to an earlier jitted call "
        "(Start.step() donates float32[3,11]), which reused the memory. Use the State "
        "that this call returned, or copy with jnp.copy before donating."
    ) in notes_of(caught.value)


def test_in_a_jitted_call_it_is_named_by_its_field():
    c = jnp.ones((3, 11))
    Start(c).step()

    with pytest.raises(RuntimeError, match="has been deleted") as caught:
        Walk(x=c).seen()

    (note,) = notes_of(caught.value)
    assert note == (
        "Walk.x was donated to an earlier jitted call (Start.step() donates "
        "float32[3,11]), which reused the memory. Use the State that this call returned, "
        "or copy with jnp.copy before donating."
    )


def test_an_array_that_a_failed_call_took_says_so_in_a_constructor():
    c = jnp.full((7, 11), jnp.float32(2))
    with pytest.raises(Stop):
        ps.jit(lambda c: fail(c[0]) + c, donate=True)(c)

    with pytest.raises(RuntimeError, match="has been deleted") as caught:
        Doubled(c)

    assert (
        "an array of type float32[7,11] was donated to <lambda>(), which failed with Stop "
        "and gave nothing back. To go on after a failure, copy with jnp.copy before the "
        "call, or leave out donate."
    ) in notes_of(caught.value)
