"""`Optimizer`: an optax optimizer as a State, equal for equal settings.

Needs the extra `optax`; `import purestate` does not import it.

An optax transformation is a pair of closures, which no other instance and no other
process has: kept in a State it makes every instance compile anew, and pickle refuses
it. Here the factory and its arguments are kept instead. The transformation is made of
them again while a step is traced, in microseconds, and never in a compiled call.

>>> import jax, jax.numpy as jnp, optax, purestate as ps
>>> from purestate.optax import Optimizer
>>> class Train(ps.State):
...     w: jax.Array
...     opt: Optimizer
...
...     def __init__(self):
...         self.w = jnp.ones(3)
...         self.opt = Optimizer(self.w, optax.adam, 0.1)
...
...     @ps.jit(donate=True)
...     def step(self):
...         loss, grads = jax.value_and_grad(lambda w: (w**2).sum())(self.w)
...         opt, w = self.opt.update(self.w, grads=grads)
...         return self.replace(w=w, opt=opt), loss
>>> train, loss = Train().step()
>>> train, loss = train.step()
>>> [round(float(x), 3) for x in train.w]
[0.8, 0.8, 0.8]
"""

import dataclasses
import functools
import inspect
import operator
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from purestate._inspect.key_paths import path_text
from purestate._instance.leaves import Leaves, floats, leaves
from purestate._schema.fields import field, static
from purestate._schema.static_values import (
    Unfit,
    is_value_dataclass,
    python_numbers,
    typed,
)
from purestate._schema.text import function_name, root_name
from purestate._state.state import State
from purestate.errors import OptimizerError
from purestate.errors._text import needs_extra

with needs_extra("purestate.optax", "optax", "optax"):
    import optax

_M = TypeVar("_M")

__all__ = ["Optimizer"]


def _strong(hyperparams: Any) -> Any:
    """Return arguments with arrays for Python numbers, which `at` may have put in."""
    if not isinstance(hyperparams, dict):
        return hyperparams
    numbers = {k: _data(x) for k, x in hyperparams.items() if type(x) in (int, float)}
    return hyperparams | numbers if numbers else hyperparams


def _data(value: Any) -> jax.Array:
    # A copy, since a step may donate it. Not weakly typed: an update would change its
    # type, and compile anew.
    return jnp.array(value, jnp.result_type(value))


class Optimizer(State):
    """An optax optimizer and its state, for the trained leaves of a model.

    Instances with equal settings share compiled programs, can be pickled, stacked,
    donated and carried by `scan`. There are moments for what is trained only.

    Attributes:
        state: optax's state.
        hyperparams: the arguments that are arrays, by name: data, which may change
            without a new compilation and differ within a batch.
        make: the factory with its other arguments, which are constants of the program.
        wrt: which leaves are trained, those of them that are floating-point arrays.
        trained: a bool for each leaf of the params, found when the optimizer was made:
            inside of jit a Python float cannot be told from an array.
    """

    state: Any
    hyperparams: dict[str, jax.Array] = field(converter=_strong)
    make: functools.partial[Any] = static()
    wrt: Leaves = static()
    trained: tuple[bool, ...] = static(repr=False)

    def __init__(
        self,
        params: Any,
        make: Callable[..., optax.GradientTransformation],
        /,
        *args: Any,
        wrt: Leaves | str | Iterable[str] = floats,
        **kwargs: Any,
    ) -> None:
        """Start the optimizer for a model.

        Args:
            params: the model, a State or any pytree.
            make: returns the optax transformation, as `optax.adamw` does; a function of
                a module, so that other processes have it too.
            *args: its arguments. Arrays, and floating-point numbers of numpy, become
                data, in `hyperparams`; everything else is a constant of the program.
            wrt: the leaves to train: `ps.leaves(...)`, a path or several.
            **kwargs: its arguments by name.

        Raises:
            OptimizerError: something that could not be equal for another instance, or
                in another process; wrong arguments; nothing to train.
            PlaceError: a path in `wrt`, or in a choice among the arguments, that leads
                to no leaf.
        """
        choice = _choice(wrt)
        factory, arrays = _bound(make, args, kwargs)
        for mask in _choices((*factory.args, *factory.keywords.values())):
            mask.check(params)
        trained = tuple((choice & floats).among(params))
        if not any(trained):
            raise OptimizerError.nothing(type(params).__name__, str(choice))
        found, structure = jax.tree.flatten(params)
        state = _transformation(factory, arrays).init(
            _chosen(structure, found, trained)
        )
        self.state, self.hyperparams, self.make = state, arrays, factory
        self.wrt, self.trained = choice, trained

    @property
    def tx(self) -> optax.GradientTransformationExtraArgs:
        """The optax transformation, made anew."""
        return _transformation(self.make, self.hyperparams)

    def __purestate_mirrors__(self, params: Any) -> bool:
        """Return whether an optimizer for these params has a state of these shapes.

        `ps.shardings` asks for it, to find the field that this optimizer trains.
        """
        found, structure = jax.tree.flatten(params)
        if len(found) != len(self.trained):
            return False

        def start(opt: Optimizer, found: list[Any]) -> Any:
            return opt.tx.init(_chosen(structure, found, opt.trained))

        try:
            state = jax.eval_shape(start, self, found)
        except Exception:  # noqa: BLE001  # of params that are not its own
            return False
        return _shapes(state) == _shapes(self.state)

    def update(
        self, params: _M, /, *, grads: Any, **extra: Any
    ) -> "tuple[Optimizer, _M]":
        """Return the next optimizer and the updated params.

        Args:
            params: the model; what is not trained comes back as it went in.
            grads: of the structure of `params`, from `jax.grad`; or from `ps.grad`,
                with None for leaves or whole parts that are not trained.
            **extra: what the transformation takes beside them, as `value`, or `grad`
                and `value_fn`, both for the whole params, for `optax.lbfgs`.

        Raises:
            OptimizerError: no gradient for something that is trained, or one of another
                shape.
        """
        structure: Any
        found, structure = jax.tree.flatten(params)
        flags = self.trained
        if len(found) != len(flags):
            name = type(params).__name__
            raise OptimizerError.other_params(name, len(found), len(flags))
        trained: Any = _chosen(structure, found, flags)
        wanted = functools.partial(_gradients, trained, root=root_name(params))
        if "grad" in extra:
            extra["grad"] = wanted(extra["grad"])
        if "value_fn" in extra:
            extra["value_fn"] = _of_whole(extra["value_fn"], structure, found, flags)
        updates, state = self.tx.update(wanted(grads), self.state, trained, **extra)
        moved = optax.apply_updates(trained, updates)
        made: _M = _replaced(structure, found, flags, moved)
        return self.replace(state=state), made


def _transformation(
    make: functools.partial[Any], arrays: dict[str, jax.Array]
) -> optax.GradientTransformationExtraArgs:
    name = function_name(make.func)
    try:
        made = make(**arrays)
    except Exception as error:
        error.add_note(
            f"raised by {name}, which makes the transformation of an Optimizer."
        )
        raise
    if isinstance(made, optax.MultiSteps):
        made = made.gradient_transformation()
    if not _is_made(made):
        raise OptimizerError.not_made(name, made)
    return optax.with_extra_args_support(made)


def _chosen(structure: Any, found: list[Any], flags: tuple[bool, ...]) -> Any:
    """Return a tree with None for the leaves without a flag."""
    pairs = zip(found, flags, strict=True)
    return structure.unflatten(leaf if flag else None for leaf, flag in pairs)


def _replaced(
    structure: Any, found: list[Any], flags: tuple[bool, ...], trained: Any
) -> Any:
    """Return a tree with other values in the leaves that have a flag."""
    moved = iter(jax.tree.leaves(trained))
    return structure.unflatten(
        next(moved) if flag else leaf for leaf, flag in zip(found, flags, strict=True)
    )


def _shapes(tree: Any) -> list[Any]:
    return [(path, jnp.shape(leaf)) for path, leaf in jax.tree.leaves_with_path(tree)]


def _of_whole(
    function: Callable[..., Any],
    structure: Any,
    found: list[Any],
    flags: tuple[bool, ...],
) -> Callable[..., Any]:
    """Return a function of the trained leaves, made of one of all of the params."""

    @functools.wraps(function)
    def of_trained(trained: Any, *args: Any, **kwargs: Any) -> Any:
        params = _replaced(structure, found, flags, trained)
        return function(params, *args, **kwargs)

    return of_trained


def _choice(wrt: Any) -> Leaves:
    """Return what is trained as a choice that other processes have too."""
    if not isinstance(wrt, Leaves):
        names = (wrt,) if isinstance(wrt, str) else wrt
        names = tuple(names) if isinstance(names, Iterable) else ()
        if not names or not all(isinstance(name, str | Leaves) for name in names):
            raise OptimizerError.selector(wrt)
        wrt = leaves(*names)
    choice: Leaves = wrt
    for function in _own(choice):
        raise OptimizerError.unfindable_test(function_name(function))
    return choice


def _bound(
    make: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[functools.partial[Any], dict[str, jax.Array]]:
    """Return a factory with its constant arguments, and those that are arrays."""
    while isinstance(make, functools.partial):
        args, kwargs = (*make.args, *args), make.keywords | kwargs
        make = make.func
    if _is_made(make) or not callable(make):
        raise OptimizerError.already_made(make)
    name = function_name(make)
    _check_found(make, "")
    try:
        bound = inspect.signature(make).bind(*args, **kwargs)
    except TypeError as error:
        raise OptimizerError.arguments(name, str(error)) from None
    # By their names where they have one: adam(1e-3) and adam(learning_rate=1e-3) are
    # one program.
    kinds = {p.name: p.kind for p in bound.signature.parameters.values()}
    alone: list[Any] = []
    named: dict[str, Any] = {}
    for key, value in bound.arguments.items():
        if kinds[key] is inspect.Parameter.VAR_POSITIONAL:
            alone += value
        elif kinds[key] is inspect.Parameter.POSITIONAL_ONLY:
            alone.append(value)
        elif kinds[key] is inspect.Parameter.VAR_KEYWORD:
            named |= value
        else:
            named[key] = value
    if alone and any(
        kind is inspect.Parameter.VAR_POSITIONAL for kind in kinds.values()
    ):  # then the ones before must be given by position, too
        alone, named = list(bound.args), dict(bound.kwargs)
    arrays = {key: _data(x) for key, x in named.items() if _is_data(x)}
    constants = {key: x for key, x in named.items() if key not in arrays}
    constant = {str(i): value for i, value in enumerate(alone)} | constants
    for key, value in constant.items():
        _check_constant(name, key, value)
    alone = [python_numbers(value) for value in alone]
    constants = {key: python_numbers(value) for key, value in constants.items()}
    return functools.partial(make, *alone, **constants), arrays


def _check_constant(make: str, key: str, value: Any) -> None:
    if _is_made(value) or isinstance(value, optax.MultiSteps):
        raise OptimizerError.already_made(value, make)
    _check_found(value, f"{key} of {make}")
    try:
        typed(value)
    except Unfit as unfit:
        if _is_array(unfit.value):
            raise OptimizerError.array(make, key + unfit.path) from None
        kind = type(unfit.value).__name__
        raise OptimizerError.not_a_value(make, key + unfit.path, kind) from None


def _check_found(value: Any, where: str) -> None:
    for part in _own(value):
        if hasattr(part, "__qualname__"):
            raise OptimizerError.unfindable(function_name(part), where)
        raise OptimizerError.same_only(type(part).__name__, where)


def _is_made(value: Any) -> bool:
    return (
        isinstance(value, tuple) and hasattr(value, "init") and hasattr(value, "update")
    )


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def _is_data(value: Any) -> bool:
    """Return whether an argument with a name is data: an element of a sweep as well."""
    is_scalar = isinstance(value, np.generic)
    return _is_array(value) or (
        is_scalar and bool(jnp.issubdtype(value.dtype, jnp.inexact))
    )


def _choices(value: Any) -> Iterator[Leaves]:
    """Yield the choices of leaves in a constant: masks."""
    if isinstance(value, Leaves):
        yield value
    elif isinstance(value, functools.partial):
        yield from _choices((*value.args, *value.keywords.values()))
    elif isinstance(value, tuple | frozenset):
        for part in value:
            yield from _choices(part)
    elif is_value_dataclass(value):
        for spec in dataclasses.fields(value):
            yield from _choices(getattr(value, spec.name, None))


def _own(value: Any) -> Iterator[Any]:
    """Yield the parts of a constant that no other instance or process has."""
    if isinstance(value, functools.partial):
        value = (value.func, *value.args, *value.keywords.values())
    if isinstance(value, Leaves):
        value = tuple(value.functions())
    if isinstance(value, tuple | frozenset):
        for part in value:
            yield from _own(part)
    elif is_value_dataclass(value):
        yield from _own(type(value))
        for part in dataclasses.fields(value):
            yield from _own(getattr(value, part.name, None))
    elif isinstance(value, types.MethodType):
        yield from _own(value.__self__)
    elif not _is_found(value):
        yield value


def _is_found(value: Any) -> bool:
    """Return whether another process has a value that is equal to this one."""
    kind: Any = type(value)
    if not isinstance(value, type) and kind.__eq__ is not object.__eq__:
        return True  # by what is in it; what has no hash is refused later
    name: Any = getattr(value, "__qualname__", None)
    if not isinstance(name, str):
        try:
            return bool(pickle.loads(pickle.dumps(value)) == value)
        except Exception:  # noqa: BLE001  # whatever a foreign __reduce__ raises
            return False
    if "<locals>" in name:
        return False
    if isinstance(value, type) or name == "<lambda>":
        return True
    if getattr(value, "__globals__", {}).get(name) is value:
        return True
    try:
        home = sys.modules[value.__module__]
        return operator.attrgetter(name)(home) is value
    except (KeyError, AttributeError):
        return False


def _gradients(trained: Any, grads: Any, root: str) -> Any:
    """Return the gradients of what is trained, in its structure.

    Raises:
        OptimizerError: one is missing, or has another shape.
    """
    missing: list[str] = []
    made = _matched(trained, grads, (), root, missing)
    if missing:
        raise OptimizerError.gradients(missing)
    return made


def _matched(
    trained: Any, grads: Any, path: tuple[Any, ...], root: str, missing: list[str]
) -> Any:
    if trained is None:
        return None
    parts, structure = _one_level(trained)
    if parts and parts[0][0] == ():  # a leaf
        place = path_text(path, root) or "the params"
        if grads is None:
            missing.append(f"{place}: None")
        elif np.shape(grads) != trained.shape:
            missing.append(f"{place}: shape {np.shape(grads)}, for {trained.shape}")
        return grads
    if grads is None:
        found = [(step, None) for step, _ in parts]
    else:
        found, other = _one_level(grads)
        if other != structure:
            place = path_text(path, root) or "the top"
            missing.append(f"{place}: {type(grads).__name__} of another structure")
            return None
    return structure.unflatten(
        _matched(part, grad, (*path, *step), root, missing)
        for (step, part), (_, grad) in zip(parts, found, strict=True)
    )


def _one_level(tree: Any) -> Any:
    return jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)


Optimizer.__module__ = __name__
