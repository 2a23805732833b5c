"""Write docs/reference/index.md: each public name, and the first line on it.

`python tools/reference.py`; `make docs` says when it has to be run again.
"""

import pathlib
import re

import griffe

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"
# How the names of each are written.
MODULES = {
    "": "ps.",
    "optax": "",
    "mujoco": "",
    "testing": "pst.",
    "errors": "",
}
INTRODUCTION = """\
# Reference

All public names. What stands nowhere here, and every module with an underscore, may
change without notice. `import purestate as ps`; the other modules are imported by their
names.
"""


def read_source():
    """Return purestate as griffe reads it, with what docstrings.py changes."""
    extensions = griffe.load_extensions(str(ROOT / "tools" / "docstrings.py"))
    search = [str(ROOT / "src")]
    return griffe.load("purestate", search_paths=search, extensions=extensions)


def public_names(package):
    """Return the dotted names that are public: of what `__all__` lists, no modules."""
    for module in MODULES:
        for name in (package[module] if module else package).exports:
            if name not in MODULES:
                yield f"purestate.{module}.{name}".replace("..", ".")


def render(package):
    pages = {
        name: path.name
        for path in sorted(PAGES.glob("*.md"))
        for name in re.findall(r"(?m)^::: (\S+)$", path.read_text())
    }
    parts = [INTRODUCTION]
    for module, prefix in MODULES.items():
        title = f"purestate.{module}".rstrip(".")
        parts += [f"\n## {title}\n\n| name | |\n| --- | --- |\n"]
        for name in sorted(public_names(package), key=str.lower):
            parent, _, short = name.rpartition(".")
            if parent == title:
                text = package[name.partition(".")[2]].docstring.value
                line = " ".join(text.partition("\n\n")[0].split())
                link = f"{pages[name]}#{name}"
                parts += [f"| [`{prefix}{short}`]({link}) | {line} |\n"]
    return "".join(parts)


if __name__ == "__main__":
    (PAGES / "index.md").write_text(render(read_source()))
