"""Host functions: what they get, how they are declared, which calls repeat."""

import gc
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import HostSpecError
from tests.hosts import Out, scalar, ways, x64

pytestmark = pytest.mark.usefixtures("lowering")


# --- arguments ------------------------------------------------------------------------


def test_arguments_are_plain_read_only_arrays_everywhere():
    seen = []

    @ps.host_function(out=scalar())
    def look(x, n):
        seen.extend(
            (type(a), a.shape, a.flags.writeable, a.flags.c_contiguous) for a in (x, n)
        )
        return np.float32(0)

    x = jnp.ones((2, 3)).T
    for call in ways(look):
        jax.block_until_ready(call(x, 1.5))
    jax.block_until_ready(jax.jit(jax.vmap(look, (0, None)))(x[None], 1.5))

    assert [
        (np.ndarray, (3, 2), False, True),
        (np.ndarray, (), False, True),
    ] * 3 == seen


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint32", "bfloat16", "float16", "complex64"]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3)])
def test_every_dtype_and_size_comes_back_as_it_went(dtype, shape):
    same = ps.host_function(lambda x: x)
    x = jnp.ones(shape, dtype)

    for call in ways(same):
        out = call(x)

        assert (dtype, shape) == (out.dtype, out.shape)
        assert (np.asarray(out) == np.asarray(x)).all()


def test_a_function_without_arguments_runs():
    made = ps.host_function(lambda: np.float32(7))

    assert [7, 7] == [float(call()) for call in ways(made)]
    assert [7, 7] == jax.lax.map(lambda _: made(), jnp.arange(2)).tolist()


def test_weak_and_donated_arguments_are_ordinary_ones():
    twice = ps.host_function(lambda x: x * 2)

    assert 3.0 == jax.jit(lambda: twice(jnp.asarray(1.5)))()
    assert not jax.jit(twice)(1.5).weak_type
    assert 6.0 == jax.jit(lambda x: twice(x), donate_argnums=0)(jnp.float32(3))


def test_containers_states_and_none_pass_in_and_out():
    @ps.host_function
    def take(state, rest, nothing):
        assert nothing is None
        return state.replace(total=state.total + rest["a"]), (None, rest["a"])

    given = Out(total=jnp.ones(2), parts={"k": jnp.arange(2)})
    for call in ways(take):
        state, (nothing, a) = call(given, {"a": 2.0}, None)

        assert given.replace(total=jnp.full(2, 3.0)) == state
        assert nothing is None
        assert 2.0 == a


def test_numbers_in_double_precision_follow_x64():
    same = ps.host_function(lambda x: x)

    assert "float32" == jax.jit(same)(np.ones(2)).dtype
    with x64():
        for x in (
            np.arange(3) / 3,
            np.arange(3),
            np.arange(3) / 3 + 1j,
            np.float64(0.1),
        ):
            out = jax.jit(lambda x: same(x) * 1)(x)

            assert out.dtype == x.dtype
            assert (np.asarray(out) == x).all()


def test_large_arrays_in_double_precision_keep_their_bits():
    same = ps.host_function(lambda x: x + 0)
    with x64():
        x = np.linspace(0, 1, 1 << 20)

        out = jax.block_until_ready(jax.jit(same)(x))

    assert (np.asarray(out) == x).all()


def test_a_key_arrives_as_a_generator_and_the_same_key_gives_the_same_numbers():
    draw = ps.host_function(lambda key: key.normal(size=3).astype(np.float32))
    key, other = jax.random.split(jax.random.key(0))

    first = draw(key)

    assert (first == jax.jit(draw)(key)).all()
    assert not (first == draw(other)).any()
    both = jax.jit(jax.vmap(draw))(jnp.stack([key, other]))
    assert (both == jnp.stack([first, draw(other)])).all()


def test_a_returned_generator_becomes_the_next_key():
    @ps.host_function(out=lambda key: (scalar(), key))
    def draw(key):
        return np.float32(key.random()), key

    _, new = jax.jit(draw)(jax.random.key(0))

    assert jax.random.key(0).dtype == new.dtype
    assert (
        jax.random.key_data(new) == jax.random.key_data(draw(jax.random.key(0))[1])
    ).all()
    assert float(draw(new)[0]) != float(draw(jax.random.key(0))[0])


def test_an_array_of_keys_arrives_as_an_array_of_generators():
    draw = ps.host_function(
        lambda keys: np.array([k.random() for k in keys], np.float32)
    )

    assert (3,) == jax.jit(draw)(jax.random.split(jax.random.key(0), 3)).shape


def test_writing_to_an_argument_is_refused_and_changes_nothing():
    @ps.host_function(out=lambda x: x)
    def double(x):
        x *= 2
        return x

    x = jnp.arange(4.0)
    for call in (double, ps.jit(double)):
        with pytest.raises(ValueError, match="read-only"):
            call(x)
    assert [0, 1, 2, 3] == x.tolist()


def test_writable_arguments_are_private_copies():
    @ps.host_function(writable=True)
    def double(x):
        x *= 2
        return x

    x, large = jnp.arange(4.0), jnp.ones(1 << 20)
    for call in ways(double):
        assert [0, 2, 4, 6] == call(x).tolist()
        assert (call(large) == 2).all()
    assert [0, 1, 2, 3] == x.tolist()
    assert (large == 1).all()


def test_a_small_argument_that_is_kept_stays_what_it_was():
    kept = []

    @ps.host_function(out=scalar())
    def keep(x):
        kept.append(x)
        return x.sum()

    jax.block_until_ready(
        jax.jit(lambda x: jax.lax.map(keep, x))(jnp.arange(20.0).reshape(10, 2))
    )
    gc.collect()

    assert (np.stack(kept) == np.arange(20).reshape(10, 2)).all()


def test_static_arguments_are_passed_on_as_they_are():
    calls = []

    @ps.host_function(static_argnames="how")
    def norm(x, how, scale=2.0):
        calls.append(how)
        return np.linalg.norm(x, how) * scale

    x = jnp.array([3.0, 4.0])

    assert [10.0, 14.0] == [
        float(jax.jit(lambda x: norm(x, 2))(x)),
        float(norm(x, how=1)),
    ]
    assert {1, 2} == set(calls)


def test_static_arguments_of_equal_value_and_other_type_are_kept_apart():
    kind = ps.host_function(
        lambda x, n: np.float32(type(n) is bool), static_argnames="n"
    )

    assert [0.0, 1.0] == [float(kind(1.0, n=1)), float(kind(1.0, n=True))]


def test_keyword_arguments_go_where_their_names_say():
    @ps.host_function
    def minus(x, y, *, scale):
        return (x - y) * scale

    assert 4.0 == jax.jit(lambda: minus(y=1.0, x=3.0, scale=2.0))()


@pytest.mark.parametrize("bad", ["text", object(), np.array([{}]), np.array(["a"])])
def test_an_argument_that_is_no_array_is_named(bad):
    take = ps.host_function(lambda x, mode: x)

    with pytest.raises(
        HostSpecError,
        match=r"as mode\['a'\], which is no array: name mode in static_argnames",
    ):
        take(1.0, {"a": bad})


def test_a_static_argument_without_a_hash_is_named():
    take = ps.host_function(lambda x, n: x, static_argnames=("n",))

    with pytest.raises(
        HostSpecError,
        match=r"static arguments that cannot be hashed: n\. Make them tuples",
    ):
        take(1.0, n=[1])


def test_a_method_is_a_host_function_of_its_instance():
    class Sim(ps.State):
        gain: jax.Array

        @ps.host_function
        def step(self, x):
            return self.gain * x

    assert 6.0 == jax.jit(lambda s: s.step(3.0))(Sim(gain=jnp.float32(2)))


# --- declaring ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"vmap": "parallel"},
            "has vmap='parallel'; it is one of 'loop', 'threads', 'vectorized', 'batched', 'error'",
        ),
        (
            {"grad": "auto"},
            "has grad='auto'; it is one of None, 'fd', 'fd-forward', 'complex', 'zero'",
        ),
        ({"thread": "main"}, "has thread='main'; it is one of None, 'own'"),
        ({"casting": "any"}, "has casting='any'"),
        ({"probe": "random"}, "has probe='random'"),
        ({"cache": -1}, "has cache=-1; it is 0 or more"),
        ({"threads": 0}, "has threads=0; it is 1 or more"),
        ({"eps": 0.0}, r"has eps=0.0; a relative step is between 0 and 1"),
        ({"eps": -1e-3}, r"has eps=-0.001; a relative step"),
        (
            {"grad": "fd", "vjp": max},
            "has grad and vjp: one source of derivatives is enough",
        ),
        (
            {"effects": True, "cache": 3},
            r"must run exactly once per step: cache= cannot be given",
        ),
        ({"ordered": True, "grad": "fd"}, r"grad= cannot be given"),
        ({"batch_vjp": max}, r"has batch_vjp=, .* and no vjp="),
        (
            {"static_argnames": "n"},
            r"has no parameter 'n' to be static; its parameters are x",
        ),
    ],
)
def test_options_that_cannot_be_right_are_refused(options, text):
    with pytest.raises(HostSpecError, match=text):
        ps.host_function(lambda x: x, **options)


def test_something_that_is_no_function_is_refused():
    with pytest.raises(HostSpecError, match="takes a function, and got a int"):
        ps.host_function(3)


def test_a_host_function_keeps_its_name_and_documentation():
    @ps.host_function(vmap="loop")
    def documented(x):
        """Say something."""

    assert "documented" == documented.__name__
    assert "Say something." == documented.__doc__
    assert re.match(
        r"<host function test_a_host.*documented \(.*:\d+\), \w+>|<host function documented",
        repr(documented),
    )


# --- calls that repeat ----------------------------------------------------------------


def test_an_unused_call_is_dropped_and_a_used_one_runs_once():
    calls = []
    fn = ps.host_function(lambda x: calls.append(1) or x, out=scalar())

    jax.block_until_ready(jax.jit(lambda x: (fn(x), x)[1])(1.0))
    assert 0 == len(calls)
    jax.block_until_ready(jax.jit(fn)(1.0))
    assert 1 == len(calls)


def test_cached_results_are_not_computed_again():
    calls = []

    @ps.host_function(cache=2, out=scalar())
    def fn(x):
        calls.append(float(x))
        return x * 2

    step = jax.jit(fn)

    assert [2, 4, 2, 6, 2, 4] == [
        float(step(x)) for x in (1.0, 2.0, 1.0, 3.0, 1.0, 2.0)
    ]
    assert [1, 2, 3, 2] == calls


def test_a_fresh_function_per_eager_call_compiles_nothing():
    with jax.log_compiles(False):
        outs = [
            float(ps.host_function(lambda x, i=i: x + i, static_argnames="i")(1.0))
            for i in range(5)
        ]

    assert [1, 2, 3, 4, 5] == outs


def test_scratch_objects_are_made_once_and_used_again():
    made = []

    def make():
        made.append(np.zeros(2_000_000))
        return made[-1]

    @ps.host_function(scratch=make, out=scalar())
    def fn(space, x):
        space[0] = x
        return space[0] + 1

    step = jax.jit(lambda x: jax.lax.map(fn, x))
    assert [1, 2, 3] == step(jnp.arange(3.0)).tolist()
    for _ in range(100):
        step(jnp.arange(3.0)).block_until_ready()
    assert 1 == len(made)


def test_a_scratch_object_in_use_when_a_call_fails_is_dropped():
    made = []

    @ps.host_function(scratch=lambda: made.append(1) or {"n": len(made)}, out=scalar())
    def fn(space, x):
        if x < 0:
            raise ValueError("negative")
        return np.float32(space["n"])

    step = ps.jit(fn)
    assert 1.0 == step(1.0)
    with pytest.raises(ValueError, match="negative"):
        step(-1.0)
    assert 2.0 == step(1.0)
    assert 2.0 == step(1.0)


def test_every_call_of_a_function_with_its_own_thread_runs_on_it():
    import threading

    idents = set()
    fn = ps.host_function(
        lambda x: idents.add(threading.get_ident()) or x, thread="own", out=lambda x: x
    )

    fn(1.0)
    jax.block_until_ready(jax.jit(fn)(1.0))
    jax.block_until_ready(jax.jit(jax.vmap(fn))(jnp.ones(3)))

    assert 1 == len(idents)
    assert threading.get_ident() not in idents


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.T,
        lambda x: np.broadcast_to(x[:1, :1], x.T.shape),
        lambda x: x[::-1].T,
        lambda x: np.asfortranarray(x).T,
    ],
    ids=["transposed", "repeated", "reversed", "fortran"],
)
def test_results_may_lie_in_memory_in_any_order(fn):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    host = ps.host_function(fn)

    for call in ways(host):
        assert (fn(x) == np.asarray(call(x))).all()
    assert (
        np.stack([fn(x)] * 2) == np.asarray(jax.jit(jax.vmap(host))(np.stack([x] * 2)))
    ).all()


def test_a_result_that_the_function_changes_later_stays_what_it_was():
    space = np.zeros(3, np.float32)

    @ps.host_function(out=lambda x: jax.ShapeDtypeStruct((3,), jnp.float32))
    def fill(x):
        space[:] = x
        return space

    for call in ways(fill):
        outs = [call(float(i)) for i in range(3)]
        assert [0, 1, 2] == [float(out[0]) for out in outs]
    assert [[i] * 3 for i in range(4)] == jax.jit(jax.vmap(fill))(
        jnp.arange(4.0)
    ).tolist()


def test_a_simulation_in_a_scan_gives_the_numbers_of_a_python_loop():
    def pendulum(q, v, force):
        v = v + np.float32(0.01) * (force - np.sin(q))
        return q + np.float32(0.01) * v, v

    step = ps.host_function(pendulum)
    forces = np.full((20, 1), 0.3, np.float32)
    q, v, expected = np.full(1, 0.5, np.float32), np.zeros(1, np.float32), []
    for force in forces:
        q, v = pendulum(q, v, force)
        expected.append(q)

    def body(carry, force):
        q, v = step(*carry, force)
        return (q, v), q

    _, found = jax.jit(
        lambda f: jax.lax.scan(body, (jnp.full(1, 0.5), jnp.zeros(1)), f)
    )(forces)

    assert (np.stack(expected) == np.asarray(found)).all()


def test_a_batch_in_a_scan_is_one_callback_per_step():
    shapes = []

    @ps.host_function(vmap="batched", out=lambda x: x)
    def step(x):
        shapes.append(x.shape)
        return x + 1

    rollout = jax.vmap(
        lambda x: jax.lax.scan(lambda c, _: (step(c), None), x, None, length=5)[0]
    )

    assert (jax.jit(rollout)(jnp.zeros((3, 2))) == 5).all()
    assert [(3, 2)] * 5 == shapes
