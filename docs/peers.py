"""Print the comparison table of README.md: one probe per row, run on each library.

Every probe writes the same small class the way the library's own documentation does,
frozen where that is an option, and returns what happened in a few words. What a library
has no words for is a no. The extra `bench` brings the libraries and pyright; those that
are not installed are left out.
"""

import dataclasses
import functools
import importlib.metadata
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import purestate as ps


class Library:
    """How one library spells a class, a static field and an update."""

    name = ""
    package = ""

    def __init__(self):
        self.import_()

    def import_(self):
        pass

    def declare(self, name, fields, static=(), **body):
        """Return a class whose fields are `fields`, by name, with their annotations."""
        body = {"__annotations__": fields, "__module__": __name__, **body}
        body |= {name: self.static() for name in static}
        return self.decorate(types.new_class(name, (), {}, lambda ns: ns.update(body)))

    def decorate(self, cls):
        raise NotImplementedError

    def static(self):
        raise NotImplementedError

    derived = staticmethod(lambda: dataclasses.field(init=False))

    def replace(self, state, **changes):
        return dataclasses.replace(state, **changes)

    def set_inner(self, state, value):
        """Set `state.inner.x` in one call."""
        raise NotImplementedError

    def saved(self, state, like):
        """Write a state to a file, and return what a process reads that has `like`."""
        raise NotImplementedError

    def split(self, state, mesh):
        """Return the sharding of `x` that its class declares, for a mesh."""
        raise NotImplementedError

    def host(self, function):
        """Return a numpy function with a gradient, as one of programs."""
        raise NotImplementedError

    # A class with a field `x`, and an update of it, as text.
    header = ""
    update = "dataclasses.replace(box, {}=2)"


class Purestate(Library):
    name = package = "purestate"

    def declare(self, name, fields, static=(), **body):
        body = {"__annotations__": fields, "__module__": __name__, **body}
        body |= {name: ps.static() for name in static}
        return type(name, (ps.State,), body)

    def set_inner(self, state, value):
        return state.at(lambda s: s.inner.x).set(value)

    def saved(self, state, like):
        with tempfile.TemporaryDirectory() as folder:
            ps.save(f"{folder}/box.safetensors", state)
            return ps.load(f"{folder}/box.safetensors", type(like))

    def split(self, state, mesh):
        split = ps.field(spec=PartitionSpec("devices"))
        cls = self.declare("Split", {"x": jax.Array}, x=split)
        return ps.shardings(cls(x=state.x), mesh).x

    def host(self, function):
        return ps.host_function(function, grad="fd")

    header = "import purestate as ps\nclass Box(ps.State):"
    update = "box.replace({}=2)"

    def replace(self, state, **changes):
        return state.replace(**changes)


class Equinox(Library):
    name = package = "equinox"

    def import_(self):
        import equinox

        self.eqx = equinox

    def declare(self, name, fields, static=(), **body):
        body = {"__annotations__": fields, "__module__": __name__, **body}
        body |= {name: self.eqx.field(static=True) for name in static}
        return type(self.eqx.Module)(name, (self.eqx.Module,), body)

    def replace(self, state, **changes):
        # dataclasses.replace runs __post_init__ again, but fails on a hand-written
        # __init__; tree_at is the other way round. A class gets the one that serves it.
        try:
            return dataclasses.replace(state, **changes)
        except TypeError:
            names, values = zip(*changes.items(), strict=True)
            where = functools.partial(_getattrs, names)
            return self.eqx.tree_at(where, state, values)

    def set_inner(self, state, value):
        return self.eqx.tree_at(lambda s: s.inner.x, state, value)

    def saved(self, state, like):
        with tempfile.TemporaryDirectory() as folder:
            self.eqx.tree_serialise_leaves(f"{folder}/box.eqx", state)
            return self.eqx.tree_deserialise_leaves(f"{folder}/box.eqx", like)

    header = "import equinox as eqx\nclass Box(eqx.Module):"


class FlaxStruct(Library):
    name = "flax.struct"
    package = "flax"

    def import_(self):
        import flax.struct

        self.struct = flax.struct

    def decorate(self, cls):
        return self.struct.dataclass(cls)

    def static(self):
        return self.struct.field(pytree_node=False)

    def replace(self, state, **changes):
        return state.replace(**changes)

    def saved(self, state, like):
        import flax.serialization

        data = flax.serialization.to_bytes(state)
        return flax.serialization.from_bytes(like, data)

    header = "from flax import struct\n@struct.dataclass\nclass Box:"
    update = "box.replace({}=2)"


class Chex(Library):
    name = "chex.dataclass"
    package = "chex"

    def import_(self):
        import chex

        self.chex = chex

    def decorate(self, cls):
        return self.chex.dataclass(frozen=True)(cls)

    def replace(self, state, **changes):
        return state.replace(**changes)

    header = "import chex\n@chex.dataclass(frozen=True)\nclass Box:"
    update = "box.replace({}=2)"


class JaxDataclasses(Library):
    name = package = "jax_dataclasses"

    def import_(self):
        import jax_dataclasses

        self.jdc = jax_dataclasses

    def declare(self, name, fields, static=(), **body):
        marked = {n: self.jdc.Static[fields[n]] for n in static}
        return super().declare(name, fields | marked, **body)

    def decorate(self, cls):
        return self.jdc.pytree_dataclass(cls)

    def replace(self, state, **changes):
        return self.jdc.replace(state, **changes)

    def set_inner(self, state, value):
        with self.jdc.copy_and_mutate(state, validate=False) as new:
            new.inner.x = value
        return new

    header = "import jax_dataclasses as jdc\n@jdc.pytree_dataclass\nclass Box:"
    update = "jdc.replace(box, {}=2)"


class Registered(Library):
    name = "frozen dataclass"
    package = "jax"

    def decorate(self, cls):
        frozen = dataclasses.dataclass(frozen=True)(cls)
        # A field with init=False must be left out: it is computed again on unflatten.
        fields = [f for f in dataclasses.fields(frozen) if f.init]
        static = [f.name for f in fields if f.metadata.get("static")]
        data = [f.name for f in fields if f.name not in static]
        return jax.tree_util.register_dataclass(frozen, data, static)

    def static(self):
        return dataclasses.field(metadata={"static": True})

    header = "@dataclasses.dataclass(frozen=True)\nclass Box:"


LIBRARIES = (Purestate, Equinox, FlaxStruct, Chex, JaxDataclasses, Registered)

# --- the probes: the first line of each docstring is the row's title ------------------


def assignment(lib):
    """`self.x = ...` in a jitted method"""

    @jax.jit
    def apply(self):
        self.x = 2 * self.x
        return self.x

    box = lib.declare("Box", {"x": jax.Array}, apply=apply)(x=jnp.ones(3))
    try:
        box.apply()
    except AttributeError as error:
        shown = "return self.replace(x=...)" in str(error)
        return "error, shows the fix" if shown else "error"
    return "lost"


def static_array(lib):
    """an array given to a static field"""
    fields = {"x": jax.Array, "power": int}
    cls = lib.declare("Box", fields, static=["power"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            cls(x=jnp.ones(3), power=jnp.ones(3))
        except (TypeError, ValueError):
            return "error"
    return "warning" if caught else "accepted"


def typed_static(lib):
    """static `True`, `1` and `1.0` are kept apart"""
    cls = lib.declare("Box", {"x": jax.Array, "mode": object}, static=["mode"])
    seen = jax.jit(lambda box: jnp.int32([bool, int, float].index(type(box.mode))))
    return [0, 1, 2] == [int(seen(cls(x=jnp.ones(3), mode=m))) for m in (True, 1, 1.0)]


def no_rerun(lib):
    """`__post_init__` is not run again by `jax.tree.map`"""
    runs = []
    body = {"__post_init__": lambda self: runs.append(1)}
    cls = lib.declare("Box", {"x": jax.Array}, **body)
    jax.tree.map(lambda x: 2 * x, cls(x=jnp.ones(3)))
    return len(runs) == 1


def own_init(lib):
    """a hand-written `__init__(self, n)`, then jit and replace"""

    def __init__(self, n):
        _assign(self, "x", jnp.ones(n))

    cls = lib.declare("Box", {"x": jax.Array}, __init__=__init__)
    try:
        doubled = jax.jit(lambda box: lib.replace(box, x=2 * box.x))(cls(3))
    except (TypeError, AttributeError):
        return False
    return doubled.x.tolist() == [2, 2, 2]


def derived(lib):
    """a field computed in `__post_init__` follows a replace"""

    def __post_init__(self):
        _assign(self, "total", jnp.sum(self.x))

    fields = {"x": jax.Array, "total": jax.Array}
    body = {"total": lib.derived(), "__post_init__": __post_init__}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            box = lib.declare("Box", fields, **body)(x=jnp.ones(3))
            doubled = jax.tree.map(jnp.asarray, lib.replace(box, x=2 * box.x))
        except (TypeError, ValueError, AttributeError):
            return False
    if float(doubled.total) != 6:
        return False
    return "yes, warns" if caught else True


def number(lib):
    """`count=0` in an array field: one trace in two steps"""
    traces = []

    @jax.jit
    def step(counter, hits):
        traces.append(1)
        return lib.replace(counter, count=counter.count + jnp.sum(hits))

    counter = lib.declare("Counter", {"count": jax.Array})(count=0)
    for _ in range(2):
        counter = step(counter, jnp.array([True, False]))
    return len(traces) == 1


def cached(lib):
    """`cached_property` never keeps a tracer"""
    norm = functools.cached_property(lambda self: jnp.sum(self.x**2))
    norm.__set_name__(None, "norm")
    box = lib.declare("Box", {"x": jax.Array}, norm=norm)(x=jnp.ones(3))
    try:
        jax.jit(lambda y: y * box.norm)(1.0)
        return float(box.norm) == 3 and box.norm is box.norm
    except (jax.errors.JAXTypeError, AttributeError):
        return False


def equality(lib):
    """`==` compares two states, arrays and all"""
    cls = lib.declare("Box", {"x": jax.Array})
    try:
        return bool(cls(x=jnp.ones(3)) == cls(x=jnp.ones(3)))
    except (TypeError, ValueError):
        return False


def inner(lib):
    """an update deep inside, in one call"""
    box = lib.declare("Box", {"x": jax.Array})
    outer = lib.declare("Outer", {"inner": box})(inner=box(x=jnp.ones(3)))
    try:
        return float(lib.set_inner(outer, jnp.float32(5)).inner.x) == 5
    except NotImplementedError:
        return False


def typo(lib):
    """pyright knows the names in a replace, and refuses a misspelt one"""
    updates = "\n".join(lib.update.format(name) for name in ("x", "y"))
    code = f"import dataclasses\n{lib.header}\n    x: int\nbox = Box(x=1)\n{updates}\n"
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "box.py"
        file.write_text(code)
        options = ["--pythonpath", sys.executable, "--pythonversion", "3.13"]
        command = [PYRIGHT, *options, "--outputjson", file]
        # There, since a pyproject.toml of this folder would have its say.
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    last = len(code.splitlines()) - 1
    return [last] == sorted({one["range"]["start"]["line"] for one in found})


def saved(lib):
    """a file without pickle gives back arrays, and static fields"""
    try:
        cls = lib.declare("Box", {"x": jax.Array, "power": int}, static=["power"])
        box = lib.saved(cls(x=jnp.ones(3), power=3), cls(x=jnp.zeros(3), power=2))
    except NotImplementedError:
        return False
    if box.x.tolist() != [1, 1, 1]:
        return False
    return True if box.power == 3 else "arrays"


def split(lib):
    """a field says how its array is split over devices"""
    box = lib.declare("Box", {"x": jax.Array})(x=jnp.ones(3))
    try:
        sharding = lib.split(box, jax.make_mesh((1,), ("devices",)))
    except NotImplementedError:
        return False
    return sharding.spec == PartitionSpec("devices")


def host(lib):
    """numpy code under `jit`, `vmap` and `grad`"""
    try:
        square = lib.host(lambda x: np.square(x))
    except NotImplementedError:
        return False
    slopes = jax.jit(jax.vmap(jax.grad(square)))(jnp.arange(3.0))
    return bool(jnp.allclose(slopes, 2 * jnp.arange(3.0), atol=1e-2))


PROBES = (
    assignment,
    static_array,
    typed_static,
    no_rerun,
    own_init,
    derived,
    number,
    cached,
    equality,
    inner,
    typo,
    saved,
    split,
    host,
)
NEED_STATIC = (static_array, typed_static)
PYRIGHT = shutil.which("pyright", path=pathlib.Path(sys.executable).parent)


def _assign(self, name, value):
    """Assign, or do what frozen dataclasses need instead."""
    try:
        setattr(self, name, value)
    except dataclasses.FrozenInstanceError:
        object.__setattr__(self, name, value)


def _getattrs(names, state):
    return tuple(getattr(state, name) for name in names)


# --- the table -----------------------------------------------------------------------


def installed():
    """Return the libraries that are there."""
    found = []
    for kind in LIBRARIES:
        try:
            found.append(kind())
        except ImportError:
            continue
    return found


def answer(probe, lib):
    """Return what the table says about one library."""
    if probe in NEED_STATIC and lib.name == "chex.dataclass":
        return "no static fields"
    if probe is typo and PYRIGHT is None:
        return "not asked: no pyright"
    result = probe(lib)
    return {True: "yes", False: "no"}.get(result, result)


def rows(libraries):
    """Return the table's cells, with a head row."""
    yield ["", *(lib.name for lib in libraries)]
    for probe in PROBES:
        yield [probe.__doc__, *(answer(probe, lib) for lib in libraries)]


def versions(libraries):
    """Return "purestate 1.2.3, ..." for the libraries' packages."""
    packages = (lib.package for lib in libraries)
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)


def main():
    libraries = installed()
    head, *body = rows(libraries)
    for row in (head, ["---"] * len(head), *body):
        print(f"| {' | '.join(row)} |")
    print(f"\n{versions(libraries[1:])}")


if __name__ == "__main__":
    main()
