"""Fit the rate of an epidemic through scipy's ODE solver, inside of a jitted loop.

    python docs/examples/host_numpy.py

scipy integrates the model (S, I, R) and, beside it, how its solution moves with the two
parameters. That is the Jacobian that JAX asks for, so the whole fit is one program:
jitted, vmapped over starting points, and differentiated.
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

import purestate as ps

DAYS = np.linspace(0, 60, 31)
START = np.array([0.99, 0.01, 0.0])


def slopes(_, y, beta, gamma):
    """Return dy/dt, for the three groups and for their two sensitivities."""
    s, i, _ = y[:3]
    flow = np.array([-beta * s * i, beta * s * i - gamma * i, gamma * i])
    by_y = np.array(
        [[-beta * i, -beta * s, 0], [beta * i, beta * s - gamma, 0], [0, gamma, 0]]
    )
    by_p = np.array([[-s * i, 0], [s * i, -i], [0, i]])
    return np.concatenate([flow, (by_y @ y[3:].reshape(3, 2) + by_p).ravel()])


def integrate(params):
    """Return infected people per day, and their derivatives by the parameters."""
    y = np.concatenate([START, np.zeros(6)])
    options = {"t_eval": DAYS, "rtol": 1e-8, "atol": 1e-10, "args": tuple(params)}
    found = solve_ivp(slopes, (DAYS[0], DAYS[-1]), y, **options).y
    return found[1], found[5:7].T


@ps.host_function(
    out=jax.ShapeDtypeStruct(DAYS.shape, jnp.float32),
    jac=lambda params: integrate(params)[1],
    upcast=True,
    cache=64,
)
def infected(params):
    """Return infected people per day for `params`, the rates of infection and cure."""
    return integrate(params)[0]


def loss(params, data):
    """Return the squared distance to the data, in logarithms."""
    return jnp.mean((jnp.log(infected(params)) - jnp.log(data)) ** 2)


@ps.jit
def fit(params, data):
    """Return the parameters after 20 steps of Gauss and Newton."""

    def step(params, _):
        residual = lambda p: jnp.log(infected(p)) - jnp.log(data)  # noqa: E731
        jac = jax.jacfwd(residual)(params)
        move = jnp.linalg.solve(
            jac.T @ jac + 1e-3 * jnp.eye(2), jac.T @ residual(params)
        )
        return jnp.clip(params - 0.5 * move, 0.02, 1.0), loss(params, data)

    return jax.lax.scan(step, params, None, length=20)


def gradient_error(params, data):
    """Return how far the gradient is from central differences, relative to it."""
    found = np.asarray(jax.jit(jax.grad(loss))(params, data), float)
    logs = np.log(np.asarray(data, float))

    def exact(p):
        return np.mean((np.log(integrate(p)[0]) - logs) ** 2)

    steps = 1e-5 * np.eye(2)
    p = np.asarray(params, float)
    expected = np.array([(exact(p + h) - exact(p - h)) / 2e-5 for h in steps])
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def main():
    """Fit from four starting points and print what was found."""
    truth = jnp.array([0.4, 0.12])
    data = infected(truth)
    starts = jnp.array([[0.3, 0.1], [0.5, 0.2], [0.35, 0.15], [0.45, 0.08]])
    error = gradient_error(starts[0], data)
    print(f"gradient against differences: relative error {error:.1e}")
    found, losses = jax.vmap(fit, (0, None))(starts, data)
    for start, end, values in zip(starts, found, losses, strict=True):
        print(
            f"from beta {start[0]:.2f}, gamma {start[1]:.2f}: "
            f"beta {end[0]:.3f}, gamma {end[1]:.3f}, loss {values[0]:.1e} -> "
            f"{values[-1]:.1e}"
        )
    return error, np.asarray(found), np.asarray(truth)


if __name__ == "__main__":
    main()
