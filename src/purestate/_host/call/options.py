"""The options of a host function, and which of them go together."""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypedDict

from purestate._compat import refusing_jax
from purestate._host.call.workers import OwnThread, Pool, Scratch
from purestate._schema.text import function_name
from purestate.errors import HostSpecError, JaxInHostError

VMAPS = ("loop", "threads", "vectorized", "batched", "error")
GRADS = ("fd", "fd-forward", "complex", "zero")
_CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")
_PROBES = ("zeros", "ones", None)


class HostOptions(TypedDict, total=False):
    """The keywords of `ps.host_function`, for type checkers."""

    out: Any
    vmap: Literal["loop", "threads", "vectorized", "batched", "error"]
    grad: Literal["fd", "fd-forward", "complex", "zero"] | None
    jvp: Callable[..., Any] | None
    vjp: Callable[..., Any] | None
    jac: Callable[..., Any] | None
    batch_fn: Callable[..., Any] | None
    batch_vjp: Callable[..., Any] | None
    scratch: Callable[[], Any] | None
    static_argnames: str | Iterable[str]
    effects: bool
    ordered: bool
    thread: Literal["own"] | None
    writable: bool
    upcast: bool
    casting: Literal["no", "equiv", "safe", "same_kind", "unsafe"]
    cache: int
    probe: Literal["zeros", "ones"] | None
    threads: int | None
    eps: float | None
    name: str | None


@dataclasses.dataclass(frozen=True, eq=False)
class Options:
    """What `ps.host_function` was told; see there.

    Raises:
        HostSpecError: options that do not go together.
    """

    fn: Callable[..., Any]
    out: Any = None
    vmap: str = "loop"
    grad: str | None = None
    jvp: Callable[..., Any] | None = None
    vjp: Callable[..., Any] | None = None
    jac: Callable[..., Any] | None = None
    batch_fn: Callable[..., Any] | None = None
    batch_vjp: Callable[..., Any] | None = None
    scratch: Callable[[], Any] | None = None
    static_argnames: tuple[str, ...] = ()  # one name may be given as itself
    effects: bool = False
    ordered: bool = False
    thread: str | None = None
    writable: bool = False
    upcast: bool = False
    casting: str = "same_kind"
    cache: int = 0
    probe: str | None = "zeros"
    threads: int | None = None
    eps: float | None = None
    name: str = ""
    # For functions of purestate itself:
    no_vmap: str = ""  # what errors say in place of the usual
    no_grad: str = ""
    trusted: bool = False  # leaves in, leaves out, as declared: nothing to check
    # (rows, columns, same): where the Jacobian of vectors is not zero. `jac` returns
    # that part of it; at `same` it is an identity besides.
    pattern: tuple[Any, Any, Any] | None = None
    # From an operation, a derivative and a batch to the name and the attributes of a
    # native operation, or None.
    native: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        names: Any = self.static_argnames
        statics = (names,) if isinstance(names, str) else tuple(names)
        object.__setattr__(self, "static_argnames", statics)
        object.__setattr__(self, "name", self.name or function_name(self.fn))
        self._one_of("vmap", self.vmap, VMAPS)
        self._one_of("grad", self.grad, (None, *GRADS))
        self._one_of("casting", self.casting, _CASTINGS)
        self._one_of("thread", self.thread, (None, "own"))
        self._one_of("probe", self.probe, _PROBES)
        self._at_least("cache", self.cache, 0)
        self._at_least("threads", self.threads, 1)
        if self.eps is not None and not 0 < self.eps < 1:
            raise HostSpecError(
                f"{self.label} has eps={self.eps!r}; a relative step is between 0 "
                f"and 1."
            )
        rules = [
            option
            for option in ("grad", "jvp", "vjp", "jac")
            if getattr(self, option) is not None
        ]
        if len(rules) > 1:
            raise HostSpecError(
                f"{self.label} has {' and '.join(rules)}: one source of derivatives is "
                f"enough, both modes follow from it."
            )
        for option in ("batch_fn", "batch_vjp", "cache", *rules):
            if self.has_effects and getattr(self, option):
                raise HostSpecError(
                    f"{self.label} has effects, so it must run exactly once per step: "
                    f"{option}= cannot be given."
                )
        if self.batch_vjp is not None and self.vjp is None:
            raise HostSpecError(
                f"{self.label} has batch_vjp=, the whole-batch version of a vjp, and "
                f"no vjp= for single calls."
            )
        known = self.parameters
        for name in self.static_argnames:
            if known is not None and name not in known:
                raise HostSpecError(
                    f"{self.label} has no parameter {name!r} to be static; its "
                    f"parameters are {', '.join(known)}."
                )

    def _one_of(self, option: str, value: Any, allowed: tuple[Any, ...]) -> None:
        if value not in allowed:
            shown = ", ".join(map(repr, allowed))
            raise HostSpecError(
                f"{self.label} has {option}={value!r}; it is one of {shown}."
            )

    def _at_least(self, option: str, value: int | None, least: int) -> None:
        if value is not None and value < least:
            raise HostSpecError(
                f"{self.label} has {option}={value!r}; it is {least} or more."
            )

    @functools.cached_property
    def place(self) -> str:
        """Where the function was written, for messages."""
        code = getattr(inspect.unwrap(self.fn), "__code__", None)
        if code is None:
            return type(self.fn).__name__
        return f"{code.co_filename}:{code.co_firstlineno}"

    @property
    def label(self) -> str:
        """The function's name and place, for messages."""
        return f"{self.name} ({self.place})"

    @functools.cached_property
    def signature(self) -> inspect.Signature | None:
        """The function's parameters without the scratch object; None if unknown."""
        try:
            found = inspect.signature(self.fn)
        except (TypeError, ValueError):
            return None
        if self.scratch is None:
            return found
        return found.replace(parameters=list(found.parameters.values())[1:])

    @functools.cached_property
    def parameters(self) -> tuple[str, ...] | None:
        """The names of the parameters; None if they are unknown or open-ended."""
        if self.signature is None:
            return None
        parameters = self.signature.parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return None
        return tuple(self.signature.parameters)

    @property
    def has_effects(self) -> bool:
        """Whether a call must run exactly once, used or not."""
        return self.effects or self.ordered

    @property
    def has_derivative(self) -> bool:
        """Whether some source of derivatives was given."""
        rules = (self.grad, self.jvp, self.vjp, self.jac)
        return any(rule is not None for rule in rules)

    @functools.cached_property
    def refusing(self) -> Callable[[], contextlib.AbstractContextManager[Any]]:
        """What makes the contexts in which the function runs in a program."""
        error = functools.partial(JaxInHostError, self.name, self.place)
        return refusing_jax(error)

    @functools.cached_property
    def native_code(self) -> dict[Any, Any]:
        """What was compiled for native operations of the function, by types."""
        return {}

    @functools.cached_property
    def own_thread(self) -> OwnThread | None:
        """The thread that belongs to the function, if it asked for one."""
        return OwnThread(f"purestate-{self.name}") if self.thread == "own" else None

    @functools.cached_property
    def pool(self) -> Pool:
        """The threads that share a batch."""
        return Pool(self.threads, f"purestate-{self.name}")

    @functools.cached_property
    def work_spaces(self) -> Scratch | None:
        """The function's free list, if it has scratch objects."""
        return None if self.scratch is None else Scratch(self.scratch)
