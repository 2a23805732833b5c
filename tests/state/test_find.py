"""`find_tracers` says where, below any object, tracers are kept."""

import collections
import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps


class Box(ps.State):
    w: object
    parts: object = None


class Plain:
    shared = None

    def __init__(self, value=None):
        self.value = value

    def method(self):
        return self.value


class Slotted:
    __slots__ = ("value",)


@dataclasses.dataclass
class Record:
    value: object = None
    empty: object = None


class Pair(collections.namedtuple("Pair", "a b")):
    __slots__ = ()


def with_tracer(build):
    """Return what `build` makes of a tracer, from a trace that is over."""
    kept = []
    jax.jit(lambda x: (kept.append(build(x)), x)[1])(1.0)
    return kept[0]


def slotted(x):
    made = Slotted()
    made.value = x
    return made


def closure(x):
    return lambda: x


def generic(x):
    made = Plain()
    made.again = made
    made.value = [made, x]
    return made


PLACES = {
    "itself": (lambda x: x, "the object itself"),
    "dict": (lambda x: {"last": x}, "['last']"),
    "list": (lambda x: [1, x], "[1]"),
    "tuple": (lambda x: (x,), "[0]"),
    "nested": (lambda x: {"a": [(0, x)]}, "['a'][0][1]"),
    "State": (lambda x: {"last": Box(w=x)}, "['last'].w"),
    "State in a State": (lambda x: Box(w=None, parts=[Box(w=x)]), ".parts[0].w"),
    "NamedTuple": (lambda x: Pair(1, x), "[1]"),
    "dataclass": (Record, ".value"),
    "object": (Plain, ".value"),
    "slots": (slotted, ".value"),
    "cycle": (generic, ".value[1]"),
    "closure": (closure, " (closure x)"),
    "defaults": (lambda x: types.FunctionType(
        (lambda y: y).__code__, {}, argdefs=(x,)), " (defaults)[0]"),
    "partial": (lambda x: functools.partial(max, x), ".args[0]"),
    "partial keyword": (lambda x: functools.partial(max, key=x), ".keywords['key']"),
    "bound method": (lambda x: Plain(x).method, ".__self__.value"),
    "defaultdict": (lambda x: collections.defaultdict(list, a=[x]), "['a'][0]"),
    "OrderedDict": (lambda x: collections.OrderedDict(a=x), "['a']"),
    "namespace": (lambda x: types.SimpleNamespace(a=x), ".a"),
    "beside numpy": (lambda x: {"a": [np.array(1), x]}, "['a'][1]"),
    "module": (lambda x: module_with(x), ".kept"),
}  # fmt: skip


def module_with(x):
    made = types.ModuleType("made")
    made.kept = x
    return made


@pytest.mark.parametrize(("build", "path"), PLACES.values(), ids=PLACES)
def test_a_tracer_is_found_with_its_path(build, path):
    found = ps.find_tracers(with_tracer(build))

    assert path in found


def test_a_tracer_in_a_jitted_function_is_found():
    (path,) = ps.find_tracers(with_tracer(lambda x: ps.jit(closure(x))))

    assert path.endswith(".__wrapped__ (closure x)")


@pytest.mark.parametrize(("build", "path"), PLACES.values(), ids=PLACES)
def test_without_a_tracer_nothing_is_found(build, path):
    assert [] == ps.find_tracers(build(np.float32(3)))


def test_a_state_that_escaped_through_a_global_is_found():
    keep = {}

    @ps.jit
    def f(box):
        keep["last"] = box.replace(w=box.w * 2)
        return box.w

    f(Box(w=jnp.ones(2)))

    with pytest.raises(jax.errors.TracerArrayConversionError):
        np.asarray(keep["last"].w)
    assert ["['last'].w"] == ps.find_tracers(keep)


def test_all_tracers_are_found_in_order():
    found = ps.find_tracers(with_tracer(lambda x: {"b": x, "a": [x + 1, x + 2]}))

    assert ["['a'][0]", "['a'][1]", "['b']"] == found


def test_a_tracer_on_the_class_is_found_from_an_instance_and_from_the_class():
    class Keeper:
        pass

    jax.jit(lambda x: (setattr(Keeper, "last", x), x)[1])(1.0)

    assert [" (class).last"] == ps.find_tracers(Keeper())
    assert [".last"] == ps.find_tracers(Keeper)


def test_tracers_of_a_running_trace_are_found_too():
    found = []
    jax.vmap(lambda x: (found.extend(ps.find_tracers({"x": x})), x)[1])(jnp.ones(2))

    assert ["['x']"] == found


ARRAYS = "a jax array has a slot that cannot be read"


@pytest.mark.parametrize(
    "value",
    [
        jnp.ones(2),
        jax.random.key(0),
        Box(w=jnp.ones(2)),
        {"a": [jnp.ones(2)]},
        Plain(jnp.ones(2)),
    ],
    ids=["array", "key", "State", "container", "object"],
)
def test_concrete_arrays_are_no_tracers(value):
    assert [] == ps.find_tracers(value)


def test_a_tracer_beside_concrete_arrays_is_found():
    kept = {"a": jnp.ones(2), "state": Box(w=jnp.ones(2))}
    jax.jit(lambda x: (kept.update(last=x), x)[1])(1.0)

    assert ["['last']"] == ps.find_tracers(kept)


@pytest.mark.parametrize(
    "value",
    [None, 1, "a", np.ones(2), len, jnp, jax.jit(len), Box, range(3), object()],
    ids=lambda value: type(value).__name__,
)
def test_anything_can_be_searched(value):
    assert [] == ps.find_tracers(value)


def object_array(x):
    made = np.empty(2, dtype=object)
    made[1] = x
    return made


@pytest.mark.parametrize(
    "build",
    [
        lambda x: collections.deque([x]),
        lambda x: types.MappingProxyType({"a": x}),
        object_array,
    ],
    ids=["deque", "mappingproxy", "object array"],
)
def test_tracers_in_less_common_containers_are_found(build):
    assert 1 == len(ps.find_tracers(with_tracer(build)))


def test_attributes_of_a_dict_subclass_are_searched():
    class Config(dict):
        pass

    def build(x):
        made = Config()
        made.last = x
        return made

    assert [".last"] == ps.find_tracers(with_tracer(build))


def test_a_donated_state_can_be_searched():
    box = Box(w=jnp.ones(2))
    ps.jit(lambda box: box.replace(w=box.w + 1), donate=True)(box)

    assert [] == ps.find_tracers({"box": box})


def test_properties_and_descriptors_are_not_run():
    class Trap:
        @property
        def bad(self):
            raise RuntimeError("run")

        @functools.cached_property
        def worse(self):
            raise RuntimeError("run")

    assert [] == ps.find_tracers(Trap())


def test_a_deep_object_does_not_exhaust_the_stack():
    value = []
    for _ in range(10_000):
        value = [value]

    assert [] == ps.find_tracers(value)
