"""`check_method` and `check_host`: the laws of what is called, in one line."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import hypothesis.strategies as st

from purestate.errors import StrategyError
from purestate.testing._backends import selected_backends
from purestate.testing._cases.call import Call, Callee
from purestate.testing._laws.law import as_names, selected
from purestate.testing._running import Report, Run, search
from purestate.testing._strategies.axes import check_dims
from purestate.testing._strategies.states import Drawing

# The structures that programs are compiled for, in one check.
_VARIANT = st.integers(0, 1)


def check_method(
    method: Any,
    *,
    on: Any = None,
    fields: Mapping[str, Any] | None = None,
    args: Mapping[str, Any] | None = None,
    static: Iterable[str] = (),
    dims: Mapping[str, Any] | Sequence[int] | None = None,
    dtypes: Sequence[Any] | None = None,
    specials: bool = False,
    laws: Iterable[str] | None = None,
    without: Iterable[str] = (),
    examples: int | None = None,
    backends: Iterable[str] | None = None,
) -> Report:
    """Check that a method of a State, or a function, obeys the laws.

    It is pure: it leaves its arguments alone and gives the same again. `jit` gives what
    the plain call gives, `vmap` the stack of single calls, `scan` the loop; derivatives
    agree with differences where there are any; one trace serves all values and the next
    step; the state can be donated; no tracer is left behind; backends agree.

    Args:
        method: `Counter.step`, jitted or not, or a function. Its arguments are drawn
            from their annotations, as fields are; axes are shared with the State.
        on: the class of `self`, where it is not the one that defines the method.
        fields: strategies or values for the State's constructor, as for `states`.
        args: strategies or values for arguments.
        static: names of arguments that are static under jit. Strings and others that
            JAX does not take are so by themselves.
        dims: as for `states`.
        dtypes: as for `states`.
        specials: as for `states`. By default numbers are small and finite.
        laws: as for `check_state`.
        without: likewise; `("jvp", "grad")` for a method that stops a gradient on
            purpose.
        examples: likewise.
        backends: likewise.

    Returns:
        What was done: examples by law, laws that did not apply and why, backends.

    Raises:
        LawError: a law is broken.
        StrategyError: arguments cannot be drawn, the method raises on them, or `args`,
            `static` or `dims` names what is not there.
        FieldError: `fields` names what the constructor does not take.
        BackendError: no backend that was asked for is present.
        LookupError: an unknown law.

    >>> import jax, purestate as ps, purestate.testing as pst
    >>> class Decay(ps.State):
    ...     x: jax.Array
    ...
    ...     @jax.jit
    ...     def step(self, rate: jax.Array):
    ...         return self.replace(x=self.x * rate)
    >>> pst.check_method(Decay.step, examples=5).skipped
    {'backends_agree': 'one backend', 'sharded': 'one device'}
    """
    callee = Callee.of(method, on, frozenset(as_names(static)))
    drawing = Drawing(callee.owner, fields, dims, dtypes, specials)
    wanted = selected("method", laws, without)
    return _check("method", callee, drawing, args, wanted, examples, backends)


def check_host(
    fn: Any,
    *,
    args: Mapping[str, Any] | None = None,
    static: Iterable[str] = (),
    dims: Mapping[str, Any] | Sequence[int] | None = None,
    dtypes: Sequence[Any] | None = None,
    specials: bool = False,
    laws: Iterable[str] | None = None,
    without: Iterable[str] = (),
    examples: int | None = None,
    backends: Iterable[str] | None = None,
) -> Report:
    """Check that a host function obeys the laws that JAX takes for granted.

    It gives the same for the same arguments and leaves them alone; `jit` and `vmap`,
    whatever its mode, give what single calls give; its derivative, if it has one,
    agrees with differences.

    Args:
        fn: what `ps.host_function` returned, without effects.
        args: as for `check_method`.
        static: as for `check_method`.
        dims: as for `check_method`.
        dtypes: as for `check_method`.
        specials: as for `check_method`.
        laws: as for `check_method`.
        without: as for `check_method`.
        examples: as for `check_method`.
        backends: as for `check_method`.

    Returns:
        As `check_method` does.

    Raises:
        LawError: a law is broken.
        StrategyError: it is no host function, or has effects, its arguments cannot be
            drawn, or `args`, `static` or `dims` names what is not there.
        BackendError: no backend that was asked for is present.
        LookupError: an unknown law.

    >>> import jax, numpy as np, purestate as ps, purestate.testing as pst
    >>> @ps.host_function(grad="fd", upcast=True)
    ... def norm2(x: jax.Array):
    ...     return np.sum(x**2)
    >>> pst.check_host(norm2, examples=5).backends
    ('cpu',)
    """
    options = getattr(fn, "_options", None)
    if options is None:
        raise StrategyError(
            f"check_host takes a host function, and got an object of type "
            f"{type(fn).__name__}. For a function of jax there is check_method."
        )
    if options.has_effects:
        raise StrategyError(
            f"{options.label} has effects, so that the same call twice is not the same "
            f"as once: check what it does by the calls that it gets."
        )
    names = frozenset((*as_names(static), *options.static_argnames))
    callee = Callee(fn, fn, options.name, None, options.signature.parameters, names)
    drawing = Drawing(None, None, dims, dtypes, specials)
    wanted = selected("host", laws, without)
    return _check("host", callee, drawing, args, wanted, examples, backends)


def _check(
    kind: str,
    callee: Callee,
    drawing: Drawing,
    args: Mapping[str, Any] | None,
    wanted: Any,
    examples: int | None,
    backends: Iterable[str] | None,
) -> Report:
    given = dict(args or {})
    callee.check_names((*given, *sorted(callee.static)))
    check_dims(callee.name, drawing.dims, callee.annotations)
    if drawing.fields and callee.owner is None:
        raise StrategyError(
            f"{callee.name} is not a method of a State, for whose constructor fields= "
            f"is: give its arguments by args=."
        )
    devices = selected_backends(backends)
    report = Report(callee.name, backends=tuple(devices))
    for backend, device in devices.items():
        memo: dict[Any, Any] = {}

        def case(draw: Any, device: Any = device, memo: Any = memo) -> Call:
            variant = draw(_VARIANT)
            scope = drawing.scope(draw, variant=variant)
            made = Call(callee, drawing, given, scope, variant, devices, device, memo)
            made.eager  # noqa: B018  # whoever raises here got bad arguments
            return made

        name, outside = callee.name, callee.outside
        run = Run(kind, name, backend, device, case, report, outside, examples)
        search(run, wanted)
    return report
