"""What a law is, and the list of all of them.

A law is a function with a name and a promise. It looks at one drawn case and raises
`Broken` with a place and a text; who runs it adds the rest of the message.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from purestate.errors._text import nearest
from purestate.testing._trees.asserts import mismatch

_F = TypeVar("_F", bound=Callable[[Any], None])


class Broken(Exception):
    """Internal: a law does not hold.

    Attributes:
        path: where, such as `Counter.count`; may be empty.
        what: what was expected and what was found.
    """

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path, self.what = path, what


class Skip(Exception):
    """Internal: a law does not apply to this example; the text says why."""


@dataclasses.dataclass(frozen=True)
class Law:
    """One law.

    Attributes:
        name: a word, as `laws=` and `without=` take it.
        promise: the law as a sentence.
        kind: "state", "method" or "host".
        compiles: whether it compiles programs for each structure that it meets.
        check: looks at a case, raises `Broken`.
    """

    name: str
    promise: str
    kind: str
    compiles: bool
    check: Callable[[Any], None]


LAWS: dict[str, dict[str, Law]] = {"state": {}, "method": {}, "host": {}}


def law(*kinds: str, promise: str, compiles: bool = False) -> Callable[[_F], _F]:
    """Return a decorator that puts a function into the list, under its own name."""

    def put(check: _F) -> _F:
        name = check.__name__.strip("_")
        for kind in kinds:
            LAWS[kind][name] = Law(name, promise, kind, compiles, check)
        return check

    return put


def laws(kind: str = "state") -> dict[str, str]:
    """Return the laws by name, each as a sentence.

    Args:
        kind: "state" for `check_state`, "method" for `check_method`, "host" for
            `check_host`.

    Raises:
        LookupError: another kind.

    >>> import purestate.testing as pst
    >>> pst.laws("method")["vmap"]
    'vmap gives the stack of single calls'
    """
    if kind not in LAWS:
        raise LookupError(
            f"there are no laws for {kind!r}, only for {', '.join(LAWS)}."
        )
    return {name: found.promise for name, found in LAWS[kind].items()}


def selected(
    kind: str, laws: Iterable[str] | None, without: Iterable[str]
) -> list[Law]:
    """Return the laws of a kind that are wanted, in the order of the list.

    Raises:
        LookupError: a name that is no law's.
    """
    known = LAWS[kind]
    wanted = known if laws is None else as_names(laws)
    unwanted = as_names(without)
    for name in (*wanted, *unwanted):
        if name not in known:
            raise LookupError(
                f"there is no law {name!r} for a {kind}; {nearest(name, known, 'laws')}"
            )
    return [known[name] for name in known if name in wanted and name not in unwanted]


def as_names(given: Iterable[str]) -> tuple[str, ...]:
    """Return several names, or the one that stands alone."""
    return (given,) if isinstance(given, str) else tuple(given)


def same_as(
    expected: Any,
    found: Any,
    what: str,
    *,
    root: str = "",
    exact: bool = False,
    slack: float = 1.0,
) -> None:
    """Compare two trees.

    Raises:
        Broken: they differ; `what` says what was compared.
    """
    difference = mismatch(expected, found, exact=exact, slack=slack)
    if difference is not None:
        path, text = difference
        raise Broken(path or root, f"{what}:\n{text}")
