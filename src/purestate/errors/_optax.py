"""Mistakes with optimizers."""

from collections.abc import Iterable

from purestate.errors._base import PurestateError
from purestate.errors._text import short

_MAKE = (
    "Write a function at the top of a module and give that:\n"
    "    def make(rate, steps):\n"
    "        return optax.adamw(optax.cosine_decay_schedule(rate, steps))\n"
    "    Optimizer(model, make, 1e-3, 10_000)"
)


class OptimizerError(PurestateError, TypeError):
    """An optimizer that no other instance or process could have, or wrong gradients."""

    @classmethod
    def already_made(cls, value: object, inside: str = "") -> "OptimizerError":
        """Return the error for a transformation where a factory belongs."""
        if not (hasattr(value, "init") and hasattr(value, "update")):
            return cls(
                f"Optimizer takes the function that makes the transformation, "
                f"Optimizer(model, optax.adam, 1e-3), and got {short(value)}."
            )
        if inside:
            return cls(
                f"{inside} got a transformation that is already made. It consists of "
                f"functions that no other instance or process has, so that every "
                f"instance would compile, and none could be pickled. {_MAKE}"
            )
        return cls(
            "Optimizer got a transformation that is already made. It consists of "
            "functions that no other instance or process has, so that every instance "
            "would compile, and none could be pickled. Give the function and its "
            "arguments, Optimizer(model, optax.adam, 1e-3), or a function of yours "
            "that returns it."
        )

    @classmethod
    def not_made(cls, make: str, value: object) -> "OptimizerError":
        """Return the error for a factory that returns something else."""
        return cls(
            f"{make} returned {short(value)}, which is not an optax transformation. "
            f"Give a function that returns one, as optax.adam does."
        )

    @classmethod
    def unfindable(cls, function: str, where: str) -> "OptimizerError":
        """Return the error for a function that a module does not have."""
        place = f", as argument {where}," if where else ""
        return cls(
            f"Optimizer got the function {function}{place or ','} which its module "
            f"does not have under that name: it was made by another function, so no "
            f"other instance or process has the same. {_MAKE}"
        )

    @classmethod
    def same_only(cls, kind: str, where: str) -> "OptimizerError":
        """Return the error for an object that is equal to itself only."""
        place = f" as argument {where}" if where else ""
        return cls(
            f"Optimizer got an object of {kind}{place}, which is equal to itself only: "
            f"no other instance or process has the same, so that each would compile. "
            f"Make {kind} a frozen dataclass, or give a function at the top of a "
            f"module."
        )

    @classmethod
    def array(cls, make: str, key: str) -> "OptimizerError":
        """Return the error for an array that cannot be data."""
        return cls(
            f"Optimizer keeps arrays as data by the name of the argument, and {make} "
            f"got one at {key}, where it has no name of its own. Let the function take "
            f"it as an argument with a name, or give a Python number."
        )

    @classmethod
    def unfindable_test(cls, function: str) -> "OptimizerError":
        """Return the error for a test in `wrt` that a module does not have."""
        return cls(
            f"Optimizer got wrt= with the function {function}, which was made by "
            f"another function, so no other instance or process has the same. Write it "
            f"at the top of a module,\n"
            f"    def matrices(x):\n"
            f"        return x.ndim > 1\n"
            f"or give a path: wrt=ps.leaves('**.kernel')."
        )

    @classmethod
    def selector(cls, wrt: object) -> "OptimizerError":
        """Return the error for a `wrt` that is not a choice of leaves."""
        return cls(
            f"Optimizer takes wrt= as a choice of leaves or as paths, and got "
            f"{short(wrt)}: wrt=ps.leaves('encoder'), wrt=~ps.leaves('**.bias'). With "
            f"a function of a leaf, ps.leaves(matrices), that function stands at the "
            f"top of a module:\n"
            f"    def matrices(x):\n"
            f"        return x.ndim > 1"
        )

    @classmethod
    def arguments(cls, make: str, problem: str) -> "OptimizerError":
        """Return the error for arguments that the factory does not take."""
        return cls(f"Optimizer cannot call {make} with these arguments: {problem}.")

    @classmethod
    def not_a_value(cls, make: str, key: object, kind: str) -> "OptimizerError":
        """Return the error for an argument that cannot be compared."""
        return cls(
            f"Optimizer keeps the arguments of {make} to compare them, and {key}, of "
            f"type {kind}, cannot be compared. For a mask give a choice of leaves, "
            f"mask=~ps.leaves('**.bias'), for a list a tuple."
        )

    @classmethod
    def nothing(cls, name: str, wrt: str) -> "OptimizerError":
        """Return the error for a model without anything to train."""
        return cls(
            f"Optimizer has nothing to train: {name} has no floating-point array among "
            f"{wrt}. Give arrays of floats, or another wrt=."
        )

    @classmethod
    def other_params(cls, name: str, count: int, known: int) -> "OptimizerError":
        """Return the error for params with more or fewer leaves than at the start."""
        return cls(
            f"update() got a {name} with {count} leaves, and this optimizer was made "
            f"for params with {known}. Make a new one: Optimizer(params, ...)."
        )

    @classmethod
    def gradients(cls, places: Iterable[str]) -> "OptimizerError":
        """Return the error for gradients that do not fit what is trained."""
        listed = "\n".join(places)
        return cls(
            f"update() got no gradient that fits what is trained:\n{listed}\n"
            f"Differentiate with ps.grad(loss, wrt=opt.wrt), or train less: "
            f"Optimizer(..., wrt=ps.leaves(...))."
        )
