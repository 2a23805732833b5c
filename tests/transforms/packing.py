"""States for the tests of `ps.pack`."""

import jax
import jax.numpy as jnp

import purestate as ps


class Opt(ps.State):
    mu: jax.Array
    name: str = ps.static(default="adam")


class Train(ps.State):
    w: jax.Array
    b: jax.Array
    opt: Opt
    count: jax.Array = 0
    seen: jax.Array = 0
    rate: float = ps.static(default=0.5)
    note: object = None

    @ps.jit
    def step(self, by=1.0):
        opt = self.opt.replace(mu=self.opt.mu * 2)
        return self.replace(w=self.w + by, opt=opt, count=self.count + 1), self.w.sum()

    @ps.jit(donate=True)
    def donated(self):
        return self.replace(w=self.w + 1, count=self.count + 1)

    @ps.jit
    def whole(self):
        return jax.tree.map(lambda leaf: leaf + leaf, self)

    @ps.jit
    @property
    def norm(self):
        return jnp.sum(self.w**2)

    @property
    def half(self):
        return self.w / 2

    def plain(self):
        return self

    @jax.jit
    def by_jax(self):
        return self

    @staticmethod
    def kind():
        return "train"


def train(**changes):
    given = {"w": jnp.arange(3.0), "b": jnp.ones((2, 2)), "opt": Opt(mu=jnp.ones(4))}
    return Train(**given | changes)


def leaf_count(tree):
    return len(jax.tree.leaves(tree))


class Pair(ps.State):
    a: jax.Array
    b: jax.Array
