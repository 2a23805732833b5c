"""Where a function stores a value: the statements in its source that assign to a place.

A place is told by the steps that lead to it, as `purestate._schema.tracers.walk` gives
them: `("box", ".log", "[0]", "['y']")`. Nothing is run: what cannot be told from the
source is not said.
"""

import ast
import linecache
import re
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any, NamedTuple

from purestate._compat import Line

_ANY = object()  # a step that is known when the program runs
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
# Methods that put an argument into what they are called on.
_PUTTING = {"append", "appendleft", "add", "insert", "extend", "extendleft", "update"}
_PUTTING |= {"setdefault", "put", "put_nowait", "__setitem__"}


class Stored(NamedTuple):
    """A statement that stores a value.

    Attributes:
        line: where it begins.
        text: its first line.
    """

    line: Line
    text: str


class Sources:
    """The sources of the files that were asked for, parsed once each.

    Args:
        is_late: asked before a file is parsed; none is any more when it returns True.
    """

    def __init__(self, is_late: Callable[[], bool] = bool) -> None:
        self._is_late = is_late
        self._trees: dict[tuple[str, int], ast.Module | None] = {}
        self._classes: dict[Any, str] = {}  # by method

    def text(self, line: Line) -> str:
        """Return a line of a file, "" if there is no source."""
        return linecache.getline(line.file, line.number).strip()

    def stored(
        self,
        path: Sequence[str],
        lines: Sequence[Line],
        classes: Sequence[Set[str] | None] = (),
        may_be: Callable[[str, int], bool] = lambda name, step: True,
    ) -> Stored | None:
        """Return the one statement that can have stored what is at the end of a path.

        Args:
            path: the steps to a value.
            lines: the lines that ran when the value was made, the innermost first.
            classes: for the object at each step, the names of its class and its bases;
                None where they are not known. What a method assigns to its own instance
                is assigned to none of another class.
            may_be: asked whether a variable that is not local to its function can be
                the object at a step.

        Returns:
            None if no function among them assigns to that place, or if several
            statements do.
        """
        steps = list(map(_step, path))
        found: dict[int, list[tuple[Line, int]]] = {}
        for line in lines:
            scope = self._scope(line)
            for chain, statement in _stores(scope) if scope is not None else ():
                depth = _matched(chain, steps)
                if depth < 0 or not self._may_be(scope, chain, depth, classes):
                    continue
                if not _may_begin(scope, chain, depth, may_be):
                    continue
                if _comes_after(scope, statement, line.number):
                    found.setdefault(depth, []).append((line, statement.lineno))
        if not found:
            return None
        places = {
            (line.file, line.function, number) for line, number in found[max(found)]
        }
        if len(places) > 1:
            return None
        (place,) = places
        line = Line(place[0], place[2], place[1])
        return Stored(line, self.text(line))

    def _may_be(
        self,
        scope: Any,
        chain: Sequence[tuple[str, Any]],
        depth: int,
        classes: Sequence[Set[str] | None],
    ) -> bool:
        """Return whether a chain can begin with the object at its first step."""
        begin = depth - len(chain) + 1
        names = classes[begin] if begin < len(classes) else None
        owner = self._classes.get(scope)
        if names is None or owner is None or not scope.args.args:
            return True
        return chain[0][1] != scope.args.args[0].arg or owner in names

    def _scope(self, line: Line) -> Any:
        """Return the function that a line is in, None if it cannot be told."""
        tree = self._tree(line)
        if tree is None or line.function == "<module>":
            return tree
        found = [
            node
            for node in ast.walk(tree)
            if isinstance(node, _Scope)
            and getattr(node, "name", "<lambda>") == line.function
            and _first(node) <= line.number <= (node.end_lineno or 0)
        ]
        sizes = [(node.end_lineno or 0) - _first(node) for node in found]
        if not found or sizes.count(min(sizes)) > 1:
            return None
        return found[sizes.index(min(sizes))]

    def _tree(self, line: Line) -> ast.Module | None:
        """Return the syntax of a file, or of a part of a long one that has the line."""
        lines = linecache.getlines(line.file)
        begin, end = 0, len(lines)
        if end > _WHOLE:
            begin, end = _statement(lines, line.number)
        at = (line.file, begin)
        if at not in self._trees and not self._is_late():
            try:
                if end - begin > _WHOLE:
                    raise ValueError
                tree = ast.parse("\n" * begin + "".join(lines[begin:end]))
            except (SyntaxError, ValueError, RecursionError):
                tree = None
            self._trees[at] = tree
            for node in ast.walk(tree) if tree is not None else ():
                if isinstance(node, ast.ClassDef):
                    self._classes.update((part, node.name) for part in node.body)
        return self._trees.get(at)


# As many lines are parsed in a quarter of the time that a search has.
_WHOLE = 2000
_GOES_ON = re.compile(r"[\s)\]}#]|(else|elif|except|finally)\b|$")


def _statement(lines: Sequence[str], number: int) -> tuple[int, int]:
    """Return where the statement of a module begins and ends that has a line.

    Told by what is not indented; text in quotes may be taken for a statement, of which
    nothing is found then.
    """
    begin = end = min(number, len(lines)) - 1
    while begin > 0 and _GOES_ON.match(lines[begin]):
        begin -= 1
    is_decorator = lines[begin].startswith("@")
    end += 1
    while end < len(lines) and (is_decorator or _GOES_ON.match(lines[end])):
        is_decorator = is_decorator and not re.match(r"async|def|class", lines[end])
        end += 1
    return begin, end


def _may_begin(
    scope: Any,
    chain: Sequence[tuple[str, Any]],
    depth: int,
    may_be: Callable[[str, int], bool],
) -> bool:
    """Return whether the variable that a chain begins with can be what its step is.

    A container that the function made is none that was there before.
    """
    kind, name = chain[0]
    if kind != "variable" or not name:
        return True
    made, given = _assigned(scope).get(name, []), _parameters(scope)
    if isinstance(scope, ast.Module) or (not made and name not in given):
        return may_be(name, depth - len(chain) + 1)
    return name in given or not all(isinstance(value, _FRESH) for value in made)


_FRESH = ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp


def _assigned(scope: Any) -> dict[str, list[Any]]:
    """Return what a function assigns to each of its local variables."""
    found: dict[str, list[Any]] = {}
    outer: set[str] = set()
    for node in _own_nodes(scope):
        if isinstance(node, ast.Global | ast.Nonlocal):
            outer.update(node.names)
        for target, _ in _targets(node) if not isinstance(node, ast.Call) else ():
            if isinstance(target, ast.Name):
                targets = getattr(node, "targets", [getattr(node, "target", None)])
                value = getattr(node, "value", None) if target in targets else None
                found.setdefault(target.id, []).append(value)
    return {name: values for name, values in found.items() if name not in outer}


def _parameters(scope: Any) -> set[str]:
    return {
        node.arg
        for node in ast.walk(getattr(scope, "args", ast.Pass()))
        if isinstance(node, ast.arg)
    }


def _first(node: Any) -> int:
    """Return the first line of a function, that of a decorator if it has one."""
    decorators = getattr(node, "decorator_list", ())
    first: int = min([node.lineno, *(one.lineno for one in decorators)])
    return first


_CLOSURE = re.compile(r" \(closure (.*)\)")


def _step(text: str) -> tuple[str, Any]:
    """Return what kind a step is, and its name or key."""
    closure = _CLOSURE.fullmatch(text)
    if closure:
        return "cell", closure[1]
    if text.startswith("."):
        return "name", text[1:]
    if text.startswith("["):
        try:
            return "item", ast.literal_eval(text[1:-1])
        except (SyntaxError, ValueError):
            return "item", _ANY
    return ("", text) if text.startswith(" ") else ("root", text)


def _matched(chain: Sequence[tuple[str, Any]], steps: list[tuple[str, Any]]) -> int:
    """Return at which step a place is that a chain leads to, -1 if it is elsewhere.

    The variable that a chain begins with may have any name, as `self` has. Steps below
    the place are inside of what was stored there.
    """
    base, *rest = chain
    is_known = any(name is not _ANY for _, name in rest)
    for end in reversed(range(len(steps))):
        begin = end - len(rest)  # the step that the variable stands for
        if begin < 0 or not all(map(_fits, rest, steps[begin + 1 : end + 1])):
            continue
        if is_known or _is_named(base, steps[begin]):
            return end
    return -1


def _is_named(base: tuple[str, Any], step: tuple[str, Any]) -> bool:
    """Return whether a variable is the one that a step names.

    A local variable is gone when its function returns, unless a closure keeps it. It
    can be an alias: what is put into it is then in what has its name.
    """
    kind, name = base
    if name != step[1]:
        return False
    return step[0] == "cell" if kind == "own" else step[0] in ("cell", "name", "root")


def _fits(ours: tuple[str, Any], step: tuple[str, Any]) -> bool:
    if ours[0] != step[0]:
        return False
    if ours[1] is _ANY or step[1] is _ANY:
        return True
    return type(ours[1]) is type(step[1]) and bool(ours[1] == step[1])


def _comes_after(scope: Any, statement: Any, number: int) -> bool:
    """Return whether a statement can run after another line of its function."""
    if (statement.end_lineno or statement.lineno) >= number:
        return True
    return any(
        isinstance(node, ast.For | ast.AsyncFor | ast.While)
        and node.lineno <= statement.lineno <= number <= (node.end_lineno or 0)
        for node in ast.walk(scope)
    )


def _stores(scope: Any) -> Iterator[tuple[list[tuple[str, Any]], Any]]:
    """Yield the places that the statements of a function store to, with these.

    Those of the functions inside of it are their own.
    """
    nodes = list(_own_nodes(scope))
    outer = {
        name
        for node in nodes
        if isinstance(node, ast.Global | ast.Nonlocal)
        for name in node.names
    }
    if isinstance(scope, ast.Module):
        outer |= {node.id for node in nodes if isinstance(node, ast.Name)}
    for node in nodes:
        for target, ends in _targets(node):
            chain = _chain(target)
            if not chain or _is_of_constants(node):
                continue
            if len(chain) == 1 and not ends:  # `x = ...`, and not `x.append(...)`
                name = chain[0][1]
                chain = [("outer" if name in outer else "own", name)]
            yield [*chain, *ends], node


def _is_of_constants(node: Any) -> bool:
    """Return whether a statement stores what is written there: no variable, no call."""
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
        values: list[Any] = [node.value]
    elif isinstance(node, ast.Call):
        is_set = getattr(node.func, "id", getattr(node.func, "attr", ""))
        named = is_set in ("setattr", "__setattr__", "__setitem__", "setdefault")
        values = node.args[-1:] if named else [*node.args]
        values += [keyword.value for keyword in node.keywords]
    else:
        return False
    return not any(
        isinstance(part, ast.Name | ast.Call)
        for value in values
        if value is not None
        for part in ast.walk(value)
    )


def _own_nodes(scope: Any) -> Iterator[ast.AST]:
    body = scope.body
    waiting: list[ast.AST] = list(body) if isinstance(body, list) else [body]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _Scope | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


# An annotation without a value is among them: it stores nothing, and is rare.
_TARGETING = ast.AugAssign | ast.AnnAssign | ast.NamedExpr | ast.For | ast.AsyncFor


def _targets(node: ast.AST) -> Iterator[tuple[ast.expr, list[tuple[str, Any]]]]:
    """Yield what a node stores to, and the steps from there."""
    found: list[Any] = []
    if isinstance(node, ast.Assign):
        found = list(node.targets)
    elif isinstance(node, _TARGETING):
        found = [node.target]
    elif isinstance(node, ast.Call):
        yield from _called(node)
    while found:
        target = found.pop()
        if isinstance(target, ast.Tuple | ast.List):
            found.extend(target.elts)
        elif isinstance(target, ast.Starred):
            found.append(target.value)
        else:
            yield target, []


def _called(node: ast.Call) -> Iterator[tuple[ast.expr, list[tuple[str, Any]]]]:
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name in ("setattr", "__setattr__") and len(node.args) >= 2:
        key = node.args[-2]
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            bound = getattr(node.func, "value", key)
            owner = node.args[-3] if len(node.args) > 2 else bound
            yield owner, [("name", key.value)]
    elif isinstance(node.func, ast.Attribute) and name in _PUTTING:
        if name == "update" and node.keywords and not node.args:
            for keyword in node.keywords:
                yield node.func.value, [("item", keyword.arg or _ANY)]
        elif name in ("setdefault", "__setitem__") and node.args:
            yield node.func.value, [("item", _key(node.args[0]))]
        else:
            yield node.func.value, [("item", _ANY)]


def _key(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return _ANY


def _chain(node: ast.AST) -> list[tuple[str, Any]]:
    """Return the steps of an expression; the first is the variable that it begins with.

    Empty for what is no path from a variable, but for the object that a call returns.
    """
    steps: list[tuple[str, Any]] = []
    while True:
        if isinstance(node, ast.Attribute):
            if node.attr != "__dict__":  # its keys are attributes
                steps.append(("name", node.attr))
            node = node.value
        elif isinstance(node, ast.Subscript):
            key = _key(node.slice)
            inner = node.value
            is_dict = isinstance(inner, ast.Attribute) and inner.attr == "__dict__"
            steps.append(("name" if is_dict else "item", key))
            node = inner
        elif isinstance(node, ast.Name):
            return [("variable", node.id), *reversed(steps)]
        elif isinstance(node, ast.Call):
            return [("variable", ""), *reversed(steps)]
        else:
            return []
