"""Files that releases have written are read for ever.

`python -m tests.saving.test_golden` writes the file of the present format anew, which is
done once a release, under a new name, and never for one that is there.
"""

import dataclasses
import enum
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps

FOLDER = pathlib.Path(__file__).parent / "golden"


class Act(enum.Enum):
    RELU = "relu"


class Moments(NamedTuple):
    mu: Any
    nu: Any


@dataclasses.dataclass(frozen=True)
class Config:
    depth: int
    act: Act = Act.RELU


class Net(ps.State):
    w: jax.Array
    act: Act = ps.static(default=Act.RELU)


class Golden(ps.State, version=3):
    net: Net
    moments: Moments
    many: dict
    keys: jax.Array
    weak: jax.Array
    numbers: tuple
    empty: jax.Array
    act: Any = ps.static(default=jnp.tanh)
    dtype: Any = ps.static(default=jnp.bfloat16)
    sizes: tuple = ps.static(default=())
    rate: float = ps.static(default=0.0)
    config: Config = ps.static(default=Config(1))


def golden():
    dtypes = (
        "bool int4 int8 uint16 int32 float16 bfloat16 float32 float8_e4m3fn complex64"
    )
    wide = "int64 float64 complex128"
    net = Net(w=jnp.arange(6.0).reshape(2, 3) / 8)
    return Golden(
        net=net,
        moments=Moments(mu=net, nu=[net.w, None]),
        many={dtype: jnp.ones((2, 1), dtype) for dtype in dtypes.split()}
        | {dtype: np.arange(3).astype(dtype) for dtype in wide.split()},
        keys=jax.random.split(jax.random.key(7), 3),
        weak=jnp.asarray(2.5),
        numbers=(True, 2**80, 0.1, float("-inf"), 1j, "é", np.float32(0.1)),
        empty=jnp.zeros((0, 3)),
        sizes=(1, ("a", b"b", slice(2)), frozenset({3})),
        rate=float("nan"),
        config=Config(3),
    )


@pytest.mark.parametrize("like", ["class", "instance", "abstract"])
@pytest.mark.parametrize(
    "path", sorted(FOLDER.glob("*.safetensors")), ids=lambda p: p.stem
)
def test_a_file_of_an_earlier_release_is_read(path, like):
    expected = golden()
    likes = {"class": Golden, "instance": expected}

    if like == "abstract":  # a text has no shape
        saved = ps.load(path)
        found = ps.load(saved["net"], jax.eval_shape(lambda: expected.net))
        assert expected.net == found
        return
    found = ps.load(path, likes[like])

    assert expected == found
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    assert found.moments.mu.w is found.net.w
    assert found.weak.weak_type


def test_a_file_of_each_format_is_there():
    assert ["format_1"] == [path.stem for path in sorted(FOLDER.glob("*.safetensors"))]


def test_the_present_format_is_that_of_the_golden_file(tmp_path):
    ps.save(tmp_path / "t", golden(), extra={"release": "0.1.0"})

    assert (FOLDER / "format_1.safetensors").read_bytes() == (
        (tmp_path / "t").read_bytes()
    )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    # Its classes have the module that they have in the tests.
    from tests.saving.test_golden import golden

    ps.save(FOLDER / "format_1.safetensors", golden(), extra={"release": "0.1.0"})
