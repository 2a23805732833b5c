"""Derivatives by differences, as a function of numba written for each host call.

It does what `derivatives/finite_differences` does for one item, number for number: with
`upcast=True` the results are the same to the last bit.
"""

from typing import Any

import numpy as np

from purestate._host.call.leaf import epsilon
from purestate._host.derivatives.derivative import Derivative
from purestate._host.native.arrays import as_readonly
from purestate._host.native.handler import Signature, entry, made
from purestate._host.native.numba_parts import (
    impl_ret_borrowed,
    inline,
    intrinsic,
    make_array,
    overload,
    populate_array,
    types,
)
from purestate._host.native.raising import Mismatch, Record, note
from purestate._host.native.signatures import parts

_FEW, _BLOCK = 8, 128  # of numpy's pairwise sums


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
    key = ("differences", kind, wrt, signature, op.out_tree, len(op.outs))
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
        "copied": _copied,
        "doubled": _doubled,
        "flat": _flat,
        "reach": _reach,
        "finite": _finite,
        "paired": _paired,
        "quotient": _quotient,
        "record": note(record),
        "STEP": step,
        "np": np,
    }
    for i in wrt:
        leaf = op.ins[i]
        names[f"T{i}"] = (leaf.wide if options.upcast else leaf.dtype).type
    write = _reverse if kind == "vjp" else _forward
    text = write(derivative, [text for text, _ in found])
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


def _reverse(derivative: Derivative, results: list[str]) -> str:
    """Return the text of the product with cotangents: one element after the other."""
    op, count = derivative.op, len(derivative.op.ins)
    call = _call(derivative)
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


def _forward(derivative: Derivative, results: list[str]) -> str:
    """Return the text of the product with tangents: a step in their direction."""
    op, count = derivative.op, len(derivative.op.ins)
    call = _call(derivative)
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


def _call(derivative: Derivative) -> str:
    """Return the text of an evaluation at the point that has been moved."""
    op = derivative.op
    names = []
    for i in range(len(op.ins)):
        name = f"b{i}" if i in derivative.wrt else f"x{i}"
        if op.options.writable:  # each evaluation may write to its own
            name = f"{name}.copy()"
        elif i in derivative.wrt:
            name = f"as_readonly({name})"
        names.append(name)
    return f"r = call({', '.join(names)})"


# --- what the text is made of, in code of numba ---------------------------------------


@intrinsic
def _flat(typing: Any, array: Any) -> Any:
    """Return a view of a C-contiguous array with one axis, also of one without any."""
    kind = array.copy(ndim=1)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        given = make_array(array)(context, builder, value=args[0])
        made = make_array(kind)(context, builder)
        populate_array(
            made,
            given.data,
            [given.nitems],
            [given.itemsize],
            given.itemsize,
            given.meminfo,
            given.parent,
        )
        return impl_ret_borrowed(context, builder, kind, made._getvalue())

    return kind(array), codegen


@inline
def _copied(x):
    """Return an array to move: -0.0 is 0.0 there, as it is after adding a step."""
    made = np.empty(x.shape, x.dtype)
    out, given = _flat(made), _flat(x)
    for n in range(given.size):
        out[n] = given[n] + 0.0
    return made


@inline
def _finite(step):
    return np.float64(step) if np.isfinite(step) else 1.0


def _reach(x: Any, step: Any) -> Any:
    """Return how far an element may be moved, in its own precision."""
    raise NotImplementedError


@overload(_reach, strict=False)
def _reach_of(x: Any, step: Any) -> Any:
    kind = np.dtype(str(x)).type
    one = kind(1)

    def reach(x, step):
        return kind(step) * np.maximum(one, np.abs(x))

    return reach


def _doubled(value: Any) -> Any:
    """Return a copy of a result in double precision; a later call may overwrite it."""
    raise NotImplementedError


@overload(_doubled, strict=False)
def _doubled_of(value: Any) -> Any:
    if isinstance(value, types.Array):

        def doubled(value):
            made = np.empty(value.shape)
            made[...] = value
            return made

        return doubled

    def doubled_number(value):
        made = np.empty(())
        made[()] = value
        return made

    return doubled_number


@inline
def _quotient(above, below, width, record, leaf):
    """Return the derivative of a result in the direction of a step."""
    if above.shape != below.shape:
        raise Mismatch(record, leaf, above.shape, below.shape, 0)
    made = np.empty(above.shape)
    out, a, b = _flat(made), _flat(above), _flat(below)
    for n in range(out.size):
        out[n] = (a[n] - b[n]) / width
    return made


@inline
def _paired(above, below, width, cotangent, record, leaf):
    """Return the sum over a result of its derivative times its cotangent."""
    if above.shape != cotangent.shape:
        raise Mismatch(record, leaf, cotangent.shape, above.shape, 0)
    if below.shape != cotangent.shape:
        raise Mismatch(record, leaf, cotangent.shape, below.shape, 0)
    a, b, c = _flat(above), _flat(below), _flat(cotangent)
    return 0.0 + _summed(a, b, c, width, 0, a.size)


@inline
def _term(a, b, c, width, n):
    return (a[n] - b[n]) / width * np.float64(c[n])


@inline
def _summed(a, b, c, width, start, count):
    """Return the sum of terms, in numpy's order: pairwise, in eight at a time."""
    if count < _FEW:
        total = 0.0
        for n in range(start, start + count):
            total += _term(a, b, c, width, n)
        return total
    if count <= _BLOCK:
        r0 = _term(a, b, c, width, start)
        r1 = _term(a, b, c, width, start + 1)
        r2 = _term(a, b, c, width, start + 2)
        r3 = _term(a, b, c, width, start + 3)
        r4 = _term(a, b, c, width, start + 4)
        r5 = _term(a, b, c, width, start + 5)
        r6 = _term(a, b, c, width, start + 6)
        r7 = _term(a, b, c, width, start + 7)
        whole = count - count % _FEW
        for n in range(start + _FEW, start + whole, _FEW):
            r0 += _term(a, b, c, width, n)
            r1 += _term(a, b, c, width, n + 1)
            r2 += _term(a, b, c, width, n + 2)
            r3 += _term(a, b, c, width, n + 3)
            r4 += _term(a, b, c, width, n + 4)
            r5 += _term(a, b, c, width, n + 5)
            r6 += _term(a, b, c, width, n + 6)
            r7 += _term(a, b, c, width, n + 7)
        total = ((r0 + r1) + (r2 + r3)) + ((r4 + r5) + (r6 + r7))
        for n in range(start + whole, start + count):
            total += _term(a, b, c, width, n)
        return total
    half = count // 2
    half -= half % _FEW
    first = _summed(a, b, c, width, start, half)
    return first + _summed(a, b, c, width, start + half, count - half)
