"""What tests of host functions share: a numpy function with all kinds of rules."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import purestate as ps

SOURCES = ["fd", "fd-forward", "complex", "jvp", "vjp", "jac"]


class Out(ps.State):
    total: jax.Array
    parts: dict
    name: str = ps.static(default="out")


def scalar(dtype=jnp.float32):
    return jax.ShapeDtypeStruct((), dtype)


def ways(fn):
    """Return the function called directly, and from a compiled program."""
    return fn, jax.jit(fn)


def model(np, x, y):
    """Compute two results of two arguments, with numpy or with jax.numpy."""
    return np.sin(x) * np.sum(y), {"q": np.sum(x * x) * y}


def jvp(args, tangents):
    (x, y), (dx, dy) = args, tangents
    return (
        np.cos(x) * dx * np.sum(y) + np.sin(x) * np.sum(dy),
        {"q": 2 * np.sum(x * dx) * y + np.sum(x * x) * dy},
    )


def vjp(args, cotangent):
    (x, y), (c, d) = args, cotangent
    d = d["q"]
    return (
        c * np.cos(x) * np.sum(y) + 2 * x * np.sum(d * y),
        np.full_like(y, np.sum(c * np.sin(x))) + np.sum(x * x) * d,
    )


def jac(x, y):
    eye = np.eye(x.size).reshape(x.shape * 2)
    first = eye * np.cos(x) * np.sum(y)
    second = np.multiply.outer(np.sin(x), np.ones_like(y))
    same = np.eye(y.size).reshape(y.shape * 2)
    return (
        (first, second),
        {"q": (np.multiply.outer(y, 2 * x), np.sum(x * x) * same)},
    )


RULES = {"jvp": jvp, "vjp": vjp, "jac": jac}


def host(source, **options):
    """Return the model as a host function with derivatives from the source."""
    rule = {source: RULES[source]} if source in RULES else {"grad": source}
    options.setdefault("out", lambda x, y: (x, {"q": y}))
    return ps.host_function(
        functools.partial(model, np), name="model", **rule, **options
    )


def reference(x, y):
    return model(jnp, x, y)


def total(fn):
    return lambda *args: sum(
        jnp.sum(jnp.cos(leaf)) for leaf in jax.tree.leaves(fn(*args))
    )


def agree(expected, found, atol=2e-3):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(b, a, rtol=atol, atol=atol),
        expected,
        found,
    )


def x64():
    """Return a context in which numbers have double precision."""
    home = jax if hasattr(jax, "enable_x64") else jax.experimental
    return home.enable_x64(True)
