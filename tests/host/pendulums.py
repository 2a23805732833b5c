"""A simulator of a pendulum, and its step in jax.numpy, for the tests of HostSim."""

import jax
import jax.numpy as jnp
import numpy as np

import purestate as ps


class Pendulum:
    """A pendulum in double precision, pushed by a torque."""

    def __init__(self):
        self.angle = np.array([0.5])
        self.speed = np.zeros(1)
        self.count = 0

    def step(self, torque):
        self.count += 1
        self.speed += 0.05 * (torque - np.sin(self.angle))
        self.angle += 0.05 * self.speed


def get(sim):
    return {"angle": sim.angle, "speed": sim.speed}


def set_(sim, state):
    sim.angle[:] = state["angle"]
    sim.speed[:] = state["speed"]


def reference(state, torque):
    speed = state["speed"] + 0.05 * (torque - jnp.sin(state["angle"]))
    return {"angle": state["angle"] + 0.05 * speed, "speed": speed}


def vjp(sim, args, cotangent):
    assert isinstance(sim, Pendulum)
    state, _ = args
    assert state["angle"].dtype == np.float64
    on_speed = cotangent["speed"] + 0.05 * cotangent["angle"]
    return (
        {
            "angle": cotangent["angle"] - 0.05 * np.cos(state["angle"]) * on_speed,
            "speed": on_speed,
        },
        0.05 * on_speed,
    )


def jvp(sim, args, tangents):
    (state, _), (moved, push) = args, tangents
    speed = moved["speed"] + 0.05 * (push - np.cos(state["angle"]) * moved["angle"])
    return {"angle": moved["angle"] + 0.05 * speed, "speed": speed}


def jac(sim, state, torque):
    columns = [
        jvp(
            sim,
            (state, torque),
            ({"angle": np.array([a]), "speed": np.array([b])}, np.array([c])),
        )
        for a, b, c in np.eye(3)
    ]
    return {
        name: (
            {"angle": columns[0][name][:, None], "speed": columns[1][name][:, None]},
            columns[2][name][:, None],
        )
        for name in ("angle", "speed")
    }


def pendulum(**options):
    return ps.HostSim(Pendulum, get, set_, Pendulum.step, **options)


def rolled(step, state, torques):
    return jax.lax.scan(lambda s, u: (step(s, u), s["angle"]), state, torques)


TORQUES = jnp.linspace(-1, 1, 7).reshape(7, 1)
