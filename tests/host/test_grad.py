"""Derivatives of host functions: every source, every transform, held against jax's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import HostGradError, HostSpecError
from tests.hosts import SOURCES, agree, host, model, reference, scalar, total

pytestmark = pytest.mark.usefixtures("lowering")
TRANSFORMS = {
    "grad": lambda f: jax.grad(total(f), (0, 1)),
    "jvp": lambda f: lambda x, y: jax.jvp(f, (x, y), (jnp.cos(x), y * y)),
    "jacfwd": lambda f: jax.jacfwd(f, (0, 1)),
    "jacrev": lambda f: jax.jacrev(f, (0, 1)),
    "one argument": lambda f: jax.grad(total(f), 1),
    "linearize": lambda f: lambda x, y: jax.linearize(f, x, y)[1](x, y),
    "remat": lambda f: jax.grad(total(jax.checkpoint(f)), (0, 1)),
    "cond": lambda f: jax.grad(
        total(lambda x, y: jax.lax.cond(x.sum() > 0, f, lambda x, y: f(-x, y), x, y)),
        (0, 1),
    ),
    "scan": lambda f: jax.grad(
        lambda x, y: jax.lax.scan(
            lambda c, _: (0.3 * f(c, y)[0], f(c, y)[1]["q"].sum()), x, None, length=3
        )[1].sum(),
        (0, 1),
    ),
    "while": lambda f: (
        lambda x, y: jax.jvp(
            lambda x: jax.lax.while_loop(
                lambda c: c[1] < 3, lambda c: (0.3 * f(c[0], y)[0], c[1] + 1), (x, 0)
            )[0],
            (x,),
            (y[0] * x,),
        )
    ),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("source", SOURCES)
def test_every_transform_agrees_with_jax_for_every_source(source, transform):
    x, y = jnp.array([0.3, 1.2]), jnp.array([0.5, -0.2, 0.9])
    upcast = source not in ("jvp", "vjp", "jac")
    made = TRANSFORMS[transform](host(source, upcast=upcast))

    expected = by_jax(TRANSFORMS[transform], x, y)

    agree(expected, jax.jit(made)(x, y), 2e-4)
    agree(expected, made(x, y), 2e-4)


FOUND = {}


def by_jax(transform, x, y):
    """Return what JAX finds: the same numbers for every source and every lowering."""
    if transform not in FOUND:
        FOUND[transform] = transform(reference)(x, y)
    return FOUND[transform]


EVERY = jnp.broadcast_to(jnp.array([0.5, -0.2]), (3, 2))
BATCHED = [
    lambda f: jax.vmap(jax.grad(total(f), (0, 1)), (0, None)),
    lambda f: jax.grad(lambda x, y: total(jax.vmap(f, (0, None)))(x, y), (0, 1)),
    lambda f: lambda x, _: jax.vmap(jax.jacrev(f, (0, 1)))(x, EVERY),
    lambda f: jax.vmap(jax.jacfwd(f), (0, None)),
]


@pytest.mark.parametrize("mode", ["loop", "threads", "batched"])
@pytest.mark.parametrize("source", SOURCES)
def test_gradients_of_batches_and_batches_of_gradients_agree(source, mode):
    def whole(x, y):
        found = [model(np, a, b) for a, b in zip(x, y, strict=True)]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *found)

    fn = host(source, vmap=mode, batch_fn=whole if mode == "batched" else None)
    x, y = jnp.linspace(0, 1, 6).reshape(3, 2), EVERY[0]

    for transform in BATCHED:
        agree(by_jax(transform, x, y), jax.jit(transform(fn))(x, y), 5e-3)


def test_batch_vjp_is_called_once_for_a_batch():
    calls = []

    def whole(args, ct):
        (x,) = args
        calls.append((x.shape, ct.shape))
        return (ct * np.cos(x),)

    def one(args, ct):
        raise AssertionError

    fn = ps.host_function(np.sin, vjp=one, batch_vjp=whole)
    x = jnp.arange(6.0).reshape(2, 3)

    found = jax.jit(jax.vmap(jax.vmap(jax.grad(fn))))(x)

    assert np.allclose(np.cos(x), found, atol=1e-6)
    assert [((6,), (6,))] == calls


# --- one source at a time ------------------------------------------------------------


def test_upcast_makes_differences_accurate_in_single_precision():
    x = jnp.float32(0.7)
    errors = [
        abs(
            float(
                jax.jit(jax.grad(ps.host_function(np.exp, grad="fd", upcast=upcast)))(x)
            )
            / np.exp(0.7)
            - 1
        )
        for upcast in (False, True)
    ]

    assert 1e-7 < errors[0] < 1e-3
    assert errors[1] < 2e-7


def test_upcast_hands_double_precision_to_the_function():
    seen = []
    fn = ps.host_function(
        lambda x: seen.append(x.dtype) or x, upcast=True, out=lambda x: x
    )

    assert jnp.float32 == jax.jit(fn)(jnp.float32(1)).dtype
    assert [np.float64] == seen


def test_the_step_of_finite_differences_can_be_set():
    points = []
    fn = ps.host_function(
        lambda x: points.append(float(x)) or x, grad="fd", eps=0.25, out=lambda x: x
    )

    assert 1.0 == jax.jit(jax.grad(fn))(1.0)
    assert {0.75, 1.25} <= set(points)


def test_a_zero_gradient_is_zero():
    fn = ps.host_function(np.floor, grad="zero")

    assert 0.0 == jax.jit(jax.grad(lambda x: fn(x) * x))(0.5)
    assert 1.0 == jax.jit(jax.grad(lambda x: fn(x) * x))(1.5)


def test_bfloat16_has_a_gradient():
    fn = ps.host_function(lambda x: x * x, grad="fd", upcast=True)

    found = jax.jit(jax.grad(fn))(jnp.bfloat16(3))

    assert jnp.bfloat16 == found.dtype
    assert abs(float(found) - 6) < 0.1


@pytest.mark.parametrize("source", ["fd", "jvp", "vjp", "jac"])
def test_complex_arguments_follow_jax(source):
    rules = {
        "fd": {"grad": "fd"},
        "jvp": {"jvp": lambda args, t: 2 * args[0] * t[0]},
        "vjp": {"vjp": lambda args, ct: (2 * args[0] * ct,)},
        "jac": {"jac": lambda z: 2 * z},
    }
    fn = ps.host_function(lambda z: z * z, out=lambda z: z, **rules[source])
    loss = lambda f: lambda z: jnp.abs(f(z) - 1) ** 2  # noqa: E731
    z = jnp.complex64(0.5 - 1.5j)

    agree(jax.grad(loss(lambda z: z * z))(z), jax.jit(jax.grad(loss(fn)))(z), 1e-3)
    agree(
        jax.jvp(lambda z: z * z, (z,), (1j * z,)),
        jax.jit(lambda: jax.jvp(fn, (z,), (1j * z,)))(),
        1e-3,
    )


@pytest.mark.parametrize("vmap", ["loop", "vectorized"])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: np.sqrt((x * x).sum(-1)),
        lambda x: np.sin(x).prod(-1),
    ],
    ids=["root", "product"],
)
def test_a_complex_step_of_an_analytic_function_is_its_derivative(fn, vmap):
    step = ps.host_function(fn, out=scalar(), grad="complex", vmap=vmap)
    exact = ps.host_function(fn, out=scalar(), grad="fd", upcast=True, vmap=vmap)
    x = jnp.array([[3.0, 4.0], [0.5, -1.0]])

    agree(jax.vmap(jax.grad(exact))(x), jax.jit(jax.vmap(jax.grad(step)))(x), atol=1e-5)


@pytest.mark.parametrize("vmap", ["loop", "threads", "batched"])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: np.linalg.norm(x, axis=-1),
        lambda x: np.abs(x).sum(-1),
        lambda x: np.std(x, -1),
        lambda x: np.float32(x[..., 0].real),
    ],
    ids=["norm", "abs", "std", "real"],
)
def test_a_complex_step_of_what_comes_back_real_is_refused(fn, vmap):
    real = ps.host_function(fn, out=scalar(), grad="complex", vmap=vmap, name="real")
    text = (
        r'real \(.*\) has grad="complex", and its result came back real for complex '
        r'arguments, .* Use grad="fd"'
    )
    x = jnp.array([[3.0, 4.0], [1.0, 2.0]])

    for derivative in (jax.grad(real), jax.jacfwd(real)):
        with pytest.raises(HostGradError, match=text):
            ps.jit(derivative)(x[0])
        with pytest.raises(HostGradError, match=text):
            ps.jit(jax.vmap(derivative))(x)
    ways_out = ps.host_function(fn, out=scalar(), grad="fd", upcast=True, vmap=vmap)
    assert (jax.vmap(jax.grad(ways_out))(x) != 0).any()


def test_one_item_that_comes_back_real_from_a_complex_step_is_refused():
    def fn(x):
        return x * 2 if x.real > 0 else abs(x)

    step = jax.vmap(jax.grad(ps.host_function(fn, out=scalar(), grad="complex")))

    agree(jnp.array([2.0, 2.0]), step(jnp.array([1.0, 2.0])), atol=1e-6)
    for x in ([1.0, -2.0], [-2.0, 1.0]):
        with pytest.raises(HostGradError, match="came back real"):
            ps.jit(step)(jnp.array(x))


def test_a_result_that_does_not_depend_on_what_is_differentiated_may_be_real():
    apart = ps.host_function(
        lambda x, y: {"x": x**2, "y": np.abs(y), "one": np.float32(1)}, grad="complex"
    )
    x, y = jnp.float32(3), jnp.float32(-2)

    _, slope = jax.jvp(lambda x: apart(x, y), (x,), (jnp.float32(1),))
    assert {"x": 6.0, "y": 0.0, "one": 0.0} == jax.tree.map(float, slope)
    assert 6.0 == jax.jit(jax.grad(lambda x: sum(apart(x, y).values())))(x)
    with pytest.raises(HostGradError, match=r"\['y'\] came back real"):
        jax.grad(lambda y: apart(x, y)["y"])(y)


@pytest.mark.parametrize("grad", ["fd", "fd-forward"])
def test_differences_in_real_and_complex_arguments_together_lose_nothing(grad):
    def fn(p, np=np):
        return (p["a"] ** 2).sum() + (np.abs(p["c"]) ** 2 * p["a"][0]).sum()

    p = {"a": jnp.array([1.0, 2.0]), "c": jnp.array([1 + 2j, 3.0])}
    found = jax.jit(
        jax.grad(ps.host_function(fn, grad=grad, upcast=True, out=scalar()))
    )(p)

    agree(jax.grad(lambda p: fn(p, jnp))(p), found, atol=1e-3)


def test_a_jacobian_of_a_complex_result_in_a_real_argument_loses_nothing():
    z = np.array([1 + 2j, -3j], np.complex64)
    fn = ps.host_function(lambda x: z * x, out=lambda x: z, jac=lambda x: z)

    def real(f):
        return lambda x: (f(x) * (2 - 1j)).sum().real

    agree(
        jax.grad(real(lambda x: z * x))(jnp.float32(2)),
        jax.jit(jax.grad(real(fn)))(jnp.float32(2)),
    )


def test_a_complex_step_of_a_complex_result_is_refused():
    fn = ps.host_function(lambda x: x * (1 + 2j), grad="complex")

    with pytest.raises(HostGradError, match='and has a complex result: use grad="fd"'):
        jax.jvp(fn, (jnp.float32(1),), (jnp.float32(1),))


def test_a_complex_step_in_a_complex_argument_is_refused():
    fn = ps.host_function(lambda z: abs(z), grad="complex")

    with pytest.raises(
        HostGradError, match='complex step in a complex argument: use grad="fd"'
    ):
        jax.grad(fn)(1j)


def test_integers_and_keys_beside_floats_have_no_derivative():
    @ps.host_function(grad="fd", upcast=True)
    def fn(key, x, n):
        return x**n, np.int32(n)

    def loss(x):
        value, count = fn(jax.random.key(0), x, 3)
        return value * count

    assert abs(float(jax.jit(jax.grad(loss))(2.0)) - 36) < 1e-3


def test_an_integer_argument_is_refused_by_jax_itself():
    fn = ps.host_function(lambda n: n, grad="fd")

    with pytest.raises(TypeError, match="int32"):
        jax.grad(fn)(3)


def test_none_stands_for_a_zero_cotangent():
    fn = ps.host_function(
        lambda p, x: p["a"] * x,
        vjp=lambda args, ct: ({"a": ct * args[1], "b": None}, None),
        out=lambda p, x: x,
    )
    p = {"a": jnp.float32(2), "b": jnp.float32(1)}

    found = jax.jit(jax.grad(fn, (0, 1)))(p, 3.0)

    assert ({"a": 3.0, "b": 0.0}, 0.0) == jax.tree.map(float, found)


def test_none_subtrees_do_not_shift_a_cotangent():
    fn = ps.host_function(
        lambda p: p["c"] * 2 + p["a"],
        vjp=lambda args, ct: ({"a": ct, "b": None, "c": 2 * ct},),
        out=lambda p: p["a"],
    )

    found = jax.jit(jax.grad(fn))({"a": 1.0, "b": None, "c": 5.0})

    assert {"a": 1.0, "b": None, "c": 2.0} == jax.tree.map(float, found)


def test_a_rule_for_one_argument_may_leave_out_the_tuple():
    fn = ps.host_function(np.sin, vjp=lambda args, ct: ct * np.cos(args[0]))

    assert np.allclose(np.cos(2.0), jax.jit(jax.grad(fn))(2.0))


def test_rules_get_static_arguments_and_scratch_objects():
    def vjp(scratch, args, ct, *, n):
        assert {} == scratch
        return (n * ct * args[1] ** 0, None)

    fn = ps.host_function(
        lambda scratch, x, y, n: n * x,
        scratch=dict,
        static_argnames="n",
        vjp=vjp,
        out=lambda x, y, n: x,
    )

    assert 3.0 == jax.jit(jax.grad(lambda x: fn(x, 1.0, n=3)))(2.0)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (
            {"vjp": lambda args, ct: (ct, ct, ct)},
            r"vjp= of fn \(.*\) returned 3 values for 2 arguments: return a tuple, None for zero\.",
        ),
        (
            {"vjp": lambda args, ct: ({"a": ct}, ct)},
            r"declared at argument leaf 0 of its vjp:\n  expected: float32\[2\]\n  received: a dict",
        ),
        (
            {"vjp": lambda args, ct: (np.ones(3), ct)},
            r"declared at argument leaf 0 of its vjp:\n  expected: float32\[2\]\n  received: float64\[3\]",
        ),
        (
            {"vjp": lambda args, ct: (1j * ct, ct)},
            r"expected: float32\[2\]\n  received: complex64\[2\]",
        ),
        (
            {"jvp": lambda args, ts: (ts[0],)},
            r"at result of its jvp:\n  expected: float32\[2\]\n  received: a tuple",
        ),
        (
            {"vjp": lambda args, ct: {"a": ct}},
            r"vjp= of fn \(.*\) returned 1 values for 2 arguments",
        ),
        (
            {"jac": lambda x, y: (np.ones(2), None)},
            r"a block of shape \(2,\); the result's shape \(2,\), then the argument's \(2,\), makes \(2, 2\)",
        ),
    ],
)
def test_a_rule_that_returns_something_else_is_named(rule, text):
    fn = ps.host_function(lambda x, y: x, name="fn", out=lambda x, y: x, **rule)

    with pytest.raises(HostSpecError, match=text):
        ps.jit(jax.grad(lambda x: fn(x, x).sum()))(jnp.ones(2))


def test_without_a_derivative_the_error_says_how_to_give_one():
    fn = ps.host_function(np.sin, name="sim")

    with pytest.raises(HostGradError) as caught:
        jax.jit(jax.grad(fn))(1.0)

    text = str(caught.value).split("\n---")[0]
    assert text.endswith(
        """ has no derivative. Give one where it is declared, and both forward and reverse mode follow:
    ps.host_function(grad="fd")       finite differences (or "fd-forward", "complex", "zero")
    ps.host_function(vjp=rule)        rule(args, cotangent) -> cotangents of args
    ps.host_function(jvp=rule)        rule(args, tangents) -> tangent of the result
    ps.host_function(jac=rule)        rule(*args) -> Jacobian
or cut it off with jax.lax.stop_gradient around its arguments."""
    )
    assert text.startswith("sim (")
    assert 1.0 == jax.grad(lambda x: fn(jax.lax.stop_gradient(x)) + x)(1.0)


@pytest.mark.parametrize("source", SOURCES)
def test_a_second_derivative_is_refused_with_a_reason(source):
    fn = host(source)

    with pytest.raises(
        HostGradError, match="has no second derivative: its rule is numpy code too"
    ):
        jax.jit(jax.hessian(lambda x: total(fn)(x, x)))(jnp.ones(2))


def test_one_evaluation_serves_all_rows_of_a_reverse_jacobian():
    calls = []
    fn = ps.host_function(
        lambda x: calls.append(1) or x * x, grad="fd", out=lambda x: x
    )
    x = jnp.arange(1.0, 9.0)

    found = jax.block_until_ready(jax.jit(jax.jacrev(fn))(x))

    assert np.allclose(np.diag(2 * x), found, atol=2e-2)
    assert 1 + 2 * 8 >= len(calls)


def test_a_function_that_refuses_batches_still_has_jacobians():
    fn = ps.host_function(np.sin, grad="fd", upcast=True, vmap="error")
    x = jnp.arange(3.0)

    for jacobian in (jax.jacfwd, jax.jacrev):
        assert np.allclose(np.diag(np.cos(x)), jax.jit(jacobian(fn))(x), atol=1e-5)


def test_a_gradient_through_a_large_array():
    fn = ps.host_function(
        lambda x: x * 3, vjp=lambda args, ct: (ct * 3,), out=lambda x: x
    )
    x = jnp.ones(1 << 20)

    assert (jax.jit(jax.grad(lambda x: fn(x).sum()))(x) == 3).all()


def test_differences_survive_results_in_the_same_memory_and_of_mixed_types():
    space = np.zeros(2)

    @ps.host_function(
        grad="fd", upcast=True, out=lambda x: jax.ShapeDtypeStruct((2,), x.dtype)
    )
    def fn(x):
        if x < 1:
            return np.zeros(2, int)
        space[:] = x * x, x
        return space

    found = jax.jit(jax.vmap(jax.jacrev(fn)))(jnp.array([0.5, 2.0]))

    assert np.allclose([[0, 0], [4, 1]], found, atol=1e-5)
