"""State in a jitted method: how it goes wrong, and how it goes right.

`self.cache = out` looks harmless. But jit runs the method once, with tracers in place
of arrays, and keeps what it returns: the assignment stores a tracer, and the next line
of numpy that reads it fails, far from the mistake. A method of a `State` returns the
updated instance instead.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import purestate as ps


class PlainBox:
    def __init__(self):
        self.cache = jnp.zeros(3)

    @functools.partial(jax.jit, static_argnums=0)
    def apply(self, x):
        out = 2.0 * x
        self.cache = out  # keeps a tracer, not an array
        return out


class Box(ps.State):
    cache: jax.Array

    @jax.jit
    def apply(self, x):
        out = 2.0 * x
        return self.replace(cache=out), out  # the state first, then the results


def main():
    x = jnp.arange(3.0)

    print("A plain class, with `self.cache = out` in a jitted method:")
    plain = PlainBox()
    print("  out   =", plain.apply(x))
    try:
        print("  cache =", np.asarray(plain.cache))
    except jax.errors.TracerArrayConversionError as error:
        print(f"  cache = {type(error).__name__}: {str(error).splitlines()[0]}")

    print("\nThe same on purestate.State, with `return self.replace(cache=out), out`:")
    box = Box(cache=jnp.zeros(3))
    box, out = box.apply(x)
    print("  out   =", out)
    print("  cache =", np.asarray(box.cache))


if __name__ == "__main__":
    main()
