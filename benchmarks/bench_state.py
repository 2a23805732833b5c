"""What a State costs, beside named tuples, dataclasses and other container libraries.

    python benchmarks/bench_state.py [--quick] [--out FILE]

The legend above the tables says who takes part and what is timed. The leaves are scalar
arrays, except for pickling, where they are short strings: pickling an array costs far
more than what holds it.
"""

import copy
import dataclasses
import gc
import pickle
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp

import purestate as ps
from benchmarks import budgets, imports, report, script
from benchmarks.harness import Case, Clock
from benchmarks.libraries import LIBRARIES, Container, Library
from benchmarks.samples import Results

SIZES = 4, 16, 64
WIDE = 256
PEERS = [x.package for x in LIBRARIES if x.package is not None]
RIVALS = [library.name for library in LIBRARIES]
DEEP = "333 x 3 leaves"
NESTED = ["purestate", "register_dc", "dict"]
TRACED = ["ps of a dict", "ps 300 fields", "dict"]
LEGEND = """\
Medians in microseconds of the calling thread's processor time, which leaves out what
other processes take, or of wall time where it says so.
purestate: fields annotated as jax.Array, so that Python numbers become arrays.
ps object: annotated as object, without that check. ps 2 static: two static fields more.
dataclass: the standard library's, not frozen, not a pytree.
register_dc: a frozen one that jax.tree_util.register_dataclass has registered.
jax.extend: the part of jax that purestate imports and jax alone does not; the budget of
an import is what purestate takes beyond it.
==: of two equal ones made of Python floats, which purestate stores as arrays, ps object
and the others as they are. construct, statics seen: with a static value that no live
instance has, and one that is gone had.
replace one, checked: with a `__check__`, or a `__post_init__`, that has nothing to say.
spread: half the distance between the quartiles, for the middle and the worst rival.
"""
# What can be checked, and have a static field: lines below the fields.
CHECKED = {
    "purestate": "def __check__(self): pass",
    "dataclass": "def __post_init__(self): pass",
    "register_dc": "def __post_init__(self): pass",
    "flax.struct": "def __post_init__(self): pass",
}
STATIC = {
    "purestate": "g: str = ps.static(default='relu')",
    "dataclass": "g: str = 'relu'",
    "register_dc": (
        "g: str = dataclasses.field(default='relu', metadata={'static': True})"
    ),
    "flax.struct": "g: str = flax.struct.field(pytree_node=False, default='relu')",
}
ROWS = 20  # per size


def main() -> None:
    """Measure, print the tables and the budgets, write the result file."""
    script.run(
        "state",
        __doc__.splitlines()[0],
        PEERS,
        ((151, 0.001), (11, 0.0003)),
        lambda quick: ROWS * (1 if quick else len(SIZES)) + 13,
        measure,
        show,
    )


def measure(clock: Clock, quick: bool) -> None:
    """Compare all libraries, in a quick run at 16 fields only."""
    for size in SIZES if not quick else SIZES[1:2]:
        measure_size(clock, size)
    measure_wide(clock)
    measure_nested(clock)
    measure_tracing(clock)
    rounds, libraries = (2, LIBRARIES[:1]) if quick else (5, LIBRARIES)
    imports.measure(clock, libraries, rounds=rounds)


def show(results: Results) -> str:
    """Return the tables and the budgets."""
    measured = {size for _, size in results.rows()}
    sizes = [size for size in map(fields, SIZES) if size in measured]
    wide = [size for size in [fields(WIDE)] if size in measured]
    parts = [
        LEGEND,
        report.tables(results, RIVALS, [*sizes, *wide]),
        report.tables(results, NESTED, [DEEP]),
        report.tables(results, TRACED, ["300 leaves"]),
        report.tables(results, ["jax", imports.NEEDED, *RIVALS], [imports.SIZE]),
        budgets.lines(results, sizes),
    ]
    return "\n\n".join(parts)


def fields(size: int) -> str:
    """Return the title of the table for containers of `size` fields."""
    return f"{size} fields"


def measure_size(clock: Clock, size: int) -> None:
    """Compare all libraries at one number of fields."""
    title = fields(size)
    made = containers(clock, LIBRARIES, size)
    trees = [c for c in made if c.library.is_pytree]
    for c in made:
        c.scope["exec_in"] = {k: c.scope[k] for k in c.scope if k not in ("s", "S")}
    for c in trees:
        prepare(c)

    def compare(row: str, cases: Iterator[Case]) -> None:
        clock.compare(row, title, list(cases))

    compare("class creation", (c.case("exec(source, dict(exec_in))") for c in made))
    by_position = (c for c in made if c.library.positional)
    compare("construct", (c.case(c.positional) for c in by_position))
    compare("construct by keyword", (c.case(c.keyword) for c in made))
    compare("flatten", (c.case("flatten(s)") for c in trees))
    compare("unflatten", (c.case("unflatten(leaves)") for c in trees))
    compare("tree.map", (c.case("jax.tree.map(same, s)") for c in trees))
    compare("replace one", (c.case(c.replaced) for c in made))
    compare("at one", (c.case(c.placed) for c in made if c.library.at))
    compare("draft one", (c.case(c.drafted) for c in made if c.library.draft))
    compare("attribute read", (c.case(f"s.{c.middle}", 50) for c in made))
    compare("the same, unflattened", (c.case(f"rebuilt.{c.middle}", 50) for c in trees))
    compare("method lookup", (c.case("s.method", 50) for c in made))
    call = "step(s).f0.block_until_ready()"
    compare("jit call", (c.case(call) for c in trees))
    compare("jit call, wall time", (c.case(call, waits=True) for c in trees))
    compare("copy.copy", (c.case("copy(s)", copy=copy.copy) for c in made))
    compare("pickle.dumps", (pickled(c, "dumps(named)") for c in made))
    compare("pickle.loads", (pickled(c, "loads(dumped)") for c in made))
    compare("==", (case for c in made for case in compared(c)))
    compare("construct, statics seen", configured(clock, size))
    for c in made:
        clock.add("memory", title, c.library.name, "bytes", [memory_of(c)])
    clock.tell(f"memory ({title})")


def containers(
    clock: Clock, libraries: Iterable[Library], size: int
) -> list[Container]:
    """Return a container of each library that is there."""
    made = []
    for library in libraries:
        try:
            made.append(Container(library, size))
        except Exception as error:  # noqa: BLE001  # a peer that is absent or broken
            clock.note("", fields(size), library.name, error)
    return made


def measure_wide(clock: Clock) -> None:
    """Compare updates and copies of many fields, also the slow ones."""
    few = [library for library in LIBRARIES if library.name in STATIC]
    checked, static = (
        [dataclasses.replace(x, static=(lines[x.name],)) for x in few]
        for lines in (CHECKED, STATIC)
    )
    made = containers(clock, few, WIDE)
    title = fields(WIDE)
    clock.compare("replace one", title, [c.case(c.replaced) for c in made])
    copied = [c.case("copy(s)", copy=copy.copy) for c in made]
    clock.compare("copy.copy", title, copied)
    made = containers(clock, checked, WIDE)
    clock.compare("replace one, checked", title, [c.case(c.replaced) for c in made])
    made = containers(clock, static, WIDE)
    cases = [c.case(c.library.replace.format(f="g"), v="gelu") for c in made]
    clock.compare("replace static", title, cases)


def prepare(c: Container) -> None:
    """Put what the statements on a pytree use into the container's scope."""
    scope = c.scope
    scope["flatten"] = jax.tree.flatten
    scope["leaves"], treedef = jax.tree.flatten(scope["s"])
    scope["unflatten"] = treedef.unflatten
    scope["rebuilt"] = treedef.unflatten(scope["leaves"])
    # The update is spelled as the library does, which only tracing sees.
    update = c.library.replace.format(f="f0")
    source = f"def update(s):\n    v = s.f0 + 1\n    return {update}\n"
    exec(source, scope)
    scope["step"] = jax.jit(scope["update"])


def pickled(c: Container, statement: str) -> Case:
    """Return a case of pickling or unpickling; its leaves are short strings."""
    given = ", ".join(f"{name}={name!r}" for name in c.fields)
    named = eval(f"S({given}{extra_of(c)})", c.scope)
    scope = {"loads": pickle.loads, "dumps": pickle.dumps}
    return c.case(statement, named=named, dumped=pickle.dumps(named), **scope)


def compared(c: Container) -> Iterator[Case]:
    """Return the case of `==`, unless a library gives arrays or no bool for it."""
    given = ", ".join(f"{name}={i + 0.5}" for i, name in enumerate(c.fields))
    pair = [eval(f"S({given}{extra_of(c)})", c.scope) for _ in range(2)]
    try:
        found = pair[0] == pair[1]
    except Exception:  # noqa: BLE001  # whatever a library raises
        return
    if found is True:
        yield c.case("a == b", a=pair[0], b=pair[1])


def extra_of(c: Container) -> str:
    """Return what a call of the class gives for its static fields."""
    return "".join(f", {name}={value}" for name, value in c.library.extra)


def configured(clock: Clock, size: int) -> Iterator[Case]:
    """Return the cases of making an instance with static values, and dropping it."""
    few = [
        dataclasses.replace(x, static=(STATIC[x.name],), extra=(("g", "'gelu'"),))
        for x in LIBRARIES
        if x.name in STATIC
    ]
    for c in containers(clock, few, size):
        del c.scope["s"]
        yield c.case(c.positional)


def memory_of(c: Container, count: int = 500) -> float:
    """Return the bytes that one instance takes beside its leaves."""
    make = eval(f"lambda: {c.keyword}", c.scope)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        held: list[Any] = [None] * count
        for i in range(count):
            held[i] = make()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / count - 8  # less the list's own pointer


def measure_nested(clock: Clock) -> None:
    """Compare a list of 333 containers with three leaves each, inside one."""
    title = DEEP
    state, registered = nested_classes(ps.State), nested_classes(None)
    makers: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "purestate": state,
        "register_dc": registered,
        "dict": (dict, dict),
    }
    scopes = {}
    for rival, (node, top) in makers.items():
        nodes = [node(**{k: jnp.float32(i) for k in "abc"}) for i in range(333)]
        tree = top(xs=nodes)
        leaves, treedef = jax.tree.flatten(tree)
        first = "q['xs'][0]['a']" if rival == "dict" else "q.xs[0].a"
        scopes[rival] = {
            "tree": tree,
            "leaves": leaves,
            "flatten": jax.tree.flatten,
            "unflatten": treedef.unflatten,
            "step": jax.jit(eval(f"lambda q: {first}")),
            "same": lambda leaf: leaf,
            "jax": jax,
        }
    for row, statement in (
        ("flatten", "flatten(tree)"),
        ("unflatten", "unflatten(leaves)"),
        ("tree.map", "jax.tree.map(same, tree)"),
        ("jit call", "step(tree).block_until_ready()"),
        ("jit call, wall time", "step(tree).block_until_ready()"),
    ):
        cases = [Case(k, statement, v, waits="wall" in row) for k, v in scopes.items()]
        clock.compare(row, title, cases)
    deep = "tree.at(lambda t: t.xs[5].a).set(0)"
    draft = "with tree.draft() as new:\n    new.xs[5].a = 0"
    ours = scopes["purestate"]
    clock.compare("at one", title, [Case("purestate", deep, ours)])
    clock.compare("draft one", title, [Case("purestate", draft, ours)])


def nested_classes(base: type | None) -> tuple[type, type]:
    """Return a class with three array fields, and one with a list."""
    classes = []
    for annotations in (dict.fromkeys("abc", jax.Array), {"xs": list}):
        body = {"__annotations__": annotations, "__module__": __name__}
        cls = type("Node", (base,) if base else (), body)
        classes.append(cls if base else registered_dataclass(cls))
    return classes[0], classes[1]


def registered_dataclass(cls: type) -> type:
    """Return `cls` as a frozen dataclass that jax knows itself."""
    frozen = dataclasses.dataclass(frozen=True)(cls)
    return jax.tree_util.register_dataclass(frozen)


def measure_tracing(clock: Clock) -> None:
    """Compare the time to trace an update of 300 leaves."""
    names = [f"k{i}" for i in range(300)]
    leaves = {name: jnp.float32(0) for name in names}
    body = {"__module__": __name__}
    around = type("Around", (ps.State,), body | {"__annotations__": {"d": dict}})
    fields = {"__annotations__": dict.fromkeys(names, jax.Array)}
    wide = type("Wide", (ps.State,), body | fields)
    grown = "{k: v + 1 for k, v in d.items()}"
    updates = {
        "dict": (leaves, f"lambda d: {grown}"),
        "ps of a dict": (
            around(d=leaves),
            f"lambda q: (lambda d: q.replace(d={grown}))(q.d)",
        ),
        "ps 300 fields": (
            wide(**leaves),
            "lambda q: q.replace(**{k: getattr(q, k) + 1 for k in names})",
        ),
    }
    cases = [
        # A new function each time: jit remembers what it has traced.
        Case(
            rival,
            f"jit({source}).trace(tree)",
            {"tree": tree} | {"jit": jax.jit, "names": names},
        )
        for rival, (tree, source) in updates.items()
    ]
    clock.compare("trace", "300 leaves", cases)


if __name__ == "__main__":
    main()
