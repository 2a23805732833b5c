"""`ps.grad`: the gradient has the class of the first argument, or of what is selected."""

from typing import Any, assert_type

import jax.numpy as jnp
from jax import Array

import purestate as ps


class Net(ps.State):
    w: Array
    b: Array


class Train(ps.State):
    net: Net
    step: ps.Array = 0

    def loss(self, x: Array, scale: float = 1.0) -> Array:
        return (self.net.w * x).sum() * scale

    def both(self, x: Array) -> tuple[Array, Net]:
        return self.loss(x), self.net


train = Train(Net(jnp.ones(3), jnp.ones(3)))
x = jnp.ones(3)

assert_type(ps.grad(Train.loss)(train, x), Train)
assert_type(ps.grad(Train.loss)(train, x, scale=2.0), Train)
assert_type(ps.grad(Train.loss, wrt="net")(train, x), Train)
assert_type(ps.grad(Train.loss, ("net", "step"))(train, x), Train)
assert_type(ps.grad(Train.both, has_aux=True)(train, x), tuple[Train, Net])
assert_type(ps.value_and_grad(Train.loss)(train, x), tuple[Array, Train])
assert_type(
    ps.value_and_grad(Train.both, has_aux=True)(train, x),
    tuple[tuple[Array, Net], Train],
)


def net_of(train: Train) -> Net:
    return train.net


assert_type(ps.grad(Train.loss, net_of)(train, x), Net)
assert_type(ps.grad(Train.both, net_of, has_aux=True)(train, x), tuple[Net, Net])
assert_type(ps.value_and_grad(Train.loss, wrt=net_of)(train, x), tuple[Array, Net])
assert_type(
    ps.value_and_grad(Train.both, wrt=net_of, has_aux=True)(train, x),
    tuple[tuple[Array, Net], Net],
)
(value, net), slopes = ps.value_and_grad(Train.both, lambda t: t.net, has_aux=True)(
    train, x
)
assert_type(net, Net)
assert_type(slopes, Net)

ps.grad(lambda net: (net.w**2).sum())(train.net)
ps.value_and_grad(lambda net, y: (net.w * y).sum(), wrt="w")(train.net, x)
assert_type(ps.grad(Train.loss, argnums=1)(train, x), Any)
assert_type(ps.grad(Train.loss, argnums=(0, 1))(train, x), Any)


@ps.grad
def slope(net: Net) -> Array:
    return net.w.sum()


assert_type(slope(train.net), Net)

ps.grad(Train.loss)(train)  # error
ps.grad(Train.loss)(train, "x")  # error
ps.grad(Train.loss)(train, x, scal=2.0)  # error
ps.grad(Train.loss)(train.net, x)  # error
nett = ps.grad(Train.loss)(train, x).nett  # error
ps.grad(Train.loss, has_aux=True)(train, x)  # error
ps.grad(Train.loss, argnum=1)  # error
