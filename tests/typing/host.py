"""What ps.host_function leaves of the types of a function."""

from typing import Any, assert_type

import jax
import jax.numpy as jnp
import numpy as np

import purestate as ps


@ps.host_function(grad="fd", vmap="threads", cache=8)
def norm(x: jax.Array) -> jax.Array:
    return jnp.asarray(np.linalg.norm(x))


@ps.host_function
def plain(x: jax.Array, scale: float = 1.0) -> jax.Array:
    return x * scale


assert_type(norm(jnp.ones(2)), jax.Array)
assert_type(plain(jnp.ones(2), scale=2.0), jax.Array)
norm("x")  # error
plain(jnp.ones(2), size=2)  # error
# ty looks for no unknown key in the keywords of a TypedDict.
ps.host_function(grd="fd")  # error[not ty]
ps.host_function(cache="8")  # error


class Cart:
    x = 0.0


def get(cart: Cart) -> float:
    return cart.x


def put(cart: Cart, state: jax.Array) -> None:
    cart.x = float(state)


def move(cart: Cart, force: jax.Array) -> None:
    cart.x += float(force)


sim = ps.HostSim(Cart, get, put, move, grad="fd", vmap="threads")
sim.step(sim.init(), jnp.ones(2))
ps.HostSim(Cart, get, put, move, grad="complex")  # error
ps.HostSim(Cart, get, put, move, vmap="batched")  # error
ps.HostSim(Cart, get, put)  # error


class World:
    observation_space = action_space = None

    def reset(self) -> None: ...
    def step(self, action: int) -> None: ...


def act(env: ps.HostEnv) -> None:
    assert_type(env.reset(0)[1], dict[str, Any])
    assert_type(env.step(0)[4], dict[str, Any])
    env.reset(1, 2)  # error


ps.HostEnv(World(), info=("x",), autoreset=True, thread="own")
ps.HostEnv(World(), thread="mine")  # error
