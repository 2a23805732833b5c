"""`ps.grad` and `ps.value_and_grad`: jax's, for arguments that are States.

A State holds counters and keys beside its parameters. The gradient here is with respect
to the floating-point leaves, or to those that `wrt` names; everything else is passed
through and has None in the result.
"""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

import jax
import jax.numpy as jnp

from purestate._inspect.donations import explain_deleted
from purestate._inspect.repr import pformat
from purestate._instance.leaves import Leaves
from purestate._instance.numbers import is_number
from purestate._instance.partition import Index, Names, normal, selected
from purestate._schema.text import function_name, root_name
from purestate._transforms.parameters import as_tuple
from purestate.errors import NothingToDifferentiateError

_Part = Leaves | Names | None
_Wrt = Callable[[Any], Any] | _Part
_S = TypeVar("_S", bound=Any)  # without a bound, pyright rejects a lambda
_P = ParamSpec("_P")
_T = TypeVar("_T")
_W = TypeVar("_W")
_A = TypeVar("_A")


# What is differentiated is the first argument, so its class is the gradient's. The
# last overloads cannot be told more exactly, and ask for the argument that says so: as
# a fall back for everything they would take the lambdas.
@overload
def grad(
    fn: Callable[Concatenate[_S, _P], _T],
    wrt: _Part = ...,
    has_aux: Literal[False] = ...,
    *,
    holomorphic: bool = ...,
) -> Callable[Concatenate[_S, _P], _S]: ...
@overload
def grad(
    fn: Callable[Concatenate[_S, _P], _T],
    wrt: Callable[[_S], _W],
    has_aux: Literal[False] = ...,
    *,
    holomorphic: bool = ...,
) -> Callable[Concatenate[_S, _P], _W]: ...
@overload
def grad(
    fn: Callable[Concatenate[_S, _P], tuple[_T, _A]],
    wrt: _Part = ...,
    *,
    has_aux: Literal[True],
    holomorphic: bool = ...,
) -> Callable[Concatenate[_S, _P], tuple[_S, _A]]: ...
@overload
def grad(
    fn: Callable[Concatenate[_S, _P], tuple[_T, _A]],
    wrt: Callable[[_S], _W],
    *,
    has_aux: Literal[True],
    holomorphic: bool = ...,
) -> Callable[Concatenate[_S, _P], tuple[_W, _A]]: ...
@overload
def grad(
    fn: Callable[..., Any],
    wrt: _Wrt = ...,
    has_aux: bool = ...,
    *,
    argnums: int | tuple[int, ...],
    holomorphic: bool = ...,
) -> Callable[..., Any]: ...
def grad(
    fn: Callable[..., Any],
    wrt: _Wrt = None,
    has_aux: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """Return a function that computes the gradient with respect to its first argument.

    Args:
        fn: returns a scalar, or with `has_aux` a pair of a scalar and anything.
        wrt: what to differentiate: None for every real or complex leaf, names of
            fields, a choice of leaves, `ps.leaves("layers.*.kernel")`, or a selector,
            `lambda s: s.params`, whose part alone is returned.
        has_aux: whether `fn` returns a pair.
        **options: `argnums` and `holomorphic`, as in `jax.grad`.

    Returns:
        A function that returns the gradient, of the argument's class, with None in
        place of leaves that were not differentiated; with `has_aux` a pair. To
        `replace` it is a State like any other: derived fields are computed anew from
        the gradient of what they come from. `jax.tree.map` does not do that, nor are
        fields derived that say `derived=False`.

    Raises:
        NothingToDifferentiateError: when called, if no leaf is floating-point.
        FieldError: when called, if `wrt` names no field.
        PlaceError: when called, if a path in `wrt` leads to no leaf.

    >>> import jax, jax.numpy as jnp, purestate as ps
    >>> class Train(ps.State):
    ...     w: jax.Array
    ...     step: ps.Array
    >>> ps.grad(lambda t: (t.w**2).sum())(Train(w=jnp.ones(2), step=3))
    Train(w=f32[2], step=None)
    """
    both = value_and_grad(fn, wrt, has_aux, **options)

    @functools.wraps(fn, updated=())
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


@overload
def value_and_grad(
    fn: Callable[Concatenate[_S, _P], _T],
    wrt: _Part = ...,
    has_aux: Literal[False] = ...,
    *,
    holomorphic: bool = ...,
) -> Callable[Concatenate[_S, _P], tuple[_T, _S]]: ...
@overload
def value_and_grad(
    fn: Callable[Concatenate[_S, _P], _T],
    wrt: Callable[[_S], _W],
    has_aux: Literal[False] = ...,
    *,
    holomorphic: bool = ...,
) -> Callable[Concatenate[_S, _P], tuple[_T, _W]]: ...
@overload
def value_and_grad(
    fn: Callable[Concatenate[_S, _P], tuple[_T, _A]],
    wrt: _Part = ...,
    *,
    has_aux: Literal[True],
    holomorphic: bool = ...,
) -> Callable[Concatenate[_S, _P], tuple[tuple[_T, _A], _S]]: ...
@overload
def value_and_grad(
    fn: Callable[Concatenate[_S, _P], tuple[_T, _A]],
    wrt: Callable[[_S], _W],
    *,
    has_aux: Literal[True],
    holomorphic: bool = ...,
) -> Callable[Concatenate[_S, _P], tuple[tuple[_T, _A], _W]]: ...
@overload
def value_and_grad(
    fn: Callable[..., Any],
    wrt: _Wrt = ...,
    has_aux: bool = ...,
    *,
    argnums: int | tuple[int, ...],
    holomorphic: bool = ...,
) -> Callable[..., tuple[Any, Any]]: ...
def value_and_grad(
    fn: Callable[..., Any],
    wrt: _Wrt = None,
    has_aux: bool = False,
    *,
    argnums: int | tuple[int, ...] = 0,
    holomorphic: bool = False,
) -> Callable[..., tuple[Any, Any]]:
    """Return a function that computes the value of `fn` and its gradient.

    Args:
        fn: as in `grad`.
        wrt: as in `grad`.
        has_aux: whether `fn` returns a pair.
        argnums: which positional argument to differentiate with respect to; a tuple
            gives a tuple of gradients.
        holomorphic: differentiate complex leaves too, as in `jax.grad`.

    Returns:
        A function that returns `(value, gradient)`, or `((value, aux), gradient)`.

    Raises:
        NothingToDifferentiateError: when called, if no leaf is floating-point.

    >>> import purestate as ps
    >>> class Net(ps.State):
    ...     w: ps.Array
    ...     b: ps.Array
    >>> loss = ps.value_and_grad(lambda n: n.w * n.b, wrt="w")
    >>> loss(Net(w=2.0, b=3.0))[1]
    Net(w=f32[], b=None)
    """
    wanted = jnp.complexfloating if holomorphic else jnp.inexact
    is_one, numbers = hasattr(argnums, "__index__"), as_tuple(argnums)
    choice = None if wrt is None else normal(wrt, "wrt")

    @functools.wraps(fn, updated=())
    def both(*args: Any, **kwargs: Any) -> Any:
        where = {n + len(args) if n < 0 else n for n in numbers}
        if len(where) < len(numbers) or not where <= set(range(len(args))):
            raise TypeError(
                f"the gradient of {function_name(fn)} is with respect to positional "
                f"argument {argnums}, and it was called with {len(args)} positional "
                f"arguments."
            )
        given = [args[n] for n in numbers]
        structure: Any  # untyped in some versions of jax
        leaves, structure = jax.tree.flatten(given)
        numbered = structure.unflatten(map(Index, range(len(leaves))))
        part = numbered
        if choice is not None:
            pairs = zip(given, numbered, strict=True)
            part = [selected(a, b, choice) for a, b in pairs]
        chosen = [
            int(i)
            for i in jax.tree.leaves(part)
            if type(i) is Index and _is_a(leaves[i], wanted, choice)
        ]
        if not chosen:
            shown = ", ".join(map(pformat, given))
            raise NothingToDifferentiateError(root_name(given[0]), shown)

        def of_chosen(values: list[Any]) -> Any:
            changed = list(leaves)
            for i, value in zip(chosen, values, strict=True):
                changed[i] = value
            positional = list(args)
            for n, one in zip(
                numbers, jax.tree.unflatten(structure, changed), strict=True
            ):
                positional[n] = one
            return fn(*positional, **kwargs)

        of_leaves = jax.value_and_grad(
            of_chosen, has_aux=has_aux, holomorphic=holomorphic
        )
        try:
            value, found = of_leaves([leaves[i] for i in chosen])
        except RuntimeError as error:
            explain_deleted(error)
            raise
        by_index = dict(zip(chosen, found, strict=True))
        gradients = jax.tree.map(
            lambda i: by_index.get(i) if type(i) is Index else None, part
        )
        return value, gradients[0] if is_one else tuple(gradients)

    return both


def _is_a(leaf: Any, kind: Any, choice: object) -> bool:
    if isinstance(choice, Leaves) and not hasattr(leaf, "dtype"):
        return False  # a number that is not an array is trained by no optimizer
    if isinstance(leaf, type) or not (hasattr(leaf, "dtype") or is_number(leaf)):
        return False  # a function, a string: passed through
    return jnp.issubdtype(jax.dtypes.result_type(leaf), kind)
