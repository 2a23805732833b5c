"""Laws of pytrees: taking an instance apart and putting it together again."""

import sys
from typing import Any

import jax

from purestate._inspect.key_paths import path_text
from purestate._schema.leaves import is_array
from purestate.errors._text import error_text
from purestate.testing._cases.state import StateCase
from purestate.testing._laws.law import Broken, law
from purestate.testing._trees.asserts import mismatch
from purestate.testing._trees.leaves import flattened, is_numeric

_LOST: Any = object()


@law("state", promise="an instance rebuilt from its own leaves is the same")
def rebuild(case: StateCase) -> None:
    """Compare the class and every field."""
    state = case.state
    leaves, structure = flattened(state)
    rebuilt = structure.unflatten(leaves)
    if type(rebuilt) is not type(state):
        raise Broken("", f"rebuilt as a {type(rebuilt).__name__}.")
    for name in case.names():
        was, now = getattr(state, name, _LOST), getattr(rebuilt, name, _LOST)
        if now is _LOST and was is not _LOST:
            raise Broken(f"{case.root}.{name}", "the rebuilt instance has no value.")
        difference = mismatch(was, now, exact=True)
        if difference is not None:
            text = difference[1].removeprefix(": ")
            raise Broken(f"{case.root}.{name}", f"it came back changed: {text}")


@law("state", promise="unflatten takes any leaf and keeps it")
def any_leaf(case: StateCase) -> None:
    """Put objects in place of leaves that are no arrays."""
    structure: Any = jax.tree.structure(case.state)
    count = structure.num_leaves
    make: Any = jax.ShapeDtypeStruct
    struct = make((7,), "float32")
    for leaves in ([object() for _ in range(count)], [None] * count, [struct] * count):
        kind = type(leaves[0]).__name__ if leaves else "nothing"
        try:
            rebuilt = structure.unflatten(leaves)
            found = jax.tree.leaves(rebuilt, is_leaf=lambda x: x is None)
        except Exception as error:
            text = error_text(error)
            raise Broken(
                "", f"unflatten with {kind} as leaves raised {text}"
            ) from error
        kept = [x for x in found if any(x is y for y in leaves)]
        if len(kept) < count:
            raise Broken("", f"unflatten put something else in place of {kind}.")


@law("state", promise="unflatten runs no code of the class")
def no_code(case: StateCase) -> None:
    """Watch the interpreter while an instance is rebuilt."""
    leaves, structure = flattened(case.state)
    hooks = {}
    for base in case.cls.__mro__:
        for name in ("__init__", "__post_init__", "__check__", "__check_init__"):
            code = getattr(base.__dict__.get(name), "__code__", None)
            if code is not None:
                hooks[code] = f"{base.__name__}.{name}"
    called: list[str] = []

    def watch(frame: Any, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in hooks:
            called.append(hooks[frame.f_code])

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        structure.unflatten(leaves)
    finally:
        sys.setprofile(before)
    if called:
        raise Broken("", f"unflatten called {', '.join(dict.fromkeys(called))}.")


@law("state", promise="every leaf has a key path of its own, which leads to it")
def key_paths(case: StateCase) -> None:
    """Follow each path by attributes and items."""
    seen = set()
    for path, leaf in jax.tree_util.tree_leaves_with_path(case.state):
        text = path_text(path, case.root)
        if text in seen:
            raise Broken(text, "two leaves have this path.")
        seen.add(text)
        found = case.state
        for step in path:
            try:
                found = _step(found, step)
            except (AttributeError, LookupError, TypeError) as error:
                raise Broken(text, f"the path leads nowhere: {error}") from None
        if found is not leaf:
            raise Broken(text, "the path leads to something else than its leaf.")


def _step(node: Any, step: Any) -> Any:
    if hasattr(step, "name"):
        return getattr(node, step.name)
    key = getattr(step, "key", getattr(step, "idx", None))
    if isinstance(step, jax.tree_util.FlattenedIndexKey):
        raise LookupError("the class is registered without key paths")
    return node[key]


@law("state", promise="every array in a field is a leaf")
def arrays_are_leaves(case: StateCase) -> None:
    """Look for arrays in fields that the tree does not know."""
    leaves = jax.tree.leaves(case.state)
    for name in case.names():
        value = getattr(case.state, name, None)
        for path, part in jax.tree_util.tree_leaves_with_path(value):
            if is_array(part) and not any(part is leaf for leaf in leaves):
                place = f"{case.root}.{name}{path_text(path)}"
                raise Broken(
                    place,
                    "it holds an array and is no leaf: jit compiles the values into "
                    "the program, and the tree loses them.",
                )


@law("state", promise="equal arguments make equal structures, with equal hashes")
def equal_structures(case: StateCase) -> None:
    """Construct twice from the same arguments, and rebuild."""
    leaves, first = flattened(case.state)
    for other in (case.made.again(), first.unflatten(leaves)):
        second: Any = jax.tree.structure(other)
        try:
            same = first == second and hash(first) == hash(second)
        except Exception as error:
            text = error_text(error)
            raise Broken("", f"comparing the structures raised {text}") from error
        if not same:
            raise Broken("", f"jit would compile twice for {first} and {second}.")


@law("state", promise="a tree of the same class comes out of jax.tree.map")
def maps(case: StateCase) -> None:
    """Map the identity, and ask for shapes."""
    mapped = jax.tree.map(lambda leaf: leaf, case.state)
    if type(mapped) is not case.cls:
        raise Broken("", f"jax.tree.map made a {type(mapped).__name__}.")
    if is_numeric(case.state):
        shapes: Any = jax.eval_shape(lambda s: s, case.state)
        if type(shapes) is not case.cls:
            raise Broken("", f"jax.eval_shape made a {type(shapes).__name__}.")
