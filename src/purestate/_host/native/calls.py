"""What is compiled for a host call, and for a product with its Jacobian.

Each is a function of numba and how it is called: the structures of jax as text, and
what it returns, found in numba's type of that. `Call.target` asks numba; None stands
for what is no native operation, and becomes a callback.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from numba.core.errors import NumbaError

from purestate._host.call.batch import Batch
from purestate._host.call.leaf import Leaf, type_text
from purestate._host.call.operation import Operation
from purestate._host.call.options import Options
from purestate._host.derivatives.derivative import Derivative
from purestate._host.native.handler import Signature, entry
from purestate._host.native.raising import Record
from purestate._host.native.signatures import as_text, described, known, parts
from purestate._host.native.targets import target
from purestate._schema.text import function_name
from purestate.errors import HostSpecError


@dataclasses.dataclass(frozen=True)
class Call:
    """A function of numba, and how it is called.

    Attributes:
        options: how the host function was declared.
        fn: the function, or a rule for its derivative.
        text: the call, with `fn` for the function and x0, x1, ... for operands.
        operands: without batch axes.
        results: without batch axes.
        tree: structure of what the function returns.
        leaves: what stands there.
        chosen: which of these leaves are results.
        paths: what messages call the results.
        casting: numpy's rule for their dtypes.
        zeros: whether None stands for zeros.
        threads: whether a batch is shared among threads.
    """

    options: Options
    fn: Any
    text: str
    operands: Sequence[Leaf]
    tree: Any
    leaves: Sequence[Leaf]
    chosen: Sequence[int]
    paths: Sequence[str]
    casting: str
    zeros: bool
    threads: bool

    def target(self) -> str | None:
        """Return the name of the operation, None if there is none.

        Raises:
            HostSpecError: numba cannot compile the function.
        """
        results = [self.leaves[i] for i in self.chosen]
        if not results or not known([*self.operands, *results]):
            return None
        upcast = self.options.upcast
        wide = (leaf.wide if upcast else leaf.dtype for leaf in self.operands)
        signature = Signature(
            self.text,
            described(self.operands),
            tuple(
                None if found == leaf.dtype else found
                for found, leaf in zip(wide, self.operands, strict=True)
            ),
            self.options.writable,
        )
        try:
            call, returned = entry(self.fn, signature)
        except NumbaError as error:
            raise self._refused(error) from error
        found = parts(
            returned, self.tree, self.leaves, self.casting, zeros=self.zeros
        )
        if found is None:
            return None
        leaves = tuple(
            (path, leaf.dtype, found[i][1])
            for path, leaf, i in zip(self.paths, results, self.chosen, strict=True)
        )
        signature = dataclasses.replace(
            signature,
            results=described(results),
            parts=tuple(found[i][0] for i in self.chosen),
            threads=self.threads,
        )
        return target(self.fn, call, signature, Record(self.options.label, leaves))

    def _refused(self, error: Exception) -> HostSpecError:
        shown = ", ".join(map(type_text, self.operands))
        function = function_name(self.fn)
        what = self.options.label
        if self.fn is not self.options.fn:
            what = f"{function}, a rule of {what},"
        if "readonly" in str(error):
            way = (
                "Arguments are arrays that nobody may write to: copy what is written "
                "to, or say writable=True, which hands in copies."
            )
        else:
            way = "A call of the function itself, outside of a program, fails alike."
        return HostSpecError(f"{what} is not compiled by numba for {shown}. {way}")


def call_of(op: Operation, batch: Batch) -> Call | None:
    """Return the call of a host function, None if it is a callback."""
    options = op.options
    is_whole = options.batch_fn is not None or options.vmap in (
        "vectorized",
        "batched",
    )
    text = arguments(op)
    if text is None or (batch.sizes and is_whole):
        return None
    return Call(
        options,
        options.fn,
        text,
        op.ins,
        op.out_tree,
        op.outs,
        range(len(op.outs)),
        op.out_paths,
        options.casting,
        zeros=False,
        threads=options.vmap == "threads" and bool(batch.sizes),
    )


def arguments(op: Operation) -> str | None:
    """Return the call of a function as text, None if its arguments are not native."""
    if op.statics:
        return None
    names = [f"x{i}" for i in range(len(op.ins))]
    args, kwargs = jax.tree.unflatten(op.in_tree, names)
    if kwargs:
        return None
    found = [as_text(arg) for arg in args]
    return None if None in found else f"fn({', '.join(map(str, found))})"


def product_of(derivative: Derivative, batch: Batch) -> Call | None:
    return None
