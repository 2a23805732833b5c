"""Random State classes and instances: the one place that every law draws from.

Classes have data, static, derived and container fields, defaults and bases. They are
drawn from small pools, since jax keeps every registered class for ever.
"""

import dataclasses
import functools
from typing import NamedTuple

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np

import purestate as ps

SHAPES = [(), (0,), (1,), (3,), (2, 3)]
DTYPES = [jnp.float32, jnp.bfloat16, jnp.int32, jnp.uint8, jnp.bool_, jnp.complex64]
KINDS = ["array", "any", "list", "dict", "optional", "static", "float"]
SPECIALS = [0.0, -0.0, 1.0, -1.5, np.nan, np.inf, -np.inf]

arrays = st.builds(
    lambda shape, dtype, value: jnp.full(shape, value, dtype),
    st.sampled_from(SHAPES),
    st.sampled_from(DTYPES),
    st.sampled_from([0, 1, 2]),
) | st.builds(
    lambda shape, value: jnp.full(shape, value, jnp.float32),
    st.sampled_from(SHAPES),
    st.sampled_from(SPECIALS),
)
keys = st.builds(jax.random.key, st.integers(0, 3))
hashables = st.recursive(
    st.sampled_from([True, 1, 1.0, 0.0, -0.0, float("nan"), "a", b"a", None, int, max]),
    lambda inner: st.tuples(inner) | st.tuples(inner, inner),
    max_leaves=3,
)


@st.composite
def state_classes(draw):
    """Draw a State class with one to five fields, half of the time with a base."""
    kinds = tuple(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4)))
    return _make_class(kinds, draw(st.booleans()), draw(st.booleans()))


@functools.cache
def _make_class(kinds, derived, inherits):
    annotations = {
        "array": jax.Array,
        "any": object,
        "list": list,
        "dict": dict,
        "optional": jax.Array | None,
        "static": object,
        "float": float,
    }
    body = {"__module__": __name__, "__annotations__": {}}
    for i, kind in enumerate(kinds):
        body["__annotations__"][f"f{i}"] = annotations[kind]
        if kind == "static":
            body[f"f{i}"] = ps.static()
    if derived:
        body["__annotations__"]["made"] = object
        body["made"] = ps.field(init=False)
        data = [f"f{i}" for i, kind in enumerate(kinds) if kind != "static"]
        body["__post_init__"] = lambda self: setattr(
            self, "made", tuple(getattr(self, name) for name in data[:1])
        )
    split = len(kinds) // 2 if inherits else 0
    base = ps.State
    if split:
        names = [f"f{i}" for i in range(split)]
        base = type(
            "Base",
            (ps.State,),
            {
                "__module__": __name__,
                "__annotations__": {n: body["__annotations__"].pop(n) for n in names},
                **{n: body.pop(n) for n in names if n in body},
            },
        )
    cls = type("Drawn", (base,), body)
    cls.kinds = kinds
    return cls


@st.composite
def states(draw):
    """Draw an instance of a drawn class."""
    cls = draw(state_classes())
    return cls(**{f"f{i}": draw(values(kind)) for i, kind in enumerate(cls.kinds)})


def values(kind):
    """Return the strategy of what a field of that kind may hold."""
    return {
        "array": arrays | keys,
        "any": arrays | st.none() | st.just(Leafless()) | st.builds(Nested, arrays),
        "list": st.lists(arrays, max_size=2),
        "dict": st.dictionaries(st.sampled_from("ab"), arrays, max_size=2),
        "optional": arrays | st.none(),
        "static": hashables,
        "float": st.sampled_from([0.5, 1.0]),
    }[kind]


class Nested(ps.State):
    inner: jax.Array
    tag: str = ps.static(default="t")


class Leafless(ps.State):
    tag: str = ps.static(default="t")


class Pair(NamedTuple):
    first: object
    second: object = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Plain:
    held: object


class Branch(ps.State):
    left: object
    right: object = None
    tag: str = ps.static(default="t")


host_arrays = st.builds(
    lambda shape, dtype, value: np.full(shape, value, dtype),
    st.sampled_from(SHAPES),
    st.sampled_from([np.float32, np.int8, np.complex64]),
    st.sampled_from([0, 1, 2]),
) | st.builds(np.full, st.sampled_from(SHAPES), st.just(np.nan))
trees = st.recursive(
    arrays | keys | host_arrays | st.none(),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
        | st.builds(Plain, inner)
        | st.builds(Branch, inner, inner, st.sampled_from("tu"))
    ),
    max_leaves=6,
)
branches = st.builds(Branch, trees, trees, st.sampled_from("tu"))
