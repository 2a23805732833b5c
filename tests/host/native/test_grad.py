"""Derivatives of native host functions: rules of numba, and differences."""

import functools
import itertools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import HostGradError, HostSpecError
from tests.host.native.helpers import (
    assert_same,
    both_ways,
    host,
    is_native,
    numba,
    unpack,
)

A = jnp.linspace(0.3, 2, 13)
B = jnp.array([1.0, -2.0, 0.5, 0.0])
C = jnp.arange(2)


@numba.njit
def mixed(a, bc):
    b, c = bc
    return (a * b.sum() * np.sin(a), None, (c.size, (b * b * b).sum()))


@numba.njit
def mixed_vjp(args, cotangent):
    a, (b, _) = args
    first, _, (_, second) = cotangent
    slope = np.sin(a) + a * np.cos(a)
    by_b = (first * a * np.sin(a)).sum() + 3 * b * b * second
    return first * b.sum() * slope, (by_b, None)


@numba.njit
def mixed_jvp(args, tangents):
    a, (b, _) = args
    ta, (tb, tc) = tangents
    first = ta * b.sum() * (np.sin(a) + a * np.cos(a)) + a * np.sin(a) * tb.sum()
    return first, None, (None, (3 * b * b * tb).sum() + 0.0 * tc.sum())


def loss(fn):
    def compute(a, b):
        first, _, (_, second) = fn(a, (b, C))
        return (first * jnp.arange(13)).sum() + second**2

    return compute


def forward(fn):
    return lambda a, b: jax.jvp(loss(fn), (a, b), (0.3 * a, b + 1))


def reverse(fn):
    return jax.grad(loss(fn), (0, 1))


SOURCES = {
    "fd": {"grad": "fd"},
    "fd-forward": {"grad": "fd-forward"},
    "vjp": {"vjp": mixed_vjp},
    "jvp": {"jvp": mixed_jvp},
}


@pytest.mark.parametrize("upcast", [False, True])
@pytest.mark.parametrize(
    ("source", "transform"),
    [
        *((fd, t) for fd in ("fd", "fd-forward") for t in (forward, reverse)),
        ("vjp", reverse),
        ("jvp", forward),
    ],
)
def test_a_product_agrees_with_the_callback_to_the_last_bit(
    monkeypatch, source, transform, upcast
):
    fn = transform(host(mixed, upcast=upcast, **SOURCES[source]))

    assert_same(monkeypatch, fn, A, B)
    assert_same(
        monkeypatch, jax.vmap(fn), jnp.stack([A, 2 * A, -A]), jnp.stack([B, -B, B])
    )
    assert_same(monkeypatch, jax.vmap(fn, (None, 0)), A, jnp.stack([B, -B, B]))


@numba.njit
def product(x, y, z):
    return x * y * z, x + 2 * y


@numba.njit
def product_vjp(args, cotangents):
    x, y, z = args
    a, b = cotangents
    return a * y * z + b, a * x * z + 2 * b, a * x * y


@numba.njit
def product_jvp(args, tangents):
    x, y, z = args
    u, v, w = tangents
    return u * y * z + x * v * z + x * y * w, u + 2 * v


@pytest.mark.parametrize(
    ("options", "forward"),
    [
        ({"grad": "fd"}, False),
        ({"grad": "fd"}, True),
        ({"grad": "fd-forward"}, False),
        ({"vjp": product_vjp}, False),
        ({"jvp": product_jvp}, True),
    ],
    ids=["fd", "fd-jvp", "fd-forward", "vjp", "jvp"],
)
def test_each_choice_of_arguments_has_a_derivative_of_its_own(options, forward):
    fn = host(product, **options)  # one, so that what is compiled could be mixed up
    x, y, z = jnp.array([2.0, 3.0]), jnp.array([5.0, 7.0]), jnp.array([11.0, 13.0])
    slopes = (y * z + 1, x * z + 2, x * y)

    for size in (1, 2, 3):
        for wrt in itertools.combinations(range(3), size):
            if forward:

                def total(*chosen, wrt=wrt):
                    args = [x, y, z]
                    for i, value in zip(wrt, chosen, strict=True):
                        args[i] = value
                    first, second = fn(*args)
                    return first + second

                chosen = tuple((x, y, z)[i] for i in wrt)
                ones = tuple(jnp.ones(2) for _ in wrt)
                step = lambda t, f=total, c=chosen: jax.jvp(f, c, t)[1]  # noqa: E731
                assert is_native(step, ones)
                expected = sum(slopes[i] for i in wrt)
                assert np.allclose(jax.jit(step)(ones), expected, rtol=2e-2)
            else:
                gradient = jax.grad(lambda *a: sum(v.sum() for v in fn(*a)), wrt)
                assert is_native(gradient, x, y, z)
                found = jax.jit(gradient)(x, y, z)
                for i, value in zip(wrt, found, strict=True):
                    assert np.allclose(value, slopes[i], rtol=2e-2)


def test_results_that_change_their_kind_with_a_shape_have_derivatives_of_their_own():
    @numba.njit
    def both(x):
        return x * 2, x * 3

    @numba.njit
    def rule(args, tangents):
        return tangents[0] * 2, tangents[0] * 3

    def out(x):
        kinds = ("int32", "float32") if x.shape == (2,) else ("float32", "int32")
        return tuple(jax.ShapeDtypeStruct(x.shape, kind) for kind in kinds)

    fn = host(both, out=out, jvp=rule, casting="unsafe")
    for size, which, slope in ((2, 1, 3), (3, 0, 2)):
        x = jnp.ones(size)
        step = jax.jit(lambda x, i=which: jax.jvp(lambda x: fn(x)[i], (x,), (x,))[1])
        assert [slope] * size == step(x).tolist()


def test_the_step_is_that_of_the_precision_of_results(monkeypatch):
    @numba.njit
    def cube(x):
        return x * x * x

    def out(x):
        return jax.ShapeDtypeStruct(x.shape, "float32" if x.size == 2 else "float64")

    with jax.enable_x64(True):
        fn = host(cube, out=out, grad="fd")
        for size in (2, 3):
            x = jnp.linspace(1.0, 2.0, size)
            assert x.dtype == np.float64
            assert_same(monkeypatch, jax.grad(lambda x: fn(x).sum()), x)


@pytest.mark.parametrize(
    ("source", "transform"),
    [("fd", jax.jacfwd), ("vjp", jax.jacrev), ("jvp", jax.jacfwd)],
)
def test_a_jacobian_is_native_and_the_same(monkeypatch, source, transform):
    fn = host(mixed, **SOURCES[source])

    if source == "fd":  # only tangents are batched: one evaluation serves them all
        jacobian = transform(lambda a: fn(a, (B, C))[0])
        assert not is_native(jacobian, A)
        return
    assert_same(monkeypatch, transform(lambda a: fn(a, (B, C))[0]), A)


def test_the_other_direction_of_a_rule_is_a_callback_beside_a_native_call():
    fn = host(mixed, vjp=mixed_vjp)
    text = jax.jit(forward(fn)).lower(A, B).as_text()

    assert "purestate/" in text
    assert "python_cpu_callback" in text
    expected = jax.jit(forward(host(mixed.py_func, vjp=mixed_vjp.py_func)))(A, B)
    for one, other in zip(jax.jit(forward(fn))(A, B), expected, strict=True):
        assert np.allclose(one, other, rtol=1e-5)


def test_a_rule_of_numba_is_native_for_a_function_of_python():
    fn = host(mixed.py_func, vjp=mixed_vjp)
    text = jax.jit(reverse(fn)).lower(A, B).as_text()

    assert "mixed_vjp" in text
    assert "python_cpu_callback" in text  # the call itself


def test_a_rule_of_python_is_a_callback_for_a_function_of_numba():
    fn = host(mixed, vjp=mixed_vjp.py_func)
    text = jax.jit(reverse(fn)).lower(A, B).as_text()

    assert "purestate/" in text
    assert "python_cpu_callback" in text
    assert np.allclose(jax.jit(reverse(fn))(A, B)[0], reverse(fn)(A, B)[0])


@pytest.mark.parametrize(
    ("options", "x"),
    [
        ({"grad": "complex"}, jnp.ones(3)),
        ({"jac": lambda x: np.diag(3 * x**2)}, jnp.ones(3)),
        ({"grad": "fd"}, jnp.ones(3, "complex64")),
        ({"grad": "fd", "vmap": "vectorized"}, jnp.ones((2, 3))),
        ({"vjp": lambda args, ct: (3 * args[0] ** 2 * ct,)}, jnp.ones(3)),
    ],
    ids=["complex", "jac", "complex-arguments", "vectorized", "python"],
)
def test_other_sources_are_callbacks(options, x):
    fn = host(numba.njit(lambda x: x * x * x), out=lambda x: x, **options)
    step = jax.vmap(fn) if x.ndim == 2 else fn
    gradient = jax.grad(lambda x: jnp.abs(step(x)).sum())

    assert not is_native(gradient, x)
    assert np.allclose(jax.jit(gradient)(x), 3 * x * x, rtol=1e-3)


def test_a_second_derivative_is_refused_as_ever():
    fn = host(numba.njit(lambda x: x * x * x), out=lambda x: x, grad="fd")

    with pytest.raises(HostGradError, match="has no second derivative"):
        jax.jit(jax.hessian(lambda x: fn(x).sum()))(A)


@pytest.mark.parametrize("transform", ["scan", "remat", "scan of vmap"])
def test_gradients_pass_through(monkeypatch, transform):
    fn = host(
        numba.njit(lambda x: np.cos(x) * x), out=lambda x: x, grad="fd", upcast=True
    )
    body = jax.checkpoint(fn) if transform == "remat" else fn
    x = A
    if transform == "scan of vmap":
        body, x = jax.vmap(fn), jnp.stack([A, -A])

    def run(x):
        return jax.lax.scan(lambda x, _: (body(x), None), x, None, length=3)[0].sum()

    assert_same(monkeypatch, jax.grad(run), x)


def test_in_double_precision_it_is_the_same(monkeypatch):
    with jax.enable_x64(True):
        a, b = A.astype(float), B.astype(float)
        assert_same(monkeypatch, reverse(host(mixed, grad="fd")), a, b)
        assert_same(monkeypatch, reverse(host(mixed, vjp=mixed_vjp)), a, b)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the callback
def test_points_at_the_edge_of_numbers_are_moved_as_by_the_callback(monkeypatch):
    fn = host(numba.njit(lambda x: np.abs(x) * x), out=lambda x: x, grad="fd")
    x = jnp.array([0.0, -0.0, 1e30, -1e-30, jnp.inf, -jnp.inf, jnp.nan, 2.0])

    native, callback = both_ways(monkeypatch, jax.grad(lambda x: fn(x).sum()), x)

    assert np.array_equal(native[0], callback[0], equal_nan=True)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 64, 127, 128, 129, 300])
def test_sums_are_taken_in_the_order_of_numpy(monkeypatch, size):
    fn = host(
        WAVES, out=jax.ShapeDtypeStruct((size,), "float32"), grad="fd", upcast=True
    )
    weights = jnp.asarray(np.random.default_rng(size).normal(size=size), jnp.float32)
    at = jnp.linspace(0, 5, size)

    def weighted(x):
        return (fn(x, at) * weights).sum()

    assert_same(monkeypatch, jax.grad(weighted), jnp.array([0.7, -1.3]))


WAVES = numba.njit(lambda x, at: x[0] * np.sin(at * x[1]))


POLYNOMIAL = numba.njit(lambda x: x * x * 3 - x)


@functools.cache
def gradients(grad, upcast):
    """Return the gradient of a polynomial, natively and by a callback."""
    found = []
    for code in (POLYNOMIAL, POLYNOMIAL.py_func):
        fn = host(code, out=lambda x: x, grad=grad, upcast=upcast)
        found.append(jax.jit(jax.grad(lambda x, fn=fn: fn(x).sum())))
    return found


@pytest.mark.parametrize("upcast", [False, True])
@pytest.mark.parametrize("grad", ["fd", "fd-forward"])
@hypothesis.given(x=st.lists(st.floats(-1e3, 1e3, width=32), min_size=4, max_size=4))
@hypothesis.settings(max_examples=25, deadline=None)
def test_differences_are_those_of_numpy(grad, upcast, x):
    at = jnp.asarray(x, jnp.float32)

    native, callback = (np.asarray(f(at)) for f in gradients(grad, upcast))

    if upcast:
        assert native.tobytes() == callback.tobytes()
    scale = np.abs(callback).max() + 1
    assert np.allclose(native, callback, rtol=0, atol=3e-2 * scale)


# --- rules that are not as they should be -----------------------------------------------


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (
            numba.njit(lambda args, ct: (ct[:2].copy(),)),
            "expected: float32[13]\n  received: float32[2]",
        ),
        (
            numba.njit(lambda args, ct: (ct, ct)),
            "expected: float32[13]\n  received: a tuple",
        ),
        (
            numba.njit(lambda args, ct: (ct.sum(),)),
            "expected: float32[13]\n  received: float64[]",
        ),
    ],
    ids=["shape", "count", "rank"],
)
def test_what_a_rule_returns_is_checked_as_ever(rule, text):
    fn = host(numba.njit(lambda x: x * x), out=lambda x: x, vjp=rule)

    with pytest.raises(HostSpecError) as found:
        ps.jit(jax.grad(lambda x: fn(x).sum()))(A)

    assert text in str(found.value)


@pytest.mark.parametrize(
    "rule",
    [
        numba.njit(lambda args, ct: (None,)),
        numba.njit(lambda args, ct: None),
        numba.njit(lambda args, ct: 2 * args[0] * ct),
        numba.njit(lambda args, ct: [2 * args[0] * ct][0]),
    ],
    ids=["None-of-one", "None", "lone", "expression"],
)
def test_none_is_zero_and_one_argument_needs_no_tuple(monkeypatch, rule):
    fn = host(numba.njit(lambda x: x * x), out=lambda x: x, vjp=rule)

    assert_same(monkeypatch, jax.grad(lambda x: fn(x).sum()), A)


def test_a_rule_that_numba_cannot_compile_is_refused_by_its_name():
    @numba.njit
    def broken(args, ct):
        return (np.fft.fft(ct),)

    fn = host(numba.njit(lambda x: x * x), out=lambda x: x, vjp=broken)

    with pytest.raises(
        HostSpecError,
        match=r"^numba cannot compile broken, a rule of <lambda> \(.*\), for "
        r"float32\[13\], float32\[13\]: ",
    ):
        jax.jit(jax.grad(lambda x: fn(x).sum()))(A)


def test_an_exception_in_a_rule_comes_out_as_it_is():
    @numba.njit
    def square(x):
        if x[0] < 0:
            raise ValueError("negative")
        return x * x

    @numba.njit
    def rule(args, ct):
        if args[0][0] == 1:
            raise ZeroDivisionError("in the rule")
        return (2 * args[0] * ct,)

    ruled = ps.jit(jax.grad(lambda x: host(square, out=lambda x: x, vjp=rule)(x).sum()))
    with pytest.raises(ZeroDivisionError, match="in the rule"):
        ruled(jnp.ones(3))
    stepped = host(square, out=lambda x: x, grad="fd")
    with pytest.raises(ValueError, match="negative"):
        ps.jit(jax.grad(lambda x: stepped(x).sum()))(jnp.zeros(3))


def test_a_function_whose_shape_changes_is_refused_while_it_is_differentiated():
    @numba.njit
    def shrinking(x):
        return x[x <= 1]

    fn = host(shrinking, out=lambda x: x, grad="fd")

    with pytest.raises(HostSpecError, match=r"expected: float32\[3\]\n  received: fl"):
        ps.jit(jax.grad(lambda x: fn(x).sum()))(jnp.ones(3))


def test_integers_among_the_arguments_stay_what_they_are(monkeypatch):
    fn = host(unpack, grad="fd")

    def total(a, b):
        first, _, (_, _, third) = fn(a, (b, C))
        return first.sum() + third.sum()

    assert_same(monkeypatch, jax.grad(total, (0, 1)), A, B)
    assert_same(monkeypatch, jax.grad(total), A, B)


def test_none_inside_of_an_argument_is_refused_either_way(monkeypatch):
    fn = host(
        numba.njit(lambda pair, b: pair[0] * pair[1][0] + b),
        vjp=numba.njit(lambda args, ct: ((ct, None), ct)),
    )

    def summed(x):
        return fn((x, (x,)), x).sum()

    for lowering in ("native", "pure"):
        monkeypatch.setenv("PURESTATE_HOST_LOWERING", lowering)
        jax.clear_caches()
        with pytest.raises(HostSpecError, match="another structure than that of arg"):
            ps.jit(jax.grad(summed))(B)


def test_a_rule_may_write_to_arguments_and_to_no_cotangent(monkeypatch):
    @numba.njit
    def to_argument(args, ct):
        args[0][:] = 2
        return args[0] * ct

    @numba.njit
    def to_cotangent(args, ct):
        ct[0] = 2
        return ct

    square = numba.njit(lambda x: x * x)
    fn = host(square, vjp=to_argument, writable=True)
    assert_same(monkeypatch, jax.grad(lambda x: fn(x).sum()), B)
    monkeypatch.setenv("PURESTATE_HOST_LOWERING", "native")
    wrong = host(square, vjp=to_cotangent, writable=True)
    with pytest.raises(HostSpecError, match=r"a rule of .* writes to an argument"):
        jax.jit(jax.grad(lambda x: wrong(x).sum()))(B)
