"""`MujocoSim`: a MuJoCo model whose steps are functions from state to state."""

import copy
import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purestate._compat import is_tracer
from purestate.errors import SimSpecError
from purestate.mujoco._arguments import (
    check_data,
    check_options,
    check_sim_state,
    names_of_fields,
    title,
)
from purestate.mujoco._exact import merge, split
from purestate.mujoco._host_calls import HostCalls
from purestate.mujoco._package import mujoco
from purestate.mujoco._state import SimState
from purestate.mujoco._state_vector import INTEGRATION, set_state, state_vector


class MujocoSim:
    """A MuJoCo model in jax programs: its states are values, its steps are functions.

    `step` works under jit, vmap, grad, scan and shard_map. The same state gives the
    same next state, to the last bit, whatever was simulated before, and it is the one
    that `mujoco.mj_step` gives: double precision and the solver's warm start travel in
    the state. A batch, at any depth of vmap, is one call into MuJoCo's threads.

    Derivatives are those of `mjd_transitionFD`, with respect to `qpos` (quaternions
    too), `qvel`, `act` and `ctrl`; all other parts of the state count as constant.

    Args:
        model: a `mujoco.MjModel`; it is copied, so later changes have no effect.
        substeps: how many times `mj_step` runs in one step, with the same inputs.
        engine: how steps are computed: a batch by "batch" (`mujoco.batch`, MuJoCo 4
            and newer) or "threads" (a pool of Python threads); or "native", all of
            them inside of the program without Python, which needs numba. None: the
            first that there is of the former two.
        observe: names of `MjData` fields that `observe` returns.
        threads: how many threads share a batch; by default one per core.
        diverged: what happens to a simulation that MuJoCo resets, as its numbers are
            not finite or too large: "error", or "nan", its state becomes NaN.

    Raises:
        SimSpecError: the model, or an option, is not supported.

    >>> import jax, mujoco, purestate.mujoco
    >>> model = mujoco.MjModel.from_xml_string('''
    ... <mujoco><worldbody><body>
    ...   <freejoint/><geom type="sphere" size=".1" pos="0 0 1"/>
    ... </body></worldbody></mujoco>''')
    >>> sim = purestate.mujoco.MujocoSim(model, substeps=10)
    >>> fallen = lambda height: sim.step(
    ...     sim.init().replace(qpos=jax.numpy.array([0, 0, height, 1, 0, 0, 0]))
    ... ).qpos[2]
    >>> print(jax.jit(jax.grad(fallen))(1.0))
    1.0
    """

    def __init__(
        self,
        model: Any,
        substeps: int = 1,
        *,
        engine: str | None = None,
        observe: str | Iterable[str] = (),
        threads: int | None = None,
        diverged: str = "error",
    ) -> None:
        check_options(model, substeps, threads, diverged)
        self._model = copy.copy(model)
        self._name = f"MujocoSim({title(model)})"
        self._substeps = substeps = int(substeps)
        self._threads = threads = None if threads is None else int(threads)
        self._diverged = diverged
        self._vector = state_vector(self._model)
        names = names_of_fields(observe)
        self._calls = HostCalls(
            self._model,
            self._vector,
            self._name,
            substeps=substeps,
            engine=engine,
            observe=names,
            threads=threads,
            as_nan=diverged == "nan",
        )
        self.engine = self._calls.engine

    def init(
        self, qpos: Any = None, qvel: Any = None, *, keyframe: int | str | None = None
    ) -> SimState:
        """Return a state at time 0.

        Args:
            qpos: positions, shape `(..., nq)`; the model's own if None. Axes in front
                make a batch of states.
            qvel: velocities, shape `(..., nv)`; zero if None.
            keyframe: start from this keyframe of the model, by number or name.

        Raises:
            SimSpecError: a wrong size, or no such keyframe.

        """
        data = mujoco.MjData(self._model)
        if keyframe is not None:
            mujoco.mj_resetDataKeyframe(self._model, data, self._key(keyframe))
        state = self.from_data(data)
        given = {"qpos": qpos, "qvel": qvel}
        arrays = {n: jnp.asarray(v) for n, v in given.items() if v is not None}
        for name, array in arrays.items():
            own = self._vector.shape(name)
            if array.shape[-1:] != own:
                raise SimSpecError.shape(name, own, array.shape[-1:], ())
        fronts = [array.shape[:-1] for array in arrays.values()]
        try:
            batch = jnp.broadcast_shapes((), *fronts)
        except ValueError as error:
            raise SimSpecError(
                f"the axes in front of qpos and qvel, {fronts[0]} and {fronts[1]}, do "
                f"not broadcast."
            ) from error
        state = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, batch + leaf.shape), state
        )
        changes: dict[str, Any] = {
            name: jnp.broadcast_to(array, batch + array.shape[-1:])
            for name, array in arrays.items()
        }
        made: SimState = state.replace(**changes)
        return made

    def step(self, state: SimState, ctrl: Any = None) -> SimState:
        """Return the state after `substeps` steps of the model's own timestep.

        Args:
            state: of one simulation; use `jax.vmap` for a batch.
            ctrl: controls, shape `(nu,)`; those in the state if None.

        Returns:
            The next state; its `ctrl` is the one that was given.

        Raises:
            SimSpecError: the state is a batch or of another model, or `ctrl` has
                another size.
            SimulationError: MuJoCo found numbers that are not finite, or too large.
                Its `indices` say in which simulations of a batch.
        """
        check_sim_state(self._name, self._vector, state, "step")
        if ctrl is not None:
            state = state.replace(ctrl=ctrl)
        values, words = self._calls.step(state.values, state.words)
        return state.replace(values=values, words=words)

    def observe(self, state: SimState) -> dict[str, Any]:
        """Return the fields of `MjData` that were named in `observe=`, by name.

        They are those of exactly this state: MuJoCo's `mj_forward` is run on it (and
        `mj_rnePostConstraint`, `mj_subtreeVel`, `mj_energyPos` and `mj_energyVel` for
        what they compute), while a field that is read after `mj_step` is one substep
        behind. Derivatives are central differences.

        Args:
            state: of one simulation; use `jax.vmap` for a batch.

        Raises:
            SimSpecError: the state is a batch or of another model.
            SimulationError: its numbers are not finite, or too large.
        """
        if not self._calls.observed:
            raise SimSpecError(
                f"{self._name} observes nothing: name fields of MjData where it is "
                f'made, MujocoSim(model, observe=("xpos", "sensordata")).'
            )
        check_sim_state(self._name, self._vector, state, "observe")
        found: dict[str, Any] = self._calls.observe(state.values, state.words)
        return found

    def from_data(self, data: Any) -> SimState:
        """Return the state of a `mujoco.MjData`, every bit of it.

        Raises:
            SimSpecError: it is no `MjData`, or one of another model.
        """
        check_data(self._name, self._model, data, "from_data")
        state = np.empty(self._vector.size)
        mujoco.mj_getState(self._model, data, state, INTEGRATION)
        with np.errstate(over="ignore"):  # beyond float32
            values, words = split(state, np.dtype(jnp.result_type(float)))
        exact = None if words is None else jnp.asarray(words)
        return SimState(values=jnp.asarray(values), words=exact, layout=self._vector)

    def to_data(self, state: SimState, data: Any = None) -> Any:
        """Return a `mujoco.MjData` in this state, to render or to examine it.

        Args:
            state: of one simulation, and not traced.
            data: written to, if given; else a new one is made.

        Raises:
            SimSpecError: the state is a batch, traced or of another model, or the
                data is of another model.
        """
        check_sim_state(self._name, self._vector, state, "to_data")
        if is_tracer(state.values):
            raise SimSpecError(
                f"{self._name}.to_data needs the numbers of a state, and this one is "
                f"traced: return it from the jitted function, or name the fields in "
                f"MujocoSim(model, observe=...)."
            )
        if data is None:
            data = mujoco.MjData(self._model)
        else:
            check_data(self._name, self._model, data, "to_data")
        words = None if state.words is None else np.asarray(state.words)
        with np.errstate(over="ignore", invalid="ignore"):  # beyond float32
            whole = merge(np.asarray(state.values), words)
        set_state(self._model, data, whole)
        mujoco.mj_forward(self._model, data)
        set_state(self._model, data, whole)  # mj_forward leaves another warm start
        return data

    @property
    def model(self) -> Any:
        """A copy of the model."""
        return copy.copy(self._model)

    def __deepcopy__(self, memo: dict[int, Any]) -> "MujocoSim":
        return self  # nothing about it changes

    def __reduce__(self) -> tuple[Any, ...]:
        options: dict[str, Any] = {
            "engine": self.engine,
            "observe": self._calls.observed,
            "threads": self._threads,
            "diverged": self._diverged,
        }
        make = functools.partial(MujocoSim, self._model, self._substeps, **options)
        return make, ()

    def __repr__(self) -> str:
        return f"<{self._name}, substeps={self._substeps}, engine={self.engine}>"

    def _key(self, keyframe: Any) -> int:
        found = -1
        if isinstance(keyframe, str):
            kind = mujoco.mjtObj.mjOBJ_KEY
            found = mujoco.mj_name2id(self._model, kind, keyframe)
        elif isinstance(keyframe, int | np.integer) and not isinstance(keyframe, bool):
            found = int(keyframe)
        if not 0 <= found < self._model.nkey:
            raise SimSpecError(
                f"{self._name} has no keyframe {keyframe!r}; it has {self._model.nkey}."
            )
        return found
