"""A program as a user writes it: layers, training, an environment, and its mistakes."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, Final, Generic, Self, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, PRNGKeyArray

import purestate as ps

# --- layers --------------------------------------------------------------------------


class Linear(ps.State):
    weight: Float[Array, "out in"]
    bias: Float[Array, "out"] | None
    squash: Callable[[Array], Array] = ps.static(default=jnp.tanh)

    def __init__(self, size: tuple[int, int], key: PRNGKeyArray, bias: bool = True):
        self.weight = jax.random.normal(key, size[::-1])
        self.weight *= size[0] ** -0.5
        self.bias = jnp.zeros(size[1]) if bias else None

    def __call__(self, x: Array) -> Array:
        y = self.weight @ x
        return self.squash(y if self.bias is None else y + self.bias)


class Running(ps.State):
    """A mean that is updated where it is read."""

    mean: Array
    decay: Final[float]
    seen: Int[ps.Array, ""] = 0

    def __init__(self, size: int, decay: float = 0.99) -> None:
        self.mean = jnp.zeros(size)
        self.decay = decay

    def __call__(self, x: Array) -> tuple[Self, Array]:
        mean = self.decay * self.mean + (1 - self.decay) * x
        return self.replace(mean=mean, seen=self.seen + 1), x - mean


class Network(ps.State):
    running: Running
    layers: tuple[Linear, ...]

    def __init__(self, sizes: list[int], *, key: PRNGKeyArray) -> None:
        pairs = itertools.pairwise(sizes)
        keys = jax.random.split(key, len(sizes) - 1)
        self.running = Running(sizes[0])
        self.layers = tuple(Linear(p, k) for p, k in zip(pairs, keys, strict=True))

    def __call__(self, x: Array) -> tuple[Self, Array]:
        running, y = self.running(x)
        for layer in self.layers:
            y = layer(y)
        return self.replace(running=running), y


# --- training ------------------------------------------------------------------------

M = TypeVar("M", bound=ps.State)


class Momentum(ps.State, Generic[M]):
    """An optimizer for models of any class."""

    velocity: M
    rate: ps.Array = 1e-2

    @classmethod
    def start(cls, model: M, rate: ps.Array = 1e-2) -> "Momentum[M]":
        return Momentum(jax.tree.map(jnp.zeros_like, model), rate)

    def apply(self, model: M, slope: M) -> tuple[Self, M]:
        velocity = jax.tree.map(lambda v, g: 0.9 * v - self.rate * g, slope, slope)
        return self.replace(velocity=velocity), jax.tree.map(jnp.add, model, velocity)


class Training(ps.State):
    network: Network
    optimizer: Momentum[Network]
    key: PRNGKeyArray
    best: Float[ps.Array, ""] = jnp.inf
    step: ps.Array = ps.field(default=0, dtype=jnp.uint32)
    noise: float = ps.static(default=0.0, kw_only=True)
    started: ps.Array = ps.field(init=False, default=0)

    def __post_init__(self) -> None:
        self.started = self.step

    def __check__(self) -> bool:
        return bool(self.step >= self.started)

    def loss(self, x: Array, y: Array) -> tuple[Array, Network]:
        network, out = self.network(x)
        return jnp.sum((out - y) ** 2), network

    @ps.jit(donate=True)
    def advance(self, x: Array, y: Array) -> tuple[Self, Array]:
        found = ps.value_and_grad(Training.loss, lambda t: t.network, has_aux=True)
        (loss, network), slope = found(self, x, y)
        with self.draft() as new:
            new.key, key = jax.random.split(self.key)
            new.optimizer, new.network = self.optimizer.apply(network, slope)
            new.network.running.mean += self.noise * jax.random.normal(key, x.shape)
            new.best = jnp.minimum(new.best, loss)
            new.step += 1
        return new, loss


def train(seed: int, batches: list[tuple[Array, Array]]) -> Training:
    key, network_key = jax.random.split(jax.random.key(seed))
    network = Network([3, 8, 1], key=network_key)
    training = Training(network, Momentum.start(network, 1e-3), key, noise=0.1)
    for x, y in batches:
        training, loss = training.advance(x, y)
        assert loss.item() >= training.best.item()
    packed: Training = ps.pack(training)
    packed, _ = packed.advance(*batches[0])
    return training.replace(best=0.0, step=0).at(lambda t: t.optimizer.rate).set(0.1)


# --- an environment ------------------------------------------------------------------


class Cart(ps.State):
    position: Float[ps.Array, ""]
    speed: Float[ps.Array, ""] = 0.0
    done: Bool[ps.Array, ""] = False
    dt: float = ps.static(default=0.02)
    info: dict[str, ps.Array] = ps.field(default_factory=dict, kw_only=True)

    @classmethod
    def random(cls, key: PRNGKeyArray) -> Self:
        return cls(jax.random.uniform(key), info={"pushes": 0})

    @functools.cached_property
    def seen(self) -> Array:
        return jnp.stack([self.position, self.speed])

    @ps.jit
    def push(self, force: ps.Array) -> tuple[Self, Array]:
        speed = self.speed + self.dt * force
        position = self.position + self.dt * speed
        info = {**self.info, "pushes": self.info["pushes"] + 1}
        moved = self.replace(position=position, speed=speed, info=info)
        return moved.replace(done=jnp.abs(position) > 2), -jnp.abs(position)


def episode(cart: Cart, policy: Callable[[Array], Array]) -> tuple[Cart, Array]:
    def body(cart: Cart, _: None) -> tuple[Cart, Array]:
        return cart.push(policy(cart.seen))

    return jax.lax.scan(body, cart, length=10)


def many(seed: int) -> ps.Array:
    carts = ps.vmap(Cart.random)(jax.random.split(jax.random.key(seed), 4))
    axes: Any = ps.prefix(carts, 0)
    pushed, rewards = jax.vmap(lambda cart: cart.push(1.0), (axes,))(carts)
    fresh = Cart(0.5, 1, info={}).replace(speed=0.0, done=False)
    slope = ps.grad(lambda cart: cart.push(1.0)[1])(fresh)
    episode(fresh, lambda seen: -seen.sum())
    return slope.speed + rewards.sum() + pushed.position


# --- what goes wrong -----------------------------------------------------------------


class Slipped(ps.State):
    total: Array

    def __init__(self, size: int) -> None:
        self.total = str(size)  # error
        self.totl = jnp.zeros(size)  # UndeclaredFieldError when it runs


def mistakes(training: Training, cart: Cart) -> None:
    Cart()  # error
    Cart(0.0, spede=1.0)  # error
    Training(training.network, training.network, training.key)  # error
    training.step = jnp.zeros(())
    training.network.running.decay = 0.5  # error
    training.replace(nois=0.5)  # error[3.13]
    training.replace(noise="much")  # error[3.13]
    training.at(lambda t: t.network.runing)  # error
    training.advance(1.0)  # error
    with training.draft() as new:
        new.network.running.men = jnp.zeros(3)  # error
        new.noise = "much"  # error
    training.draft().noise = 1.0  # error
    ps.grad(Training.loss, has_aux=True)(training, cart.seen)  # error
    hash(cart.push(1.0)[0].sped)  # error
