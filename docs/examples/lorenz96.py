"""Forecast a weather on a ring: numba code, scanned, differentiated, in one program.

    python docs/examples/lorenz96.py [--steps 1000000] [--out FOLDER]

The model is Lorenz's of 1996: forty numbers on a circle of latitude that drive, damp
and advect each other, as chaotic as weather is [1]. One step of it is numpy code under
`numba.njit`, as anyone has it lying about, and so is the adjoint that gives its
gradient. `ps.host_function` makes them part of the compiled program:

- a climate: a million steps in one `scan`;
- a forecast: every two days the state is estimated anew from noisy measurements of
  every other number. That is 4D-Var [2], the way weather centres do it: descend the
  misfit of all measurements of two days along its gradient by the state at their start.

[1] Lorenz, "Predictability: a problem partly solved", ECMWF seminar (1996); the step of
    0.05, six hours, is of Lorenz and Emanuel, J. Atmos. Sci. 55 (1998).
[2] Le Dimet and Talagrand, Tellus A 38 (1986).
"""

import argparse
import functools
import pathlib
import time

import jax
import jax.numpy as jnp
import matplotlib.figure
import numba
import numpy as np
import optax

import purestate as ps
from showing import BLUE, INK, ORANGE, RED, plain, save

SITES, PER_DAY = 40, 4  # a step is six hours
STEP, FORCING = np.float32(0.05), np.float32(8)
WINDOW = 8  # steps of two days
NOISE = 1.0  # standard deviation of a measurement
BACKGROUND = 1.0  # and how wrong we believe a forecast of two days to be


# --- the model: numpy code ------------------------------------------------------------


@numba.njit
def slopes(x):
    """Return dx/dt."""
    out = np.empty_like(x)
    for i in range(-1, x.size - 1):  # x[-1] and x[-2] are the neighbours of x[0]
        out[i] = (x[i + 1] - x[i - 2]) * x[i - 1] - x[i] + FORCING
    return out


@numba.njit
def slopes_adjoint(x, v):
    """Return the transposed Jacobian of `slopes` at `x`, times `v`."""
    out = -v
    for i in range(-1, x.size - 1):
        out[i + 1] += x[i - 1] * v[i]
        out[i - 2] -= x[i - 1] * v[i]
        out[i - 1] += (x[i + 1] - x[i - 2]) * v[i]
    return out


@numba.njit
def step_adjoint(args, cotangent):
    """Return the gradient by the state before a step, of that by the state after it."""
    (x,) = args
    x2 = x + STEP / 2 * slopes(x)
    x3 = x + STEP / 2 * slopes(x2)
    x4 = x + STEP * slopes(x3)
    a4 = slopes_adjoint(x4, STEP / 6 * cotangent)
    a3 = slopes_adjoint(x3, STEP / 3 * cotangent + STEP * a4)
    a2 = slopes_adjoint(x2, STEP / 3 * cotangent + STEP / 2 * a3)
    a1 = slopes_adjoint(x, STEP / 6 * cotangent + STEP / 2 * a2)
    return (cotangent + a1 + a2 + a3 + a4,)


@ps.host_function(out=lambda x: x, vjp=step_adjoint)
@numba.njit
def step(x):
    """Return the state six hours later, by the rule of Runge and Kutta."""
    k1 = slopes(x)
    k2 = slopes(x + STEP / 2 * k1)
    k3 = slopes(x + STEP / 2 * k2)
    k4 = slopes(x + STEP * k3)
    return x + STEP / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


# --- what is done with it: jax code ---------------------------------------------------


@functools.partial(jax.jit, static_argnames="steps")
def climate(x, steps):
    """Return the mean and the standard deviation of the numbers over many steps."""

    def body(carry, _):
        x, total, squares = carry
        x = step(x)
        return (x, total + x.mean(), squares + (x * x).mean()), None

    zero = jnp.zeros(())
    (_, total, squares), _ = jax.lax.scan(body, (x, zero, zero), None, length=steps)
    mean = total / steps
    return mean, jnp.sqrt(squares / steps - mean**2)


def run(x, steps):
    """Return the states that follow, shape `(steps, sites)`, the first is `x`."""
    return jax.lax.scan(lambda x, _: (step(x), x), x, None, length=steps)[1]


class Cycle(ps.State):
    """Two days of a forecast that is corrected by measurements."""

    truth: ps.Array  # the weather, shape `(sites,)`
    free: ps.Array  # a forecast from the first day that nobody corrects
    forecast: ps.Array  # one that is corrected
    key: jax.Array


def misfit(x, forecast, measured):
    """Return how ill a start fits the forecast and the measurements of two days."""
    apart = (run(x, WINDOW)[:, ::2] - measured) / NOISE
    moved = (x - forecast) / BACKGROUND
    return (jnp.sum(apart**2) + jnp.sum(moved**2)) / 2


def estimate(forecast, measured, iterations=60):
    """Return the start of the two days that fits best."""
    rule = optax.adam(optax.cosine_decay_schedule(0.3, iterations))

    def descend(carry, _):
        x, memory = carry
        change, memory = rule.update(jax.grad(misfit)(x, forecast, measured), memory)
        return (optax.apply_updates(x, change), memory), None

    carry = forecast, rule.init(forecast)
    (x, _), _ = jax.lax.scan(descend, carry, None, length=iterations)
    return x


def two_days(cycle, _):
    """Measure for two days, and estimate; return the next two, and what was seen."""
    truth, free = run(cycle.truth, WINDOW), run(cycle.free, WINDOW)
    key, now = jax.random.split(cycle.key)
    measured = truth[:, ::2] + NOISE * jax.random.normal(now, truth[:, ::2].shape)
    found = run(estimate(cycle.forecast, measured), WINDOW)
    following = cycle.replace(
        truth=step(truth[-1]), free=step(free[-1]), forecast=step(found[-1]), key=key
    )
    return following, (truth, free, found)


@functools.partial(ps.jit, static_argnames="cycles")
def assimilate(key, cycles):
    """Return the weather, a free forecast, and the estimates: `(days, sites)` each."""
    first, second, third, key = jax.random.split(key, 4)
    weather = run(FORCING + jax.random.normal(first, (SITES,)), 1000)[-1]
    cycle = Cycle(
        truth=weather,
        free=weather + 0.1 * jax.random.normal(second, (SITES,)),
        forecast=weather + 3 * jax.random.normal(third, (SITES,)),
        key=key,
    )
    _, seen = jax.lax.scan(two_days, cycle, None, length=cycles)
    return [x.reshape(-1, SITES) for x in seen]


def error(found, truth):
    """Return the root mean square over the ring, one number for each time."""
    return np.sqrt(np.mean((np.asarray(found) - np.asarray(truth)) ** 2, axis=1))


# --- the picture ----------------------------------------------------------------------


def draw(truth, free, found, path):
    """Draw the three weathers over time, and how far two of them are from the first."""
    figure = matplotlib.figure.Figure((10, 6.2), layout="constrained")
    rows = figure.subplots(4, 1, sharex=True, height_ratios=[1, 1, 1, 1.3])
    days = np.arange(len(truth)) / PER_DAY
    shown = {
        "the weather": truth,
        "a forecast from almost the same state": free,
        "estimated from noisy measurements of every other site": found,
    }
    images = []
    for axes, (name, x) in zip(rows, shown.items(), strict=False):
        images.append(
            axes.pcolormesh(
                days,
                np.arange(SITES),
                np.asarray(x).T,
                cmap="RdBu_r",
                vmin=-10,
                vmax=15,
            )
        )
        axes.set_title(name, loc="left", color=INK, fontsize=10)
        axes.set_yticks([0, 20, 40])
        axes.set_ylabel("site", color=INK)
        axes.tick_params(colors=INK)
    figure.colorbar(images[0], ax=rows[:3], pad=0.01)
    axes = rows[3]
    axes.plot(days, error(free, truth), color=ORANGE, label="forecast")
    axes.plot(days, error(found, truth), color=BLUE, label="estimate")
    axes.axhline(NOISE, color=RED, linestyle="--", linewidth=1, label="a measurement")
    axes.set_yscale("log")
    axes.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
    axes.set_ylabel("error", color=INK)
    axes.set_xlabel("days", color=INK)
    axes.legend(loc="lower right", ncols=3, frameon=False, labelcolor=INK)
    plain(axes)
    save(figure, path)


def main(steps=1_000_000, cycles=20, out=None):
    """Run both, say what was found, and draw it if there is a folder for pictures."""
    print(step)
    start = jnp.full(SITES, FORCING).at[0].add(0.01)
    compiled = climate.lower(start, steps).compile()
    begun = time.perf_counter()
    mean, spread = (float(x) for x in compiled(start))
    seconds = time.perf_counter() - begun
    print(f"{steps:,} steps in {seconds:.2f} s, {seconds / steps * 1e6:.2f} us each")
    print(f"the climate: mean {mean:.2f}, standard deviation {spread:.2f}")

    truth, free, found = assimilate(jax.random.key(0), cycles)
    settled = slice(len(truth) // 3, None)
    errors = {
        "forecast": float(error(free, truth)[settled].mean()),
        "estimate": float(error(found, truth)[settled].mean()),
    }
    for name, value in errors.items():
        print(f"mean error of the {name}: {value:.2f} (a measurement: {NOISE:.2f})")
    if out is not None:
        path = pathlib.Path(out) / "lorenz96.png"
        draw(truth, free, found, path)
        print(f"picture: {path}")
    return mean, spread, errors


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Forecast a weather on a ring.")
    parser.add_argument("--steps", type=int, default=1_000_000, help="of the climate")
    parser.add_argument("--cycles", type=int, default=20, help="of two days")
    parser.add_argument("--out", default="out", help="folder of the picture")
    chosen = parser.parse_args()
    main(chosen.steps, chosen.cycles, chosen.out)
