"""Functions written for one class, from lines of source.

A generated function that names its fields runs several times faster than one that loops
over them. Its source goes into `linecache`, so that tracebacks and debuggers show it.
"""

import functools
import linecache
import types
from collections.abc import Iterable
from typing import Any


def define(
    owner: type,
    signature: str,
    body: Iterable[str],
    namespace: dict[str, Any],
    *,
    shared: bool = False,
) -> types.FunctionType:
    """Return the function `def signature: body`, as if written in class `owner`.

    Args:
        owner: the class that it is written for; gives module and qualified name.
        signature: name and parameters, `"flatten(self)"`.
        body: lines of the body, indented relative to it.
        namespace: its globals, used as they are and kept by the function.
        shared: whether the source is mostly the same for other classes: it is then
            compiled once: to compile is most of what it takes to make a class.
    """
    name = signature.partition("(")[0]
    source = "\n".join([f"def {signature}:", *(f"    {line}" for line in body), ""])
    title = name if shared else f"{owner.__module__}.{owner.__qualname__}.{name}"
    code = (_compiled if shared else _compiled.__wrapped__)(title, source)
    scope: dict[str, Any] = {}
    exec(code, namespace, scope)
    function: types.FunctionType = scope[name]
    function.__module__ = owner.__module__
    function.__qualname__ = f"{owner.__qualname__}.{name}"
    return function


@functools.lru_cache(maxsize=64)
def _compiled(title: str, source: str) -> types.CodeType:
    return compile(source, _keep(title, source), "exec")


def _keep(title: str, source: str) -> str:
    count, filename = 1, f"<purestate {title}>"
    lines = source.splitlines(keepends=True)
    while filename in linecache.cache and linecache.getlines(filename) != lines:
        count, filename = count + 1, f"<purestate {title} {count}>"
    # No modification time: `checkcache` then never drops the entry.
    linecache.cache[filename] = (len(source), None, lines, filename)
    return filename
