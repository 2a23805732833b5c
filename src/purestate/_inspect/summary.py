"""A table of a State: what it holds, how many numbers, how many bytes, and where.

Shapes, dtypes and shardings are all that is read, never a number: it works on traced
and abstract States, and starts no transfer.
"""

import collections
import html
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from purestate._compat import is_tracer
from purestate._inspect.key_paths import children
from purestate._inspect.repr import pformat
from purestate._schema.leaves import is_array
from purestate._schema.marks import SHOWN
from purestate._schema.text import root_name
from purestate.errors._text import short


@dataclass(frozen=True)
class Row:
    """One line of a summary.

    Attributes:
        path: the place, such as `Train.opt.mu`.
        type: dtype and shape of an array, the class of what has parts.
        numbers: how many numbers it holds; a key counts as one.
        bytes: how many bytes its arrays have, over all devices once.
        sharding: how an array is split over a mesh, such as `P('data', None)`; for the
            whole, the bytes on the device that holds most. Empty if nothing is split.
        leaves: how many leaves it has.
        depth: how many steps it is below the whole.
        shared: whether all of its arrays stand in earlier rows, and count there.
    """

    path: str
    type: str
    numbers: int
    bytes: int
    sharding: str
    leaves: int
    depth: int
    shared: bool


class Summary(tuple[Row, ...]):
    """The lines of a summary, in field order; the last one is the whole.

    Prints as a table: as text, in notebooks as HTML, and in a console of rich.
    """

    __slots__ = ()

    @property
    def numbers(self) -> int:
        """How many numbers there are, each array counted once."""
        return self[-1].numbers

    @property
    def bytes(self) -> int:
        """How many bytes the arrays have, each counted once."""
        return self[-1].bytes

    def __str__(self) -> str:
        head, *lines, total = self._lines()
        rule = "-" * max(map(len, (head, *lines, total)))
        return "\n".join([head, *([rule, *lines] if lines else []), rule, total])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *cells, total = self._cells()
        parts = [
            "<table><thead>",
            _html_row("th", head, 0),
            "</thead><tbody>",
            *(
                _html_row("td", row, self[i].depth - 1, self[i].shared)
                for i, row in enumerate(cells)
            ),
            "</tbody><tfoot>",
            _html_row("th", total, 0),
            "</tfoot></table>",
        ]
        return "\n".join(parts)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        # The console makes rich's own text, so that nothing of rich is imported.
        plain = {"markup": False, "emoji": False, "highlight": False}
        lines = str(self).split("\n")
        for i, line in enumerate(lines):
            text = console.render_str(line, overflow="ellipsis", **plain)
            text.no_wrap = True
            if i in (0, len(lines) - 1):
                text.stylize("bold")
            elif line.startswith("--") or self[i - 2].shared:
                text.stylize("dim")
            yield text

    def _lines(self) -> list[str]:
        cells = self._cells()
        for cell, row in zip(cells[1:], self, strict=True):
            cell[0] = "  " * (row.depth - 1) + cell[0]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return [
            "  ".join(
                text.rjust(width) if i in _RIGHT else text.ljust(width)
                for i, (text, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        ]

    def _cells(self) -> list[list[str]]:
        head = ["field", "type", "numbers", "bytes", "sharding"]
        total = self[-1]
        rows, above = [head], {0: total.path}
        for row in self[:-1]:
            name = row.path.removeprefix(above[row.depth - 1]).removeprefix(".")
            above[row.depth] = row.path
            if row.shared:
                rows.append([name, f"{row.type} (shared)", "", "", row.sharding])
                continue
            counts = [_scaled(row.numbers, 1000, _COUNTS) if row.numbers else ""]
            counts.append(_scaled(row.bytes, 1024, _BYTES) if row.bytes else "")
            rows.append([name, row.type, *counts, row.sharding])
        leaves = f"{total.leaves} {'leaf' if total.leaves == 1 else 'leaves'}"
        size = _scaled(total.bytes, 1024, _BYTES)
        rows.append([total.type, leaves, f"{total.numbers:,}", size, total.sharding])
        return rows if total.sharding else [row[:-1] for row in rows]


_RIGHT = (2, 3)  # columns
_COUNTS = ("", " k", " M", " G", " T")
_BYTES = (" B", " KiB", " MiB", " GiB", " TiB")


def _scaled(value: float, base: int, units: Sequence[str]) -> str:
    """Return a number with four digits, and its unit."""
    unit = 0
    while float(f"{value:.4g}") >= base and unit < len(units) - 1:
        value /= base
        unit += 1
    return f"{value:.4g}{units[unit]}"


def _html_row(tag: str, cells: Sequence[str], indent: int, dim: bool = False) -> str:
    styles = [f"text-align: {'right' if i in _RIGHT else 'left'}" for i in range(5)]
    styles[0] += f"; padding-left: {indent * 1.5 + 0.5:g}em"
    shade = ' style="opacity: 0.6"' if dim else ""
    made = (
        f'<{tag} style="{style}">{html.escape(cell)}</{tag}>'
        for style, cell in zip(styles, cells, strict=False)
    )
    return f"<tr{shade}>{''.join(made)}</tr>"


def summary(state: Any, depth: int = 2) -> Summary:
    """Return a table of what a State holds: types, numbers, bytes, shardings.

    An array that stands in several places is counted once, where it comes first.

    Args:
        state: a State, packed or not, concrete, traced or abstract; or any pytree.
        depth: how many levels to show. What is below counts all the same.

    Raises:
        TypeError: `state` is a class.
        ValueError: `depth` is no number of levels, or containers lie too deep within
            each other.
        ConsumedStateError: `state` was donated.

    >>> import jax.numpy as jnp, purestate as ps
    >>> print(ps.summary({"w": jnp.ones((40, 50)), "step": 0}))
    field     type        numbers      bytes
    ----------------------------------------
    ['step']  int               1
    ['w']     f32[40,50]      2 k  7.812 KiB
    ----------------------------------------
    dict      2 leaves      2,001  7.812 KiB
    """
    if isinstance(state, type):
        raise TypeError(
            f"ps.summary is of an instance, and {state.__name__} is a class. "
            f"jax.eval_shape(make) returns an instance without its numbers."
        )
    if type(depth) is not int or depth < 0:
        raise ValueError(
            f"ps.summary(depth={short(depth)}): give how many levels to show, as an "
            f"int that is not negative."
        )
    counter = _Counter(depth)
    try:
        total, *rows = counter.rows(root_name(state), state, 0)
    except RecursionError as error:
        raise ValueError(
            "ps.summary: the containers lie within each other too deeply, some "
            "hundreds of levels, or one of them holds itself."
        ) from error
    if not counter.is_split:
        return Summary(replace(row, sharding="") for row in (*rows, total))
    held = _scaled(counter.most_on_a_device(), 1024, _BYTES)
    return Summary((*rows, replace(total, sharding=f"{held} per device")))


class _Counter:
    """Makes the rows, and knows which arrays were counted and on which devices."""

    def __init__(self, depth: int) -> None:
        self.is_split = False
        self._depth = depth
        # Arrays by id, kept alive: a node may make its parts anew at each flatten, and
        # the id of one that is freed comes back.
        self._seen: dict[int, Any] = {}
        self._bytes: dict[Any, int] = {}  # on each device of a set; None: on all

    def rows(self, path: str, tree: Any, depth: int) -> list[Row]:
        """Return the row of a place, then those below it that are shown."""
        name, parts = _level(tree)
        if not parts:
            return [self._leaf(path, name, tree, depth)]
        below = [self.rows(path + step, x, depth + 1) for step, x in parts.items()]
        heads = [rows[0] for rows in below]
        leaves = sum(row.leaves for row in heads)
        row = Row(
            path,
            name if depth == 0 else f"{name} of {leaves}",
            sum(row.numbers for row in heads),
            sum(row.bytes for row in heads),
            "",
            leaves,
            depth,
            leaves > 0 and all(row.shared for row in heads if row.leaves),
        )
        shown = below if depth < self._depth else ()
        return [row, *itertools.chain.from_iterable(shown)]

    def _leaf(self, path: str, name: str, leaf: Any, depth: int) -> Row:
        is_one = jax.tree_util.all_leaves([leaf])  # not None, nor an empty container
        numbers = size = 0
        where = ""
        shared = is_array(leaf) and id(leaf) in self._seen
        if not shared:
            numbers, size = _counts(leaf)
        if is_array(leaf):
            self._seen[id(leaf)] = leaf
        sharding = _sharding(leaf)
        if isinstance(sharding, jax.sharding.NamedSharding):
            where = _spec_text(sharding.spec)
        if sharding is None or not numbers:
            self._hold(None, size)
        elif sharding.is_fully_replicated:
            self._hold(_devices(sharding), size)
        else:
            self.is_split = True
            part = math.prod(sharding.shard_shape(leaf.shape))
            self._hold(_devices(sharding), size * part // numbers)
        return Row(path, name, numbers, size, where, int(is_one), depth, shared)

    def _hold(self, devices: Any, size: int) -> None:
        self._bytes[devices] = self._bytes.get(devices, 0) + size

    def most_on_a_device(self) -> int:
        everywhere = self._bytes.pop(None, 0)
        on_each: collections.Counter[Any] = collections.Counter()
        for devices, size in self._bytes.items():
            on_each.update(dict.fromkeys(devices, size))
        return everywhere + max(on_each.values(), default=0)


def _level(tree: Any) -> tuple[str, dict[str, Any]]:
    """Return what a tree is called, and its parts by step; a leaf has none."""
    if hasattr(type(tree), SHOWN):
        name, parts = getattr(tree, SHOWN)()
        return str(name), parts
    if tree is None:
        return "None", {}
    name = type(tree).__name__
    if not jax.tree_util.all_leaves([tree]):
        return name, children(tree)[0]
    has_type = hasattr(tree, "dtype") and hasattr(tree, "shape")
    return (pformat(tree) if has_type else name), {}


def _counts(leaf: Any) -> tuple[int, int]:
    """Return how many numbers a leaf has, and how many bytes its array has."""
    if isinstance(leaf, int | float | complex):
        return 1, 0
    try:
        numbers = math.prod(map(int, leaf.shape))
        return numbers, numbers * int(getattr(leaf.dtype, "itemsize", 0))
    except (AttributeError, TypeError, ValueError):  # `shape` may be anything
        return 0, 0


def _sharding(leaf: Any) -> Any:
    """Return how an array is laid out, None if nothing is known."""
    if not is_tracer(leaf):
        held = getattr(leaf, "sharding", None)
        return held if isinstance(held, jax.sharding.Sharding) else None
    found = getattr(jax.typeof(leaf), "sharding", None)
    return found if found is not None and found.mesh.axis_names else None


def _spec_text(spec: Any) -> str:
    axes = list(map(repr, spec))
    while axes and axes[-1] == "None":
        axes.pop()
    return f"P({', '.join(axes)})"


def _devices(sharding: Any) -> frozenset[Any]:
    try:
        return frozenset(sharding.device_set)
    except ValueError:  # an abstract mesh
        return frozenset([sharding.mesh])
