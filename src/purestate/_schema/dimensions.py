"""What jaxtyping's text for a shape says: `Float[Array, "*batch n 2*n #m _"]`.

Read from the annotation's text, so that jaxtyping need not be there.
"""

import ast
import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any

_MARKS = "*#?"
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclasses.dataclass(frozen=True)
class Dimension:
    """One word of such a text.

    Attributes:
        word: as it was written.
        label: a name, a number or an expression of them; "..." stands for itself.
        is_many: whether it stands for any number of axes: `*name` and `...`.
        may_be_one: whether an axis of size 1 will do as well: `#name`.
    """

    word: str
    label: str
    is_many: bool
    may_be_one: bool

    @property
    def is_anonymous(self) -> bool:
        """Whether two axes of this name may differ: `_`, `_name`."""
        return self.label.startswith("_")

    def size(self, sizes: Mapping[str, Any]) -> Any:
        """Return the size of the axis: a number, known by name, or `2*n + 1`.

        Raises:
            KeyError: a name without a size, or anything else.
            SyntaxError: the label is not an expression.
        """

        def value(node: ast.AST) -> Any:
            if isinstance(node, ast.Constant) and isinstance(node.value, int):
                return node.value
            if isinstance(node, ast.Name) and node.id in sizes:
                return sizes[node.id]
            if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
                return _OPERATORS[type(node.op)](value(node.left), value(node.right))
            raise KeyError(self.label)

        return value(ast.parse(self.label, mode="eval").body)


def dimensions(text: str) -> tuple[Dimension, ...]:
    """Return what each word of an annotation's text stands for."""
    return tuple(map(_dimension, text.split()))


def _dimension(word: str) -> Dimension:
    rest = word.lstrip(_MARKS)
    marks = word[: len(word) - len(rest)]
    label = rest.rpartition("=")[2]  # `rows=3` says for people what the 3 are
    return Dimension(word, label, "*" in marks or word == "...", "#" in marks)
