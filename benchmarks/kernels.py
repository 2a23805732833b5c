"""What the ways of calling numba's code are timed on: small functions, weather, sand.

Needs numba, and is imported only to measure: the page is made without it.
"""

import itertools
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "docs" / "examples"))

import jax
import jax.numpy as jnp
import numba
import numpy as np

import lorenz96

SIDE = 64  # of the sandpile


@numba.njit
def add_one(x):
    """Compute the least that touches every number."""
    return x + np.float32(1)


@numba.njit
def slow(x):
    """Compute for about 20 us."""
    y = x.copy()
    for _ in range(1000):
        y = np.sin(y)
    return y


def closure():
    """Return a function that nobody has compiled yet."""
    factor = np.float32(next(_counter))

    @numba.njit
    def scaled(x):
        return x * factor

    return scaled


_counter = itertools.count(1)


@numba.njit
def fail(x):
    """Raise, always."""
    if x.size:
        raise ValueError("as it should")
    return x


@numba.njit
def cubed(x):
    """Return the cubes."""
    return x * x * x


@numba.njit
def cubed_vjp(args, cotangent):
    """Return the gradient of `cubed`."""
    return (np.float32(3) * args[0] * args[0] * cotangent,)


@numba.njit
def drop(sand, place):
    """Drop a grain, and let every heap of four fall to its neighbours until none is.

    Bak, Tang and Wiesenfeld, Phys. Rev. Lett. 59 (1987); what falls from the edge is
    gone. Only what moves is looked at, with a stack, which jax cannot spell.
    """
    side = sand.shape[0]
    sand = sand.copy()
    stack = np.empty(8 * side * side, np.int32)
    stack[0], top = place, 1
    sand[place // side, place % side] += 1
    fallen = 0
    while top:
        top -= 1
        i, j = stack[top] // side, stack[top] % side
        if sand[i, j] < 4:
            continue
        sand[i, j] -= 4
        fallen += 1
        for k, m in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)):
            if 0 <= k < side and 0 <= m < side:
                sand[k, m] += 1
                if sand[k, m] == 4:
                    stack[top] = k * side + m
                    top += 1
        if sand[i, j] >= 4:
            stack[top] = i * side + j
            top += 1
    return sand, np.int32(fallen)


def drop_in_jax(sand: Any, place: Any) -> Any:
    """Compute the same with whole arrays: all heaps of four fall at once."""

    def fall(carry: Any) -> Any:
        sand, fallen = carry
        moving = (sand >= 4).astype(sand.dtype)
        around = jnp.pad(moving, 1)
        gained = around[:-2, 1:-1] + around[2:, 1:-1]
        gained += around[1:-1, :-2] + around[1:-1, 2:]
        return sand - 4 * moving + gained, fallen + moving.sum(dtype=jnp.int32)

    sand = sand.at[place // SIDE, place % SIDE].add(1)
    start = sand, jnp.int32(0)
    return jax.lax.while_loop(lambda carry: (carry[0] >= 4).any(), fall, start)


def step_in_jax(x: Any) -> Any:
    """Return the state of Lorenz's model after a step."""

    def slopes(x: Any) -> Any:
        ahead, behind, far = jnp.roll(x, -1), jnp.roll(x, 1), jnp.roll(x, 2)
        return (ahead - far) * behind - x + lorenz96.FORCING

    h = lorenz96.STEP
    k1 = slopes(x)
    k2 = slopes(x + h / 2 * k1)
    k3 = slopes(x + h / 2 * k2)
    k4 = slopes(x + h * k3)
    return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
