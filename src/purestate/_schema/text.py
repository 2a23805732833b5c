"""How messages name States, functions and errors."""

from typing import Any

from purestate._schema.marks import is_state


def root_name(tree: Any) -> str:
    """Return the class's name, from which paths into a State start; "" for others."""
    return type(tree).__name__ if is_state(tree) else ""


def function_name(function: Any) -> str:
    """Return how a person would call a function: without the function around it.

    A callable without a name goes by what it wraps, or by its class.
    """
    inner = getattr(function, "func", function)
    name = getattr(function, "__qualname__", None) or getattr(
        inner, "__qualname__", type(function).__name__
    )
    return str(name).rpartition("<locals>.")[2]
