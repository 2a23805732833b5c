"""Mistakes in host functions: their specs, derivatives and batches."""

from collections.abc import Sequence

from purestate.errors._base import PurestateError


class HostSpecError(PurestateError, TypeError):
    """Arguments, results or options that do not fit a host function."""


class HostSimError(HostSpecError):
    """The functions of a simulator do not fit together, or do not fit a state."""

    def __init__(self, sim: str, why: str) -> None:
        super().__init__(f"the simulator {sim} {why}")


class HostEnvError(HostSpecError):
    """An environment that jax programs cannot hold, or what it does not take."""

    def __init__(self, env: str, why: str) -> None:
        super().__init__(f"the environment {env} {why}")


class HostGradError(PurestateError, TypeError):
    """A host function differentiated without a rule, or in a way it has none for."""

    def __init__(self, function: str, place: str, why: str = "") -> None:
        if not why:
            why = (
                "has no derivative. Give one where it is declared, and both forward "
                "and reverse mode follow:\n"
                '    ps.host_function(grad="fd")       finite differences (or '
                '"fd-forward", "complex", "zero")\n'
                "    ps.host_function(vjp=rule)        rule(args, cotangent) -> "
                "cotangents of args\n"
                "    ps.host_function(jvp=rule)        rule(args, tangents) -> tangent "
                "of the result\n"
                "    ps.host_function(jac=rule)        rule(*args) -> Jacobian\n"
                "or cut it off with jax.lax.stop_gradient around its arguments."
            )
        super().__init__(f"{function} ({place}) {why}")


class HostVmapError(PurestateError, TypeError):
    """A host function under a vmap that it does not allow."""

    def __init__(self, function: str, place: str, why: str) -> None:
        super().__init__(f"{function} ({place}) {why}")


class JaxInHostError(PurestateError, RuntimeError):
    """An operation of jax inside a host function, which could wait for itself."""

    def __init__(self, function: str, place: str) -> None:
        super().__init__(
            f"{function} ({place}) uses jax while a jax program waits for its result: "
            f"the two may wait for each other for ever. Use numpy inside a host "
            f"function, and compute with jax before or after it. A solver that asks "
            f"for a cost again and again needs the cost in numpy; or write both in "
            f"jax, as with jax.scipy.optimize, without a host function; or call the "
            f"function outside of jit, grad and vmap, where it is plain Python and may "
            f"use jax."
        )


class SimSpecError(PurestateError, ValueError):
    """Sizes, options or models that do not fit a simulation."""

    @classmethod
    def shape(
        cls,
        name: str,
        expected: tuple[int, ...],
        received: tuple[int, ...],
        batch: tuple[int, ...],
    ) -> "SimSpecError":
        """Return the error for a part of a state that got another shape."""
        if batch:
            where = f"SimState.{name} of this batch of {batch} has shape"
        else:
            where = f"SimState.{name} has shape"
        text = f"{where} {(*batch, *expected)}, and got {received}."
        if not batch and received[len(received) - len(expected) :] == expected:
            text += (
                f" For a batch of states, write sim.init({name}=...) or "
                f"jax.vmap(lambda x: state.replace({name}=x))(...)."
            )
        return cls(text)


class SimulationError(PurestateError, RuntimeError):
    """Simulations that failed while they were stepped.

    Attributes:
        indices: which ones of the batch, `()` for a single simulation.
    """

    indices: tuple[int, ...] = ()

    def __init__(
        self, simulator: str, what: str, why: str, failed: Sequence[int], total: int
    ) -> None:
        self.indices = tuple(failed) if total > 1 else ()
        where = ""
        if total > 1:
            shown = ", ".join(map(str, self.indices[:8]))
            more = ", ..." if len(self.indices) > 8 else ""
            where = f" in {len(self.indices)} of {total} simulations ({shown}{more})"
        super().__init__(f"{simulator} {what}{where}: {why}")
