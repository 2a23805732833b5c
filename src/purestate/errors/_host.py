"""Mistakes in host functions: their specs, derivatives and batches."""

from purestate.errors._base import PurestateError

__all__ = [
    "HostEnvError",
    "HostGradError",
    "HostSimError",
    "HostSpecError",
    "HostVmapError",
    "JaxInHostError",
]


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
            f"function, and compute with jax before or after it."
        )
