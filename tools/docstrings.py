"""How the docstrings of purestate become pages: an extension of griffe.

- Examples that stand bare after a section become code blocks, which Markdown would take
  for quotations.
- The names under `Raises:` lead to their errors.
- `State.replace`, two things for type checkers, is shown as the one that it is at run
  time, and `explain`, an object that is called, as a function.
"""

import re
from typing import Any

import griffe

_FENCE = re.compile(r"\s*```")


def fenced(text: str) -> str:
    """Return a docstring with a fence around each run of lines of a `>>>` example."""
    lines: list[str] = []
    inside = fence = False
    for line in text.splitlines():
        if _FENCE.match(line):
            fence = not fence
        if not fence and not inside and line.lstrip().startswith(">>> "):
            indent = line[: len(line) - len(line.lstrip())]
            lines += [f"{indent}```pycon"]
            inside = True
        elif inside and not line.strip():
            lines += [f"{indent}```"]
            inside = False
        lines += [line]
    if inside:
        lines += [f"{indent}```"]
    return "\n".join(lines)


class Docstrings(griffe.Extension):
    """Change what griffe read before pages are made of it."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        if pkg.name != "purestate":
            return
        pkg["_state.state.State"].set_member(
            "replace", pkg["_instance.replace.replace"]
        )
        explain = pkg["_inspect.explain"]
        call = explain["_Explain.__call__"]
        call.docstring = explain["_Explain"].docstring
        call.docstring.parent = call
        explain.set_member("explain", call)
        give_options(
            pkg["_host.function.host_function"],
            pkg["_host.call.options.HostOptions"],
            pkg["_host.call.options.Options"],
        )
        self.visit(pkg, pkg["errors"])

    def visit(self, node: Any, errors: griffe.Module) -> None:
        if node.is_alias:
            return
        if node.docstring is not None:
            node.docstring.value = fenced(node.docstring.value)
            if "\nRaises:\n" in node.docstring.value:
                link_errors(node.docstring, errors)
        for member in node.members.values():
            self.visit(member, errors)


def give_options(function: Any, types: Any, defaults: Any) -> None:
    """Give a function the parameters that its `**options` stand for."""
    del function.parameters["options"]
    for name, option in types.members.items():
        function.parameters.add(
            griffe.Parameter(
                name,
                annotation=option.annotation,
                kind=griffe.ParameterKind.keyword_only,
                default=defaults[name].value,
            )
        )


def link_errors(docstring: griffe.Docstring, errors: griffe.Module) -> None:
    """Have the names of errors in a docstring lead to them, wherever it stands."""
    for section in docstring.parsed:
        if section.kind is griffe.DocstringSectionKind.raises:
            for item in section.value:
                if (name := str(item.annotation)) in errors.members:
                    item.annotation = griffe.ExprName(name, parent=errors)
