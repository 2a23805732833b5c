"""`at` and `draft`: the type of the State, of the places and of the values."""

from typing import assert_type

import jax.numpy as jnp
from jax import Array

import purestate as ps


class Opt(ps.State):
    mu: Array
    tag: str = ps.static(default="adam")


class Train(ps.State):
    opt: Opt
    step: int = 0


train = Train(Opt(jnp.zeros(3)))
assert_type(train.at(lambda t: t.opt.mu).set(jnp.ones(3)), Train)
assert_type(train.at(lambda t: t.step).apply(lambda n: n + 1), Train)
assert_type(train.at(lambda t: (t.opt.mu, t.step)).set((jnp.ones(3), 1)), Train)
train.at(lambda t: t.opt.nu)  # error
train.at(lambda t: t.opt.tag).set(1)  # error
train.at(lambda t: t.step).set("a")  # error
train.at(lambda t: (t.opt.mu, t.step)).set((jnp.ones(3), "a"))  # error

# A draft is typed as the State.
with train.draft() as new:
    new.opt.mu = jnp.ones(3)
    new.step += 1
    new.opt = Opt(jnp.ones(3))
    new.opt.mu *= 2
    new.step = "a"  # error
    new.opt.nu = jnp.ones(3)  # error
assert_type(new, Train)
assert_type(new.opt.mu, Array)
train.draft().step = 1  # error
