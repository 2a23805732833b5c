"""jaxtyping annotations of host functions: what their axes say of arguments."""

import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import HostSpecError

jaxtyping = pytest.importorskip("jaxtyping", reason="needs the interop extra")
Float = jaxtyping.Float


def test_anonymous_axes_may_differ():
    @ps.host_function
    def first(
        x: Float[np.ndarray, "_rows n"], y: Float[np.ndarray, "_rows _"]
    ) -> Float[np.ndarray, "n"]:
        return x[0]

    assert (2,) == first(jnp.ones((3, 2)), jnp.ones((4, 5))).shape


@pytest.mark.parametrize("rows", [1, 3])
def test_an_axis_that_may_be_one_has_the_size_of_its_name_or_one(rows):
    @ps.host_function
    def add(
        x: Float[np.ndarray, "n"], y: Float[np.ndarray, "#n"]
    ) -> Float[np.ndarray, "n"]:
        return x + y

    assert (3,) == add(jnp.ones(3), jnp.ones(rows)).shape


def test_an_axis_of_another_size_than_a_number_says_is_named():
    @ps.host_function
    def norm(x: Float[np.ndarray, "d=3"]) -> Float[np.ndarray, ""]:
        return np.linalg.norm(x)

    with pytest.raises(
        HostSpecError,
        match=r"got x of shape \(2,\), annotated 'd=3': 3 is 2 here and 3 before\.",
    ):
        norm(jnp.ones(2))
