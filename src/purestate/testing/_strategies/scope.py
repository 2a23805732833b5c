"""What the values of one drawn instance share: sizes of axes, and how choices are made.

Whatever decides about compiled programs goes through `Scope.choose`: shapes, dtypes,
which member of a union, how long a list is, static values. Such choices are drawn by
hypothesis, so that they shrink one by one, or they follow from a small number, the
variant, so that a hundred examples share a handful of programs.
"""

import contextlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import hypothesis.strategies as st
import jax.numpy as jnp

from purestate._schema.dimensions import Dimension, dimensions
from purestate.errors import StrategyError
from purestate.testing._strategies.arrays import DTYPES, enabled

_T = TypeVar("_T")
DIMS = (2, 3, 1)  # what a named axis may measure
_DEEPEST = 3  # States within States of the same kind


class Scope:
    """What the values of one drawn instance, and of a call's arguments, share.

    Attributes:
        draw: hypothesis' own.
        specials: whether NaN, infinities and extremes are wanted.
        sizes: the axes by name, as far as they are known.
        typevars: what type variables stand for.
        given: what gives a value for all that is being drawn, as text, such as
            `fields={'x': ...}`; None where nothing does.
        part: the class of which a part is being drawn, if it is a part itself.
        refusals: per class, how many instances were made and how many of them its
            `__check__` refused; shared by all examples of a test.
    """

    def __init__(
        self,
        draw: Any,
        *,
        dims: Mapping[str, Any] | Sequence[int] | None = None,
        dtypes: Sequence[Any] | None = None,
        specials: bool = False,
        variant: int | None = None,
        refusals: dict[Any, list[int]] | None = None,
    ) -> None:
        self.draw = draw
        self.specials = specials
        self.sizes: dict[str, Any] = {}
        self.typevars: dict[Any, Any] = {}
        self.refusals = {} if refusals is None else refusals
        self.depth = 0
        self.given: str | None = None
        self.part: str | None = None
        self._given = dict(dims) if isinstance(dims, Mapping) else {}
        self._pool: Sequence[int] = DIMS
        if dims is not None and not isinstance(dims, Mapping):
            self._pool = tuple(dims)
        self._dtypes = None if dtypes is None else [_name(dtype) for dtype in dtypes]
        self._variant = variant
        self._random = random.Random(variant)

    def choose(self, options: Sequence[_T]) -> _T:
        """Return one of the options; the first one is the simplest."""
        if len(options) == 1:
            return options[0]
        if self._variant is None:
            return self.draw(st.sampled_from(list(options)))  # type: ignore[no-any-return]
        return options[0] if self._variant == 0 else self._random.choice(options)

    @contextlib.contextmanager
    def within(self, given: str | None, part: str | None = None) -> Iterator[None]:
        """Say what is being drawn, for messages."""
        before = self.given, self.part
        self.given, self.part = given, part
        try:
            yield
        finally:
            self.given, self.part = before

    @property
    def too_deep(self) -> bool:
        """Whether a recursive class should come to its end."""
        return self.depth >= _DEEPEST

    @property
    def is_tame(self) -> bool:
        """Whether the values go into code that computes with them."""
        return not self.specials

    def dtype(self, admitted: Sequence[str] = ()) -> str:
        """Return a dtype by name, out of those that an annotation admits."""
        fitting = [d for d in enabled(DTYPES) if not admitted or d in admitted]
        fitting = fitting or list(admitted)
        if self._dtypes is not None:
            wanted = [d for d in self._dtypes if not admitted or d in admitted]
            return self.choose(wanted or fitting)
        return fitting[0] if self.is_tame else self.choose(fitting)

    def size(self, name: str) -> int:
        """Return the size of an axis, the same one for a name each time."""
        if name not in self.sizes:
            given = self._given.get(name, self._pool)
            self.sizes[name] = given if isinstance(given, int) else self.choose(given)
        return int(self.sizes[name])

    def shared_shape(self) -> tuple[int, ...]:
        """Return the shape of the arrays that say nothing about theirs: one for all.

        Arrays that are used together must mostly fit each other.
        """
        return self._many("...", ((), (2,), (2, 3), (0,)))

    def shape(self, dims: str, place: str) -> tuple[int, ...]:
        """Return the shape that jaxtyping's text for it admits.

        Raises:
            StrategyError: axes that are computed from what is not known here.
        """
        found: list[int] = []
        for dim in dimensions(dims):
            if dim.label == "...":
                found += self.shared_shape()
            elif dim.is_many:
                found += self._many(dim.label, ((), (2,), (2, 3)))
            elif dim.is_anonymous:
                found.append(self.choose(self._pool))
            elif dim.may_be_one and dim.label.isidentifier():
                found.append(self.choose((self.size(dim.label), 1)))
            else:
                found.append(self._computed(dim, place))
        return tuple(found)

    def _many(self, name: str, options: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        if name not in self.sizes:
            given = self._given.get(name)
            self.sizes[name] = (
                tuple(given)
                if given is not None
                else self.choose(options[:3] if self.is_tame else options)
            )
        found: tuple[int, ...] = self.sizes[name]
        return found

    def _computed(self, dim: Dimension, place: str) -> int:
        for name in re.findall(r"[A-Za-z_]\w*", dim.label):
            self.size(name)
        try:
            return int(dim.size(self.sizes))
        except (KeyError, SyntaxError):
            raise StrategyError(
                f"cannot tell the size of the axis {dim.label!r} of {place}. Give a "
                f"strategy for it, or a size by name: dims={{'n': 3}}."
            ) from None


def _name(dtype: Any) -> str:
    return str(jnp.dtype(dtype).name)
