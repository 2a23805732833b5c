"""Derivatives by differences, as a function of numba written for each host call.

It does what `derivatives/finite_differences` does for one item, number for number: with
`upcast=True` the results are the same to the last bit.
"""

from typing import Any

import numpy as np

from purestate._host.call.leaf import epsilon
from purestate._host.derivatives.derivative import Derivative
from purestate._host.native.arrays import as_readonly, flat
from purestate._host.native.difference_terms import (
    copied,
    doubled,
    finite,
    paired,
    quotient,
    reach,
)
from purestate._host.native.handler import Signature, entry, made
from purestate._host.native.raising import Record, note
from purestate._host.native.signatures import described, parts


def differences(derivative: Derivative, plain: Any) -> Any:
    """Return the product with a Jacobian as a function of numba's, or None.

    It takes the arguments, then a tangent for each in `wrt` or a cotangent for each
    inexact result, and returns a tuple with a leaf for each argument or result: for
    those without a derivative, None.

    Args:
        derivative: which one, of floats.
        plain: the call of the function itself.
    """
    op, kind, wrt = derivative.op, derivative.kind, derivative.wrt
    options = op.options
    signature: Signature = plain.signature()
    outs = described(op.outs)  # on whose precision the step depends
    key = ("differences", kind, wrt, signature, op.out_tree, outs)
    if key in options.native_code:
        return options.native_code[key]
    call, returned = entry(plain.fn, signature)
    found = parts(returned, op.out_tree, op.outs, op.inexact_outs, options.casting)
    if found is None:
        return None
    step = options.eps or _default_step(derivative)
    record = Record(
        options.label,
        tuple(
            (op.out_paths[i], op.outs[i].dtype, dtype)
            for i, (_, dtype) in zip(op.inexact_outs, found, strict=True)
        ),
    )
    names = {
        "call": call,
        "as_readonly": as_readonly,
        "copied": copied,
        "doubled": doubled,
        "flat": flat,
        "reach": reach,
        "finite": finite,
        "paired": paired,
        "quotient": quotient,
        "record": note(record),
        "STEP": step,
        "np": np,
    }
    for i in wrt:
        leaf = op.ins[i]
        names[f"T{i}"] = (leaf.wide if options.upcast else leaf.dtype).type
    write = _reverse if kind == "vjp" else _forward
    text = write(derivative, [text for text, _ in found], signature.copied)
    rule = made(text, "rule", names)
    rule.py_func.__module__ = plain.fn.py_func.__module__
    rule.py_func.__qualname__ = f"{plain.fn.py_func.__qualname__}.{options.grad}.{kind}"
    options.native_code[key] = rule
    return rule


def _default_step(derivative: Derivative) -> float:
    options = derivative.op.options
    given = [leaf.wide if options.upcast else leaf.dtype for leaf in derivative.ins]
    if not options.upcast:
        given += [leaf.dtype for leaf in derivative.outs]
    power = 1 / 2 if options.grad == "fd-forward" else 1 / 3
    return float(max(map(epsilon, given)) ** power)


def _reverse(derivative: Derivative, results: list[str], copied: bool) -> str:
    """Return the text of the product with cotangents: one element after the other."""
    op, count = derivative.op, len(derivative.op.ins)
    call = _call(derivative, copied)
    central = op.options.grad == "fd"
    lines = []
    for i in derivative.wrt:
        lines += [
            f"b{i} = copied(x{i})",
            f"f{i}, s{i} = flat(b{i}), flat(x{i})",
            f"g{i} = np.zeros(x{i}.shape)",
            f"d{i} = flat(g{i})",
        ]
    if not central:
        lines += [call, *(f"z{k} = doubled({r})" for k, r in enumerate(results))]
    width = "2 * h" if central else "h"
    terms = " + ".join(
        f"paired(a{k}, z{k}, {width}, x{count + k}, record, {k})"
        for k in range(len(results))
    )
    for i in derivative.wrt:
        body = [
            f"h = finite(reach(s{i}[n], STEP))",
            f"f{i}[n] = T{i}(np.float64(s{i}[n]) + h)",
            call,
            *(f"a{k} = doubled({r})" for k, r in enumerate(results)),
        ]
        if central:
            body += [
                f"f{i}[n] = T{i}(np.float64(s{i}[n]) - h)",
                call,
                *(f"z{k} = doubled({r})" for k, r in enumerate(results)),
            ]
        body += [
            f"d{i}[n] = 0.0 + {terms}",
            f"f{i}[n] = T{i}(np.float64(s{i}[n]) + 0.0)",
        ]
        lines += [f"for n in range(s{i}.size):", *(f"    {line}" for line in body)]
    made = "".join(f"g{i}, " if i in derivative.wrt else "None, " for i in range(count))
    return _function(count + len(results), [*lines, f"return ({made})"])


def _forward(derivative: Derivative, results: list[str], copied: bool) -> str:
    """Return the text of the product with tangents: a step in their direction."""
    op, count = derivative.op, len(derivative.op.ins)
    call = _call(derivative, copied)
    central = op.options.grad == "fd"
    lines, moves = ["h = np.inf"], dict[str, list[str]]()
    for number, i in enumerate(derivative.wrt):
        lines += [
            f"b{i} = copied(x{i})",
            f"f{i}, s{i}, t{i} = flat(b{i}), flat(x{i}), flat(x{count + number})",
            f"for n in range(s{i}.size):",
            f"    size = np.abs(t{i}[n])",
            "    if size > 0:",
            f"        h = np.minimum(h, reach(s{i}[n], STEP) / size)",
        ]
    lines.append("h = finite(h)")
    for sign in "+-":
        moves[sign] = []
        for i in derivative.wrt:
            moved = f"np.float64(s{i}[n]) {sign} h * np.float64(t{i}[n])"
            moves[sign] += [
                f"for n in range(s{i}.size):",
                f"    f{i}[n] = T{i}({moved})",
            ]
    if not central:
        lines += [call, *(f"z{k} = doubled({r})" for k, r in enumerate(results))]
    lines += [*moves["+"], call]
    lines += [f"a{k} = doubled({r})" for k, r in enumerate(results)]
    if central:
        lines += [*moves["-"], call]
        lines += [f"z{k} = doubled({r})" for k, r in enumerate(results)]
    width = "2 * h" if central else "h"
    made = ["None, "] * len(op.outs)
    for k, i in enumerate(op.inexact_outs):
        made[i] = f"quotient(a{k}, z{k}, {width}, record, {k}), "
    lines.append(f"return ({''.join(made)})")
    return _function(count + len(derivative.wrt), lines)


def _function(operands: int, lines: list[str]) -> str:
    names = ", ".join(f"x{i}" for i in range(operands))
    return "\n".join([f"def rule({names}):", *(f"    {line}" for line in lines)])


def _call(derivative: Derivative, copied: bool) -> str:
    """Return the text of an evaluation at the point that has been moved."""
    op = derivative.op
    names = []
    for i in range(len(op.ins)):
        name = f"b{i}" if i in derivative.wrt else f"x{i}"
        if op.options.writable or copied:  # each evaluation may write to its own
            name = f"{name}.copy()"
        if not op.options.writable and (copied or i in derivative.wrt):
            name = f"as_readonly({name})"
        names.append(name)
    return f"r = call({', '.join(names)})"
