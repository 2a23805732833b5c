"""`ps.Array`: the annotation of fields that are given arrays or Python numbers."""

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Float

import purestate as ps
from tests.helpers import python


def test_it_is_the_class_of_jax_at_run_time():
    assert ps.Array is jax.Array
    assert isinstance(jnp.zeros(3), ps.Array)


@pytest.mark.parametrize(
    ("annotation", "given", "dtype"),
    [
        (ps.Array, 0, jnp.int32),
        (ps.Array, 0.5, jnp.float32),
        (ps.Array, True, jnp.bool_),
        (ps.Array | None, 0, jnp.int32),
        (Float[ps.Array, ""], 0, jnp.float32),
        ("ps.Array", 0, jnp.int32),
        ("ps.Array | None", 0, jnp.int32),
        ("Float[ps.Array, '']", 0, jnp.float32),
    ],
)
def test_a_number_becomes_an_array_of_a_strong_dtype(annotation, given, dtype):
    class Counter(ps.State):
        count: annotation

    count = Counter(given).count

    assert isinstance(count, jax.Array)
    assert dtype == count.dtype
    assert not count.weak_type


def test_none_stays_none_where_it_is_allowed():
    class Net(ps.State):
        mask: ps.Array | None = None

    assert Net().mask is None


def test_it_works_where_annotations_are_strings_and_checkers_alone_import_it():
    done = python(
        """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        import purestate
        if TYPE_CHECKING:
            import purestate as ps

        class Counter(purestate.State):
            count: ps.Array = 0
            part: purestate.Array | None = 1.5

        counter = Counter()
        print(counter)
        """
    )

    assert "Counter(count=i32[], part=f32[])\n" == done.stdout, done.stderr
