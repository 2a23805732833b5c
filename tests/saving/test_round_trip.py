"""Everything that a State may hold comes back as it was."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import purestate as ps


class Net(ps.State):
    w: jax.Array
    act: Any = ps.static(default=jnp.tanh)


class Train(ps.State):
    net: Net
    opt: Any
    key: jax.Array
    count: ps.Array = 0
    width: int = ps.static(default=8)


def make():
    net = Net(w=jnp.arange(6.0).reshape(2, 3))
    return Train(
        net=net, opt=optax.adam(1e-3).init(net), key=jax.random.key(0), width=9
    )


def make_like(kind):
    return {"class": lambda: Train, "instance": make}.get(
        kind, lambda: jax.eval_shape(make)
    )()


@pytest.mark.parametrize("kind", ["class", "instance", "abstract"])
def test_a_training_state_comes_back(tmp_path, kind):
    path, before = tmp_path / "t.safetensors", make()

    ps.save(path, before)
    after = ps.load(path, make_like(kind))

    assert before == after
    assert jax.tree.structure(before) == jax.tree.structure(after)


def test_a_state_goes_through_arrays_by_name():
    before = make()

    arrays, manifest = ps.to_dict(before)

    assert before == ps.from_dict(manifest, Train, arrays)


def test_what_is_beside_the_state_comes_back(tmp_path):
    path = tmp_path / "t.safetensors"

    ps.save(path, make(), extra={"epoch": 3})

    assert {"epoch": 3} == ps.load(path).extra
    np.testing.assert_array_equal(make().net.w, ps.load(path)["net"]["w"])
