"""`check_state`: all laws of a State class, in one line of a test."""

import dataclasses
import functools
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import hypothesis.strategies as st

from purestate.errors import StrategyError
from purestate.testing._backends import selected_backends
from purestate.testing._cases.outside import of_class
from purestate.testing._cases.state import StateCase
from purestate.testing._laws.law import selected
from purestate.testing._running import Report, Run, search
from purestate.testing._strategies.axes import check_dims
from purestate.testing._strategies.states import Drawing

# The structures that programs are compiled for, in one check.
VARIANT = st.integers(0, 1)


def check_state(
    cls: Any,
    *,
    fields: Mapping[str, Any] | None = None,
    dims: Mapping[str, Any] | Sequence[int] | None = None,
    dtypes: Sequence[Any] | None = None,
    specials: bool = True,
    laws: Iterable[str] | None = None,
    without: Iterable[str] = (),
    examples: int | None = None,
    backends: Iterable[str] | None = None,
) -> Report:
    """Check that a State class obeys the laws, on drawn instances of it.

    Each law is looked at with instances as `states` draws them: rebuilding, key paths,
    `replace`, `at` and `draft`, copies, equality, and, for a handful of structures,
    `jit`, `vmap`, `grad`, `scan`, donation and several devices. `laws("state")` lists
    them. A dataclass of another library is checked as far as the laws apply.

    Args:
        cls: the class; `Box[int]` for a generic one.
        fields: as for `states`.
        dims: as for `states`.
        dtypes: as for `states`.
        specials: as for `states`.
        laws: names of the laws to check, by default all.
        without: names of laws to leave out.
        examples: how many; by default what the profile of hypothesis says.
        backends: where; by default all that are present, or what
            `--purestate-backends` says.

    Returns:
        What was done: examples by law, laws that did not apply, backends.

    Raises:
        LawError: a law is broken: which one, where, and the smallest instance found, in
            a form that can be pasted.
        StrategyError: no instances can be drawn, or `dims` names an axis that is not
            there.
        FieldError: `fields` names what the constructor does not take.
        BackendError: no backend that was asked for is present.
        LookupError: an unknown law.

    >>> import purestate as ps, purestate.testing as pst
    >>> class Counter(ps.State):
    ...     count: ps.Array = 0
    >>> def test_counter():
    ...     pst.check_state(Counter)
    >>> test_counter()
    """
    if not _has_fields(typing.get_origin(cls) or cls):
        raise StrategyError.no_class(cls)
    wanted = selected("state", laws, without)
    drawing = Drawing(cls, fields, dims, dtypes, specials)
    devices = selected_backends(backends)
    name = getattr(cls, "__name__", str(cls))
    check_dims(name, dims, [(cls, None)])
    outside = functools.partial(of_class, typing.get_origin(cls) or cls)
    report = Report(name, backends=tuple(devices))
    for backend, device in devices.items():
        memo: dict[Any, Any] = {}

        def free(draw: Any, device: Any = device, memo: Any = memo) -> StateCase:
            scope = drawing.scope(draw)
            return StateCase(drawing, scope, drawing.draw(scope), device, memo)

        def few(draw: Any, device: Any = device, memo: Any = memo) -> StateCase:
            scope = drawing.scope(draw, variant=draw(VARIANT))
            return StateCase(drawing, scope, drawing.draw(scope), device, memo)

        run = Run("state", name, backend, device, free, report, outside, examples)
        search(run, [law for law in wanted if not law.compiles])
        run = dataclasses.replace(run, case=few)
        search(run, [law for law in wanted if law.compiles])
    return report


def _has_fields(cls: Any) -> bool:
    known = hasattr(cls, "__dataclass_fields__") or hasattr(cls, "_fields")
    return isinstance(cls, type) and known
