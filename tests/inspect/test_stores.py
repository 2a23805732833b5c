"""`Sources.stored`: the one statement of a function that assigns to a place."""

import itertools
import linecache

import pytest

from purestate._compat import Line
from purestate._inspect import stores
from purestate._inspect.stores import Sources

files = itertools.count()


def stored(source, *path, at="=>", function="f"):
    """Return the number of the line that stored; the value was computed at `=>`."""
    file = f"<stores {next(files)}>"
    lines = source.strip("\n").splitlines(keepends=True)
    (number,) = [i for i, line in enumerate(lines, 1) if at in line]
    text = "".join(line.replace(at, "") for line in lines)
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    found = Sources().stored(path, [Line(file, number, function)])
    assert (
        found is None
        or found.text == linecache.getline(file, found.line.number).strip()
    )
    return found and found.line.number


BOX = ("box", ".cache")


def body(*lines):
    return "def f(self, x):\n" + "\n".join(f"    {line}" for line in lines)


STORED = {
    "an attribute": (body("y = x * 2=>", "self.cache = y"), BOX, 3),
    "the same line": (body("self.cache = x * 2=>"), BOX, 2),
    "one before": (body("self.cache = 0", "y = x=>", "self.cache = y"), BOX, 4),
    "two after": (body("y = x=>", "self.cache = y", "self.cache = x"), BOX, None),
    "only before": (body("self.cache = 0", "return x * 2=>"), BOX, None),
    "in a loop": (
        body("for _ in x:", "    self.cache = y", "    y = x * 2=>"),
        BOX,
        3,
    ),
    "another attribute": (body("self.cached = x * 2=>"), BOX, None),
    "a local variable": (body("cache = x * 2=>"), BOX, None),
    "unpacked": (body("self.a, (self.cache, *rest) = g(x)=>"), BOX, 2),
    "added to": (body("self.cache += x=>"), BOX, 2),
    "with a type": (body("self.cache: int = x=>"), BOX, 2),
    "setattr": (body("setattr(self, 'cache', x)=>"), BOX, 2),
    "object.__setattr__": (body("object.__setattr__(self, 'cache', x)=>"), BOX, 2),
    "super": (body("super().__setattr__('cache', x)=>"), BOX, 2),
    "a name that is computed": (body("setattr(self, name, x)=>"), BOX, None),
    "the dict of an object": (body("self.__dict__['cache'] = x=>"), BOX, 2),
    "the class": (body("type(self).cache = x=>"), ("Box", ".cache"), 2),
    "an inner function": (body("def g(y):", "    self.cache = y", "g(x)=>"), BOX, None),
    "over lines": (body("self.cache = [", "    x * 2=>,", "]"), (*BOX, "[0]"), 2),
    "appended": (body("self.log.append(x)=>"), ("box", ".log", "[3]"), 2),
    "appended, after it was made": (
        body("self.log = []", "self.log.append({'y': x})=>"),
        ("box", ".log", "[0]", "['y']"),
        3,
    ),
    "by an alias": (
        body("log = self.log", "log.append(x)=>"),
        ("box", ".log", "[0]"),
        3,
    ),
    "to something else": (body("other.append(x)=>"), ("box", ".log", "[0]"), None),
    "a key": (body("kept['a'] = x=>", "kept['b'] = x"), ("kept", "['a']"), 2),
    "a key that is computed": (body("kept[name] = x=>"), ("kept", "['a']"), 2),
    "a key of another type": (body("kept[1] = x=>"), ("kept", "['1']"), None),
    "update by name": (body("kept.update(last=[x])=>"), ("kept", "['last']", "[0]"), 2),
    "update by another": (body("kept.update(first=x)=>"), ("kept", "['last']"), None),
    "update": (body("kept.update({'last': x})=>"), ("kept", "['last']"), 2),
    "setdefault": (body("kept.setdefault('a', x)=>"), ("kept", "['a']"), 2),
    "deep": (body("self.a.b['c'][0] = x=>"), ("z", ".a", ".b", "['c']", "[0]"), 2),
    "a global": (body("global last", "last = x=>"), ("last",), 3),
    "a nonlocal": (body("nonlocal last", "last = x=>"), ("last",), 3),
    "the cell of a closure": (
        body("y = x=>", "return lambda: y"),
        ("g", " (closure y)"),
        2,
    ),
    "an attribute of a module": (body("config.last = x=>"), ("config", ".last"), 2),
    "the argument of a function": (body("return g(x)=>"), BOX, None),
}


@pytest.mark.parametrize(("source", "path", "line"), STORED.values(), ids=STORED)
def test_the_statement_is_found(source, path, line):
    assert line == stored(source, *path)


def test_a_lambda_is_a_function():
    assert 1 == stored(
        "f = lambda x: kept.append(x)=>", "kept", "[0]", function="<lambda>"
    )


def test_of_two_functions_on_a_line_nothing_is_said():
    source = "f = lambda x: kept.append(x), lambda x: kept.append(x + 1)=>"

    assert stored(source, "kept", "[0]", function="<lambda>") is None


def test_a_module_has_statements_of_its_own():
    source = "def f(x):\n    last = x\nlast = f(3)=>"

    assert 3 == stored(source, "last", function="<module>")


def test_a_caller_that_stores_is_found_and_two_that_might_are_not():
    file = "<stores callers>"
    text = "def g(x):\n    return x * 2\ndef f(self, x):\n    self.cache = g(x)\n"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    lines = [Line(file, 2, "g"), Line(file, 4, "f")]
    assert 4 == Sources().stored(BOX, lines).line.number

    text = text.replace("    return x * 2\n", "    box.cache = x * 2\n")
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file

    assert Sources().stored(BOX, lines) is None


@pytest.mark.parametrize("text", ["", "def f(:\n", "x = 1\n"])
def test_without_the_source_of_the_function_nothing_is_said(text):
    file = f"<stores {next(files)}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file

    assert Sources().stored(BOX, [Line(file, 1, "f")]) is None
    assert Sources().stored(BOX, []) is None


def test_no_file_is_parsed_when_it_is_late():
    file = f"<stores {next(files)}>"
    text = "def f(self, x):\n    self.cache = x\n"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file

    assert Sources().stored(BOX, [Line(file, 2, "f")])
    assert Sources(lambda: True).stored(BOX, [Line(file, 2, "f")]) is None


@pytest.mark.parametrize(
    ("classes", "line"),
    [
        ((), 3),
        ([None, None], 3),
        ([{"Box", "object"}, None], 3),
        ([{"Other", "object"}, None], None),
    ],
)
def test_a_method_assigns_to_instances_of_its_class(classes, line):
    file = f"<stores {next(files)}>"
    text = "class Box:\n    def f(self, x):\n        self.cache = x\n"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file

    found = Sources().stored(BOX, [Line(file, 3, "f")], classes)

    assert line == (found and found.line.number)


def test_of_a_long_file_the_statement_around_the_line_is_parsed(monkeypatch):
    parsed = []
    parse = stores.ast.parse
    monkeypatch.setattr(
        stores.ast, "parse", lambda text: parsed.append(text.strip()) or parse(text)
    )
    filler = "a = 1\n" * 3000
    source = f"""
{filler}
@decorated(
    1
)
class Box:

    def f(self, x):
        y = x * 2=>
# a comment
        self.cache = y

{filler}"""

    assert 3010 == stored(source, *BOX)
    assert "class Box:" in parsed[0]
    assert len(parsed[0]) < 200


def test_of_what_is_too_long_nothing_is_parsed():
    long = body(*(3000 * ["a = 1"]), "self.cache = x=>")

    assert stored(long, *BOX) is None
