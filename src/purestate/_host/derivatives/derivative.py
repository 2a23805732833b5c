"""Which derivative of a host function is asked for, and in which of its arguments."""

import dataclasses

from purestate._host.call.leaf import Leaf
from purestate._host.call.operation import Operation


@dataclasses.dataclass(frozen=True)
class Derivative:
    """The Jacobian of an operation, or its transpose, to be multiplied with.

    A parameter of a primitive of jax, so it can be hashed and compared.

    Attributes:
        op: the function and its types.
        kind: "jvp" takes a tangent for each argument in `wrt`, and gives one for each
            inexact result; "vjp" takes and gives cotangents, the other way round.
        wrt: the argument leaves to differentiate.
    """

    op: Operation
    kind: str
    wrt: tuple[int, ...]

    @property
    def ins(self) -> list[Leaf]:
        """The argument leaves that are differentiated."""
        return [self.op.ins[i] for i in self.wrt]

    @property
    def outs(self) -> list[Leaf]:
        """The result leaves that have a derivative."""
        return [self.op.outs[i] for i in self.op.inexact_outs]

    @property
    def products(self) -> list[Leaf]:
        """What a product with it looks like."""
        return self.outs if self.kind == "jvp" else self.ins

    def transposed(self) -> "Derivative":
        """Return the derivative of the other kind."""
        kind = "vjp" if self.kind == "jvp" else "jvp"
        return dataclasses.replace(self, kind=kind)
