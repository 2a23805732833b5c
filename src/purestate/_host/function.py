"""`ps.host_function`: a numpy function that jax programs can call."""

import contextlib
import dataclasses
import functools
import inspect
import operator
import sys
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np

from purestate._compat import (
    current_trace,
    is_refusing,
    is_tracer,
    outermost_trace,
    untyped_jax,
)
from purestate._host.call.batch import compare_rows
from purestate._host.call.invoke import call, caller, frozen
from purestate._host.call.leaf import Leaf, as_operand, generators, key_facts, refusal
from purestate._host.call.operation import Operation
from purestate._host.call.options import HostOptions, Options
from purestate._host.call.result_spec import infer
from purestate._inspect.key_paths import path_text
from purestate.errors import HostSpecError

_F = TypeVar("_F", bound=Callable[..., Any])
_config = untyped_jax.config
_SMALL = 64 * 1024  # bytes
_identity: Any = jax.jit(lambda value: value)


@overload
def host_function(fn: _F, **options: Unpack[HostOptions]) -> _F: ...
@overload
def host_function(**options: Unpack[HostOptions]) -> Callable[[_F], _F]: ...
def host_function(fn: Any = None, **options: Any) -> Any:  # noqa: D417  # one by one
    """Return a function of numpy arrays as one that jax programs can call.

    It takes and returns any pytrees, States too, and works under jit, vmap, grad, scan,
    while, cond, remat and shard_map. Outside of them a call is a plain Python call.
    The arguments arrive as read-only C-contiguous numpy arrays, numbers as 0-d ones, a
    typed key as a `numpy.random.Generator` seeded from it.

    Args:
        fn: the function; without it a decorator is returned.
        out: what it returns: a pytree of things with shape and dtype, or a function
            from the specs of the arguments to one. None: a jaxtyping annotation says
            it, or one call with zeros while tracing; of an effect, that there is no
            result.
        vmap: what a batch becomes: "loop" over its items in one callback, "threads",
            "vectorized" (leading axes, size 1 where an argument has none), "batched"
            (one leading axis on every argument), or "error".
        grad: "fd", "fd-forward", "complex" or "zero".
        jvp: `jvp(args, tangents)` returns the result's tangent.
        vjp: `vjp(args, cotangent)` returns the arguments' cotangents, None for zero.
        jac: `jac(*args)` returns the Jacobian, laid out as `jax.jacobian` does.
        batch_fn: the function for a whole batch, used under vmap.
        batch_vjp: `vjp` for a whole batch.
        scratch: makes a work space; each running call gets one, as first argument.
        static_argnames: arguments passed on as they are, part of the cache key.
        effects: run exactly once per step, used or not.
        ordered: and in the order of the program.
        thread: "own" runs every call on one thread that belongs to the function.
        writable: arguments are private copies that may be written to.
        upcast: float32 arguments arrive as float64.
        casting: numpy's rule for results of another dtype.
        cache: how many results to keep by the values of the arguments.
        probe: "zeros", "ones", or None for no call to find out what comes back.
        threads: size of the pool of `vmap="threads"`; by default the number of cores.
        eps: relative step of finite differences.
        name: for messages, by default the function's own.

    Raises:
        HostSpecError: options that do not go together.

    >>> import jax, jax.numpy as jnp, numpy as np, purestate as ps
    >>> @ps.host_function(grad="fd", upcast=True)
    ... def norm(x):
    ...     return np.linalg.norm(x)
    >>> print(jax.jit(jax.grad(norm))(jnp.array([3.0, 4.0])))
    [0.6 0.8]
    """
    for name in options.keys() - HostOptions.__annotations__.keys():
        raise TypeError(f"host_function() got an unexpected keyword argument {name!r}")
    if fn is None:
        return functools.partial(host_function, **options)
    if not callable(fn):
        raise HostSpecError(
            f"ps.host_function takes a function, and got a {type(fn).__name__}."
        )
    return HostFunction(Options(fn, **options))


# What `help` shows: all options, with their types and defaults.
host_function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        inspect.Parameter("fn", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None),
        *(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=getattr(Options, name),
                annotation=kind,
            )
            for name, kind in HostOptions.__annotations__.items()
        ),
    ]
)


class HostFunction:
    """A numpy function that jax programs can call; `ps.host_function` makes it."""

    def __init__(self, options: Options) -> None:
        functools.update_wrapper(self, options.fn, updated=())
        self._options = options
        self._operations: dict[Any, Operation] = {}
        self._eager: dict[Operation, Callable[..., Any]] = {}
        # Most functions take arrays by position, and need no look at their signature.
        self._plain = not options.static_argnames
        if options.has_effects:
            from purestate._host.program.effects import allow_effects
            from purestate._host.program.primitive import host_p

            allow_effects(host_p)

    @property
    def options(self) -> Options:
        """How the function was declared."""
        return self._options

    @property
    def lowering(self) -> str:
        """How a small call gets into a program here: "native", "pure" or "buffer".

        A function of `numba.njit` is "native", an operation of XLA without Python;
        `why_not_native` says why another one is not. The others are callbacks: "pure",
        and on one CPU device "buffer" where a call moves 512 KiB or more. The
        environment variable PURESTATE_HOST_LOWERING chooses one for all calls.
        """
        from purestate._host.program.lowering import NATIVE, chosen

        if not self.why_not_native:
            return NATIVE
        effect = "unordered" if self._options.has_effects else ""
        return chosen(0, 1, jax.default_backend(), effect)

    @property
    def why_not_native(self) -> str:
        """Why calls are no native operations on the CPU; nothing if they are.

        Calls whose arguments or results are not native (a dict, a key, float16) are
        callbacks all the same.
        """
        from purestate._host.program.native import why_not

        return why_not(self._options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, or put the call into the program that is being traced."""
        statics: dict[str, Any] = {}
        if kwargs or not self._plain:
            args, kwargs, statics = self._sorted(args, kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        described = [as_operand(leaf) for leaf in leaves]
        if None in described:
            raise self._no_array(described.index(None), args, kwargs)
        found: list[Any] = described
        op = self._operation(tree, tuple(leaf for leaf, _ in found), statics)
        values = [value for _, value in found]
        if current_trace() != outermost_trace() or any(map(is_tracer, values)):
            if is_refusing():
                return self._inside(op, leaves, values)
            from purestate._host.program.primitive import bind  # imports much of jax

            outs = bind(values, op)
        else:
            arrays = [frozen(np.asarray(value)) for value in values]
            if (run := self._eager.get(op)) is not None:
                outs = [_as_jax(value) for value in run(*arrays)]
            else:
                run = caller(op, eager=True)
                outs = [jnp.array(value) for value in run(*arrays)]
                self._eager[op] = run
        if op.returns_array:
            return outs[0]
        return jax.tree.unflatten(op.out_tree, map(_as_key, op.outs, outs))

    def check_vmap(self, *args: Any) -> None:
        """Compare two rows of a batch with the same rows computed alone.

        For `vmap="vectorized"`, `vmap="batched"` and `batch_fn=`: a sum or a norm over
        the whole array mixes the items of a batch, and no error would say so.

        Args:
            *args: arguments with one leading batch axis on every array.

        Raises:
            HostVmapError: the rows differ.
        """
        batched, tree = jax.tree.flatten((args, {}))
        found: list[Any] = list(map(as_operand, batched))
        if None in found:
            raise self._no_array(found.index(None), args, {})
        ins = tuple(Leaf(leaf.shape[1:], leaf.dtype, leaf.key) for leaf, _ in found)
        op = self._operation(tree, ins, {})
        arrays = [np.asarray(value) for _, value in found]
        compare_rows(op, arrays, len(arrays[0]))

    def prepared(self, *args: Any) -> tuple[Operation, list[np.ndarray[Any, Any]]]:
        """Return the operation for these arguments, and their arrays."""
        leaves, tree = jax.tree.flatten((args, {}))
        found: list[Any] = list(map(as_operand, leaves))
        if None in found:
            raise self._no_array(found.index(None), args, {})
        op = self._operation(tree, tuple(leaf for leaf, _ in found), {})
        return op, [np.asarray(value) for _, value in found]

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind to an instance, as functions do: it becomes the first argument."""
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<host function {self._options.label}, {self.lowering}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Return what a copy or a pickle is made from: how it was declared.

        A decorated function is known by its name. Not in `__main__`, which is another
        module in every process: there cloudpickle carries the function itself.
        """
        home, path = self.__dict__.get("__module__"), self.__dict__.get("__qualname__")
        if home != "__main__" and home in sys.modules and isinstance(path, str):
            with contextlib.suppress(AttributeError):
                if operator.attrgetter(path)(sys.modules[home]) is self:
                    return path
        declared = {
            field.name: getattr(self._options, field.name)
            for field in dataclasses.fields(Options)
        }
        return _from_options, (type(self), declared)

    def _inside(self, op: Operation, leaves: list[Any], values: list[Any]) -> Any:
        """Call the function from another one, of which a program waits: all in numpy.

        Arguments keep their double precision, on which the caller's differences depend.
        """
        arrays = [
            np.asarray(leaf if own.inexact else value)
            for own, leaf, value in zip(op.ins, leaves, values, strict=True)
        ]
        made = call(op, arrays, precision="kept")
        outs = [
            found if own.key is None else generators(found)
            for own, found in zip(op.outs, made, strict=True)
        ]
        return jax.tree.unflatten(op.out_tree, outs)

    def _operation(
        self, tree: Any, ins: tuple[Leaf, ...], statics: dict[str, Any]
    ) -> Operation:
        fixed: tuple[Any, ...] = ()
        if statics:
            fixed = tuple((k, type(v), v) for k, v in sorted(statics.items()))
        key = (tree, ins, fixed, _config.jax_enable_x64)
        try:
            found = self._operations.get(key)
        except TypeError:
            unhashable = [k for k, v in statics.items() if not isinstance(v, Hashable)]
            raise HostSpecError(
                f"{self._options.label} got static arguments that cannot be hashed: "
                f"{', '.join(unhashable) or 'unknown'}. Make them tuples or frozen."
            ) from None
        if found is None:
            found = infer(self._options, tree, ins, statics)
            self._operations[key] = found
        return found

    def _sorted(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
        """Return positional, keyword and static arguments."""
        signature = self._options.signature
        if signature is None:
            statics = {k: kwargs.pop(k) for k in self._options.static_argnames}
            return args, kwargs, statics
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        names = self._options.static_argnames
        if not names:
            return bound.args, bound.kwargs, {}
        statics, rest, named = {}, [], {}
        for name, parameter in signature.parameters.items():
            value = bound.arguments[name]
            if name in names:
                statics[name] = value
            elif parameter.kind is parameter.VAR_POSITIONAL:
                rest += value
            elif parameter.kind is parameter.VAR_KEYWORD:
                named.update(value)
            elif parameter.kind is parameter.KEYWORD_ONLY or statics:
                named[name] = value  # after a static one, which goes by name
            else:
                rest.append(value)
        return tuple(rest), named, statics

    def _no_array(self, index: int, args: Any, kwargs: Any) -> HostSpecError:
        path, value = jax.tree_util.tree_leaves_with_path((args, kwargs))[index]
        which, key, *rest = path
        if which.idx == 0:
            names = list(self._options.parameters or ())
            root = names[key.idx] if key.idx < len(names) else f"argument {key.idx}"
        else:
            root = key.key
        where, (what, why) = path_text(rest, root), refusal(value)
        if why.endswith("no array"):
            why += f": name {root} in static_argnames if it is configuration"
        return HostSpecError(f"{self._options.label} got {what} as {where}, {why}.")


def _as_jax(value: np.ndarray[Any, Any]) -> Any:
    """Return a copy for jax, which later writes to the function's memory miss."""
    # A compiled identity takes a third of the time, from the second call on.
    return _identity(value.copy()) if value.nbytes <= _SMALL else jnp.array(value)


def _from_options(cls: type[HostFunction], declared: dict[str, Any]) -> HostFunction:
    return cls(Options(**declared))


def _as_key(leaf: Leaf, value: Any) -> Any:
    if leaf.key is None:
        return value
    return jax.random.wrap_key_data(value, impl=key_facts(leaf.key)[1])
