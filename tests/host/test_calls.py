"""Host functions: what they get, what they may return, and in which batches.

Each test runs once per lowering; functions are made inside the tests, because a program
that jax has compiled keeps the lowering it was compiled with.
"""

import functools
import gc
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import HostSpecError, HostVmapError
from tests.hosts import x64

pytestmark = pytest.mark.usefixtures("lowering")
F32 = jnp.float32


class Out(ps.State):
    total: jax.Array
    parts: dict
    name: str = ps.static(default="out")


def scalar(dtype=F32):
    return jax.ShapeDtypeStruct((), dtype)


def ways(fn):
    """Return the function called directly, and from a compiled program."""
    return fn, jax.jit(fn)


# --- arguments -----------------------------------------------------------------------


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


# --- result specs --------------------------------------------------------------------


@pytest.mark.parametrize(
    "out",
    [
        (jnp.zeros(2), {"k": np.int32(0)}),
        (jax.ShapeDtypeStruct((2,), F32), {"k": jax.ShapeDtypeStruct((), jnp.int32)}),
        lambda x: (x, {"k": jax.ShapeDtypeStruct((), jnp.int32)}),
        None,
    ],
    ids=["arrays", "specs", "function", "probe"],
)
def test_what_comes_back_can_be_said_in_several_ways(out):
    fn = ps.host_function(lambda x: (x + 1, {"k": np.int32(3)}), out=out)

    for call in ways(fn):
        a, d = call(jnp.ones(2))

        assert [2, 2] == a.tolist()
        assert 3 == d["k"]
        assert jnp.int32 == d["k"].dtype


def test_a_state_of_specs_is_a_spec():
    spec = Out(total=scalar(), parts={"k": jax.ShapeDtypeStruct((2,), jnp.int32)})
    fn = ps.host_function(
        lambda: Out(total=np.float32(1), parts={"k": np.arange(2)}), out=spec
    )

    assert fn() == jax.jit(fn)()
    assert jnp.int32 == fn().parts["k"].dtype


def test_the_probe_runs_once_per_types():
    calls = []

    @ps.host_function
    def fn(x):
        calls.append(x.copy())
        return x + 1

    step = jax.jit(fn)
    assert [6.0, 6.0] == [float(step(5.0)), float(step(5.0))]
    assert [0.0, 5.0, 5.0] == [float(x) for x in calls]


def test_a_bare_shape_is_explained():
    fn = ps.host_function(lambda x: x, out=(3,))

    with pytest.raises(
        HostSpecError,
        match=re.escape(
            "has out=(3,), which says no dtype. Write out=jax.ShapeDtypeStruct((3,), jnp.float32)"
        ),
    ):
        jax.jit(fn)(jnp.ones(3))


def test_something_else_than_a_spec_is_named():
    with pytest.raises(
        HostSpecError, match="has 'float' in out=, which has no shape and dtype"
    ):
        ps.host_function(lambda x: x, out="float")(1.0)


def test_a_probe_that_raises_says_to_give_a_spec():
    fn = ps.host_function(lambda x: x / {"a": 1}[float(x)])

    with pytest.raises(
        HostSpecError,
        match=r"was called once with zeros \(float32\[\]\) to see what it returns, and raised KeyError: 0\.0\. Say it with out=",
    ) as caught:
        jax.jit(fn)(1.0)
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_probe_can_be_turned_off_or_given_ones():
    with pytest.raises(HostSpecError, match="does not say what it returns: give out="):
        ps.host_function(lambda x: x, probe=None)(1.0)

    @ps.host_function(probe="ones")
    def positive(x):
        if x <= 0:
            raise ValueError
        return x

    assert 2.0 == jax.jit(positive)(2.0)


jaxtyping = pytest.importorskip("jaxtyping")
Float, Int = jaxtyping.Float, jaxtyping.Int


def outer(
    x: Float[np.ndarray, "n"], y: Float[np.ndarray, "*b m"]
) -> tuple[Float[np.ndarray, "*b n m-1"], Int[np.ndarray, ""]]:
    return np.zeros((*y.shape[:-1], len(x), y.shape[-1] - 1), x.dtype), np.int32(len(x))


def test_a_jaxtyping_annotation_is_a_spec():
    calls = []

    @functools.wraps(outer)
    def counted(*args):
        calls.append(args)
        return outer(*args)

    a, n = jax.eval_shape(ps.host_function(counted), jnp.ones(3), jnp.ones((5, 4)))

    assert ((5, 3, 3), F32) == (a.shape, a.dtype)
    assert ((), jnp.int32) == (n.shape, n.dtype)
    assert [] == calls
    assert (5, 3, 3) == jax.jit(ps.host_function(outer))(jnp.ones(3), jnp.ones((5, 4)))[
        0
    ].shape


def test_inconsistent_dimensions_are_named():
    def add(
        x: Float[np.ndarray, "n"], y: Float[np.ndarray, "n"]
    ) -> Float[np.ndarray, "n"]:
        return x + y

    with pytest.raises(
        HostSpecError,
        match=r"got y of shape \(3,\), annotated 'n': n is 3 here and 2 before",
    ):
        ps.host_function(add)(jnp.ones(2), jnp.ones(3))


def test_a_dimension_that_no_argument_has_is_named():
    def make(x: Float[np.ndarray, "n"]) -> Float[np.ndarray, "k"]:
        return x

    with pytest.raises(
        HostSpecError,
        match=r"an axis 'k', and no argument has it: the known ones are n\. Give out=",
    ):
        ps.host_function(make)(jnp.ones(2))


# --- what comes back -----------------------------------------------------------------

SPEC = (jax.ShapeDtypeStruct((2,), F32), {"k": jax.ShapeDtypeStruct((), jnp.int32)})


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (
            None,
            r"returned another structure than declared:\n  declared: PyTreeDef.*\n  returned: PyTreeDef\(None\)\n  missing: \[0\], \[1\]\['k'\]",
        ),
        ((np.ones(2, np.float32),), r"missing: \[1\]\['k'\]"),
        ([np.ones(2, np.float32), {"j": np.int32(1)}], r"not declared: \[1\]\['j'\]"),
        (
            (np.ones(3, np.float32), {"k": np.int32(1)}),
            r"another array than declared at \[0\]:\n  expected: float32\[2\]\n  received: float32\[3\]",
        ),
        (
            (np.ones(2, np.float32), {"k": np.float32(1)}),
            r"at \[1\]\['k'\]:\n  expected: int32\[\]\n  received: float32\[\] \(casting='same_kind'\)",
        ),
        ((np.array([{}, {}]), {"k": np.int32(1)}), r"received: an array of objects"),
    ],
    ids=["none", "short", "other key", "shape", "dtype", "objects"],
)
def test_what_does_not_fit_its_spec_is_an_error(bad, text):
    fn = ps.host_function(lambda: bad, out=SPEC, name="fn")

    for call in (fn, ps.jit(fn)):
        with pytest.raises(
            HostSpecError, match=r"(?s)fn \(.*test_host_calls\.py:\d+\) .*" + text
        ):
            call()


def test_a_wrong_shape_in_a_batch_says_how_large_the_batch_is():
    fn = ps.host_function(lambda x: x[:1], out=lambda x: x, vmap="batched")

    with pytest.raises(
        HostSpecError,
        match=r"expected: float32\[4,2\] \(batch \(4,\) in front\)\n  received: float32\[1,2\]",
    ):
        ps.jit(jax.vmap(fn))(jnp.ones((4, 2)))


@pytest.mark.parametrize("casting", ["no", "safe"])
def test_a_stricter_casting_refuses_double_precision(casting):
    fn = ps.host_function(lambda x: np.float64(x), out=scalar(), casting=casting)

    with pytest.raises(HostSpecError, match=r"received: float64\[\]"):
        ps.jit(fn)(1.0)


def test_casts_that_lose_no_kind_are_made():
    made = ps.host_function(
        lambda: (1.5, 2, True), out=(scalar(jnp.bfloat16), scalar(jnp.uint8), scalar())
    )

    for call in ways(made):
        assert ["bfloat16", "uint8", "float32"] == [str(v.dtype) for v in call()]
        assert [1.5, 2, 1] == [float(v) for v in call()]


def test_values_that_are_not_finite_pass_unchanged():
    fn = ps.host_function(lambda x: x * np.array([np.nan, np.inf, -np.inf], np.float32))

    assert ["nan", "inf", "-inf"] == [
        str(v) for v in np.asarray(jax.jit(fn)(jnp.ones(3)))
    ]


# --- batches -------------------------------------------------------------------------

MODES = ["loop", "threads", "vectorized", "batched"]


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_is_the_stack_of_single_calls(mode):
    fn = ps.host_function(
        lambda x, y: np.sin(x) * y[..., None], vmap=mode, out=lambda x, y: x
    )
    x, y = jnp.arange(24.0).reshape(3, 4, 2), jnp.arange(3.0)

    nested = jax.vmap(jax.vmap(fn, (0, None)), (0, 0))

    expected = np.sin(np.asarray(x)) * np.arange(3)[:, None, None]
    for call in ways(nested):
        assert np.allclose(expected, call(x, y), atol=1e-6)
    assert np.allclose(
        2 * np.sin(x[:, 1]).T,
        jax.jit(jax.vmap(fn, (0, None), 1))(x[:, 1], 2.0),
        atol=1e-6,
    )


def test_a_batched_function_gets_one_axis_in_front_of_every_argument():
    shapes = []

    @ps.host_function(out=scalar(), vmap="batched")
    def add(x, y, z):
        shapes.append((x.shape, y.shape, z.shape))
        return x + y + z

    f = jax.vmap(jax.vmap(add, (None, 0, None)), (0, None, None))
    x, y = jnp.arange(4.0), jnp.arange(5.0)
    for call in ways(f):
        r = call(x, y, 1.0)

        assert np.allclose(x[:, None] + y + 1, r)
    assert [((20,), (20,), (20,))] * 2 == shapes


def test_a_vectorized_function_gets_axes_of_size_one_where_an_argument_has_none():
    shapes = []

    @ps.host_function(out=scalar(), vmap="vectorized")
    def add(x, y, z):
        shapes.append((x.shape, y.shape, z.shape))
        return x + y

    f = jax.vmap(jax.vmap(add, (None, 0, None)), (0, None, None))

    assert (4, 5) == jax.jit(f)(jnp.arange(4.0), jnp.arange(5.0), 1.0).shape
    assert [((4, 1), (1, 5), (1, 1))] == shapes


@pytest.mark.parametrize("mode", MODES)
def test_any_axis_can_be_the_batch(mode):
    double = ps.host_function(lambda a: a * 2, vmap=mode)
    x = jnp.arange(24.0).reshape(2, 3, 4)

    h = jax.vmap(double, in_axes=1, out_axes=1)

    assert (jax.jit(h)(x) == x * 2).all()
    assert (h(x) == x * 2).all()


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_batch_calls_nothing(mode):
    calls = []
    fn = ps.host_function(lambda x: calls.append(x) or x, vmap=mode, out=lambda x: x)

    assert (0, 2) == jax.jit(jax.vmap(fn))(jnp.ones((0, 2))).shape
    assert [] == calls


def test_a_loop_is_one_callback_for_the_whole_batch():
    calls = []
    fn = ps.host_function(lambda x: calls.append(1) or x, out=lambda x: x)

    jax.block_until_ready(jax.jit(jax.vmap(fn))(jnp.arange(7.0)))
    assert 7 == len(calls)


def test_batch_fn_is_called_once_for_a_batch():
    calls = []

    def whole(x):
        calls.append(x.shape)
        return x + 1

    fn = ps.host_function(lambda x: x + 1, out=lambda x: x, batch_fn=whole)

    assert [1, 2] == jax.jit(jax.vmap(fn))(jnp.arange(2.0)).tolist()
    assert 1.0 == fn(0.0)
    assert [(2,)] == calls


def test_a_function_may_refuse_to_be_batched():
    fn = ps.host_function(lambda x: x, vmap="error", name="fn")

    with pytest.raises(
        HostVmapError,
        match=r'fn \(.*\) was declared with vmap="error"\. To allow vmap, choose "loop"',
    ):
        jax.jit(jax.vmap(fn))(jnp.ones(3))
    assert (
        2.0
        == jax.jit(jax.vmap(lambda x, y: fn(x) * y, (None, 0)))(1.0, jnp.full(1, 2.0))[
            0
        ]
    )


def test_a_norm_over_the_whole_batch_is_found():
    unit = ps.host_function(lambda x: x / np.linalg.norm(x), vmap="vectorized")
    right = ps.host_function(
        lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True), vmap="vectorized"
    )

    right.check_vmap(jnp.ones((4, 3)))
    with pytest.raises(
        HostVmapError, match=r"mixes the items of a batch: row 0 of its result is"
    ):
        unit.check_vmap(jnp.ones((4, 3)))


def test_the_default_mode_does_not_mix_items():
    unit = ps.host_function(lambda x: x / np.linalg.norm(x))

    assert np.allclose(3**-0.5, jax.jit(jax.vmap(unit))(jnp.ones((4, 3))))


def test_threads_share_a_batch():
    import threading

    names = set()
    barrier = threading.Barrier(2, timeout=60)

    @ps.host_function(vmap="threads", threads=2, out=lambda x: x)
    def fn(x):
        barrier.wait()
        names.add(threading.current_thread().name)
        return x

    assert [0, 1] == jax.jit(jax.vmap(fn))(jnp.arange(2.0)).tolist()
    assert 2 == len(names)


# --- declaring -----------------------------------------------------------------------


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


def test_the_lowering_can_be_seen_and_chosen(lowering):
    fn = ps.host_function(lambda x: x + 1)

    assert lowering == fn.lowering
    fn.lowering = "emit"
    assert "emit" == fn.lowering
    assert 2.0 == jax.jit(fn)(1.0)
    with pytest.raises(
        HostSpecError,
        match="'fast' is no lowering of host functions here; they are buffer, emit, pure",
    ):
        fn.lowering = "fast"


# --- calls that repeat ---------------------------------------------------------------


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

    @ps.host_function(out=lambda x: jax.ShapeDtypeStruct((3,), F32))
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
