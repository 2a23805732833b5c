"""How a program is called: what surrounds jax's own call, and what follows a failure.

A warm call is one Python function around jax's. What is added runs in `except`, before
a first call, or on an instance that was donated and is dead.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from purestate._compat import current_trace, outermost_trace, untyped_jax
from purestate._host.call.failures import original_error, raise_original
from purestate._host.call.traced_calls import note_call
from purestate._pack.packed import JITTED
from purestate._transforms.consumed import consume_lost
from purestate._transforms.notes import (
    add_notes,
    is_donated_twice,
    is_of_deleted,
    without_shared_buffers,
)
from purestate._transforms.parameters import DonatedParameter
from purestate._transforms.watch import Watch


@dataclasses.dataclass
class Program:
    """What `ps.jit` knows of a function, or of one compiled program of it.

    Attributes:
        run: jax's own callable.
        name: how to call the function in texts.
        watch: watches its traces.
        donated: the parameters that are donated.
        static: the static parameters by position.
        static_names: those by name.
        wait: whether to wait for host functions.
        code: that of the Python function around it, by which it is known again.
        warm: whether a call went well in which no buffer was shared.
        marks: what marks the first argument, by class, if no other is donated.
    """

    run: Any
    name: str
    watch: Watch
    donated: tuple[DonatedParameter, ...]
    static: tuple[int, ...]
    static_names: tuple[str, ...]
    wait: bool
    code: Any = None
    warm: bool = False

    def __post_init__(self) -> None:
        alone = [parameter.position for parameter in self.donated] == [0]
        self.marks = self.donated[0].marks if alone else None

    def __getstate__(self) -> dict[str, Any]:  # what was learnt stays here
        return {k: v for k, v in self.__dict__.items() if k != "marks"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def attempt(self, args: Any, kwargs: Any) -> Any:
        """Call with donated buffers copied that are shared.

        Asked before the call: the runtime logs what it refuses, and a first call that
        it refuses keeps jax from its fast path later.
        """
        try:
            separate = without_shared_buffers(self.name, self.donated, args, kwargs)
            given = (args, kwargs) if separate is None else separate
            out = self.run(*given[0], **given[1])
            self.settle(out)
        except BaseException as error:
            self.give_up(error, args, kwargs)
            raise
        # While one call after the other shares, each is asked before it is made.
        self.warm = separate is None
        return out

    def recover(self, error: BaseException, args: Any, kwargs: Any) -> Any:
        """Call again if the runtime refused a shared buffer, or raise."""
        if not is_donated_twice(error):
            self.give_up(error, args, kwargs)
            raise error
        self.warm = False
        return self.attempt(args, kwargs)

    def give_up(self, error: BaseException, args: Any, kwargs: Any) -> None:
        """Mark what a failed call has used up, and explain its error."""
        if not is_of_deleted(error):
            failure = type(original_error(error) or error).__name__
            with contextlib.suppress(Exception):  # a mark must not hide the error
                for parameter in self.donated:
                    consume_lost(parameter.read(args, kwargs), self.name, failure)
        if isinstance(error, Exception):
            self.explain(error, args, kwargs)

    def explain(self, error: Exception, args: Any, kwargs: Any) -> None:
        """Raise what a host function raised, or add notes that name fields."""
        raise_original(error)
        names = self.static_names
        traced = tuple(None if i in self.static else arg for i, arg in enumerate(args))
        named = {key: None if key in names else v for key, v in kwargs.items()}
        add_notes(error, self.name, traced, named)

    def consume(self, args: Any, kwargs: Any) -> None:
        """Mark what a call has used up that went well."""
        for parameter in self.donated:
            value = parameter.read(args, kwargs)
            kind = type(value)
            try:
                if parameter.marks[kind](value):
                    continue
            except Exception:  # noqa: BLE001  # as above
                pass
            with contextlib.suppress(Exception):  # the result must not be lost for it
                parameter.consume(value, kind, self.name)

    def settle(self, out: Any) -> None:
        """Wait for host functions, whose exceptions would leave a later line."""
        if not self.watch.calls_host:
            return
        if current_trace() != outermost_trace():
            # jax kept the inner trace: the outer one calls them as well.
            note_call(self.watch.waits_for_effects)
        elif self.wait:
            untyped_jax.block_until_ready(out)
            if self.watch.waits_for_effects:
                untyped_jax.effects_barrier()


def calling(program: Program, like: Any) -> Callable[..., Any]:
    """Return the function that calls a program; it looks like the function `like`.

    It reads the program from its own attributes: what reloads edited modules
    (IPython's autoreload) gives an old function the code and attributes of the new one,
    and leaves its closure [1]. For that the closures here hold one name, the same in
    both.

    [1] IPython/extensions/autoreload.py, update_function
    """

    # Two of them, so that a call without donation pays for none of it. Few calls have
    # keyword arguments, and to pass on an empty dict makes another one.
    def plain(*args: Any, **kwargs: Any) -> Any:
        made = call.__purestate_jitted__
        try:
            out = made.run(*args, **kwargs) if kwargs else made.run(*args)
            if made.watch.calls_host:
                made.settle(out)
            return out
        except Exception as error:
            made.explain(error, args, kwargs)
            raise

    def donating(*args: Any, **kwargs: Any) -> Any:
        made = call.__purestate_jitted__
        if made.warm:
            try:
                out = made.run(*args, **kwargs) if kwargs else made.run(*args)
                if made.watch.calls_host:
                    made.settle(out)
            except BaseException as error:  # noqa: BLE001  # raised again in there
                out = made.recover(error, args, kwargs)
        else:
            out = made.attempt(args, kwargs)
        try:  # the usual case, in one frame: the first parameter, as it was before
            if made.marks is not None and made.marks[type(args[0])](args[0]):
                return out
        except Exception:  # noqa: BLE001  # not met before, a number for an array
            pass
        made.consume(args, kwargs)
        return out

    call: Any = functools.wraps(like)(donating if program.donated else plain)
    program.code = call.__code__
    setattr(call, JITTED, program)
    return call  # type: ignore[no-any-return]
