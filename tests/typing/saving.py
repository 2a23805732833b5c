"""What type checkers see of `save`, `load` and their company."""

from typing import assert_type

import jax

import purestate as ps


class Train(ps.State, version=1):
    w: jax.Array
    ema: ps.Array = ps.field(default=0, was="avg")
    width: int = ps.static(default=3, was=("size", "n"))

    @staticmethod
    def __migrate__(saved: ps.Saved, version: int) -> dict[str, object]:
        return saved


def round_trip(path: str, train: Train, sharding: jax.sharding.Sharding) -> None:
    ps.save(path, train)
    ps.save(path, {"train": train}, extra={"epoch": 3})
    assert_type(ps.load(path), ps.Saved)
    assert_type(ps.load(path, Train), Train)
    assert_type(ps.load(path, train), Train)
    assert_type(ps.load(path, train, allow="cast"), Train)
    assert_type(ps.load(path, Train, allow=("cast", "drop"), sharding=sharding), Train)
    assert_type(ps.load(ps.load(path)["net"], Train), Train)
    assert_type(ps.load(path, [train]), list[Train])


def by_name(train: Train) -> None:
    arrays, manifest = ps.to_dict(train)
    assert_type(ps.from_dict(manifest, Train, arrays), Train)
    assert_type(ps.from_dict(manifest, train, lambda wanted: arrays), Train)


def abstract(path: str, make: ps.Array) -> None:
    ps.save(path, make)
    ps.load(path, jax.eval_shape(lambda: make))


ps.load()  # error
ps.save("path")  # error
