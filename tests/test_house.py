"""The rules that the source keeps: which room may import from which, and how."""

import ast
import graphlib
import pathlib
import pickle

import pytest

import purestate
import purestate.testing

ROOT = pathlib.Path(purestate.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
# A room is a folder, or a file that stands alone. It imports from itself, from the
# rooms that are named for it, and from what is below those.
BELOW = {
    "_compat": [],
    "errors": ["_compat"],
    "_schema": ["errors"],
    "_inspect": ["_schema"],
    "_instance": ["_inspect"],
    "_state": ["_instance"],
    "_host": [],
    "_host/call": ["_inspect"],
    "_host/derivatives": ["_host/call"],
    "_host/native": ["_host/derivatives"],
    "_host/program": ["_host/native"],
    "_host/function": ["_host/program"],
    "_host/simulators": ["_host/function"],
    "_pack": ["_instance"],
    "_transforms": ["_host/call", "_pack"],
    "_saving": ["_pack", "_state"],
    "_sharding": ["_pack", "_state"],
    "mujoco": ["_host/function", "_state"],
    "optax": ["_state"],
    "testing/_trees": ["_inspect"],
    "testing/_strategies": ["testing/_trees", "_state"],
    "testing/_cases": ["testing/_strategies", "_pack"],
    "testing/_laws": ["testing/_cases", "_transforms", "_saving", "_host/function"],
    "testing": ["testing/_laws"],
    "__init__": ["_host/simulators", "_transforms", "_saving", "_sharding"],
}
KNOWS_JAX = ("_compat", "_host/program")


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def room_of(file):
    """Return the room that a file is in: of two that fit, the inner one."""
    whole = file.removesuffix(".py").removesuffix("/__init__")
    rooms = [room for room in BELOW if f"{whole}/".startswith(f"{room}/")]
    return max(rooms, key=len)


def allowed(room):
    found = {room}
    for below in BELOW[room]:
        found |= allowed(below)
    return found


def imported(path):
    """Return what a file imports, as `(module, name)`, inside of functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)


def file_of(module, name):
    """Return the file of purestate that an import reads, None for other packages."""
    if module.partition(".")[0] != "purestate":
        return None
    base = ROOT.joinpath(*module.split(".")[1:])
    for found in (base / f"{name}.py", base / name / "__init__.py"):
        if name and found.exists():
            return name_of(found)
    is_package = (base / "__init__.py").exists()
    return name_of(base / "__init__.py" if is_package else base.with_suffix(".py"))


def test_the_rule_names_every_room_and_no_other():
    assert {room_of(name_of(path)) for path in FILES} == set(BELOW)


def test_the_rule_is_a_partial_order():
    assert list(graphlib.TopologicalSorter(BELOW).static_order())


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_room_imports_only_from_those_below(path):
    may = allowed(room_of(name_of(path)))

    upward = {
        (module, name)
        for module, name in imported(path)
        if (file := file_of(module, name)) and room_of(file) not in may
    }

    assert not upward


def test_no_file_is_imported_by_what_it_imports():
    graph = {
        name_of(path): {file_of(*found) for found in imported(path)} - {None}
        for path in FILES
    }

    assert list(graphlib.TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_file_imports_a_private_name_of_another(path):
    private = [
        (module, name)
        for module, name in imported(path)
        if module.startswith("purestate.") and name.startswith("_")
        if file_of(module, name) == file_of(module, "")  # a name, and not a module
    ]

    assert not private


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_the_parts_of_jax_that_may_change_are_used_in_two_rooms(path):
    changing = ("jax.interpreters", "jax.extend", "jax.core")

    used = {
        (module, name)
        for module, name in imported(path)
        if f"{module}.{name}".startswith(changing)
    }

    assert not used or room_of(name_of(path)) in KNOWS_JAX
    assert "jax._src" not in path.read_text()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_one_file_asks_for_versions(path):
    asks = "version_info" in path.read_text() or "jax.__version__" in path.read_text()

    # State asks on behalf of type checkers, which see `__replace__` from 3.13 on.
    assert not asks or name_of(path) in ("_compat.py", "_state/state.py")


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_says_what_it_is_for(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("module", [purestate, purestate.testing])
def test_public_names_are_exported_and_documented(module):
    for name in module.__all__:
        assert getattr(module, name).__doc__
        assert getattr(module, name).__doc__ != type(None).__doc__


@pytest.mark.parametrize("module", [purestate, purestate.errors, purestate.testing])
def test_public_objects_say_where_they_are_public(module):
    elsewhere = {"Array", "errors", "floats"}  # jax's own class, a module, a value
    names = set(module.__all__) - elsewhere
    public = [getattr(module, name) for name in sorted(names)]

    assert {module.__name__} == {found.__module__ for found in public}
    assert public == [pickle.loads(pickle.dumps(found)) for found in public]
