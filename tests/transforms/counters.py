"""States with jitted methods of all kinds, for the tests of `ps.jit`."""

import jax
import jax.numpy as jnp
import numpy as np

import purestate as ps


class Counter(ps.State):
    n: jax.Array
    size: int = 2

    @ps.jit
    def step(self, k):
        return self.replace(n=self.n + k * self.size), self.n

    def plain(self, k):
        return self.replace(n=self.n + k)

    def __call__(self, k):
        return self.n * k


class Layer(ps.State):
    w: jax.Array
    act: object = None
    parts: dict = ps.field(default_factory=dict)

    @ps.jit
    def total(self):
        return self.w.sum()

    @ps.jit
    def to_numpy(self):
        return np.asarray(self.w)

    @ps.jit
    def outer(self):
        return self.to_numpy()


class Kinds(ps.State):
    x: jax.Array

    @ps.jit
    @staticmethod
    def twice(x):
        return x * 2

    @staticmethod
    @ps.jit
    def thrice(x):
        return x * 3

    @ps.jit
    @classmethod
    def full(cls, n):
        return cls(x=jnp.full(3, n))

    @classmethod
    @ps.jit
    def filled(cls, n):
        return cls(x=jnp.full(3, n))

    @ps.jit
    @property
    def total(self):
        """The sum."""
        return self.x.sum()

    @property
    @ps.jit
    def largest(self):
        """The maximum."""
        return self.x.max()

    @ps.jit(static_argnames="axis")
    def mean(self, *, axis=None):
        """Return the mean."""
        return self.x.mean(axis)


def notes_of(error):
    """Return what purestate noted, without JAX's remark on its own traceback."""
    return [note for note in error.__notes__ if "internal frames" not in note]
