"""The library keeps no instance and no array alive, and is safe under threads."""

import gc
import weakref

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from tests.helpers import in_threads


class Node(ps.State):
    x: jax.Array
    n: object = ps.static(default=None)


def test_an_instance_and_its_array_die_with_their_last_reference():
    node = Node(x=jnp.ones(3) + 1)
    node = node.replace(x=node.x + 1)
    node = jax.tree.map(lambda v: v, node)
    alive = [weakref.ref(node), weakref.ref(node.x)]

    del node
    gc.collect()

    assert [None, None] == [ref() for ref in alive]


def test_states_have_weak_references():
    node = Node(x=1)

    assert node is weakref.ref(node)()


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad])
def test_tracers_do_not_leak(transform):
    class S(ps.State):
        x: jax.Array

        @jax.jit
        def step(self, k):
            return self.replace(x=self.x * k)

        def loss(self):
            return (self.x**2).sum()

    with jax.checking_leaks():
        s = S(x=jnp.ones(3)).step(2.0)
        transform(lambda q: q.step(1.0).loss())(s)
        jax.lax.scan(lambda q, _: (q.step(0.5), None), s, None, length=2)
        with pytest.raises(AttributeError, match="nope"):
            _ = s.step(1.0).nope


def test_many_threads_construct_update_and_rebuild():
    def work(seed):
        for i in range(300):
            node = Node(x=seed, n=("t", i % 7)).replace(n=("t", i % 5))
            leaves, structure = jax.tree.flatten(node)
            rebuilt = structure.unflatten(leaves)
            assert (("t", i % 5), seed) == (rebuilt.n, int(rebuilt.x))

    in_threads(work, range(4))


def test_classes_made_in_threads_do_not_mix_up_their_fields():
    made = {}

    def make(name):
        for _ in range(20):
            cls = type("Made", (ps.State,), {"__annotations__": {name: jax.Array}})
            made.setdefault(name, []).append(cls(**{name: 1}))

    in_threads(make, "abcd")

    for name, states in made.items():
        assert 20 == len(states)
        assert all(1 == int(getattr(state, name)) for state in states)
