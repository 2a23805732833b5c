"""The types of an optimizer: the params come back in their own class."""

from typing import Any, assert_type

import jax

import purestate as ps
from purestate.optax import Optimizer


class Net(ps.State):
    w: jax.Array


def make(rate: float, mask: Any = None) -> Any: ...


def advance(net: Net, opt: Optimizer) -> Net:
    assert_type(opt.update(net, grads=net), tuple[Optimizer, Net])
    opt.update(net, net)  # error
    opt.update(net)  # error
    opt, net = opt.update(net, grads=net, value=0.0)
    return net


Optimizer(Net(jax.numpy.ones(3)), make, 1e-3, mask=~ps.leaves("w"), wrt="w")
Optimizer(Net(jax.numpy.ones(3)), make, wrt=3)  # error
