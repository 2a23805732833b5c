"""`ps.HostSim`: a simulator whose state is a value, in jax programs.

The simulator itself is only scratch. Each step writes the state into one that is free,
advances it, and reads the state back, so that a step is a function of its arguments,
and jit, vmap, grad and scan treat it as such.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np

from purestate._compat import array_here
from purestate._host.call.invoke import arguments, invoke
from purestate._host.call.leaf import Leaf, generators, is_inexact, key_facts
from purestate._host.call.options import Options
from purestate._host.function import HostFunction
from purestate._host.simulators.simulator import Simulator, is_nothing
from purestate._inspect.key_paths import path_text
from purestate._schema.leaves import is_key
from purestate._schema.text import function_name
from purestate.errors import HostSimError
from purestate.errors._text import error_text

Array = np.ndarray[Any, Any]


class HostSim:
    """A simulator of your own, as functions of its state that jax programs can call.

    Four functions say how to work it, and its state becomes a value: any pytree, a
    State too. `sim.step` then works under jit, vmap, grad, scan and shard_map, and
    several simulators run side by side where several calls do.

    Args:
        make: `make()` returns a new simulator.
        get: `get(sim)` returns its state, a pytree of numpy arrays and numbers: all
            that the next step depends on.
        set: `set(sim, state)` writes such a state into it, with the dtypes that `get`
            gives.
        step: `step(sim, *inputs)` advances it. What it returns, unless None, is the
            result of the step.
        vjp: `vjp(sim, (state, *inputs), cotangent)` returns the cotangents of the state
            and of each input, None for zero. The cotangent is that of the new state, or
            of the pair of it and the result.
        batch: `batch(sim, states, *inputs)` makes one step for a whole batch, with one
            leading axis everywhere, and returns what `sim.step` does. Used under vmap.
        grad: "fd", "fd-forward" or "zero", as of `ps.host_function`; at most one of
            `grad`, `vjp`, `jvp` and `jac`.
        jvp: `jvp(sim, (state, *inputs), tangents)` returns the tangent.
        jac: `jac(sim, state, *inputs)` returns the Jacobian, as `jax.jacobian` does.
        out: what `step` returns: a pytree of things with shape and dtype. By default
            one step with zero inputs, from the first state, finds out. `()` for
            nothing.
        vmap: "loop", "threads" or "error", as of `ps.host_function`.
        threads: size of the pool of `vmap="threads"`.
        thread: "own" makes every call on one thread that belongs to the simulator.
        upcast: float32 inputs arrive as float64, which makes finite differences
            accurate. False is for simulators that compute in float32.
        eps: relative step of finite differences.
        name: for messages, by default the name of `make`.

    Raises:
        HostSimError: something that should be a function is not one.
        HostSpecError: options that do not go together.

    >>> import jax, jax.numpy as jnp, numpy as np, purestate as ps
    >>> class Cart:
    ...     def __init__(self):
    ...         self.x, self.v = 0.0, 1.0
    ...
    ...     def step(self, force):
    ...         self.v += 0.1 * force
    ...         self.x += 0.1 * self.v
    >>> def get(cart):
    ...     return {"x": cart.x, "v": cart.v}
    >>> def set(cart, state):
    ...     cart.x, cart.v = float(state["x"]), float(state["v"])
    >>> sim = ps.HostSim(Cart, get, set, Cart.step, grad="fd")
    >>> def final(forces):
    ...     return jax.lax.scan(lambda s, u: (sim.step(s, u), None), sim.init(), forces)
    >>> state, _ = jax.jit(final)(jnp.ones(10))
    >>> print(f"{state['x']:.2f}")
    1.55
    >>> print(jax.grad(lambda u: final(u)[0]["x"])(jnp.ones(3)).round(3))
    [0.03 0.02 0.01]
    """

    def __init__(
        self,
        make: Callable[[], Any],
        get: Callable[[Any], Any],
        set: Callable[[Any, Any], Any],  # noqa: A002  # what users call it
        step: Callable[..., Any],
        vjp: Callable[..., Any] | None = None,
        batch: Callable[..., Any] | None = None,
        *,
        grad: Literal["fd", "fd-forward", "zero"] | None = None,
        jvp: Callable[..., Any] | None = None,
        jac: Callable[..., Any] | None = None,
        out: Any = None,
        vmap: Literal["loop", "threads", "error"] = "loop",
        threads: int | None = None,
        thread: Literal["own"] | None = None,
        upcast: bool = True,
        eps: float | None = None,
        name: str | None = None,
    ) -> None:
        self._name = name or function_name(make)
        needed = {"make": make, "get": get, "set": set, "step": step}
        given = {"vjp": vjp, "batch": batch, "jvp": jvp, "jac": jac}
        # A copy is made anew from these: simulators, threads and locks are its own.
        self._declared = {
            **needed,
            **given,
            "grad": grad,
            "out": out,
            "vmap": vmap,
            "threads": threads,
            "thread": thread,
            "upcast": upcast,
            "eps": eps,
            "name": name,
        }
        for what, fn in (needed | given).items():
            if not callable(fn) and (what in needed or fn is not None):
                raise HostSimError(
                    self._name,
                    f"got {type(fn).__name__} as {what}, which is no function.",
                )
        if str(vmap) in ("vectorized", "batched"):
            raise HostSimError(
                self._name,
                f"has vmap={vmap!r}, and a simulator makes one step at a time: give "
                f'its whole-batch version as batch=, or use "loop" or "threads".',
            )
        if str(grad) == "complex":
            raise HostSimError(
                self._name,
                'has grad="complex", and a simulator takes no complex numbers: use '
                '"fd".',
            )
        self._out = out
        self._simulator = simulator = Simulator(self._name, make, get, set, step)
        self._host = HostFunction(
            Options(
                simulator.advance(),
                out=self._spec,
                vmap=vmap,
                grad=grad,
                jvp=jvp and simulator.as_rule(jvp),
                vjp=vjp and simulator.as_rule(vjp),
                jac=jac and simulator.on_states(jac),
                batch_fn=batch and simulator.on_states(batch),
                scratch=simulator.make,
                thread=thread,
                upcast=upcast,
                threads=threads,
                eps=eps,
                name=self._name,
            )
        )
        simulator.thread = self._host.options.own_thread

    def init(self) -> Any:
        """Return the state of a new simulator, as jax arrays (numpy in a host call)."""
        tree, leaves, _ = self._simulator.start()
        return jax.tree.unflatten(tree, [array_here(leaf.copy()) for leaf in leaves])

    def step(self, state: Any, *inputs: Any, **named: Any) -> Any:
        """Return the state one step later; with a result, the pair of both.

        Args:
            state: what `init` or an earlier step returned, or one like it.
            *inputs: what `step` of the simulator takes.
            **named: the same, by name.

        Raises:
            HostSimError: the state is not one of this simulator, `get` returned another
                one than at first, or a step with zeros failed while tracing.
            HostGradError: it is differentiated, and nothing says how.
        """
        self._simulator.require_own(state)
        return self._host(state, *inputs, **named)

    def check(self, state: Any, *inputs: Any, history: int = 10) -> None:
        """Compare a step of a used simulator with the same step of a new one.

        What `get` and `set` leave out, a warm start or a counter, makes a step depend
        on earlier ones. In a jax program nobody knows which those were.

        Args:
            state: where to compare; best one where all of the simulator is at work.
            *inputs: of the step.
            history: how many steps the used simulator has made before.

        Raises:
            HostSimError: they differ.
        """
        self._simulator.require_own(state)
        expected = self._alone(state, inputs, 0)
        for steps in (0, history):
            found = self._alone(state, inputs, steps)
            for (path, one), (_, other) in zip(expected, found, strict=True):
                if np.array_equal(one, other, equal_nan=is_inexact(one.dtype)):
                    continue
                used = f"one that made {steps} steps before" if steps else "another one"
                raise HostSimError(
                    self._name,
                    f"remembers what is not in its state: after the same step, {path} "
                    f"is\n  {one!r}\nin a new simulator, and in {used}\n  {other!r}\n"
                    f"Have get= and set= carry all that a step depends on, for example "
                    f"the warm start of a solver.",
                )

    def __getstate__(self) -> dict[str, Any]:
        """Return what was declared, and what a subclass keeps."""
        made = ("_name", "_out", "_simulator", "_host")
        return {key: v for key, v in self.__dict__.items() if key not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become a simulator that was declared in the same way."""
        self.__dict__.update(state)
        HostSim.__init__(self, **state["_declared"])

    def __repr__(self) -> str:
        return f"<host simulator {self._name}>"

    def _spec(self, *specs: Any, **named: Any) -> Any:
        """Return what a step with such arguments gives; see `out` of host_function."""
        tree, leaves, paths = self._simulator.start()
        options = self._host.options
        if options.upcast and options.grad in ("fd", "fd-forward"):
            for path, leaf in zip(paths, leaves, strict=True):
                if is_inexact(leaf.dtype) and leaf.dtype.itemsize < 8:
                    raise HostSimError(
                        self._name,
                        f"keeps {leaf.dtype.name} as {path}, which cannot hold the "
                        f"small differences of upcast=True: give upcast=False.",
                    )
        state = jax.tree.unflatten(tree, leaves)
        result = (
            self._probed(state, specs[1:], named) if self._out is None else self._out
        )
        return state if is_nothing(result) else (state, result)

    def _probed(self, state: Any, inputs: Any, named: Any) -> Any:
        options = self._host.options
        zeros, named_zeros = jax.tree.map(
            lambda spec: _zeros(spec, options.upcast), (inputs, named)
        )

        def once(sim: Any) -> Any:
            return self._simulator.once(sim, state, zeros, named_zeros)[1]

        try:
            with np.errstate(all="ignore"):  # 0 / 0 says nothing about the types
                return invoke(options, once, (), {}, eager=True)
        except HostSimError:
            raise
        except Exception as error:
            raise HostSimError(
                self._name,
                f"made one step with zeros from its first state, to see what step= "
                f"returns, and raised {error_text(error)}. Say it with "
                f"out=, for example out=jax.ShapeDtypeStruct(shape, dtype), or out=() "
                f"for nothing.",
            ) from error

    def _alone(self, state: Any, inputs: Any, history: int) -> list[tuple[str, Array]]:
        """Return what one step gives in a simulator made for it, by path."""
        op, arrays = self._host.prepared(state, *inputs)
        simulator = self._simulator

        def run() -> tuple[Any, Any]:
            sim = simulator.make_new()
            following = None
            for _ in range(history):
                (start, *values), _ = arguments(op, arrays)
                following = start if following is None else following
                following, _ = simulator.once(sim, following, values, {})
            (start, *values), _ = arguments(op, arrays)  # generators start anew
            return simulator.once(sim, start, values, {})

        pair = run() if simulator.thread is None else simulator.thread.run(run)
        return [
            (path_text(keys, name), np.asarray(leaf))
            for name, part in zip(("state", "result"), pair, strict=True)
            for keys, leaf in jax.tree_util.tree_leaves_with_path(part)
        ]


def _zeros(spec: Any, upcast: bool) -> Any:
    if is_key(spec):
        count, _ = key_facts(spec.dtype)
        return generators(np.zeros((*spec.shape, count), np.uint32))
    leaf = Leaf(tuple(spec.shape), np.dtype(spec.dtype))
    return np.zeros(leaf.shape, leaf.wide if upcast else leaf.dtype)
