"""A network with leaves of every kind, and strategies that the tests of leaves share."""

import functools
import operator

import hypothesis.strategies as st
import jax
import jax.numpy as jnp

import purestate as ps
import purestate.testing as pst


class Layer(ps.State):
    kernel: jax.Array
    bias: jax.Array


class Net(ps.State):
    encoder: Layer
    layers: tuple[Layer, Layer]
    extra: dict
    key: jax.Array
    count: ps.Array = 0
    mask: object = None
    name: str = ps.static(default="net")
    size: jax.Array = ps.field(init=False)

    def __post_init__(self):
        self.size = jnp.float32(len(self.layers))


def layer(value=1.0):
    return Layer(*(jnp.full(shape, value, jnp.float32) for shape in ((2, 3), 3)))


def net(value=1.0, **changes):
    extra = {"a.b": jnp.full(2, value, jnp.float32), "flags": jnp.array([True, False])}
    layers = (layer(value + 1), layer(value + 2))
    key = jax.random.key(0)
    return Net(layer(value), layers, extra, key).replace(**changes)


def paths(tree):
    """Return the paths of the leaves that a part of a tree has."""
    found = jax.tree_util.tree_leaves_with_path(tree)
    return [jax.tree_util.keystr(path).lstrip(".") for path, _ in found]


def is_matrix(leaf):
    return leaf.ndim > 1


def is_small(leaf):
    return leaf.size < 3


def another(leaf):
    """Return a leaf of the same type with other numbers."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        bits = jax.random.key_data(leaf) ^ jnp.uint32(1)
        return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(leaf))
    if leaf.dtype == bool:
        return ~leaf
    return jnp.where(leaf == 1, 2, 1).astype(leaf.dtype)


def nets(**options):
    fields = {
        "extra": st.fixed_dictionaries(
            {"a.b": pst.arrays((2,), "float32"), "flags": pst.arrays((2,), bool)}
        )
    }
    return pst.states(Net, fields=fields, **options)


_TESTS = st.sampled_from(
    [
        "encoder",
        "layers",
        "layers.0",
        "layers.*.kernel",
        "**.bias",
        "**",
        "*",
        "extra.a*",
        "key",
        "**.[ks]*",
        is_matrix,
        is_small,
        ps.floats,
    ]
)
choices = st.recursive(
    st.lists(_TESTS, min_size=1, max_size=3).map(lambda tests: ps.leaves(*tests)),
    lambda inner: st.one_of(
        inner.map(operator.invert),
        st.builds(operator.and_, inner, inner),
        st.builds(operator.or_, inner, inner),
        st.lists(inner, min_size=1, max_size=2).map(lambda few: ps.leaves(*few)),
    ),
    max_leaves=4,
)


def bools(tree):
    return jax.tree.leaves(tree)


def total(tree):
    """Return the sum of all floats in a tree, each times its own number."""
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    parts = ((i + 2.0) * jnp.sum(x**2) for i, x in enumerate(floats))
    return functools.reduce(operator.add, parts, jnp.float32(0))
