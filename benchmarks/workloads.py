"""Five programs with state, as a pure step and as one that writes into numpy arrays.

A workload is a dict of arrays and what one step does to it; `ways` tells how the dict
is held. A step's input comes from a counter in the state: the same numbers in all ways.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Arrays = dict[str, Any]
DIM, BATCH, ROW = 32, 32, 64
LAYERS, TOKENS, HEAD = 4, 512, 64
PARTICLES = 256


@dataclass(frozen=True)
class Workload:
    """One program.

    Attributes:
        name: its title.
        sizes: titles of its sizes, each with what `start` takes.
        start: returns the arrays of a new state, in numpy.
        step: returns the next state's arrays and a result.
        in_place: the same, written into numpy arrays; returns the result.
        in_ref: the same, written into references of jax, where that is shorter than
            to write every array as a whole.
    """

    name: str
    sizes: dict[str, int]
    start: Callable[[int], Arrays]
    step: Callable[[Arrays], tuple[Arrays, Any]]
    in_place: Callable[[Arrays], Any]
    in_ref: Callable[[Arrays], Any] | None = None


def zeros(*shape: int) -> np.ndarray:
    """Return float32 zeros."""
    return np.zeros(shape, np.float32)


# --- counter and running statistics -------------------------------------------------


def statistics_start(size: int) -> Arrays:
    """Return a count, a mean and a sum of squared distances."""
    return {"count": np.int32(0), "mean": zeros(size), "m2": zeros(size)}


def statistics_step(s: Arrays) -> tuple[Arrays, Any]:
    """Take one more observation (Welford)."""
    count = s["count"] + 1
    x = jnp.sin(count + jnp.arange(s["mean"].size, dtype=jnp.float32))
    before = x - s["mean"]
    mean = s["mean"] + before / count
    return {"count": count, "mean": mean, "m2": s["m2"] + before * (x - mean)}, mean


def statistics_in_place(s: Arrays) -> Any:
    """Do the same to numpy arrays."""
    s["count"] += 1
    x = np.sin(s["count"] + np.arange(s["mean"].size, dtype=np.float32))
    before = x - s["mean"]
    s["mean"] += before / np.float32(s["count"])
    s["m2"] += before * (x - s["mean"])
    return s["mean"]


# --- Adam on a network of two layers ------------------------------------------------


def network_start(size: int) -> Arrays:
    """Return parameters, both moments and a count: 13 arrays."""
    draw = np.random.default_rng(0)
    shapes = {"w1": (DIM, size), "b1": (size,), "w2": (size, 1), "b2": (1,)}
    made: Arrays = {"count": np.int32(0)}
    for name, shape in shapes.items():
        made[name] = draw.normal(0, 0.1, shape).astype(np.float32)
        made[f"m_{name}"], made[f"v_{name}"] = zeros(*shape), zeros(*shape)
    return made


PARAMETERS = ("w1", "b1", "w2", "b2")


def network_step(s: Arrays) -> tuple[Arrays, Any]:
    """Make one step of Adam on a batch that the count determines."""
    count = s["count"] + 1
    grid = jnp.arange(BATCH * DIM, dtype=jnp.float32).reshape(BATCH, DIM)
    x = jnp.sin(grid * 0.1 + count)
    y = x[:, :1] * x[:, 1:2]

    def loss(p: Arrays) -> Any:
        hidden = jnp.tanh(x @ p["w1"] + p["b1"])
        return jnp.mean((hidden @ p["w2"] + p["b2"] - y) ** 2)

    value, grads = jax.value_and_grad(loss)({n: s[n] for n in PARAMETERS})
    new = {"count": count}
    for n in PARAMETERS:
        m = 0.9 * s[f"m_{n}"] + 0.1 * grads[n]
        v = 0.999 * s[f"v_{n}"] + 0.001 * grads[n] ** 2
        scale = jnp.sqrt(v / (1 - 0.999**count)) + 1e-4
        new[n] = s[n] - 1e-3 * m / (1 - 0.9**count) / scale
        new[f"m_{n}"], new[f"v_{n}"] = m, v
    return new, value


def network_in_place(s: Arrays) -> Any:
    """Do the same to numpy arrays, with the derivatives by hand."""
    s["count"] += 1
    count = np.float32(s["count"])
    grid = np.arange(BATCH * DIM, dtype=np.float32).reshape(BATCH, DIM)
    x = np.sin(grid * np.float32(0.1) + count)
    y = x[:, :1] * x[:, 1:2]
    hidden = np.tanh(x @ s["w1"] + s["b1"])
    error = hidden @ s["w2"] + s["b2"] - y
    out = 2 * error / np.float32(BATCH)
    inner = (out @ s["w2"].T) * (1 - hidden**2)
    grads = {"w1": x.T @ inner, "b1": inner.sum(0)}
    grads |= {"w2": hidden.T @ out, "b2": out.sum(0)}
    for n in PARAMETERS:
        m, v = s[f"m_{n}"], s[f"v_{n}"]
        m *= np.float32(0.9)
        m += np.float32(0.1) * grads[n]
        v *= np.float32(0.999)
        v += np.float32(0.001) * grads[n] ** 2
        scale = np.sqrt(v / np.float32(1 - 0.999**count)) + np.float32(1e-4)
        s[n] -= np.float32(1e-3) * m / np.float32(1 - 0.9**count) / scale
    return np.mean(error**2)


# --- replay buffer ------------------------------------------------------------------


def replay_start(size: int) -> Arrays:
    """Return a buffer of `size` bytes in rows of 64 floats, and a count."""
    return {"count": np.uint32(0), "rows": zeros(max(1, size // (4 * ROW)), ROW)}


def replay_step(s: Arrays) -> tuple[Arrays, Any]:
    """Push one row, sample 32 at scattered places."""
    count, rows = s["count"], s["rows"]
    capacity = jnp.uint32(rows.shape[0])
    row = jnp.full((1, ROW), count, jnp.float32)
    rows = jax.lax.dynamic_update_slice(rows, row, (count % capacity, jnp.uint32(0)))
    places = jnp.arange(32, dtype=jnp.uint32) * jnp.uint32(7919) + count
    sample = rows[places % capacity]
    return {"count": count + jnp.uint32(1), "rows": rows}, sample.sum(0)


def replay_in_place(s: Arrays) -> Any:
    """Do the same to a numpy array."""
    count, rows = s["count"], s["rows"]
    capacity = np.uint32(len(rows))
    rows[count % capacity] = count
    places = np.arange(32, dtype=np.uint32) * np.uint32(7919) + count
    s["count"] = count + np.uint32(1)
    return rows[places % capacity].sum(0)


def replay_in_ref(s: Arrays) -> Any:
    """Do the same to a reference of jax."""
    count, rows = s["count"][...], s["rows"]
    capacity = jnp.uint32(rows.shape[0])
    rows[count % capacity] = jnp.full(ROW, count, jnp.float32)
    places = jnp.arange(32, dtype=jnp.uint32) * jnp.uint32(7919) + count
    s["count"][...] = count + jnp.uint32(1)
    return rows[places % capacity].sum(0)


# --- particles ----------------------------------------------------------------------


def particles_start(size: int) -> Arrays:
    """Return positions and velocities."""
    draw = np.random.default_rng(0)
    shape = size, 3
    position = draw.normal(size=shape).astype(np.float32)
    return {"position": position, "velocity": zeros(*shape)}


def particles_step(s: Arrays) -> tuple[Arrays, Any]:
    """Make one leapfrog step in a well that pulls to the origin."""
    velocity = s["velocity"] - 0.005 * s["position"]
    position = s["position"] + 0.01 * velocity
    velocity = velocity - 0.005 * position
    return {"position": position, "velocity": velocity}, position[0]


def particles_in_place(s: Arrays) -> Any:
    """Do the same to numpy arrays."""
    s["velocity"] -= np.float32(0.005) * s["position"]
    s["position"] += np.float32(0.01) * s["velocity"]
    s["velocity"] -= np.float32(0.005) * s["position"]
    return s["position"][0]


# --- cache of keys and values -------------------------------------------------------


def cache_start(size: int) -> Arrays:
    """Return keys and values of 4 layers, and how many tokens are in there."""
    made: Arrays = {"count": np.int32(0)}
    for i in range(LAYERS):
        made[f"k{i}"], made[f"v{i}"] = zeros(size, HEAD), zeros(size, HEAD)
    return made


def cache_step(s: Arrays) -> tuple[Arrays, Any]:
    """Append one token to every layer, and attend to all of them."""
    count, new = s["count"], {"count": s["count"] + 1}
    x = jnp.sin(jnp.arange(HEAD, dtype=jnp.float32) + count)
    for i in range(LAYERS):
        at = count % s["k0"].shape[0], 0
        k = jax.lax.dynamic_update_slice(s[f"k{i}"], x[None], at)
        v = jax.lax.dynamic_update_slice(s[f"v{i}"], x[None] * 0.5, at)
        x = jax.nn.softmax(k @ x / HEAD) @ v
        new[f"k{i}"], new[f"v{i}"] = k, v
    return new, x


def cache_in_place(s: Arrays) -> Any:
    """Do the same to numpy arrays."""
    x = np.sin(np.arange(HEAD, dtype=np.float32) + np.float32(s["count"]))
    for i in range(LAYERS):
        k, v = s[f"k{i}"], s[f"v{i}"]
        at = s["count"] % len(k)
        k[at], v[at] = x, x * np.float32(0.5)
        weights = k @ x / np.float32(HEAD)
        weights = np.exp(weights - weights.max())
        x = (weights / weights.sum()) @ v
    s["count"] += 1
    return x


def cache_in_ref(s: Arrays) -> Any:
    """Do the same to references of jax."""
    count = s["count"][...]
    x = jnp.sin(jnp.arange(HEAD, dtype=jnp.float32) + count)
    for i in range(LAYERS):
        at = count % s["k0"].shape[0]
        s[f"k{i}"][at], s[f"v{i}"][at] = x, x * 0.5
        x = jax.nn.softmax(s[f"k{i}"][...] @ x / HEAD) @ s[f"v{i}"][...]
    s["count"][...] = count + 1
    return x


KIB = 1 << 10
WORKLOADS = (
    Workload(
        "running statistics",
        {"8 floats": 8},
        statistics_start,
        statistics_step,
        statistics_in_place,
    ),
    Workload(
        "Adam on an MLP",
        {"32 x 64 x 1": 64},
        network_start,
        network_step,
        network_in_place,
    ),
    Workload(
        "replay buffer",
        {
            "1 KiB": KIB,
            "1 MiB": KIB * KIB,
            "16 MiB": 16 * KIB * KIB,
            "256 MiB": 256 * KIB * KIB,
        },
        replay_start,
        replay_step,
        replay_in_place,
        replay_in_ref,
    ),
    Workload(
        "particles",
        {"256 of them": PARTICLES},
        particles_start,
        particles_step,
        particles_in_place,
    ),
    Workload(
        "key/value cache",
        {"4 x 512 x 64": TOKENS},
        cache_start,
        cache_step,
        cache_in_place,
        cache_in_ref,
    ),
)
