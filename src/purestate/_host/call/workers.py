"""Threads that run host functions, and the scratch objects that they use.

Nothing here is thread-local: XLA's threads get a Python thread state that ends with the
callback, and what it holds would be destroyed and made again at every call.
"""

import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any


class OwnThread:
    """One thread, on which every call of a function runs."""

    def __init__(self, name: str) -> None:
        self._executor = concurrent.futures.ThreadPoolExecutor(1, name)
        self._ident: int | None = None

    def run(self, call: Callable[..., Any], *args: Any) -> Any:
        """Return what the call returns on the thread."""
        if threading.get_ident() == self._ident:
            return call(*args)  # the function calls itself: waiting would be for ever
        return self._executor.submit(self._noted, call, args).result()

    def _noted(self, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self._ident = threading.get_ident()
        return call(*args)


class Pool:
    """Threads that share the items of a batch."""

    def __init__(self, threads: int | None, name: str) -> None:
        self._count = threads or os.cpu_count() or 1
        self._executor = concurrent.futures.ThreadPoolExecutor(self._count, name)
        self._idents: set[int] = set()

    def each(self, call: Callable[[Any], None], items: list[Any]) -> None:
        """Call for each item; the first exception is raised once all have ended."""
        if threading.get_ident() in self._idents or len(items) < 2:
            for item in items:  # a pool inside its own pool would wait for itself
                call(item)
            return
        size = -(-len(items) // (4 * self._count))
        parts = [items[i : i + size] for i in range(0, len(items), size)]
        futures = [self._executor.submit(self._part, call, part) for part in parts]
        concurrent.futures.wait(futures)
        for future in futures:
            future.result()

    def _part(self, call: Callable[[Any], None], items: list[Any]) -> None:
        self._idents.add(threading.get_ident())
        for item in items:
            call(item)


class Scratch:
    """Objects that are lent to one running call each, and used again."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._free: list[Any] = []

    @contextlib.contextmanager
    def lent(self) -> Iterator[Any]:
        """Lend an object; one that was in use when something failed is dropped."""
        try:
            found = self._free.pop()
        except IndexError:
            found = self._make()
        yield found
        self._free.append(found)
