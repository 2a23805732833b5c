"""`lower`, `trace` and `compile` of a jitted function: its program, called by hand."""

import functools
import warnings

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from purestate.errors import ConsumedStateError, SharedBufferWarning


class Own(Exception):
    """What the host function raises."""


@ps.host_function(out=lambda x: x)
def refuse(x):
    if x[0] > 1:
        raise Own("mine")
    return x


class Train(ps.State):
    w: jax.Array

    @ps.jit(donate=True)
    def step(self):
        return self.replace(w=self.w + 1)

    @ps.jit(donate=True, static_argnames="n")
    def scaled(self, n, by):
        return self.replace(w=self.w * n + by)

    @ps.jit(donate="by", static_argnums=1)
    def moved(self, n, by):
        return by.replace(w=self.w * n + by.w)

    @ps.jit(donate=True)
    def hosted(self):
        return self.replace(w=refuse(self.w) + 1)

    @ps.jit
    def norm(self):
        return refuse(self.w).sum()


def train():
    return Train(w=jnp.ones(3))


COMPILE = [
    lambda f, *args: f.lower(*args).compile(),
    lambda f, *args: f.trace(*args).lower().compile(),
]
both_ways = pytest.mark.parametrize("compiled", COMPILE, ids=["lower", "trace"])


@both_ways
def test_a_compiled_step_consumes_what_it_donates(compiled):
    old = train()
    step = compiled(Train.step, old)

    new = step(old)

    assert [2, 2, 2] == new.w.tolist()
    with pytest.raises(
        ConsumedStateError, match=r"^this Train was donated to Train\.step\(\); use the"
    ):
        _ = old.w


def test_a_compiled_step_does_so_at_every_call():
    state = train()
    step = Train.step.lower(state).compile()
    for _ in range(4):
        old, state = state, step(state)
        assert "<Train, donated to Train.step()>" == repr(old)

    assert [5, 5, 5] == state.w.tolist()


@pytest.mark.parametrize(
    "run",
    [
        lambda s: Train.scaled.lower(s, 2, 1.0).compile()(s, 1.0),
        lambda s: Train.scaled.lower(s, n=2, by=1.0).compile()(s, by=1.0),
        lambda s: Train.moved.lower(train(), 2, s).compile()(train(), s),
        lambda s: Train.moved.lower(train(), 2, by=s).compile()(train(), by=s),
        lambda s: (
            ps.jit(s.step.__wrapped__.__get__(s), donate=True).lower().compile()(s)
        ),
    ],
    ids=["behind", "by keyword", "moved up", "moved up, by keyword", "bound"],
)
def test_static_arguments_are_left_out_and_the_donated_one_is_found(run):
    state = train()

    run(state)

    assert repr(state).startswith("<Train, donated to Train.")


def test_what_is_not_donated_stays_alive():
    online, target = train(), train()
    Train.moved.lower(online, 2, target).compile()(online, target)

    assert [1, 1, 1] == online.w.tolist()


@both_ways
def test_a_compiled_program_raises_what_its_host_function_raised(compiled):
    norm = compiled(Train.norm, train())

    with pytest.raises(Own, match=r"^mine$"):
        norm(Train(w=jnp.full(3, jnp.float32(2))))


def test_a_compiled_step_that_fails_says_that_nothing_came_back():
    state = Train(w=jnp.full(3, jnp.float32(2)))
    step = Train.hosted.lower(state).compile()
    with pytest.raises(Own, match=r"^mine$"):
        step(state)

    with pytest.raises(ConsumedStateError, match=r"failed with Own and gave nothing"):
        _ = state.w


def test_a_compiled_step_copies_a_shared_buffer():
    both = ps.jit(lambda a, b: (a + 1, b + 1), donate=("a", "b"))
    step, x = both.lower(jnp.ones(3), jnp.ones(3)).compile(), jnp.ones(3)

    with pytest.warns(SharedBufferWarning, match="argument 0 and argument 1") as caught:
        a, b = step(x, x)

    assert [[2] * 3, [2] * 3] == [a.tolist(), b.tolist()]
    assert __file__ == caught[0].filename


def test_a_packed_state_is_consumed_too():
    packed = ps.pack(train())

    Train.step.lower(packed).compile()(packed)

    assert "<Packed, donated to Train.step()>" == repr(packed)


def test_the_stages_are_those_of_jax():
    traced = Train.step.trace(train())
    lowered = traced.lower()
    compiled = lowered.compile()

    assert isinstance(traced, jax.stages.Traced)
    assert isinstance(lowered, jax.stages.Lowered)
    assert isinstance(compiled, jax.stages.Compiled)
    assert "add" in str(traced.jaxpr)
    assert "add" in lowered.as_text()
    assert compiled.as_text() == Train.step.lower(train()).compile().as_text()
    assert compiled.cost_analysis() is not None
    assert compiled.in_tree == lowered.in_tree
    assert (0,) == compiled.donate_argnums


def test_options_of_the_compiler_reach_it():
    lowered = Train.step.lower(train())

    with pytest.raises(Exception, match="xla_no_such_option"):
        lowered.compile({"xla_no_such_option": True})


def test_a_compiled_program_is_not_traced_again():
    traces = []

    @ps.jit(donate=True)
    def step(state):
        traces.append(1)
        return state.replace(w=state.w + 1)

    compiled = step.lower(train()).compile()
    compiled(compiled(train()))

    assert 1 == len(traces)


def test_a_compiled_program_for_other_types_is_refused_by_jax_alone():
    compiled = Train.step.lower(train()).compile()
    other = Train(w=jnp.ones(4))

    with warnings.catch_warnings(action="error"), pytest.raises(TypeError, match="4"):
        compiled(other)

    assert [1] * 4 == other.w.tolist()


def test_what_jax_makes_of_a_jitted_function_is_traced_itself():
    """`jax.grad` and its kin copy the attributes of the function that they are given."""

    @ps.jit
    def loss(w):
        return (w**2).sum()

    w, gradient = jnp.ones(3), jax.grad(loss)

    assert (3,) == jax.eval_shape(gradient, w).shape
    assert (3,) == jax.jit(gradient).lower(w).out_info.shape
    assert (2,) == jax.jit(jax.vmap(loss)).trace(jnp.ones((2, 3))).out_info.shape
    assert [(3,)] == [x.shape for x in jax.make_jaxpr(gradient)(w).out_avals]


def test_a_function_around_a_jitted_one_has_its_other_attributes():
    @ps.jit
    def step(x):
        return x

    step.note = "mine"

    @functools.wraps(step)
    def around(x):
        return step(x)

    assert "mine" == around.note
    assert not any(
        hasattr(around, name) for name in ("lower", "trace", "eval_shape")
    )  # as with a function of jax.jit
    assert "lower" in vars(step)
