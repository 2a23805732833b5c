"""`diff` lists what makes jit trace again, by field path."""

import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps


class Opt(typing.NamedTuple):
    mu: jax.Array


class S(ps.State):
    a: jax.Array
    d: dict
    opt: Opt
    n: int = ps.static(default=2)


BASE = S(a=jnp.zeros(3), d={"k": [1.0, jnp.ones(2)]}, opt=Opt(jnp.zeros(2)))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "no differences"),
        ({"n": True}, "S.n: static value 2 -> True"),
        ({"a": jnp.zeros(2)}, "S.a: shape (3,) -> (2,)"),
        ({"a": jnp.zeros(3, jnp.int32)}, "S.a: dtype float32 -> int32"),
        ({"a": jnp.asarray(0.0) + jnp.zeros(3)}, "no differences"),
        ({"a": None}, "S.a: class f32[3] -> NoneType"),
        ({"opt": Opt(jnp.zeros(1))}, "S.opt.mu: shape (2,) -> (1,)"),
        ({"opt": (1,)}, "S.opt: class Opt -> tuple"),
        ({"d": {"j": 1}}, "S.d: structure ['k'] -> ['j']"),
        ({"d": {}}, "S.d: structure ['k'] -> empty"),
        ({"d": {"k": [1, jnp.ones(2)]}}, "S.d['k'][0]: class float -> int"),
        (
            {"n": 3, "a": jnp.zeros((1, 3), jnp.int32)},
            "\n".join(
                [
                    "S.n: static value 2 -> 3",
                    "S.a: shape (3,) -> (1, 3)",
                    "S.a: dtype float32 -> int32",
                ]
            ),
        ),
    ],
    ids=str,
)
def test_a_difference_is_told_with_path_old_and_new(change, text):
    assert text == str(ps.diff(BASE, BASE.replace(**change)))


def test_weak_types_are_told_apart():
    assert "weak type True -> False" == str(ps.diff(jnp.asarray(1.0), jnp.float32(1)))


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        (jnp.arange(3.0), jnp.array([0, 5, 2.0]), "[1]: value 1.0 -> 5.0"),
        (jnp.float32(1), jnp.float32(2), "value 1.0 -> 2.0"),
        (np.zeros((2, 2)), np.array([[0, 1], [2, 0]]) * 1.0,
         "[1, 0]: 2 of 4 values, the largest 0.0 -> 2.0"),
        (jnp.array([jnp.nan, 1]), jnp.array([jnp.nan, 1]), "no differences"),
        (jnp.array([1.0, 1]), jnp.array([jnp.nan, 1]), "[0]: value 1.0 -> nan"),
        (jnp.array([True]), jnp.array([False]), "[0]: value True -> False"),
        (3, 4, "value 3 -> 4"),
        (jnp.zeros(0), jnp.zeros(0), "no differences"),
    ],
    ids=str,
)  # fmt: skip
def test_values_are_compared_on_request(a, b, text):
    assert text == str(ps.diff(a, b, values=True))
    assert not ps.diff(a, b)


def test_keys_are_compared_by_their_bits():
    a, b = jax.random.key(0), jax.random.key(1)

    assert "value 0 -> 1" in str(ps.diff(a, b, values=True))
    assert not ps.diff(a, jax.random.key(0), values=True)


def test_differences_can_be_read_by_a_program():
    (found,) = ps.diff(BASE, BASE.replace(n=3))

    assert ("S.n", "static value", "2", "3") == (
        found.path,
        found.kind,
        found.before,
        found.after,
    )


def test_values_of_tracers_cannot_be_compared():
    with pytest.raises(
        TypeError, match=r"^cannot compare values at S\.a: it is a tracer"
    ):
        jax.jit(lambda s: ps.diff(s, s.replace(a=s.a + 1), values=True))(BASE)


def test_types_of_tracers_can_be_compared():
    found = []
    jax.jit(lambda s: found.extend(ps.diff(s, s.replace(a=s.a[:1]))))(BASE)

    assert ["S.a: shape (3,) -> (1,)"] == list(map(str, found))
