"""Strategies for instances of a class and for trees, as hypothesis takes them."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import hypothesis.strategies as st

from purestate.testing._strategies.annotations import draw_value
from purestate.testing._strategies.arrays import arrays, keys
from purestate.testing._strategies.axes import check_dims
from purestate.testing._strategies.construct import Made, construct
from purestate.testing._strategies.scope import Scope


def states(
    cls: Any,
    *,
    fields: Mapping[str, Any] | None = None,
    dims: Mapping[str, Any] | Sequence[int] | None = None,
    dtypes: Sequence[Any] | None = None,
    specials: bool = True,
) -> st.SearchStrategy[Any]:
    """Return a strategy for instances of a State class, made from its annotations.

    Understood are `jax.Array` and jaxtyping on it, with shared named axes; States,
    dataclasses, NamedTuples and containers within; unions, `Literal`, enums, generics,
    typed keys, numbers and strings, and whatever `register_strategy` knows. A bare
    `jax.Array` has the dtype and shape of the field's default; without one, all bare
    arrays of an instance have one shape, and a field named `key` or `rng` holds a key.
    A static field with a default keeps it, unless its annotation lists its values.
    Instances that `__check__` refuses are drawn again.

    Args:
        cls: the class; `Box[int]` for a generic one.
        fields: strategies or values for some of the constructor's parameters; for a
            class with its own `__init__` those of that.
        dims: sizes of axes, `{"n": 3, "m": (1, 2)}`, or a pool for all of them,
            `(1, 8)`.
        dtypes: the dtypes to draw from where the annotation admits them.
        specials: mix in NaN, infinities, -0.0, extremes and empty axes. Without, arrays
            hold small numbers that are safe to compute with.

    Raises:
        StrategyError: when drawn, if an annotation says too little, if the constructor
            raises, if `__check__` refuses nearly all, or if `dims` names an axis that
            no annotation has.
        FieldError: when drawn, if `fields` has a name that the constructor has not.

    >>> import hypothesis, purestate as ps, purestate.testing as pst
    >>> class Counter(ps.State):
    ...     count: ps.Array = 0
    >>> @hypothesis.given(pst.states(Counter))
    ... def test(counter):
    ...     assert counter.count.dtype == "int32"
    >>> test()
    """
    drawing = Drawing(cls, fields, dims, dtypes, specials)
    # When drawn: by then the names in annotations are there.
    check = functools.cache(
        lambda: check_dims(getattr(cls, "__name__", str(cls)), dims, [(cls, None)])
    )

    @st.composite
    def drawn(draw: Any) -> Any:
        check()
        return drawing.draw(drawing.scope(draw)).state

    return drawn()


@dataclasses.dataclass
class Drawing:
    """How the instances of one test are drawn.

    Attributes:
        cls, fields, dims, dtypes, specials: as for `states`.
        refusals: as in `Scope`.
    """

    cls: Any
    fields: Mapping[str, Any] | None = None
    dims: Mapping[str, Any] | Sequence[int] | None = None
    dtypes: Sequence[Any] | None = None
    specials: bool = True
    refusals: dict[Any, list[int]] = dataclasses.field(default_factory=dict)

    def scope(self, draw: Any, variant: int | None = None) -> Scope:
        """Return a fresh scope, for one instance and what goes with it."""
        return Scope(
            draw,
            dims=self.dims,
            dtypes=self.dtypes,
            specials=self.specials,
            variant=variant,
            refusals=self.refusals,
        )

    def draw(self, scope: Scope) -> Made:
        """Draw an instance, with its arguments."""
        return construct(scope, self.cls, self.fields or {}, draw_value)


def trees(
    leaves: st.SearchStrategy[Any] | None = None,
    *,
    nodes: Sequence[Any] = (),
    max_leaves: int = 6,
) -> st.SearchStrategy[Any]:
    """Return a strategy for pytrees: lists, tuples, dicts and what `nodes` adds.

    Args:
        leaves: a strategy for leaves; by default arrays, keys and None.
        nodes: functions from the strategy of subtrees to one of trees, such as
            `lambda inner: st.builds(Pair, inner, inner)`.
        max_leaves: about how many leaves at most.

    >>> import hypothesis, jax, purestate.testing as pst
    >>> @hypothesis.given(pst.trees())
    ... def test(tree):
    ...     leaves, structure = jax.tree.flatten(tree)
    ...     pst.assert_same(tree, structure.unflatten(leaves))
    >>> test()
    """
    if leaves is None:
        leaves = arrays() | keys() | st.none()

    def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        found = (
            st.lists(inner, max_size=2)
            | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
            | st.tuples(inner, inner)
        )
        for node in nodes:
            found |= node(inner)
        return found

    return st.recursive(leaves, grown, max_leaves=max_leaves)
