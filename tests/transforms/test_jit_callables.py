"""`ps.jit` of every other kind of callable, and what its wrapper keeps."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import JitDeclarationError
from tests.transforms.counters import Counter, Kinds

# Layer.total meets more structures in these tests than a function should in a program.
pytestmark = pytest.mark.filterwarnings("ignore::purestate.errors.RetraceWarning")


# --- other callables ------------------------------------------------------------------


class Affine:
    def __init__(self, slope):
        self.slope = slope

    def __call__(self, x):
        return self.slope * x + 1

    def method(self, x):
        return self.slope * x


class Slotted:
    __slots__ = ()

    def __call__(self, x):
        return 3.0 * x + 1


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: 3 * x, 6.0),
        (functools.partial(lambda k, x: k * x, 3), 6.0),
        (functools.partial(lambda x, k: k * x, k=3), 6.0),
        (Affine(3), 7.0),
        (Slotted(), 7.0),
        (Affine(3).method, 6.0),
        (jnp.sin, np.sin(np.float32(2))),
        (jax.jit(lambda x: 3 * x), 6.0),
        (ps.jit(lambda x: 3 * x), 6.0),
        (jax.vmap(lambda x: 3 * x, axis_size=1, in_axes=None, out_axes=None), 6.0),
    ],
    ids=[
        "lambda",
        "partial",
        "partial by name",
        "instance",
        "slotted instance",
        "method of a plain object",
        "ufunc",
        "jax.jit",
        "ps.jit",
        "vmap",
    ],
)
def test_every_callable_can_be_jitted(fn, expected):
    assert expected == pytest.approx(float(ps.jit(fn)(2.0)))


def test_a_state_class_can_be_jitted():
    assert Kinds(x=jnp.ones(3)) == ps.jit(Kinds)(jnp.ones(3))


def test_a_builtin_can_be_jitted():
    assert 3.0 == ps.jit(sum)([1.0, 2.0])


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_a_coroutine_function_is_refused_by_jax_itself():
    async def f(x):
        return x

    made = []

    def kept(x):
        made.append(f(x))
        return made[-1]

    with pytest.raises(TypeError, match=r"coroutine'>.*not a valid JAX type"):
        ps.jit(kept)(1.0)
    made[0].close()


def test_something_that_cannot_be_called_is_refused():
    text = (
        r"^ps\.jit takes a function, a method or a callable State, and got an object of "
        r"type int\.$"
    )

    with pytest.raises(JitDeclarationError, match=text):
        ps.jit(3)


def test_a_declaration_error_is_a_type_error():
    with pytest.raises(TypeError):
        ps.jit("step")


# --- what a wrapper must keep ---------------------------------------------------------


def test_name_doc_module_and_signature_are_those_of_the_function():
    assert "mean" == Kinds.mean.__name__
    assert "Kinds.mean" == Kinds.mean.__qualname__
    assert "Return the mean." == Kinds.mean.__doc__
    assert Kinds.__module__ == Kinds.mean.__module__
    assert "(self, *, axis=None)" == str(inspect.signature(Kinds.mean))


def test_the_function_itself_stays_within_reach():
    def f(x):
        return x

    assert f is ps.jit(f).__wrapped__


@pytest.mark.parametrize("name", ["lower", "trace", "eval_shape", "clear_cache"])
def test_what_a_jitted_function_offers_in_jax_is_there(name):
    assert callable(getattr(Kinds.mean, name))


def test_a_method_can_be_lowered_and_compiled_ahead():
    counter = Counter(n=1)

    compiled = Counter.step.lower(counter, 2).compile()

    assert 5 == compiled(counter, 2)[0].n


def test_eval_shape_returns_a_state_of_shapes():
    moved, _ = Counter.step.eval_shape(Counter(n=1), 2)

    assert Counter is type(moved)
    assert jax.ShapeDtypeStruct((), jnp.int32) == moved.n


def test_a_cleared_cache_traces_again():
    traces = []

    @ps.jit
    def f(x):
        traces.append(1)
        return x

    f(1.0), f(1.0)
    f.clear_cache()
    f(1.0)

    assert 2 == len(traces)


@pytest.mark.parametrize("transform", [ps.grad, ps.value_and_grad, ps.vmap])
def test_a_transformed_function_does_not_offer_what_belongs_to_the_inner_one(transform):
    assert not hasattr(transform(ps.jit(lambda x: x**2)), "lower")


def test_options_of_jax_jit_are_passed_on():
    @ps.jit(static_argnums=1, inline=True)
    def f(x, n):
        return (x,) * n

    assert 3 == len(f(1.0, 3))


def test_static_arguments_by_name_key_the_cache():
    traces = []

    class S(ps.State):
        x: jax.Array

        @ps.jit(static_argnames=("axis",))
        def total(self, axis):
            traces.append(axis)
            return self.x.sum(axis)

    s = S(x=jnp.ones((2, 3)))

    assert [(3,), (2,), (3,)] == [s.total(axis=a).shape for a in (0, 1, 0)]
    assert [0, 1] == traces


def test_one_static_name_may_be_given_as_a_string():
    f = ps.jit(lambda x, axis: x.sum(axis), static_argnames="axis")

    assert (3,) == f(jnp.ones((2, 3)), axis=0).shape


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype("int32"),
        *(
            pytest.param(
                kind,
            )
            for kind in (jnp.int32, np.int32)
        ),
    ],
    ids=["np.dtype", "jnp.int32", "np.int32"],
)
def test_a_dtype_can_be_a_static_argument(dtype):
    f = ps.jit(lambda x, dtype: x.astype(dtype), static_argnames="dtype")

    assert jnp.int32 == f(jnp.ones(2), dtype=dtype).dtype


def test_a_decorator_with_options_and_one_without_are_the_same():
    assert 2 == ps.jit()(lambda x: x + 1)(1)
    assert 2 == ps.jit(donate=False)(lambda x: x + 1)(1)
