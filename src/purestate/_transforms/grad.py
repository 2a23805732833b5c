"""`ps.grad` and `ps.value_and_grad`: jax's, for arguments that are States.

A State holds counters and keys beside its parameters. The gradient here is with respect
to the floating-point leaves, or to those that `wrt` names; everything else is passed
through and has None in the result.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

import jax
import jax.numpy as jnp

from purestate._inspect.donations import explain_deleted
from purestate._inspect.repr import pformat
from purestate._instance.at import selected_paths
from purestate._instance.numbers import is_number
from purestate._instance.pytree import new_instance
from purestate._schema.layout import state_layout
from purestate._schema.marks import held_by
from purestate._schema.text import function_name, root_name
from purestate._transforms.parameters import as_tuple
from purestate.errors import FieldError, NothingToDifferentiateError

_Names = str | Iterable[str] | None
_Wrt = Callable[[Any], Any] | _Names
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
    wrt: _Names = ...,
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
    wrt: _Names = ...,
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
            fields, or a selector, `lambda s: s.params`, whose part alone is returned.
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
        FieldError, PlaceError: when called, if `wrt` names nothing.

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
    wrt: _Names = ...,
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
    wrt: _Names = ...,
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
    if not (wrt is None or callable(wrt) or isinstance(wrt, str)):
        listed: Any = tuple(wrt) if hasattr(wrt, "__iter__") else (wrt,)
        wrt = listed
        if not all(isinstance(name, str) for name in listed):
            raise TypeError(
                f"wrt takes names of fields or a selector, and got {listed!r}; "
                f"positions of arguments go into argnums=."
            )

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
        numbered = structure.unflatten(map(_Index, range(len(leaves))))
        part = [_selected(a, b, wrt) for a, b in zip(given, numbered, strict=True)]
        chosen = [
            int(i)
            for i in jax.tree.leaves(part)
            if type(i) is _Index and _is_a(leaves[i], wanted)
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
            lambda i: by_index.get(i) if type(i) is _Index else None, part
        )
        return value, gradients[0] if is_one else tuple(gradients)

    return both


class _Index(int):
    """The position of a leaf, told apart from numbers that users keep in fields."""


def _selected(given: Any, numbered: Any, wrt: _Wrt) -> Any:
    """Return the part to differentiate, out of a tree of leaf positions."""
    if wrt is None:
        return numbered
    if callable(wrt):
        paths, many = selected_paths(given, wrt)
        parts = [_follow(numbered, path) for path in paths]
        return tuple(parts) if many else parts[0]
    names = (wrt,) if isinstance(wrt, str) else tuple(wrt)
    layout = state_layout(given, f"wrt={wrt!r}")
    for name in names:
        if name in layout.static:
            raise FieldError(
                f"{layout.cls.__name__}.{name} is static, so it has no gradient; "
                f"differentiate with respect to {', '.join(layout.data)}."
            )
        if name not in layout.data and isinstance(
            getattr(layout.cls, name, None), property
        ):
            raise FieldError(
                f"{layout.cls.__name__}.{name} is a property and no field: write "
                f"wrt=lambda s: s.{name}, if it leads to one."
            )
        if name not in layout.data:
            raise FieldError.unknown(layout.cls, name, layout.data)
    rest = {name: None for name in layout.data if name not in names}
    return new_instance(layout.cls, held_by(numbered) | rest)


def _follow(tree: Any, path: tuple[tuple[str, Any], ...]) -> Any:
    for kind, key in path:
        tree = getattr(tree, key) if kind == "." else tree[key]
    return tree


def _is_a(leaf: Any, kind: Any) -> bool:
    if isinstance(leaf, type) or not (hasattr(leaf, "dtype") or is_number(leaf)):
        return False  # a function, a string: passed through
    return jnp.issubdtype(jax.dtypes.result_type(leaf), kind)
