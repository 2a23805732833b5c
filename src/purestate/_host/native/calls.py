"""What is compiled for a host call, and for a product with its Jacobian.

Each is a function of numba and how it is called: the structures of jax as text, and
what it returns, found in numba's type of that. None stands for what is no native
operation, and becomes a callback.
"""

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import jax

from purestate._host.call.batch import Batch
from purestate._host.call.leaf import Leaf, type_text
from purestate._host.call.operation import Operation
from purestate._host.derivatives.derivative import Derivative
from purestate._host.native.differences import differences
from purestate._host.native.functions import is_dispatcher
from purestate._host.native.handler import Signature, compiled, entry
from purestate._host.native.numba_parts import NumbaError
from purestate._host.native.raising import Record
from purestate._host.native.signatures import as_text, described, known, parts
from purestate._host.native.targets import named, register
from purestate._schema.text import function_name
from purestate.errors import HostSpecError

_lock = threading.RLock()


@dataclasses.dataclass(frozen=True)
class Call:
    """A function of numba, and how it is called.

    Attributes:
        op: the host function and its types.
        fn: the function, or a rule for its derivative.
        text: the call, with `fn` for the function and x0, x1, ... for operands.
        operands: without batch axes.
        tree: structure of what the function returns.
        leaves: what stands there.
        chosen: which of these leaves are results.
        paths: what messages call the results.
        casting: numpy's rule for their dtypes.
        rule: "vjp" or "jvp" if it is a rule for the derivative.
        threads: whether a batch is shared among threads.
    """

    op: Operation
    fn: Any
    text: str
    operands: Sequence[Leaf]
    tree: Any
    leaves: Sequence[Leaf]
    chosen: Sequence[int]
    paths: Sequence[str]
    casting: str = "same_kind"
    rule: str = ""
    threads: bool = False

    def target(self) -> str | None:
        """Return the name of the operation, None if there is none.

        Raises:
            HostSpecError: numba cannot compile the function.
        """
        results = [self.leaves[i] for i in self.chosen]
        if not results or not known([*self.operands, *results]):
            return None
        signature = self.signature()
        names = self.op.options.native_code
        key = (signature, described(results), self.tree, self.threads, self.fn)
        with _lock:  # one operation for all threads that ask for it at once
            if key not in names:
                names[key] = self._registered(signature, results)
            found: str | None = names[key]
        return found

    def signature(self) -> Signature:
        options = self.op.options
        wide = [leaf.wide if options.upcast else leaf.dtype for leaf in self.operands]
        return Signature(
            self.text,
            described(self.operands),
            tuple(
                None if found == leaf.dtype else found
                for found, leaf in zip(wide, self.operands, strict=True)
            ),
            options.writable,
        )

    def _registered(self, signature: Signature, results: list[Leaf]) -> str | None:
        try:
            call, returned = entry(self.fn, signature)
        except NumbaError as error:
            raise self._refused(error) from error
        found = parts(
            returned,
            self.tree,
            self.leaves,
            self.chosen,
            self.casting,
            rule=self.rule,
        )
        if found is None:
            return None
        whole = dataclasses.replace(
            signature,
            results=described(results),
            parts=tuple(text for text, _ in found),
            threads=self.threads,
        )
        record = Record(
            self.op.options.label,
            tuple(
                (path, leaf.dtype, dtype)
                for path, leaf, (_, dtype) in zip(
                    self.paths, results, found, strict=True
                )
            ),
        )
        address = compiled(call, whole, record)
        return register(named(self.fn.py_func, whole.operands, whole.results), address)

    def _refused(self, error: Exception) -> HostSpecError:
        shown = ", ".join(map(type_text, self.operands))
        what = self.op.options.label
        if self.fn is not self.op.options.fn:
            what = f"{function_name(self.fn)}, a rule of {what},"
        if "readonly" in str(error):
            why = (
                "it writes to an argument.\nArguments are arrays that nobody may write "
                "to: copy what is written to, or say writable=True, which hands in "
                "copies."
            )
        else:
            # The first line says in which of its steps numba was.
            first = next(iter(str(error).split("\n")[1:2]), str(error))
            why = (
                f"{first}\nA call of the function itself, outside of a program, fails "
                f"alike."
            )
        return HostSpecError(f"numba cannot compile {what} for {shown}: {why}")


def call_of(op: Operation, batch: Batch) -> Call | None:
    """Return the call of a host function, None if it is a callback."""
    options = op.options
    whole = options.batch_fn is not None or options.vmap in ("vectorized", "batched")
    args = _arguments(op)
    if args is None or (batch.sizes and whole):
        return None
    return Call(
        op,
        options.fn,
        f"fn({', '.join(args)})",
        op.ins,
        op.out_tree,
        op.outs,
        range(len(op.outs)),
        op.out_paths,
        options.casting,
        threads=_is_shared(op, batch),
    )


def product_of(derivative: Derivative, batch: Batch) -> Call | None:
    """Return the product with a Jacobian, None if it is a callback."""
    op, kind = derivative.op, derivative.kind
    options = op.options
    rule = options.vjp if kind == "vjp" else options.jvp
    if options.grad is None and options.jac is None and rule is not None:
        if batch.sizes and kind == "vjp" and options.batch_vjp is not None:
            return None
        return _rule(derivative, rule, batch) if is_dispatcher(rule) else None
    if options.grad in ("fd", "fd-forward"):
        return _differences(derivative, batch)
    return None


def _rule(derivative: Derivative, rule: Any, batch: Batch) -> Call | None:
    """Return the call of `vjp(args, cotangent)` or `jvp(args, tangents)`."""
    op, kind = derivative.op, derivative.kind
    args = _arguments(op)
    if args is None:
        return None
    count = len(op.ins)
    if kind == "vjp":
        linear, which, leaves, tree = (
            derivative.outs,
            op.inexact_outs,
            op.outs,
            op.out_tree,
        )
    else:
        linear, which, leaves, tree = (
            derivative.ins,
            derivative.wrt,
            op.ins,
            op.rule_tree,
        )
    names = [_zeros(leaf) for leaf in leaves]
    for number, i in enumerate(which):
        names[i] = f"x{count + number}"
    given = as_text(jax.tree.unflatten(tree, names))
    if given is None:
        return None
    if kind == "vjp":
        tree, leaves, chosen = op.rule_tree, op.ins, derivative.wrt
        paths = [f"argument leaf {i} of its vjp" for i in chosen]
    else:
        tree, leaves, chosen = op.out_tree, op.outs, op.inexact_outs
        paths = [f"{op.out_paths[i] or 'result'} of its jvp" for i in chosen]
    return Call(
        op,
        rule,
        f"fn(({''.join(f'{arg}, ' for arg in args)}), {given})",
        [*op.ins, *linear],
        tree,
        leaves,
        chosen,
        paths,
        rule=kind,
        threads=_is_shared(op, batch),
    )


def _differences(derivative: Derivative, batch: Batch) -> Call | None:
    """Return the call of a rule that is made of differences."""
    op, kind = derivative.op, derivative.kind
    plain = call_of(op, batch)
    if plain is None or not is_dispatcher(plain.fn):
        return None
    # Where only cotangents have an axis, as under `jax.jacrev`, one evaluation for all
    # of them is what a callback does.
    if not all(batch.part(range(len(op.ins))).used):
        return None
    if any(leaf.dtype.kind != "f" for leaf in (*derivative.ins, *derivative.outs)):
        return None
    rule = differences(derivative, plain)
    if rule is None:
        return None
    if kind == "vjp":
        linear, leaves, chosen = derivative.outs, op.ins, derivative.wrt
        paths = [f"argument leaf {i} of its vjp" for i in chosen]
    else:
        linear, leaves, chosen = derivative.ins, op.outs, op.inexact_outs
        paths = [f"{op.out_paths[i] or 'result'} of its jvp" for i in chosen]
    operands = [*op.ins, *linear]
    names = ", ".join(f"x{i}" for i in range(len(operands)))
    tree = jax.tree.structure((0,) * len(leaves))
    return Call(
        op,
        rule,
        f"fn({names})",
        operands,
        tree,
        leaves,
        chosen,
        paths,
        rule="differences",
        threads=plain.threads,
    )


def _zeros(leaf: Leaf) -> str:
    """Return the text of what a rule gets for an array without a tangent."""
    name = "bool_" if leaf.dtype == bool else leaf.dtype.name
    return f"as_readonly(np.zeros({leaf.shape}, np.{name}))"


def _arguments(op: Operation) -> list[str] | None:
    """Return the arguments as text, None if they are not native."""
    names = [f"x{i}" for i in range(len(op.ins))]
    args, kwargs = jax.tree.unflatten(op.in_tree, names)
    found = [as_text(arg) for arg in args]
    if kwargs or op.statics or None in found:
        return None
    return [text for text in found if text is not None]


def _is_shared(op: Operation, batch: Batch) -> bool:
    return op.options.vmap == "threads" and bool(batch.sizes)
