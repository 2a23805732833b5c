"""`Checkpoints`: the state of a run comes back as what it was."""

import pathlib
from typing import assert_type

from jax import Array

import purestate as ps


class Train(ps.State):
    w: Array
    step: ps.Array = 0


def run(state: Train) -> None:
    with ps.Checkpoints("run", every="5 min", keep=None, background=True) as saves:
        assert_type(saves, ps.Checkpoints)
        assert_type(saves.resume(state), tuple[Train, int])
        assert_type(saves.resume(Train, allow="cast"), tuple[Train, int])
        assert_type(saves.resume({"a": state}), tuple[dict[str, Train], int])
        state, start = saves.resume(state, allow=("keep", "drop"))
        saves.offer(start + 1, state, extra=lambda: {"next": 3})
        saves.save(start + 1, state, extra=[1, 2.0, "three"])
        saves.offer("1", state)  # error
        saves.resume()  # error
    assert_type(saves.steps, list[int])
    assert_type(saves.path(3), pathlib.Path)


ps.Checkpoints(pathlib.Path("run"), every=100)
ps.Checkpoints("run", every=2.5)  # error
ps.Checkpoints("run", 100)  # error
