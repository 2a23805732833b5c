"""Print the table of docs/testing.md: laws of pytrees, looked at for each library.

The same small class, written the way the library's documentation does, frozen where
that is an option: an array, a counter with a default and a static field.
`purestate.testing.check_state` looks at each law. The extras `testing` and `bench`
bring the libraries; those that are not installed are left out. sepes keeps no record of
fields that the laws could ask. With `--why`, the reasons are printed too.
"""

import dataclasses
import functools
import importlib.metadata
import logging
import warnings

import jax
import jax.numpy as jnp

import purestate as ps
import purestate.testing as pst
from purestate.errors import LawError

# The laws of pytrees and of replace; the others are about what only a State has.
LAWS = {
    "rebuild": "rebuilt from its leaves, it is the same",
    "any_leaf": "unflatten takes any leaf",
    "no_code": "unflatten runs no code of the class",
    "key_paths": "each leaf has a key path that leads to it",
    "arrays_are_leaves": "every array is a leaf",
    "equal_structures": "equal arguments, equal structures",
    "put_get": "replacing a field by itself changes nothing",
    "shares_the_rest": "replace shares all other fields",
    "constructs": "replace agrees with the constructor",
    "copies": "copies keep structure and bits",
    "pickles": "pickles do",
    "one_trace": "one trace for instances of one structure",
    "donation": "donating one instance leaves others alone",
    "constructs_in_jit": "constructed inside of jit, it is the same",
}


def zero():
    return jnp.zeros((), jnp.int32)


def body(static, default=None):
    """Return the body of the class, for a library's way to mark a static field."""
    return {
        "__module__": __name__,
        "__annotations__": {"x": jax.Array, "name": str, "count": jax.Array},
        "name": static,
        "count": dataclasses.field(default_factory=zero)
        if default is None
        else default,
        "__post_init__": lambda self: None,  # a hook that jax has no business to run
    }


def purestate():
    return type("Purestate", (ps.State,), body(ps.static(default="a"), 0)), "purestate"


def equinox():
    import equinox as eqx

    made = body(eqx.field(static=True, default="a"))
    return type(eqx.Module)("Equinox", (eqx.Module,), made), "equinox"


def flax_struct():
    import flax.struct

    made = body(flax.struct.field(pytree_node=False, default="a"))
    return flax.struct.dataclass(type("FlaxStruct", (), made)), "flax"


def chex_dataclass():
    import chex

    made = body(None)
    del made["name"], made["__annotations__"]["name"]  # it has no static fields
    return chex.dataclass(frozen=True)(type("ChexDataclass", (), made)), "chex"


def jax_dataclasses():
    import jax_dataclasses as jdc

    made = body("a")
    made["__annotations__"]["name"] = jdc.Static[str]
    return jdc.pytree_dataclass(type("JaxDataclasses", (), made)), "jax_dataclasses"


def simple_pytree():
    from simple_pytree import Pytree, static_field

    made = body(static_field(default="a"))
    return dataclasses.dataclass(type("SimplePytree", (Pytree,), made)), "simple_pytree"


def penzai():
    from penzai import pz

    made = body(dataclasses.field(default="a", metadata={"pytree_node": False}))
    return pz.pytree_dataclass(type("Penzai", (pz.Struct,), made)), "penzai"


def register_dataclass():
    made = body(dataclasses.field(default="a", metadata={"static": True}))
    plain = dataclasses.dataclass(frozen=True)(type("RegisterDataclass", (), made))
    return jax.tree_util.register_dataclass(plain), "jax"


LIBRARIES = {
    "purestate": purestate,
    "equinox": equinox,
    "flax.struct": flax_struct,
    "chex.dataclass": chex_dataclass,
    "jax_dataclasses": jax_dataclasses,
    "simple_pytree": simple_pytree,
    "penzai": penzai,
    "register_dataclass": register_dataclass,
}


def installed():
    """Return the names, classes and packages of the libraries that are there."""
    found = []
    for name, make in LIBRARIES.items():
        try:
            cls, package = make()
        except ImportError:
            continue
        globals()[cls.__name__] = cls  # pickle finds a class by its name
        found.append((name, cls, package))
    return found


@functools.cache
def verdict(cls, law):
    """Return whether a law holds, in a word or two."""
    fields = {"x": pst.arrays((2,), "float32"), "count": pst.arrays((), "int32")}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = pst.check_state(cls, fields=fields, laws=[law], examples=20)
    except LawError as error:
        logging.info("%s", error)
        return "no"
    except Exception as error:  # noqa: BLE001  # whatever a foreign class raises
        logging.info("%s: %s", cls.__name__, error)
        return "not checked"
    return "yes" if report.examples.get(law) else "not checked"


def main():
    libraries = installed()
    names = [name for name, _, _ in libraries]
    print(f"| | {' | '.join(names)} |")
    print(f"|{' --- |' * (len(names) + 1)}")
    for law, text in LAWS.items():
        cells = [verdict(cls, law) for _, cls, _ in libraries]
        print(f"| {text} (`{law}`) | {' | '.join(cells)} |")
    packages = dict.fromkeys(package for _, _, package in libraries[1:])
    versions = (f"{p} {importlib.metadata.version(p)}" for p in packages)
    print(f"\nMade with {', '.join(versions)}.")


if __name__ == "__main__":
    import sys

    if sys.argv[1:] == ["--why"]:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
