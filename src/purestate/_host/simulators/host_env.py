"""`ps.HostEnv`: a live environment, acted on from jax programs.

A gymnasium environment keeps its state to itself, so that it can be neither copied nor
set back. A program that steps it has an effect: in order, and once per step.
"""

import functools
import inspect
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from purestate._compat import current_trace, outermost_trace
from purestate._host.call.failures import wait_for_effects
from purestate._host.call.leaf import as_operand, is_inexact, struct
from purestate._host.call.options import Options
from purestate._host.function import HostFunction
from purestate._host.simulators.spaces import (
    as_action,
    as_observation,
    require_action,
    spec_of,
)
from purestate.errors import HostEnvError
from purestate.errors._text import nearest

_NEEDED = ("reset", "step", "observation_space", "action_space")
_FLOAT = np.dtype(np.float64)  # jax's default float, as jnp rounds it
_NO_VMAP = (
    "is one live environment, and vmap asks for many: make it with gymnasium.vector, "
    "whose environments ps.HostEnv takes too, or simulate with "
    "purestate.mujoco.MujocoSim, whose state is a value."
)
_NO_GRAD = (
    "is a live environment, which has no derivative: put jax.lax.stop_gradient around "
    "the action, as for a score-function gradient, or simulate with "
    "purestate.mujoco.MujocoSim for gradients through the physics."
)


class HostEnv:
    """A live environment, as gymnasium's, that jax programs can reset and step.

    Calls are ordered effects: each runs exactly once per step of the program, used or
    not, in the order in which it is written, also among several environments. They work
    eagerly and under jit, scan, while and cond, and beside what is differentiated: a
    rollout in a scan under `jax.value_and_grad` makes as many steps as it says.

    Args:
        env: has `reset(seed=...)`, `step(action)`, `observation_space` and
            `action_space`, as gymnasium defines them; a `gymnasium.vector` environment
            too, with its batch in front of everything.
        info: the names of numbers to hand out from the environment's info; or a mapping
            from names to things with shape and dtype.
        autoreset: reset at once where an episode ends, so that the observation of that
            step is the first one of the next episode.
        thread: "own" makes every call on one thread that belongs to the environment.
        name: for messages, by default the environment's own.

    Raises:
        HostEnvError: it is no environment, or has a space without a fixed size.

    >>> import jax, jax.numpy as jnp, numpy as np, purestate as ps
    >>> import gymnasium
    >>> env = ps.HostEnv(gymnasium.make("CartPole-v1"))
    >>> @jax.jit
    ... def rollout(seed):
    ...     def body(obs, _):
    ...         action = jnp.int32(obs[2] > 0)  # push to where the pole leans
    ...         obs, reward, terminated, truncated, info = env.step(action)
    ...         return obs, reward
    ...
    ...     obs, info = env.reset(seed)
    ...     return jax.lax.scan(body, obs, length=20)[1].sum()
    >>> float(rollout(0))
    20.0
    """

    def __init__(
        self,
        env: Any,
        *,
        info: Iterable[str] | Mapping[str, Any] = (),
        autoreset: bool = False,
        thread: Literal["own"] | None = None,
        name: str | None = None,
    ) -> None:
        self._name = name or _env_name(env)
        missing = [part for part in _NEEDED if not hasattr(env, part)]
        if missing:
            raise HostEnvError(
                self._name,
                f"has no {' and no '.join(missing)}: ps.HostEnv takes an environment "
                f"as gymnasium defines it.",
            )
        count = getattr(env, "num_envs", None)
        if autoreset and count is not None:
            raise HostEnvError(
                self._name,
                "is one of gymnasium.vector, which resets by itself: leave autoreset "
                "out.",
            )
        self.env = env
        self._autoreset = autoreset
        self._lock = threading.RLock()
        self._lead: tuple[int, ...] = () if count is None else (int(count),)
        names = (info,) if isinstance(info, str) else info
        self._info = (
            dict(names)
            if isinstance(names, Mapping)
            else {key: struct(self._lead, _FLOAT) for key in names}
        )
        spec_of(self._name, env.action_space, "action_space")
        observed = spec_of(self._name, env.observation_space, "observation_space")
        reward, flag = struct(self._lead, _FLOAT), struct(self._lead, np.dtype(bool))
        self._specs = {
            "reset": (observed, self._info),
            "step": (observed, reward, flag, flag, self._info),
        }
        self._host = HostFunction(
            Options(
                _placed(self._act, env),
                out=lambda *specs, what: self._specs[what],
                static_argnames=("what",),
                ordered=True,
                thread=thread,
                name=self._name,
                no_vmap=_NO_VMAP,
                no_grad=_NO_GRAD,
            )
        )

    def reset(self, seed: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return the first observation of an episode, and the info that was named.

        Args:
            seed: an integer, maybe traced; one per environment of a vector one; or a
                typed key, from which one is drawn. None goes on with the environment's
                own random numbers.

        Returns:
            Observation and info. Where the environment leaves a named info out, as many
            do at a reset, it is NaN, or zero for integers.

        Raises:
            HostEnvError: the seed is neither an integer nor a key.
        """
        given = () if seed is None else (self._seed(seed),)
        observed, info = self._call("reset", *given)
        return observed, info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Return observation, reward, terminated, truncated and info after an action.

        Args:
            action: a member of the action space, in arrays.

        Raises:
            HostEnvError: an action of another type; or the environment left out an info
                that was named.
            HostGradError: the action is differentiated.
            HostVmapError: the action has a batch axis.
        """
        require_action(self._name, self.env.action_space, action)
        observed, reward, terminated, truncated, info = self._call("step", action)
        return observed, reward, terminated, truncated, info

    def __repr__(self) -> str:
        return f"<host environment {self._name}>"

    def _call(self, what: str, *args: Any) -> Any:
        if current_trace() == outermost_trace():
            wait_for_effects()  # programs that still run come first
        return self._host(*args, what=what)

    def _seed(self, seed: Any) -> Any:
        if isinstance(seed, int):
            if not 0 <= seed < 2**32:
                raise HostEnvError(
                    self._name,
                    f"got {seed} as seed, which is a number from 0 to 2**32 - 1.",
                )
            return np.uint32(seed)
        seed = np.asarray(seed) if isinstance(seed, list | tuple) else seed
        operand = as_operand(seed)
        fits = operand is not None and (
            len(operand[0].shape) == 1
            if operand[0].key is not None
            else operand[0].shape in ((), self._lead) and operand[0].dtype.kind in "iu"
        )
        if operand is None or not fits:
            found = type(seed).__name__ if operand is None else operand[0]
            raise HostEnvError(
                self._name,
                f"got {found} as seed, which is an integer or a typed key.",
            )
        return seed

    # --- in the environment's thread --------------------------------------------------

    def _act(self, *args: Any, what: str) -> Any:
        with self._lock:
            return self._reset(*args) if what == "reset" else self._step(*args)

    def _reset(self, seed: Any = None) -> Any:
        if isinstance(seed, np.random.Generator):
            seed = int(seed.integers(2**31))
        elif seed is not None:
            seed = seed.tolist()
        observed, info = self.env.reset(seed=seed)
        return self._observed(observed), self._named(info, "reset")

    def _step(self, action: Any) -> Any:
        taken = as_action(self._name, self.env.action_space, action)
        observed, reward, terminated, truncated, info = self.env.step(taken)
        named = self._named(info, "step")
        if self._autoreset and (terminated or truncated):
            observed, _ = self.env.reset()
        return self._observed(observed), reward, terminated, truncated, named

    def _observed(self, value: Any) -> Any:
        return as_observation(self.env.observation_space, value)

    def _named(self, info: Mapping[str, Any], what: str) -> dict[str, Any]:
        found = {}
        for key, spec in self._info.items():
            if key in info:
                found[key] = np.asarray(info[key])
            elif what == "reset":
                blank = np.nan if is_inexact(spec.dtype) else 0
                found[key] = np.full(spec.shape, blank, spec.dtype)
            else:
                raise HostEnvError(
                    self._name,
                    f"gave no info {key!r} at a step; {nearest(key, info, 'infos')}",
                )
        return found


def _env_name(env: Any) -> str:
    known = getattr(getattr(env, "spec", None), "id", None)
    return str(known or type(getattr(env, "unwrapped", env)).__name__)


def _placed(act: Any, env: Any) -> Any:
    """Return `act`, which messages then place where the environment's step is."""

    def acted(*args: Any, what: str) -> Any:
        return act(*args, what=what)

    signature = inspect.signature(acted)
    functools.update_wrapper(acted, getattr(env, "unwrapped", env).step)
    acted.__signature__ = signature  # type: ignore[attr-defined]
    return acted
