"""What the time goes to where purestate misses a budget or is behind a peer.

    python benchmarks/bench_floor.py [--quick] [--out FILE]

Constructors are written here as purestate writes them, with parts left out, so that the
price of each part can be read off.
"""

import dataclasses
import linecache
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp

import purestate as ps
from benchmarks import report, script
from benchmarks.harness import Case, Clock
from benchmarks.samples import Results

NAMES = [f"f{i}" for i in range(16)]
NESTED = 50
SECTION = (
    "What the time goes to",
    """\
**Construction** starts behind a dataclass, because a State has a `__setattr__` of its
own, which refuses: Python then writes no attribute in place, and the values go through
the instance's `__dict__`. On top come the dict that collects unknown names, which makes
an error that says which name was meant, and the test for missing ones. The budget of
three times a plain dataclass would be met without the errors that name fields; they are
worth more. With array annotations each value's type is compared as well.

**A class** is made once. About half of that is Python's compiler, on three functions
that are written for each class so that instances are cheap; two more are the same code
for all classes.

**Flatten** of many small States: jax calls a Python function for each, and such a call,
were the function to do nothing, takes 1.3 times what `register_dataclass` takes for a
node of three fields, in C++.

**Pickle** goes through two methods in Python, which drop what is not a field, find the
static values and compare the names of the fields, once, with those of the class; a
dataclass has none of that, and repeats the names in every pickle.

**Donation** marks what was donated, so that it can explain itself: one question to a
buffer and one assignment for a State, or for each in a donated container. For a State
inside of another it counts the references, to see whether somebody else holds it.

**Memory**: 72 bytes more than a dataclass. A constructor fills the `__dict__` of the
instance, and one that was asked for is an object of its own, of 64 bytes; 8 are the
reference to the static values. It counts as an attribute: CPython 3.13 keeps 29 inside
of an instance, so one of 29 fields takes 1904 bytes, as a dataclass of 30 does, where a
dataclass of 29 takes 320.

**A packed step**: for XLA each leaf that changes is still work of its own, a slice that
is read and one that is written. What is saved is Python's and the runtime's part.""",
)


def main() -> None:
    """Measure, print the tables, write the result file."""
    script.run(
        "floor",
        __doc__.splitlines()[0],
        [],
        ((201, 0.001), (15, 0.0005)),
        lambda quick: 6,
        measure,
        show,
    )


def measure(clock: Clock, quick: bool) -> None:
    """Time each part."""
    construct(clock)
    create(clock)
    pickles(clock)
    donation(clock)


def written(body: list[str], unknown: str = "") -> type:
    """Return a class whose constructor has these lines."""
    lines = [f"def __init__(self, {', '.join(f'{n}=_no' for n in NAMES)}{unknown}):"]
    lines += [f"    {line}" for line in body]
    scope = {"_no": object(), "_aux": object(), "_fail": ValueError}
    exec("\n".join(lines), scope)
    return type("C", (), {"__init__": scope["__init__"], "__setattr__": refuse})


def refuse(self: Any, name: str, value: Any) -> None:
    """Refuse every assignment, as a State does."""
    raise AttributeError(name)


def construct(clock: Clock) -> None:
    """Time constructors that do more and more."""
    stores = ["held = self.__dict__", *(f"held[{n!r}] = {n}" for n in NAMES)]
    missing = ["no = _no", f"if {' or '.join(f'{n} is no' for n in NAMES)}: _fail()"]
    body = {"__annotations__": dict.fromkeys(NAMES, object)}
    arrays = {"__annotations__": dict.fromkeys(NAMES, jax.Array)}
    classes: dict[str, Any] = {
        "dataclass": dataclasses.dataclass(type("D", (), dict(body))),
        "through __dict__": written(stores),
        "and unknown names": written([*stores, "if _u: _fail()"], ", **_u"),
        "and missing ones": written([*missing, *stores, "if _u: _fail()"], ", **_u"),
        "State": type("S", (ps.State,), dict(body)),
        "State of arrays": type("S", (ps.State,), dict(arrays)),
    }
    values = {f"v{i}": jnp.float32(i) for i in range(16)}
    call = f"C({', '.join(values)})"
    cases = [Case(name, call, {"C": cls, **values}) for name, cls in classes.items()]
    clock.compare("construct", "16 fields", cases)


def create(clock: Clock) -> None:
    """Time the making of a class, and Python's compiler on what is written for it."""
    body = {"__annotations__": dict.fromkeys(NAMES, jax.Array), "__module__": "floor"}
    type("S", (ps.State,), dict(body))
    sources = [
        "".join(linecache.getlines(name))
        for name in linecache.cache
        if name.startswith("<purestate floor.S.")
    ]
    make = "type('S', (State,), dict(body))"
    scope = {"State": ps.State, "body": body, "sources": sources}
    scope["dataclass"] = dataclasses.dataclass
    clock.compare(
        "class creation",
        "16 fields",
        [
            Case("State", make, scope),
            Case("of it: compile()", "for s in sources: compile(s, '', 'exec')", scope),
            Case("dataclass", "dataclass(type('S', (), dict(body)))", scope),
        ],
    )


class Held(ps.State):
    """Four fields."""

    a: object = "a"
    b: object = "b"
    c: object = "c"
    d: object = "d"


@dataclasses.dataclass
class Plain:
    """The same as a dataclass."""

    a: object = "a"
    b: object = "b"
    c: object = "c"
    d: object = "d"


def pickles(clock: Clock) -> None:
    """Time both directions of pickle."""
    cases = []
    for name, made in (("State", Held()), ("dataclass", Plain())):
        scope = {"x": made, "data": pickle.dumps(made), "pickle": pickle}
        cases.append(Case(f"{name}, dumps", "pickle.dumps(x)", scope))
        cases.append(Case(f"{name}, loads", "pickle.loads(data)", scope))
    clock.compare("pickle", "4 fields", cases)


class Inner(ps.State):
    """One of many."""

    a: jax.Array


class Pair(ps.State):
    """One of many, with two leaves."""

    a: jax.Array
    b: jax.Array


class Outer(ps.State):
    """A State of States."""

    x: jax.Array
    inner: list[Any]


class Moments(NamedTuple):
    """What adam keeps of its parameters."""

    count: jax.Array
    mu: dict[str, Pair]
    nu: dict[str, Pair]


def donated() -> dict[str, Any]:
    """Return what is donated, by what it is."""

    def pairs(count: int) -> list[Pair]:
        return [Pair(a=jnp.ones(2), b=jnp.ones(2)) for _ in range(count)]

    def named() -> dict[str, Pair]:
        return {f"layer {i}": pair for i, pair in enumerate(pairs(12))}

    inner = [Inner(a=jnp.ones(2)) for _ in range(NESTED)]
    return {
        f"{NESTED} nested States": Outer(x=jnp.ones(3), inner=inner),
        "38 nested States of 2 leaves": Outer(x=jnp.ones(3), inner=pairs(38)),
        "adam's moments of 12 States": Moments(jnp.int32(0), named(), named()),
    }


def donation(clock: Clock) -> None:
    """Time a donated step on States with others inside, and on a tuple of States."""

    def step(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf + 1, tree)

    for size, tree in donated().items():
        steps: dict[str, Callable[[Any], Any]] = {
            "ps.jit": ps.jit(step, donate=True),
            "jax.jit": jax.jit(step, donate_argnums=0),
        }
        code = "global s; s = step(s); wait(s[0])"
        if isinstance(tree, ps.State):
            code = "global s; s = step(s); wait(s.x)"
        wait = jax.block_until_ready
        cases = [
            # Each writes into the buffers of its own.
            Case(
                name,
                code,
                {"s": jax.tree.map(jnp.copy, tree), "step": jitted, "wait": wait},
            )
            for name, jitted in steps.items()
        ]
        clock.compare("donated step", size, cases)


def show(results: Results) -> str:
    """Return a table for each row."""
    blocks = ["Medians in microseconds, and ratios to the dataclass or the first line."]
    for row, size in results.rows():
        found = [r for r in results.found if (r.row, r.size) == (row, size)]
        first = found[0].median
        if row == "class creation":
            first = found[-1].median
        lines = [[f"{row}, {size}", "us", "ratio"]]
        for r in found:
            cells = [report.number(r.median), f"{r.median / first:.2f}"]
            lines.append([r.rival, *cells])
        blocks.append("\n".join(report.aligned(lines)))
    pair = [
        results.get("donated step", f"{NESTED} nested States", name)
        for name in ("ps.jit", "jax.jit")
    ]
    if all(pair):
        price = (pair[0].median - pair[1].median) / (NESTED + 1)  # type: ignore[union-attr]
        blocks.append(f"per donated State: {report.number(price)} us")
    return "\n\n".join(blocks)


if __name__ == "__main__":
    main()
