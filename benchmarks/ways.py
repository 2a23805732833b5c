"""Ways to hold the state of a program, from pure to mutable; each runs any workload.

Each way is a class with `step()`, which makes one step and waits for it, and
`arrays()`, the state as numpy arrays. A way that makes many steps in one call says how
many in `steps`. `traces` counts how often jax has run the Python code.
"""

import functools
import time
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

import purestate as ps
from benchmarks.workloads import Arrays, Workload

wait: Any = jax.block_until_ready
SCANNED = 1000  # steps of the particle simulation, and of every other scan


class Way:
    """Base of the ways: counts traces."""

    steps = 1

    def __init__(self, workload: Workload, size: int) -> None:
        self.workload, self.traces = workload, 0
        self.begin(workload.start(size))

    def begin(self, arrays: Arrays) -> None:
        """Make the state and what advances it."""
        raise NotImplementedError

    def step(self) -> Any:
        """Make `steps` steps and wait for the result."""
        raise NotImplementedError

    def arrays(self) -> Arrays:
        """Return the state."""
        raise NotImplementedError

    def counted(self, arrays: Arrays) -> tuple[Arrays, Any]:
        """Return the next state and the result; called while jax traces."""
        self.traces += 1
        return self.workload.step(arrays)


def timer(way: Way, seconds: float) -> Callable[[], float]:
    """Return a function that times one step, by as many as fill a round."""
    start = time.perf_counter()
    way.step()
    count = max(1, round(seconds / (time.perf_counter() - start)))

    def timed() -> float:
        start = time.perf_counter()
        for _ in range(count):
            way.step()
        return (time.perf_counter() - start) / count / way.steps

    return timed


def as_jax(arrays: Arrays) -> Arrays:
    """Return copies as jax arrays: numpy's memory might be used as it is."""
    return {name: jnp.array(value) for name, value in arrays.items()}


def as_numpy(arrays: Arrays) -> Arrays:
    """Return copies as numpy arrays."""
    return {name: np.array(value) for name, value in arrays.items()}


class Replace(Way):
    """A State whose jitted method returns the next one."""

    donate = False

    def begin(self, arrays: Arrays) -> None:
        names = tuple(arrays)

        def advance(state: Any) -> Any:
            new, out = self.counted({name: getattr(state, name) for name in names})
            return state.replace(**new), out

        body = {"__annotations__": dict.fromkeys(names, jax.Array)}
        body["advance"] = ps.jit(advance, donate=self.donate)
        self.state = self.held(type("Held", (ps.State,), body)(**as_jax(arrays)))

    def held(self, state: Any) -> Any:
        """Return the State as it is passed to the method."""
        return state

    def step(self) -> Any:
        self.state, out = self.state.advance()
        return wait((self.state, out))[1]

    def arrays(self) -> Arrays:
        found = self.state.unpack() if hasattr(self.state, "unpack") else self.state
        return as_numpy({n: getattr(found, n) for n in type(found).__annotations__})


class Donated(Replace):
    """The same, with the old State given to the call."""

    donate = True


class Packed(Donated):
    """The same, with small arrays in one buffer."""

    def held(self, state: Any) -> Any:
        return ps.pack(state)


class Scanned(Donated):
    """A State that is the carry of a scan, inside of one donated call."""

    steps = SCANNED

    def begin(self, arrays: Arrays) -> None:
        super().begin(arrays)
        names = tuple(arrays)

        def body(state: Any, _: Any) -> Any:
            new, out = self.counted({name: getattr(state, name) for name in names})
            return state.replace(**new), out

        @ps.jit(donate=True)
        def run(state: Any) -> Any:
            state, outs = jax.lax.scan(body, state, None, length=SCANNED)
            return state, outs[-1]

        self.run = run

    def step(self) -> Any:
        self.state, out = self.run(self.state)
        return wait((self.state, out))[1]


class OutsideJit(Way):
    """A plain object that is assigned to outside of jit: the classic repair."""

    def begin(self, arrays: Arrays) -> None:
        self.__dict__.update(as_jax(arrays))
        self.names = tuple(arrays)
        self.jitted = jax.jit(self.counted)

    def step(self) -> Any:
        new, out = self.jitted({name: self.__dict__[name] for name in self.names})
        self.__dict__.update(new)
        return wait((new, out))[1]

    def arrays(self) -> Arrays:
        return as_numpy({name: self.__dict__[name] for name in self.names})


class StaticSelf(Way):
    """A plain object, static in jit, made anew at each step: else its values are stale.

    Every new object is another cache key, hence another trace.
    """

    def begin(self, arrays: Arrays) -> None:
        way = self

        class Held:
            def __init__(self, arrays: Arrays) -> None:
                self.arrays = arrays

            @functools.partial(jax.jit, static_argnums=0)
            def advance(self) -> Any:
                return way.counted(self.arrays)

        self.make, self.held = Held, Held(as_jax(arrays))

    def step(self) -> Any:
        new, out = wait(self.held.advance())
        self.held = self.make(new)
        return out

    def arrays(self) -> Arrays:
        return as_numpy(self.held.arrays)


class Nnx(Way):
    """A `flax.nnx` module whose variables are written inside of `nnx.jit`."""

    options: ClassVar[dict[str, Any]] = {}

    def begin(self, arrays: Arrays) -> None:
        from flax import nnx

        class Held(nnx.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                for name, value in as_jax(arrays).items():
                    setattr(self, name, nnx.Variable(value))

        names = tuple(arrays)
        self.names, self.module = names, Held()

        def advance(module: Any) -> Any:
            new, out = self.counted({n: getattr(module, n)[...] for n in names})
            for name, value in new.items():
                getattr(module, name)[...] = value
            return out

        self.jitted = nnx.jit(advance, **self.options)

    def step(self) -> Any:
        out = self.jitted(self.module)
        wait(getattr(self.module, self.names[-1])[...])
        return wait(out)

    def arrays(self) -> Arrays:
        return as_numpy({n: getattr(self.module, n)[...] for n in self.names})


class NnxDonated(Nnx):
    """The same, with the module's arrays given to the call."""

    options: ClassVar[dict[str, Any]] = {"donate_argnums": 0}


class Ref(Way):
    """Mutable references of jax, written inside of jit."""

    def begin(self, arrays: Arrays) -> None:
        self.refs = {name: jax.new_ref(v) for name, v in as_jax(arrays).items()}

        def advance(refs: Any) -> Any:
            if self.workload.in_ref is not None:
                self.traces += 1
                return self.workload.in_ref(refs)
            new, out = self.counted({name: ref[...] for name, ref in refs.items()})
            for name, value in new.items():
                refs[name][...] = value
            return out

        self.jitted = jax.jit(advance)

    def step(self) -> Any:
        return wait(self.jitted(self.refs))

    def arrays(self) -> Arrays:
        return as_numpy({name: ref[...] for name, ref in self.refs.items()})


class InPlace(Way):
    """numpy arrays that are written in place, without jax."""

    def begin(self, arrays: Arrays) -> None:
        self.held = {name: np.array(value) for name, value in arrays.items()}

    def step(self) -> Any:
        return self.workload.in_place(self.held)

    def arrays(self) -> Arrays:
        return as_numpy(self.held)


WAYS: dict[str, type[Way]] = {
    "State, replace": Replace,
    "State, donated": Donated,
    "State, packed": Packed,
    "State in a scan": Scanned,
    "object, assigned outside": OutsideJit,
    "object, static self": StaticSelf,
    "flax.nnx": Nnx,
    "flax.nnx, donated": NnxDonated,
    "jax.Ref": Ref,
    "numpy in place": InPlace,
}
