"""What the static type checkers say about the documentation.

A reader copies from it. So every Python block of README.md and of docs/ passes, every
script and the examples in docstrings, but for what they show to fail: what ends in a
traceback, and the body of a `try`. What is left is in `KNOWN`, with the reason.
"""

import ast
import doctest
import pathlib
import re
from typing import NamedTuple

import pytest

from tests.checkers import CHECKERS, READ, SOURCE, TARGETS, Run, require
from tests.helpers import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SCRIPTS = sorted((ROOT / "docs" / "examples").glob("*.py"))
MODULES = [path for path in SOURCE.rglob("*.py") if ">>> " in path.read_text()]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Known(NamedTuple):
    """What these checkers say of right code; each says it somewhere."""

    pattern: str  # in "docs/page.md: message"
    reason: str
    checkers: tuple[str, ...]
    targets: tuple[str, ...] = TARGETS


KNOWN = [
    Known(
        r"has no member `[Mm]j|No attribute `[Mm]j|\"[Mm]j\w+\" is not a known attribute",
        "MuJoCo is compiled, and ships no stubs",
        ("pyright", "ty", "pyrefly"),
    ),
    Known(
        r'"Params|ArrayTree',
        "optax holds parameters to be arrays in containers; it takes any pytree",
        ("pyright", "ty", "pyrefly"),
    ),
    Known(
        r"parameter `(abstract_)?state` with type `Any.*` in function `orbax"
        r"|\(wanted: dict\[str, Any\]\) -> Any",  # what ocp.load returns
        "pyrefly cannot read the type that orbax gives to trees of arrays",
        ("pyrefly",),
    ),
    Known(
        r"missing library stubs|Library stubs not installed",
        "mypy wants types of every package, or to be told that it has none",
        ("mypy",),
    ),
    Known(r"PyTreeDef\?", "JAX gives mypy no class for this name", ("mypy",)),
    Known(
        "Decorators on top of @property",
        "a limit of mypy, whatever the decorator",
        ("mypy",),
    ),
    Known(
        r'to "Image" has incompatible type',
        "mypy has no converters in dataclass_transform",
        ("mypy",),
    ),
    Known(
        r"state\.md: .* (parameter named|argument) .(w|key)\b",
        "replace of a dataclass takes no field with init=False, and every InitVar; with "
        "derived=False, ours differs",
        ("mypy", "pyright", "pyrefly"),
        ("3.13",),
    ),
]

pytestmark = pytest.mark.types


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("checker", CHECKERS)
def test_what_the_documentation_shows_passes(checker, target, tmp_path):
    require(checker)
    folder = tmp_path / "programs"
    folder.mkdir()
    source_of, failing = {}, set()
    for path, name, program, tracebacks in programs():
        (folder / name).write_text(own_names(program))
        source_of[name] = path.relative_to(ROOT).as_posix()
        failing |= {(name, line) for line in (*tracebacks, *tried(program))}
    files = tuple(sorted(folder.glob("*.py")))
    known = [k for k in KNOWN if checker in k.checkers and target in k.targets]

    errors, used = [], set()
    for found, line, message in CHECKERS[checker](Run(target, tmp_path, files, READ)):
        name = pathlib.Path(found).name
        text = f"{source_of[name]}: {message}"
        reasons = {k for k in known if re.search(k.pattern, text)}
        used |= reasons
        if not reasons and (name, line) not in failing:
            errors.append(f"{source_of[name]}:{line}: {message}")

    unsaid = [f"says nothing more of this: {k.reason}" for k in known if k not in used]
    assert not errors + unsaid, "\n".join([checker, target, *errors, *unsaid])


PAGE = """\
# A page

```python
import other
class Box:
    ...
box = Box()
```

```python
>>> box.x
Traceback (most recent call last):
    ...
AttributeError: no x
>>> for i in range(2):
...     print(i)
0
1
```

```python
class Box:
    box: "Box"

try:
    Box(1)
except TypeError:
    pass
```
"""


def test_a_page_becomes_a_program_on_the_same_lines():
    program, tracebacks = code(PAGE)
    lines = dict(enumerate(program.splitlines(), 1))

    assert {
        4: "import other",
        5: "class Box:",
        6: "    ...",
        7: "box = Box()",
        11: "box.x",
        15: "for i in range(2):",
        16: "    print(i)",
        22: "class Box:",
        23: '    box: "Box"',
        25: "try:",
        26: "    Box(1)",
        27: "except TypeError:",
        28: "    pass",
    } == {number: line for number, line in lines.items() if line}
    assert [11] == tracebacks
    assert [25, 26] == list(tried(program))


def test_what_a_page_defines_twice_has_two_names():
    program, _ = code(PAGE)

    lines = own_names(program).splitlines()

    assert ["class Box_:", "    ...", "box = Box_()"] == lines[4:7]
    assert "class Box:" == lines[21]
    assert "    Box(1)" == lines[25]


def programs():
    """Yield path, file name, text, and lines that end in a traceback."""
    for path in PAGES:  # docs/mujoco.md is not the module mujoco
        yield path, f"{path.stem}_page.py", *code(path.read_text())
    for path in SCRIPTS:
        yield path, path.name, path.read_text(), []
    for path in MODULES:
        text = path.read_text()
        *parts, last = path.relative_to(SOURCE).with_suffix("").parts
        parts += {last} - {"__init__"}
        program, tracebacks = code(text, page=False)
        # An example runs among the names of its module, and of conftest.py.
        names = "import jax, jax.numpy as jnp, purestate as ps"
        if own := [node.name for node in defined(ast.parse(text))]:
            names += f"; from {'.'.join(parts)} import {', '.join(own)}"
        yield path, f"{'_'.join(parts)}_module.py", names + program, tracebacks


def defined(tree):
    """Return the nodes of the classes and functions at the top of a program."""
    kinds = ast.ClassDef | ast.FunctionDef
    return [node for node in tree.body if isinstance(node, kinds)]


def code(text, page=True):
    """Return the Python of a page or of docstrings, and the lines of its tracebacks."""
    lines = [""] * text.count("\n")
    tracebacks = []
    blocks = [(m.start(1), m[1]) for m in BLOCK.finditer(text)] if page else [(0, text)]
    for start, block in blocks:
        parts = [(0, block, None)]
        if ">>>" in block:
            examples = doctest.DocTestParser().get_examples(block)
            parts = [(e.lineno, e.source, e.exc_msg) for e in examples]
        for offset, source, error in parts:
            first = text.count("\n", 0, start) + offset
            body = source.splitlines()
            lines[first : first + len(body)] = body
            if error:
                tracebacks += range(first + 1, first + len(body) + 1)
    return "\n".join(lines) + "\n", tracebacks


def tried(program):
    """Yield the lines of the bodies of `try` at the top of a program."""
    for node in ast.parse(program).body:
        if isinstance(node, ast.Try):
            yield from range(node.lineno, node.handlers[0].lineno)


def own_names(program):
    """Return the program in which a class or function that is replaced has another name.

    A page may define a thing twice, and a checker would take the one for the other.
    """
    tree = ast.parse(program)
    tops = defined(tree)
    spots = []
    for node in ast.walk(tree):
        name = node.name if node in tops else getattr(node, "id", None)
        places = [top.lineno for top in tops if top.name == name]
        later = sum(place > node.lineno for place in places)
        if 0 < later < len(places):
            spots.append((node.lineno - 1, node.col_offset, name, "_" * later))
    lines = program.encode().splitlines()
    for number, column, name, ending in sorted(spots, reverse=True):
        line, word = lines[number], name.encode()
        end = line.index(word, column) + len(word)  # after `class` or `def`, if any
        lines[number] = line[:end] + ending.encode() + line[end:]
    return b"\n".join(lines).decode() + "\n"
