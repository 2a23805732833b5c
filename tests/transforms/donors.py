"""States with methods that donate them."""

import jax

import purestate as ps


class Opt(ps.State):
    mu: jax.Array


class Box(ps.State):
    x: jax.Array
    opt: Opt | None = None
    parts: object = None

    @ps.jit(donate=True)
    def step(self, by=1.0):
        return jax.tree.map(lambda leaf: leaf + by, self)

    @ps.jit(donate=True)
    def fail(self):
        raise ValueError("no")

    def double(self):
        return jax.tree.map(lambda leaf: leaf * 2, self)

    def __call__(self):
        return self.double()

    def __getitem__(self, i):
        return self.x[i]

    def __len__(self):
        return 3

    def __iter__(self):
        return iter([self.x])

    def __add__(self, other):
        return self.x + other

    def __neg__(self):
        return -self.x

    def __lt__(self, other):
        return self.x < other


class Nets(ps.State):
    online: jax.Array
    target: jax.Array
    third: object = None

    @ps.jit(donate=True)
    def step(self):
        return self.replace(online=self.online * 0.5)
