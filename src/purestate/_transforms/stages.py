"""What `lower`, `trace` and `compile` return: jax's own objects, until they are called.

A compiled program donates as its function does, and calls the same host functions. So
it marks what it was given, and raises what they raise.
"""

import copy
import dataclasses
from typing import Any

import jax

from purestate._transforms.parameters import DonatedParameter
from purestate._transforms.program import Program, calling


class Traced(jax.stages.Traced):
    """What the `trace` of a function under `ps.jit` returns."""

    def lower(self, *args: Any, **options: Any) -> Any:
        """Return what `jax.stages.Traced.lower` does."""
        return staged(super().lower(*args, **options), self.__dict__["_program"])


class Lowered(jax.stages.Lowered):
    """What the `lower` of a function under `ps.jit` returns."""

    def compile(self, *args: Any, **options: Any) -> Any:
        """Return what `jax.stages.Lowered.compile` does."""
        return staged(super().compile(*args, **options), self.__dict__["_program"])


class Compiled(jax.stages.Compiled):
    """A compiled program of a function under `ps.jit`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_program"](*args, **kwargs)


_OURS: dict[type, type] = {
    jax.stages.Traced: Traced,
    jax.stages.Lowered: Lowered,
    jax.stages.Compiled: Compiled,
}


def staged(found: Any, program: Program) -> Any:
    """Return what a step towards a program gave; jax's own stages remember whose."""
    kind = _OURS.get(type(found))
    if kind is None:
        return found
    found._program = (
        _compiled(copy.copy(found), program) if kind is Compiled else program
    )
    found.__class__ = kind
    return found


def _compiled(run: Any, program: Program) -> Any:
    """Return the function that calls a compiled program.

    jax takes no static arguments there, so that later ones move up.
    """

    def moved(place: DonatedParameter) -> DonatedParameter:
        at = place.position
        at = None if at is None else at - sum(n < at for n in program.static)
        return dataclasses.replace(place, position=at, marks={})

    donated = tuple(map(moved, program.donated))
    made = dataclasses.replace(
        program, run=run, donated=donated, static=(), static_names=(), warm=False
    )
    return calling(made, program.watch.function)
