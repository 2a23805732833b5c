"""The derivative rules that a user writes, at one point."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from purestate._host.call.invoke import Arrays, arguments, invoke, unexpected
from purestate._host.call.leaf import Leaf, may_cast, refusal, type_text
from purestate._host.derivatives.derivative import Derivative
from purestate.errors import HostSpecError

Array = np.ndarray[Any, Any]


class Rule:
    """`jvp=`, `vjp=` or `jac=` of a host function, at given arguments."""

    def __init__(
        self,
        derivative: Derivative,
        primals: Sequence[Array],
        lead: tuple[int, ...] = (),
    ) -> None:
        args, kwargs = arguments(derivative.op, primals)
        self.op = derivative.op
        self.wrt = derivative.wrt
        self.lead = lead
        self.args = (*args, *kwargs.values())

    def apply(self, kind: str, linear: Sequence[Array]) -> Arrays:
        """Return the product that the rule gives."""
        op = self.op
        options: Any = op.options  # the rule asked for is there
        if kind == "jvp":
            tangents = self._spread(op.ins, self.wrt, linear)
            given = jax.tree.unflatten(op.rule_tree, tangents)
            found = invoke(options, options.jvp, (self.args, given), op.statics)
            values = self._leaves(op.out_tree, found, "jvp", "the result")
            return [
                self._filled(values[i], op.outs[i], "jvp", op.out_paths[i] or "result")
                for i in op.inexact_outs
            ]
        cotangents = self._spread(op.outs, op.inexact_outs, linear)
        cotangent = jax.tree.unflatten(op.out_tree, cotangents)
        rule = options.batch_vjp if self.lead else options.vjp
        found = invoke(options, rule, (self.args, cotangent), op.statics)
        values = self._per_argument(found, "vjp")
        return [
            self._filled(values[i], op.ins[i], "vjp", f"argument leaf {i}")
            for i in self.wrt
        ]

    def by_jacobian(self, kind: str, linear: Sequence[Array], extra: int) -> Arrays:
        """Return products of the Jacobian that `jac=` gives.

        Args:
            kind: "jvp" or "vjp".
            linear: tangents or cotangents, with `extra` axes in front of their own.
            extra: how many; they come out in front as well.
        """
        op = self.op
        options: Any = op.options
        found = invoke(options, options.jac, self.args, op.statics)
        if options.pattern is not None:
            return [_by_pattern(options.pattern, found, kind, linear[0])]
        rows = self._leaves(op.out_tree, found, "jac", "the result")
        blocks = {o: self._blocks(o, rows[o]) for o in op.inexact_outs}
        made = []
        wanted = op.inexact_outs if kind == "jvp" else self.wrt
        for target in wanted:
            leaf = op.outs[target] if kind == "jvp" else op.ins[target]
            total = np.zeros(linear[0].shape[:extra] + leaf.shape)
            given = self.wrt if kind == "jvp" else op.inexact_outs
            for source, value in zip(given, linear, strict=True):
                o, i = (target, source) if kind == "jvp" else (source, target)
                block = blocks[o][i].reshape(op.outs[o].size, op.ins[i].size)
                matrix = block.T if kind == "jvp" else block
                flat = value.reshape(*value.shape[:extra], matrix.shape[0])
                total = total + (flat @ matrix).reshape(total.shape)
            # Of the pair that a complex number is, a real one takes the first.
            made.append(total if leaf.dtype.kind == "c" else total.real)
        return made

    def _blocks(self, o: int, row: Any) -> dict[int, Array]:
        values = self._per_argument(row, "jac")
        made = {}
        for i in self.wrt:
            shape = self.op.outs[o].shape + self.op.ins[i].shape
            block = np.zeros(shape) if values[i] is None else np.asanyarray(values[i])
            if isinstance(block, np.ma.MaskedArray):
                raise HostSpecError(
                    "jac= of {} returned {}, {}.".format(
                        self.op.options.label, *refusal(block)
                    )
                )
            if block.shape != shape:
                raise HostSpecError(
                    f"jac= of {self.op.options.label} returned a block of shape "
                    f"{block.shape}; the result's shape {self.op.outs[o].shape}, then "
                    f"the argument's {self.op.ins[i].shape}, makes {shape}."
                )
            made[i] = block
        return made

    def _per_argument(self, found: Any, rule: str) -> list[Any]:
        """Return a value or None per argument leaf; None may stand for an argument."""
        children = self.op.rule_tree.children()
        if len(children) == 1 and not (isinstance(found, tuple) and len(found) == 1):
            found = (found,)
        if found is None:
            found = (None,) * len(children)
        if not isinstance(found, tuple | list) or len(found) != len(children):
            count = len(found) if isinstance(found, tuple | list) else 1
            raise HostSpecError(
                f"{rule}= of {self.op.options.label} returned {count} values for "
                f"{len(children)} arguments: return a tuple, None for zero."
            )
        values: list[Any] = []
        for number, (child, value) in enumerate(zip(children, found, strict=True)):
            if value is None:
                values += [None] * child.num_leaves
            else:
                values += self._leaves(child, value, rule, f"argument {number}")
        return values

    def _leaves(self, tree: Any, value: Any, rule: str, what: str) -> list[Any]:
        """Return what stands at the leaves of `tree`, None where it is zero."""
        if value is None:
            return [None] * tree.num_leaves
        try:
            return list(tree.flatten_up_to(value))
        except (ValueError, TypeError, KeyError) as error:
            raise HostSpecError(
                f"{rule}= of {self.op.options.label} returned another structure than "
                f"that of {what}:\n  expected: {tree}\n"
                f"  received: {jax.tree.structure(value)}"
            ) from error

    def _filled(self, value: Any, leaf: Leaf, rule: str, path: str) -> Array:
        """Return one array of a rule's result, checked; None is zero."""
        if value is None:
            return np.zeros(self.lead + leaf.shape, leaf.dtype)
        array = None
        is_masked = isinstance(value, np.ma.MaskedArray)
        if jax.tree_util.all_leaves([value]) and not is_masked:
            array = np.asarray(value)
        fits = array is not None and array.shape == self.lead + leaf.shape
        if array is None or not fits or not _may_be(array.dtype, leaf):
            shown = f"a {type(value).__name__}"
            if isinstance(value, np.ma.MaskedArray):
                shown = ", ".join(refusal(value))
            elif array is not None:
                shown = type_text(array)
            where = f"{path} of its {rule}"
            raise unexpected(self.op.options.label, where, leaf, self.lead, shown)
        return array

    def _spread(
        self, leaves: Sequence[Leaf], which: Sequence[int], given: Sequence[Array]
    ) -> list[Any]:
        """Return an array per leaf, zero where none was given."""
        made: list[Any] = [
            np.zeros(self.lead + leaf.shape, leaf.dtype) for leaf in leaves
        ]
        for i, value in zip(which, given, strict=True):
            leaf = leaves[i]
            wide = value.astype(leaf.wide) if self.op.options.upcast else value
            made[i] = wide.view()
            made[i].flags.writeable = False
        return made


def _by_pattern(pattern: Any, block: Array, kind: str, value: Array) -> Array:
    rows, columns, same = pattern
    found = np.zeros(value.shape)
    if kind == "jvp":
        found[..., rows] = value[..., columns] @ block.T
    else:
        found[..., columns] = value[..., rows] @ block
    found[..., same] += value[..., same]
    return found


def _may_be(dtype: Any, leaf: Leaf) -> bool:
    return dtype.kind != "O" and may_cast(dtype, leaf.dtype, "same_kind", True)
