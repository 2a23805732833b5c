"""Assertions of `purestate.testing`: what counts, and what they say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
import purestate.testing as pst


class Box(ps.State):
    x: jax.Array
    key: jax.Array
    name: str = ps.static(default="a")


def box(x=1.0, seed=0, **rest):
    return Box(x=jnp.asarray(x, jnp.float32), key=jax.random.key(seed), **rest)


@pytest.mark.parametrize(
    ("expected", "found", "text"),
    [
        (box(), box(name="b"), r"Box\.name: static value 'a' -> 'b'"),
        (box(), box(seed=1), r"Box\.key\[1\]: value 0 -> 1"),
        (box([1, 2]), box([1, 3]), r"Box\.x\[1\]: value 2\.0 -> 3\.0"),
        (
            box([1, 2]),
            box([0, 3]),
            r"Box\.x\[0\]: 2 of 2 values, the first 1\.0 -> 0\.0",
        ),
        (box(), box([1.0]), r"Box\.x: shape \(\) -> \(1,\)"),
        ([1], (1,), r"class list -> tuple"),
    ],
)
@pytest.mark.parametrize("check", [pst.assert_same, pst.assert_close])
def test_a_difference_is_named_by_its_path(check, expected, found, text):
    with pytest.raises(AssertionError, match=text):
        check(expected, found)


def test_the_same_means_every_bit():
    with pytest.raises(AssertionError, match=r"Box\.x: value 0\.0 -> -0\.0"):
        pst.assert_same(box(0.0), box(-0.0))
    with pytest.raises(AssertionError, match="weak type False -> True"):
        pst.assert_same({"x": jnp.float32(1)}, {"x": jnp.asarray(1.0)})


def test_nan_is_the_same_as_nan():
    pst.assert_same(box(np.nan), box(np.nan))
    pst.assert_close(box(np.nan), box(np.nan))


def test_close_follows_the_precision_of_the_dtype():
    near = 1 + 1e-3
    pst.assert_close(jnp.float16(1), jnp.float16(near))
    pst.assert_close(jnp.bfloat16(1), jnp.bfloat16(1.01))

    with pytest.raises(AssertionError, match=r"value 1\.0 -> 1\.00"):
        pst.assert_close(jnp.float32(1), jnp.float32(near))


def test_close_compares_small_numbers_with_the_largest_of_their_array():
    pst.assert_close(jnp.array([1e4, 0.0]), jnp.array([1e4, 1e-2]))

    with pytest.raises(AssertionError, match=r"\[1\]: value 0\.0 -> 0\.0"):
        pst.assert_close(jnp.array([1.0, 0.0]), jnp.array([1.0, 1e-2]))


def test_tolerances_can_be_given():
    pst.assert_close(jnp.float32(1), jnp.float32(1.4), rtol=0.5)

    with pytest.raises(AssertionError, match=r"value 1\.0 -> 1\.0"):
        pst.assert_close(jnp.float32(1), jnp.float32(1.00002), rtol=1e-6, atol=0)


def test_close_does_not_care_how_jit_types_a_number():
    pst.assert_close({"n": 1, "x": 1.5}, {"n": jnp.int32(1), "x": jnp.asarray(1.5)})


def test_integers_must_be_equal():
    with pytest.raises(AssertionError, match=r"\[0\]: value 1000000 -> 1000001"):
        pst.assert_close(jnp.array([1000000]), jnp.array([1000001]))


class Counter(ps.State):
    count: jax.Array = 0

    @jax.jit
    def step(self):
        return self.replace(count=self.count + 1)

    @ps.jit
    def again(self):
        return self.replace(count=self.count + 1)


@pytest.mark.parametrize("name", ["step", "again"])
def test_traces_of_a_method_are_counted(name):
    method = getattr(Counter, name)
    method.clear_cache()

    with pst.assert_traces(1, of=method):
        method(method(Counter()))
    with pst.assert_traces(0, of=method):
        method(Counter())


def test_another_number_of_traces_is_an_error():
    method = jax.jit(lambda x: x + 1)

    with (
        pytest.raises(
            AssertionError, match="expected 1 traces of <lambda>, and there were 2"
        ),
        pst.assert_traces(1, of=method),
    ):
        method(jnp.ones(2)), method(jnp.ones(3))


def test_without_a_function_every_compiled_program_counts():
    def odd(x):
        return x * 3.25 - 1

    x = jnp.ones(5)

    with pst.assert_traces(1):
        jax.jit(odd)(x)


def test_recordings_do_not_disturb_each_other():
    method = jax.jit(lambda x: x - 1)

    with pst.assert_traces(2, of=method):
        with pst.assert_traces(1, of=method):
            method(jnp.ones(2))
        method(jnp.ones(3))


@pytest.mark.parametrize(("mode", "calls"), [("loop", 3), ("batched", 1)])
def test_calls_of_a_host_function_are_counted(mode, calls):
    fn = ps.host_function(lambda x: 2 * x, out=lambda x: x, vmap=mode)
    mapped = jax.jit(jax.vmap(fn))
    x = jnp.arange(3.0)
    mapped(x).block_until_ready()

    with pst.count_host_calls(fn) as counted:
        mapped(x).block_until_ready()

    assert calls == counted.total


def test_calls_are_no_longer_counted_after_the_block():
    fn = ps.host_function(lambda x: 2 * x, out=lambda x: x)
    with pst.count_host_calls(fn) as counted:
        fn(jnp.ones(2))

    fn(jnp.ones(2))

    assert 1 == counted.total


def test_only_host_functions_can_be_counted():
    with (
        pytest.raises(
            TypeError, match="takes a host function, and got an object of type ufunc"
        ),
        pst.count_host_calls(np.sin),
    ):
        pass
