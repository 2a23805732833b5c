"""What a user meets who installed the package without extras, and nothing else.

`python -I tools/smoke.py`, with the Python of an environment that holds a built
package: it is imported from there, its doctests run, and what needs an extra says so.
"""

import ast
import doctest
import importlib
import importlib.metadata
import importlib.util
import pathlib
import re
import sys

EXTRAS = {
    "purestate.mujoco": "mujoco",
    "purestate.optax": "optax",
    "purestate.testing": "hypothesis and chex",
}
# Their examples are about an extra.
WITHOUT_DOCTESTS = (
    "purestate/_host/native/",
    "purestate/mujoco/",
    "purestate/optax.py",
    "purestate/testing/",
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def main():
    import purestate

    root = pathlib.Path(purestate.__file__).parent
    assert root.is_relative_to(sys.prefix), f"{root} is not what was installed"
    version = importlib.metadata.version("purestate")
    assert purestate.__version__ == version, (purestate.__version__, version)
    check_files()
    check_extras()
    attempted = run_doctests(purestate)
    print(f"smoke: purestate {version} without extras: {attempted} examples passed")


def check_files():
    files = {str(path) for path in importlib.metadata.files("purestate")}
    tops = {re.split(r"[/\\]", name)[0] for name in files}
    (info,) = (top for top in tops if top.endswith(".dist-info"))
    assert tops - {"..", "__pycache__"} == {"purestate", "purestate_pytest.py", info}
    assert "purestate/py.typed" in files
    assert f"{info}/licenses/LICENSE" in files
    text = importlib.metadata.metadata("purestate").get_payload()
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert links, "the description has no links, and its README has"
    relative = [link for link in links if not link.startswith(("https://", "#"))]
    assert not relative, f"links that lead nowhere on a package index: {relative}"


def check_extras():
    for module, packages in EXTRAS.items():
        said = f"nothing: {module} can be imported, so this environment has extras"
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            said = str(error)
        assert said.startswith(f"{module} needs {packages}, the extra"), said


def run_doctests(package):
    import jax
    import jax.numpy as jnp
    import numpy as np

    root = pathlib.Path(package.__file__).parent
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root.parent).as_posix()
        if name.startswith(WITHOUT_DOCTESTS):
            continue
        module = ".".join(path.relative_to(root.parent).with_suffix("").parts)
        names = dict(vars(importlib.import_module(module.removesuffix(".__init__"))))
        names |= {"jax": jax, "jnp": jnp, "np": np, "ps": package}
        for test in examples_of(path, name, names):
            absent = absent_packages(test)
            if absent:
                print(f"smoke: {test.name} left out: no {', '.join(absent)} here")
                continue
            runner.run(test, clear_globs=False)
    failed, attempted = runner.summarize(verbose=False)
    if failed:
        sys.exit(f"smoke: {failed} examples FAILED")
    assert attempted > 150, f"only {attempted} examples were found"
    return attempted


def examples_of(path, name, names):
    """Return the tests in a file's docstrings, which share their names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ">>>" in (text := ast.get_docstring(node) or ""):
            where = f"{name}: {getattr(node, 'name', 'the module')}"
            test = Unfenced().get_doctest(text, names, where, name, 0)
            test.globs = names
            yield test


def absent_packages(test):
    """Return what an example imports, and this environment has not."""
    source = "".join(example.source for example in test.examples)
    names = {
        name.name.partition(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import)
        for name in node.names
    }
    return sorted(name for name in names if importlib.util.find_spec(name) is None)


class Unfenced(doctest.DocTestParser):
    """A parser for which the fence after an example is not its output."""

    def parse(self, string, name="<string>"):
        return super().parse(re.sub(r"(?m)^\s*```.*$", "", string), name)


if __name__ == "__main__":
    main()
