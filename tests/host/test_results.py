"""Host functions: how results are declared, and what may come back."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import HostSpecError
from tests.hosts import Out, scalar, ways

pytestmark = pytest.mark.usefixtures("lowering")


# --- result specs ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "out",
    [
        (jnp.zeros(2), {"k": np.int32(0)}),
        (
            jax.ShapeDtypeStruct((2,), jnp.float32),
            {"k": jax.ShapeDtypeStruct((), jnp.int32)},
        ),
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

    assert ((5, 3, 3), jnp.float32) == (a.shape, a.dtype)
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


# --- what comes back ------------------------------------------------------------------


SPEC = (
    jax.ShapeDtypeStruct((2,), jnp.float32),
    {"k": jax.ShapeDtypeStruct((), jnp.int32)},
)


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
            HostSpecError, match=r"(?s)fn \(.*test_results\.py:\d+\) .*" + text
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
