"""The rules that the source keeps."""

import ast
import pathlib

import pytest

import purestate
import purestate.testing

ROOT = pathlib.Path(purestate.__file__).parent
# From the bottom up: a module imports only from modules that stand before it.
LAYERS = [
    "_compat",
    "errors",
    "_codegen",
    "_annotations",
    "_fields",
    "_body",
    "_static",
    "_interning",
    "_layout",
    "_paths",
    "_view",
    "_host",
    "_pytree",
    "_open",
    "_printer",
    "_repr",
    "_diff",
    "_values",
    "_cached",
    "_dataclass",
    "_construct",
    "_replace",
    "_generate",
    "_setup",
    "_equality",
    "_at",
    "_draft",
    "_state",
    "_batches",
    "_find",
    "_slots",
    "_packed",
    "_pack",
    "_consumed",
    "_donation",
    "_explain",
    "_tracing",
    "_parameters",
    "_jit",
    "_transforms",
    "mujoco",
    "testing",
    "__init__",
]
CORE = ["errors/_state", "_fields", "_layout", "_pytree", "_state"]
FILES = sorted(ROOT.rglob("*.py"))


def layer(path):
    """Return the name by which other modules import it: a package counts as one."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_module_has_its_layer():
    assert set(LAYERS) == {layer(path) for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=layer)
def test_imports_go_downwards_only(path):
    below = LAYERS[: LAYERS.index(layer(path)) + (path.parent != ROOT)]

    used = {
        name.split(".")[1] for name in imports(path) if name.startswith("purestate.")
    }

    assert used & set(LAYERS) <= set(below)


@pytest.mark.parametrize("path", FILES, ids=layer)
def test_only_public_jax_is_used(path):
    assert not [name for name in imports(path) if name.startswith("jax._src")]
    assert "jax._src" not in path.read_text()


@pytest.mark.parametrize("path", FILES, ids=layer)
def test_no_file_is_longer_than_300_lines(path):
    assert len(path.read_text().splitlines()) <= 300


def test_the_core_reads_in_one_sitting():
    assert sum(len((ROOT / f"{n}.py").read_text().splitlines()) for n in CORE) < 1000


@pytest.mark.parametrize("path", FILES, ids=layer)
def test_only_one_file_asks_for_versions(path):
    asks = "version_info" in path.read_text() or "jax.__version__" in path.read_text()

    # _state asks on behalf of type checkers, which see `__replace__` from 3.13 on.
    assert not asks or path.stem in ("_compat", "_state")


@pytest.mark.parametrize("module", [purestate, purestate.testing])
def test_public_names_are_exported_and_documented(module):
    for name in module.__all__:
        assert getattr(module, name).__doc__
        assert getattr(module, name).__doc__ != type(None).__doc__
