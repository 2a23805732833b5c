"""The same container in every library, each spelled as its own documentation does.

A container has `size` data fields `f0`, `f1`, ..., and one method. What a library adds
by default it does here too: that chex's are mappings, or that equinox checks which
fields a constructor has set, is part of what it costs.
"""

import re
import sys
import types
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.harness import Case


@dataclass(frozen=True)
class Library:
    """How a library spells a container.

    Attributes:
        name: its column in the tables.
        package: what to install, None for purestate and what comes with Python or JAX.
        setup: its imports.
        header: the lines above the fields.
        replace: an expression that replaces field `{f}` of `s` by `v`.
        annotation: the type of the fields.
        static: lines below the fields.
        extra: arguments for those.
        positional: whether it takes arguments by position.
        is_pytree: whether jax looks into it.
        at: an expression that updates a place found by a function or a name.
        draft: statements that update through assignment.
    """

    name: str
    package: str | None
    setup: str
    header: str
    replace: str
    annotation: str = "jax.Array"
    static: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()
    positional: bool = True
    is_pytree: bool = True
    at: str = ""
    draft: str = ""


_STATE = None, "import purestate as ps", "class S(ps.State):"
_STATIC = ("g0: int = ps.static(default=1)", "g1: str = ps.static(default='relu')")
_REPLACE = "s.replace({f}=v)"
_AT = "s.at(lambda t: t.{f}).set(v)"
_DRAFT = "with s.draft() as new:\n    new.{f} = v"
_DATACLASS = "dataclasses.replace(s, {f}=v)"

LIBRARIES = (
    Library("purestate", *_STATE, _REPLACE, at=_AT, draft=_DRAFT),
    Library("ps object", *_STATE, _REPLACE, annotation="object"),
    Library(
        "ps 2 static",
        *_STATE,
        _REPLACE,
        static=_STATIC,
        extra=(("g0", "2"), ("g1", "'gelu'")),
    ),
    Library(
        "NamedTuple",
        None,
        "import typing",
        "class S(typing.NamedTuple):",
        "s._replace({f}=v)",
    ),
    Library(
        "dataclass",
        None,
        "import dataclasses",
        "@dataclasses.dataclass\nclass S:",
        _DATACLASS,
        is_pytree=False,
    ),
    Library(
        "register_dc",
        None,
        "import dataclasses",
        "@jax.tree_util.register_dataclass\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class S:",
        _DATACLASS,
    ),
    Library(
        "flax.struct",
        "flax",
        "import flax.struct",
        "@flax.struct.dataclass\nclass S:",
        _REPLACE,
    ),
    Library(
        "equinox",
        "equinox",
        "import equinox as eqx",
        "class S(eqx.Module):",
        "eqx.tree_at(lambda t: t.{f}, s, v)",
        at="eqx.tree_at(lambda t: t.{f}, s, v)",
    ),
    Library(
        "chex",
        "chex",
        "import chex",
        "@chex.dataclass(frozen=True)\nclass S:",
        _REPLACE,
        positional=False,
    ),
    Library(
        "jax_dataclasses",
        "jax_dataclasses",
        "import jax_dataclasses as jdc",
        "@jdc.pytree_dataclass\nclass S:",
        "jdc.replace(s, {f}=v)",
        draft="with jdc.copy_and_mutate(s) as new:\n    new.{f} = v",
    ),
    Library(
        "simple_pytree",
        "simple_pytree",
        "import dataclasses, simple_pytree",
        "@dataclasses.dataclass\nclass S(simple_pytree.Pytree):",
        _REPLACE,
    ),
    Library(
        "sepes",
        "sepes",
        "import sepes as sp",
        "@sp.autoinit\nclass S(sp.TreeClass):",
        "s.at['{f}'].set(v)",
        at="s.at['{f}'].set(v)",
    ),
    Library(
        "penzai",
        "penzai",
        "import dataclasses\nfrom penzai import pz",
        "@pz.pytree_dataclass\nclass S(pz.Struct):",
        _DATACLASS,
    ),
)


class Container:
    """A container class of one library, an instance, and statements that use them.

    Raises:
        ImportError: the library is not installed.
        AssertionError: the instance does not behave like a container.
    """

    def __init__(self, library: Library, size: int) -> None:
        self.library, self.size = library, size
        self.fields = [f"f{i}" for i in range(size)]
        # In a module of its own, so that pickle finds the class.
        name = re.sub(r"\W", "_", f"benchmarks made {library.name} {size}")
        module = sys.modules[name] = types.ModuleType(name)
        self.scope = vars(module)
        self.scope |= {"jax": jax, "values": [jnp.float32(i) for i in range(size)]}
        exec(library.setup, self.scope)
        body = [f"{field}: {library.annotation}" for field in self.fields]
        body += [*library.static, "def method(self): return self.f0"]
        source = "\n    ".join([library.header, *body])
        self.scope["source"] = compile(source, f"<{name}>", "exec")
        exec(self.scope["source"], self.scope)
        self.scope |= {f"v{i}": v for i, v in enumerate(self.scope["values"])}
        self.scope |= {"v": jnp.float32(-1.0), "same": lambda leaf: leaf}
        exec(f"s = {self.keyword}", self.scope)
        self._check()

    @property
    def positional(self) -> str:
        """An expression that constructs an instance from positional arguments."""
        given = [f"v{i}" for i in range(self.size)]
        return f"S({', '.join([*given, *(v for _, v in self.library.extra)])})"

    @property
    def keyword(self) -> str:
        """An expression that constructs an instance from keyword arguments."""
        given = [(field, f"v{i}") for i, field in enumerate(self.fields)]
        pairs = ", ".join(f"{k}={v}" for k, v in (*given, *self.library.extra))
        return f"S({pairs})"

    @property
    def middle(self) -> str:
        """The field that is read and replaced."""
        return self.fields[self.size // 2]

    @property
    def placed(self) -> str:
        """An expression that updates the middle field through its place."""
        return self.library.at.format(f=self.middle)

    @property
    def drafted(self) -> str:
        """Statements that assign the middle field of a copy."""
        return self.library.draft.format(f=self.middle)

    @property
    def replaced(self) -> str:
        """An expression that replaces the middle field."""
        return self.library.replace.format(f=self.middle)

    def case(
        self, statement: str, repeats: int = 1, *, waits: bool = False, **names: Any
    ) -> Case:
        """Return a statement on this container as a case to be timed."""
        return Case(self.library.name, statement, self.scope | names, repeats, waits)

    def _check(self) -> None:
        scope = self.scope
        new = eval(self.replaced, scope)
        for i, field in enumerate(self.fields):
            expected = scope["v"] if field == self.middle else scope["values"][i]
            if getattr(new, field) is not expected:
                raise AssertionError(f"{field} after replacing {self.middle}")
        if self.library.is_pytree:
            # chex sorts them by name, the others keep the order of the fields.
            leaves = sorted(map(id, jax.tree.leaves(new)))
            if leaves != sorted(id(getattr(new, field)) for field in self.fields):
                raise AssertionError("leaves are not the fields")
