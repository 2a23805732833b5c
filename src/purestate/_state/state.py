"""`State`: the base class, and what its instances can do.

The methods are few and short on purpose: every one hides a field name from users. How a
subclass is made is told in `class_setup`, how an instance in `_instance/construct`.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    TypeVar,
    dataclass_transform,
    overload,
)

from purestate._inspect.repr import pformat
from purestate._instance import copies, equality
from purestate._instance import replace as _replace
from purestate._instance.at import At
from purestate._instance.draft import Draft
from purestate._instance.leaves import Leaves
from purestate._schema.fields import field, static
from purestate._schema.layout import layout_of
from purestate._schema.marks import AUX, DRAFT, FAILED, OPEN, Holder, held_by, visible
from purestate._schema.view import view_names
from purestate._state.class_setup import awaken, set_up
from purestate._state.dataclass import become_root
from purestate.errors import DeclarationError, FrozenStateError, UndeclaredFieldError

if TYPE_CHECKING:
    from typing import Self


_T = TypeVar("_T")


# Not `frozen_default`: checkers make no exception for `self.x = ...` in an `__init__`,
# which is how fields are assigned here. The run time refuses it anywhere else.
# `eq_default` would make them believe that there is no `__hash__`.
@dataclass_transform(
    eq_default=False, field_specifiers=(field, static, dataclasses.field)
)
class State(Holder):
    """Base class of immutable, dataclass-style objects that are jax pytrees.

    The annotated names of a subclass are its fields, as in a dataclass. Fields are data
    that jax traces, or configuration, `ps.static()`, that it compiles into the program.
    Instances are frozen once constructed; `replace` makes updated ones, in and out of
    `jit`, `vmap`, `grad` and `scan`.

    Class keywords:
        - `kw_only`: make the fields keyword-only, as in `dataclasses.dataclass`.
        - `strict`: updates must keep every field's shape, dtype and structure.
        - `frozen`: True, the default, is all that it can be.
        - `version`: a number that files record, 0 if not given; inherited.
        - `was`: the name that the class had before, or a tuple of them; not inherited.

    Hooks that a subclass may define:
        - `__init__`: assigns fields with `self.x = ...`.
        - `__post_init__`: as in dataclasses; computes `init=False` fields.
        - `__check__`: raises, or returns False, if an invariant does not hold. Runs for
          every class in the hierarchy, base first, after construction and `replace`,
          and not while a value is traced.
        - `__migrate__`: a static method, `(saved, version) -> dict`, that changes what
          a file of an earlier `version` holds into what the class expects.

    Raises:
        DeclarationError: when the class is made, for a body that cannot be a State.
        FieldError: when an instance is made, for unknown or missing fields.
        StaticFieldError: for an array or an unhashable value in a static field.

    >>> import jax, jax.numpy as jnp, purestate as ps
    >>> class Box(ps.State):
    ...     cache: jax.Array
    ...     gain: float = ps.static(default=2.0)
    ...
    ...     @jax.jit
    ...     def apply(self, x):
    ...         out = self.gain * x
    ...         return self.replace(cache=out), out
    >>> box, out = Box(cache=jnp.zeros(3)).apply(jnp.arange(3.0))
    >>> box
    Box(cache=f32[3], gain=2.0)
    """

    if TYPE_CHECKING:
        if sys.version_info >= (3, 13):
            replace: ClassVar = _replace.Typed()
        else:

            def replace(self, /, **changes: Any) -> Self: ...

        def __replace__(self, /, **changes: Any) -> Self: ...
    else:
        replace = _replace.replace

        def __replace__(self, /, **changes: Any) -> "Self":
            return self.replace(**changes)

        # Behind a type checker's back: vars(state) is a copy of the fields.
        __dict__ = property(visible)

    @overload
    def at(self, where: Leaves) -> "At[Self, Any]": ...
    @overload
    def at(self, where: "Callable[[Self], _T]") -> "At[Self, _T]": ...
    def at(self, where: Any) -> "At[Self, Any]":
        """Return a place in this State, to be changed with `.set` or `.apply`.

        Args:
            where: a function that leads to the place, `lambda s: s.opt.mu["w"]`, or to
                a tuple of places. It goes through States, dataclasses, NamedTuples,
                dicts, lists and tuples. Or a choice of leaves, `ps.floats` or
                `ps.leaves("layers.*.bias")`: each is a place, but for those of derived
                fields, which are computed again.

        Raises:
            PlaceError: the selector leads to no place, or to overlapping ones, or a
                path in the choice to no leaf.

        >>> import jax, jax.numpy as jnp, purestate as ps
        >>> class Net(ps.State):
        ...     layers: list
        >>> net = Net(layers=[jnp.zeros(2), jnp.zeros(3)])
        >>> net.at(lambda n: n.layers[-1]).apply(jnp.ones_like).layers[1].tolist()
        [1.0, 1.0, 1.0]
        """
        return At(self, where)

    def draft(self) -> "Draft[Self]":
        """Return a `with` block's copy of this State that can be assigned to.

        After the block the copy is frozen. Inside, nested States and containers are
        copies too; checks and derived fields run at its end. Meant for code that
        changes many places at once; a single one is clearer with `replace` or `at`.

        Raises:
            DraftError: assignment after the block, or from another trace.

        >>> import purestate as ps
        >>> class Train(ps.State):
        ...     step: ps.Array
        ...     sums: dict
        >>> train = Train(step=0, sums={"loss": 0.0})
        >>> with train.draft() as new:
        ...     new.step += 1
        ...     new.sums["loss"] = 2.5
        >>> int(new.step), new.sums, train.sums
        (1, {'loss': 2.5}, {'loss': 0.0})
        """
        return Draft(self)

    def __init_subclass__(
        cls,
        *,
        kw_only: bool = False,
        strict: bool | None = None,
        frozen: bool = True,
        version: int | None = None,
        was: str | tuple[str, ...] = (),
        **kwargs: Any,
    ) -> None:
        if not frozen:
            raise DeclarationError(
                f"{cls.__name__} has frozen=False, and every State is frozen: update "
                f"it with replace, at or draft."
            )
        try:
            super().__init_subclass__(**kwargs)
        except TypeError as error:
            if kwargs and "takes no keyword arguments" in str(error):
                raise DeclarationError.keyword(cls, next(iter(kwargs))) from None
            raise
        set_up(cls, State, kw_only=kw_only, strict=strict, version=version, was=was)

    @classmethod
    def _ps_awaken(cls) -> None:
        """Finish a class that was made empty, as its first instance comes to life."""
        awaken(cls, State)

    if not TYPE_CHECKING:  # a checker that sees these lets any name be assigned

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if type(self) is State:
                raise TypeError(
                    "State is a base class without fields: write a class, "
                    "`class Box(ps.State): ...`, and make instances of that."
                )
            super().__init__(*args, **kwargs)

        def __setattr__(self, name: str, value: Any) -> None:
            held, cls = held_by(self), type(self)
            known = layout_of(cls).names
            if AUX in held or FAILED in held:
                names = (*known, *view_names(cls))
                raise FrozenStateError.changing(cls, "assign", name, names)
            if DRAFT in held:
                held[DRAFT][0].assign(self, name, value)
            elif OPEN not in held:
                raise FrozenStateError.unmade(cls, name)
            elif name in known:
                held[name] = value
                if held[OPEN] is not True:
                    held[OPEN].add(name)
            elif hasattr(getattr(cls, name, None), "__set__"):
                # A property with a setter, used while constructing.
                object.__setattr__(self, name, value)
            else:
                is_pseudo = name in layout_of(cls).specs
                raise UndeclaredFieldError(cls, name, known, is_pseudo=is_pseudo)

        def __delattr__(self, name: str) -> None:
            held, cls = held_by(self), type(self)
            if AUX in held or FAILED in held:
                known = layout_of(cls).names
                raise FrozenStateError.changing(cls, "delete", name, known)
            raise FrozenStateError.deleting(cls, name)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return equality.are_equal(self, other)

    def __hash__(self) -> int:
        return equality.hashed(self)

    def __repr__(self) -> str:
        return pformat(self)

    def __format__(self, spec: str) -> str:
        """Return the repr, formatted; with the spec "values" the numbers too."""
        return (
            pformat(self, values=True) if spec == "values" else format(repr(self), spec)
        )

    def __rich_repr__(self) -> Iterator[tuple[str, Any]]:
        from purestate._inspect.printer import shown_fields

        yield from shown_fields(self)

    def __copy__(self) -> "Self":
        made: Self = copies.copied(self)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> "Self":
        made: Self = copies.deep_copied(self, memo)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return copies.reduced(self)

    def __getstate__(self) -> dict[str, Any]:
        return copies.pickled(self)

    def __setstate__(self, state: Any) -> None:
        copies.unpickle(self, state)


become_root(State)
