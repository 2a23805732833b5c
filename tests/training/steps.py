"""A model with leaves of every kind, factories, and a State that trains it."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

import purestate as ps
from purestate.optax import Optimizer


class Layer(ps.State):
    kernel: jax.Array
    bias: jax.Array


class Net(ps.State):
    layers: list
    key: jax.Array
    count: ps.Array = 0
    scale: float = 2.0
    dim: int = ps.static(default=1)
    size: jax.Array = ps.field(init=False)

    def __post_init__(self):
        self.size = jnp.float32(len(self.layers))


FLOATS = ps.floats & ~ps.leaves("scale", "size")
X = jnp.ones((4, 2))


def net():
    layers = [Layer(jnp.ones((2, 3)) * (0.3 + i), jnp.ones(3) * 0.1) for i in range(2)]
    return Net(layers, jax.random.key(0))


def loss(model, x):
    out = [(x @ layer.kernel + layer.bias) ** 2 for layer in model.layers]
    return sum(part.sum() for part in out) * model.scale


class Train(ps.State):
    net: Net
    opt: Optimizer

    def __init__(self, make=optax.adam, *args, wrt=FLOATS, **kwargs):
        self.net = net()
        self.opt = Optimizer(self.net, make, *args, wrt=wrt, **kwargs)

    @ps.jit
    def step(self, x):
        value, grads = ps.value_and_grad(loss, wrt=self.opt.wrt)(self.net, x)
        opt, model = self.opt.update(self.net, grads=grads)
        return self.replace(net=model, opt=opt), value

    @ps.jit(donate=True)
    def donated(self, x):
        return Train.step.__wrapped__(self, x)


def cosine(rate, steps):
    return optax.adamw(optax.cosine_decay_schedule(rate, steps))


def clipped(rate, norm):
    return optax.chain(optax.clip_by_global_norm(norm), optax.adam(rate))


def accumulated(rate, every):
    return optax.MultiSteps(optax.adam(rate), every)


def with_extras(rate, /, *clips, **named):
    return optax.chain(*map(optax.clip, clips), optax.adam(rate, **named))


def halving(step):
    return 0.1 / (1 + step)


@jax.jit
def jitted(step):
    return 0.1 / (1 + step)


constant = lambda step: 0.1  # noqa: E731


class Schedules:
    @staticmethod
    def fixed(step):
        return 0.1

    @classmethod
    def of_class(cls, step):
        return 0.1

    def own(self, step):
        return 0.1


@dataclasses.dataclass(frozen=True)
class Warmup:
    peak: float

    def __call__(self, step):
        return self.peak / (1 + step)

    def scaled(self, step):
        return self.peak / (2 + step)


@dataclasses.dataclass(frozen=True)
class Maker:
    momentum: float

    def __call__(self, rate):
        return optax.sgd(rate, self.momentum)


def matrices(x):
    return jnp.ndim(x) > 1
