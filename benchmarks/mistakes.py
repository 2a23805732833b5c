"""What goes wrong with each way to hold state: each claim is a program's outcome."""

import functools
import gc
import re
import textwrap
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import purestate as ps


def observed() -> list[list[str]]:
    """Return rows: the way, what was done, what happened."""
    rows = []
    for way, done, program in PROGRAMS:
        try:
            found = program()
        except Exception as error:  # noqa: BLE001  # most of them are here to fail
            text = re.sub(r" at \S+:\d+", "", str(error).splitlines()[0])
            found = f"{type(error).__name__}: {textwrap.shorten(text, 90)}"
        rows.append([way, done, found])
    return rows


class Plain:
    """An object as most people write one."""

    def __init__(self) -> None:
        self.gain, self.cache = 2.0, jnp.zeros(3)

    @functools.partial(jax.jit, static_argnums=0)
    def scaled(self, x: Any) -> Any:
        """Read a field."""
        return self.gain * x

    @functools.partial(jax.jit, static_argnums=0)
    def kept(self, x: Any) -> Any:
        """Write a field."""
        self.cache = self.gain * x
        return self.cache


def stale() -> str:
    """Change a field between two calls."""
    plain = Plain()
    before = float(plain.scaled(1.0))
    plain.gain = 3.0
    after = float(plain.scaled(1.0))
    return f"{before:g} before, {after:g} after: stale, without an error"


def lost() -> str:
    """Assign a field inside of jit."""
    plain = Plain()
    plain.kept(jnp.ones(3))
    return str(np.asarray(plain.cache))


def alive() -> str:
    """Make and drop ten objects."""
    refs = []
    for _ in range(10):
        plain = Plain()
        plain.scaled(1.0)
        refs.append(weakref.ref(plain))
    del plain
    gc.collect()
    count = sum(ref() is not None for ref in refs)
    return f"{count} of 10 are still alive, and each was a trace"


def forgotten() -> str:
    """Forget one of the assignments after the call."""
    state = {"mean": 0.0, "count": 0}
    step = jax.jit(lambda mean, count: (mean + 1, count + 1))
    for _ in range(3):
        state["mean"], _ = step(state["mean"], state["count"])
    return f"after 3 steps count is {int(state['count'])}: without an error"


def aliased_module() -> str:
    """Keep a snapshot of a module, then step."""
    from flax import nnx

    class Held(nnx.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.count = nnx.Variable(jnp.int32(0))

    def step(module: Any) -> None:
        module.count[...] = module.count[...] + 1

    module = Held()
    snapshots = []
    jitted = nnx.jit(step)
    for _ in range(3):
        jitted(module)
        snapshots.append(module)
    return f"3 snapshots: {[int(s.count[...]) for s in snapshots]}"


def aliased_reference() -> str:
    """Keep a snapshot of a reference, then step."""
    ref = jax.new_ref(jnp.int32(0))

    @jax.jit
    def step(ref: Any) -> None:
        ref[...] += 1

    snapshots = []
    for _ in range(3):
        step(ref)
        snapshots.append(ref)
    return f"3 snapshots: {[int(s[...]) for s in snapshots]}"


def returned_reference() -> str:
    """Return a reference from jit."""
    jax.jit(lambda ref: ref)(jax.new_ref(jnp.int32(0)))
    return "it is returned"


def aliased_numpy() -> str:
    """Keep snapshots of an array that is written in place."""
    count, snapshots = np.zeros(1, int), []
    for _ in range(3):
        count += 1
        snapshots.append(count)
    return f"3 snapshots: {[int(s[0]) for s in snapshots]}"


class Counter(ps.State):
    """The same in purestate."""

    count: jax.Array = 0  # type: ignore[assignment]

    @ps.jit
    def step(self) -> Any:
        """Return the next one."""
        return self.replace(count=self.count + 1)

    @ps.jit(donate=True)
    def donated(self) -> Any:
        """Return the next one, and give this one away."""
        return self.replace(count=self.count + 1)

    @ps.jit
    def wrong(self) -> Any:
        """Assign a field inside of jit."""
        self.count = self.count + 1
        return self.count


def snapshots() -> str:
    """Keep snapshots of a State."""
    counter, kept = Counter(), []
    for _ in range(3):
        counter = counter.step()
        kept.append(counter)
    return f"3 snapshots: {[int(s.count) for s in kept]}"


def assigned() -> str:
    """Assign a field of a State inside of jit."""
    return str(Counter().wrong())


def used_again() -> str:
    """Use a State that was donated."""
    counter = Counter()
    counter.donated()
    return str(counter.count)


def dropped() -> str:
    """Forget to take the result."""
    counter = Counter()
    counter.step()
    return f"count stays {int(counter.count)}: the way to lose an update here"


PROGRAMS: list[tuple[str, str, Callable[[], str]]] = [
    ("object, static self", "a field is changed between two calls", stale),
    ("object, static self", "ten objects are made, called and dropped", alive),
    ("object, static self", "a field is assigned in jit and read later", lost),
    ("object, assigned outside", "one of two assignments is forgotten", forgotten),
    ("flax.nnx", "the module is kept after each of 3 steps", aliased_module),
    ("jax.Ref", "the reference is kept after each of 3 steps", aliased_reference),
    ("jax.Ref", "a reference is returned from jit", returned_reference),
    ("numpy in place", "the array is kept after each of 3 steps", aliased_numpy),
    ("State", "the State is kept after each of 3 steps", snapshots),
    ("State", "a field is assigned in jit", assigned),
    ("State", "a donated State is used again", used_again),
    ("State", "the result of a step is dropped", dropped),
]
