"""Functions of numba that several tests share: each is compiled once for its types."""

import jax
import numpy as np
import pytest

import purestate as ps

numba = pytest.importorskip("numba", reason="needs the extra `numba`")


@numba.njit
def triple(x):
    return x * 3


@numba.njit
def unpack(a, rest):
    b, c = rest
    return a * b.sum(), None, (c.size, b[0] > 1, np.sin(b))


@numba.njit
def fail(x):
    if x[0] < 0:
        raise ValueError("negative", x[0])
    if x[0] == 7:
        return x[:1].copy()
    return x + x


class Diverged(Exception):
    pass


@numba.njit
def raising(x):
    if x[0] == 1:
        raise Diverged("too large", x[1])
    if x[0] == 2:
        assert x[1] > 100, "an assertion"
    if x[0] == 3:
        return x / 0 if x.size == 0 else x * (1 // int(x[2]))
    if x[0] == 4:
        return np.linalg.solve(np.zeros((3, 3), np.float32), x)
    return x


def is_native(function, *args):
    """Return whether the program of a function has native operations and no other."""
    text = jax.jit(function).lower(*args).as_text()
    return "purestate/" in text and "python_cpu_callback" not in text


def both_ways(monkeypatch, function, *args):
    """Return what a function gives natively and by callbacks, having seen that it is.

    Args:
        monkeypatch: sets the environment.
        function: not jitted yet.
        *args: its arguments.
    """
    found = []
    for lowering, expected in (("native", True), ("pure", False)):
        monkeypatch.setenv("PURESTATE_HOST_LOWERING", lowering)
        jax.clear_caches()
        assert is_native(function, *args) == expected
        found.append(jax.tree.leaves(jax.jit(function)(*args)))
    return found


def assert_same(monkeypatch, function, *args):
    """Assert that a function gives the same bits natively and by callbacks."""
    native, callback = both_ways(monkeypatch, function, *args)
    assert len(native) == len(callback) > 0
    for one, other in zip(native, callback, strict=True):
        assert one.dtype == other.dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def host(function, **options):
    return ps.host_function(function, **options)
