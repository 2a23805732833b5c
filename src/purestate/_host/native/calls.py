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
from purestate._host.native.functions import is_dispatcher, may_write
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
        rule: "vjp", "jvp" or "differences" if it is a rule for the derivative.
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

    @property
    def function(self) -> Any:
        """The user's own that is called: the host function, or a rule."""
        return self.op.options.fn if self.rule == "differences" else self.fn

    def target(self) -> str | None:
        """Return the name of the operation, None if there is none.

        Raises:
            HostSpecError: numba cannot compile the function.
        """
        results = [self.leaves[i] for i in self.chosen]
        if not results or not known([*self.operands, *results]):
            return None
        names = self.op.options.native_code
        with _lock:  # one operation for all threads that ask for it at once
            if (key := self._key()) not in names:
                names[key] = self._registered(results)
            found: str | None = names[key]
        return found

    def _key(self) -> tuple[Any, ...]:
        """Return all that the operation is made of but the sizes of arrays.

        Every field, whatever is added to them: with one forgotten, a derivative in one
        argument would be given for that in another.
        """
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del fields["op"]  # the names are those of its options
        for name in ("operands", "leaves"):
            fields[name] = described(fields[name])
        return tuple(fields.values())

    def signature(self) -> Signature:
        """Return the types of the operands, as the function gets them."""
        options = self.op.options
        wide = [leaf.wide if options.upcast else leaf.dtype for leaf in self.operands]
        return Signature(
            self.text,
            described(self.operands),
            tuple(
                None if found == leaf.dtype else found
                for found, leaf in zip(wide, self.operands, strict=True)
            ),
            len(self.op.ins) if options.writable else 0,
            may_write(self.function),
        )

    def _registered(self, results: list[Leaf]) -> str | None:
        signature = self.signature()
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
        if not self.fn._can_compile:
            why = (
                "it is compiled for signatures of its own, and for none that these "
                "are.\nLeave the signatures out; or say writable=True if they are for "
                "arrays that may be written to, and get copies."
            )
        elif "readonly" in str(error):
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
        tuple(range(len(op.outs))),
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
    if kind == "vjp":
        which, leaves, tree = op.inexact_outs, op.outs, op.out_tree
    else:
        which, leaves, tree = derivative.wrt, op.ins, op.rule_tree
    names = [_zeros(leaf) for leaf in leaves]
    for number, i in enumerate(which, start=len(op.ins)):
        names[i] = f"x{number}"
    args, linear = _arguments(op), as_text(jax.tree.unflatten(tree, names))
    if args is None or linear is None:
        return None
    text = f"fn(({''.join(f'{arg}, ' for arg in args)}), {linear})"
    returned = op.rule_tree if kind == "vjp" else op.out_tree
    return _product(derivative, rule, text, returned, kind, _is_shared(op, batch))


def _differences(derivative: Derivative, batch: Batch) -> Call | None:
    """Return the call of a rule that is made of differences."""
    op = derivative.op
    plain = call_of(op, batch)
    if plain is None or not is_dispatcher(plain.fn):
        return None
    # Where only cotangents have an axis, as under `jax.jacrev`, one evaluation for all
    # of them is what a callback does.
    if not all(batch.part(range(len(op.ins))).used):
        return None
    if any(leaf.dtype.kind != "f" for leaf in (*derivative.ins, *derivative.outs)):
        return None
    with _lock:
        rule = differences(derivative, plain)
    if rule is None:
        return None
    count = len(op.ins) + len(derivative.transposed().products)
    text = f"fn({', '.join(f'x{i}' for i in range(count))})"
    leaves = op.ins if derivative.kind == "vjp" else op.outs
    returned = jax.tree.structure((0,) * len(leaves))
    return _product(derivative, rule, text, returned, "differences", plain.threads)


def _product(
    derivative: Derivative, fn: Any, text: str, tree: Any, rule: str, threads: bool
) -> Call:
    """Return the call of what gives a product with a Jacobian; see `Call`."""
    op = derivative.op
    if derivative.kind == "vjp":
        leaves, chosen = op.ins, derivative.wrt
        paths = [f"argument leaf {i} of its vjp" for i in chosen]
    else:
        leaves, chosen = op.outs, op.inexact_outs
        paths = [f"{op.out_paths[i] or 'result'} of its jvp" for i in chosen]
    operands = (*op.ins, *derivative.transposed().products)
    return Call(
        op,
        fn,
        text,
        operands,
        tree,
        leaves,
        chosen,
        tuple(paths),
        rule=rule,
        threads=threads,
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
