"""Static values in a file, one test a kind; the file itself never fails for one."""

import collections
import dataclasses
import enum
import functools
import math
import types
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate._saving.values import Recorded, agree, decode, encode
from purestate.errors import LoadError


class Color(enum.Enum):
    RED = 1
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass(frozen=True)
class Config:
    depth: int
    rates: tuple[float, ...] = (0.5, math.inf)
    color: Color = Color.RED


class Box(ps.State):
    value: Any = ps.static()


VALUES = {
    "None": None,
    "True": True,
    "an int": 3,
    "a large int": 3**400,
    "a large negative int": -(10**4000),
    "2**63": 2**63,
    "a float": 0.1,
    "minus zero": -0.0,
    "infinity": -math.inf,
    "nan": math.nan,
    "a complex number": complex(-0.0, math.inf),
    "a text": 'é "quoted" \n \ud800',
    "bytes": b"\0\xff",
    "a tuple": (1, (2.0, "three"), ()),
    "a named tuple": Pair(1, Pair(None, (2,))),
    "a frozenset": frozenset({1, "a", (2, 3)}),
    "a slice": slice(1, None, (2,)),
    "a member": Color.BLUE,
    "a member that is an int": Level.LOW,
    "a flag": Mode.READ,
    "a dtype": np.dtype("float32"),
    "a dtype of jax": jnp.dtype(jnp.bfloat16),
    "a type of jax": jnp.float32,
    "another type of jax": jnp.bfloat16,
    "jax's bool": jnp.bool_,
    "a type of numpy": np.int16,
    "another type of numpy": np.dtype(jnp.float8_e5m2).type,
    "a scalar of numpy": np.float32(0.1),
    "a scalar of bfloat16": jnp.bfloat16(1.5).item()
    and np.asarray(1.5, jnp.bfloat16)[()],
    "a complex scalar": np.complex64(1 + 2j),
    "a dataclass": Config(3),
    "a dataclass in a tuple": (Config(1, (), Color.BLUE),),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_comes_back_as_it_was(tmp_path, value):
    path, before = tmp_path / "t.safetensors", Box(value=value)
    ps.save(path, before)

    for like in (Box, before):
        after = ps.load(path, like)
        assert type(before.value) is type(after.value)
        assert jax.tree.structure(before) == jax.tree.structure(after)
        assert repr(before.value) == repr(after.value)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_agrees_with_itself_only(value):
    for name, other in VALUES.items():
        assert (other is value) == agree(encode(value), encode(other)), name


def test_values_that_are_equal_in_python_are_told_apart():
    ones = (1, 1.0, True, np.float32(1), complex(1), Level.LOW, "1", b"1", (1,))

    for one in ones:
        assert [one] == [x for x in ones if agree(encode(one), encode(x))]


# --- what is only named -------------------------------------------------------------------


def function(x):
    return x


@dataclasses.dataclass(frozen=True)
class Holder:
    function: Any
    n: int = 1

    def method(self):
        return self


@dataclasses.dataclass(frozen=True)
class Checked:
    """Its own `__init__` may do anything."""

    n: int

    def __init__(self, n):
        object.__setattr__(self, "n", n)


@dataclasses.dataclass(eq=False)
class Loose:
    n: int


class Plain:
    def __init__(self, n):
        self.n = n

    def __call__(self):
        return self.n


LAMBDA = lambda x: x  # noqa: E731


class Module(nn.Module):
    width: int = 3

    def __call__(self, x):
        return x


NAMED = {
    "a function": (function, f"<{__name__}:function>"),
    "a lambda": (LAMBDA, f"<{__name__}:<lambda>>"),
    "a builtin": (len, "<builtins:len>"),
    "a class": (Plain, f"<{__name__}:Plain>"),
    "a type of Python": (float, "<builtins:float>"),
    "a module": (math, "<math>"),
    "an object": (Plain(3), f"<{__name__}:Plain()>"),
    "a bound method": (Holder(1).method, f"<{__name__}:Holder.method>"),
    "a jitted function": (jax.nn.relu, "relu>"),
    "a partial": (
        functools.partial(function, 1, b=(2,)),
        f"partial(<{__name__}:function>, 1, b=(2,))",
    ),
    "a choice of leaves": (
        ps.leaves("a.*") & ~ps.leaves(function),
        f"ps.leaves(ps.leaves('a.*'), ps.leaves(ps.leaves(<{__name__}:function>)))",
    ),
    "a tuple of functions": ((function, 3), f"(<{__name__}:function>, 3)"),
    "a dataclass with a function": (
        Holder(function),
        f"Holder(function=<{__name__}:function>, n=1)",
    ),
    "a dataclass with its own __init__": (Checked(2), "Checked(n=2)"),
    "a dataclass that is not frozen": (Loose(2), "Loose(n=2)"),
    "a module of flax": (Module(), "Module(width=3, parent=None, name=None)"),
    "a State": (Box(value=3), "Box(value=3)"),
    "a mapping": (types.MappingProxyType({}), "<builtins:mappingproxy()>"),
    "a class of two names": (collections.OrderedDict, "<collections:OrderedDict>"),
}


@pytest.mark.parametrize(("value", "text"), NAMED.values(), ids=NAMED)
def test_what_holds_a_callable_is_recorded_and_never_made(value, text):
    found = decode(encode(value))

    assert isinstance(found, Recorded)
    assert repr(found).endswith(text)
    assert agree(encode(value), found.encoded)


SAVEABLE = {name: value for name, (value, _) in NAMED.items() if name != "a mapping"}


@pytest.mark.parametrize("value", SAVEABLE.values(), ids=SAVEABLE)
def test_what_holds_a_callable_comes_from_the_instance(tmp_path, value):
    path, before = tmp_path / "t.safetensors", Box(value=value)
    ps.save(path, before)

    assert ps.load(path, before).value is before.value
    with pytest.raises(LoadError, match=r"the file names .*give an instance as like"):
        ps.load(path, Box)
    with pytest.raises(LoadError, match=r"static value .* in the file, 7 expected"):
        ps.load(path, Box(value=7))


def test_the_parts_of_what_holds_a_callable_are_compared(tmp_path):
    pairs = [
        (functools.partial(function, 1), functools.partial(function, 2)),
        (functools.partial(function, b=1), functools.partial(function, b=1.0)),
        (functools.partial(function, 1), functools.partial(LAMBDA, 1)),
        (ps.leaves("a"), ps.leaves("b")),
        (ps.leaves("a"), ~ps.leaves("a")),
        (Holder(function), Holder(function, 2)),
        (Module(3), Module(4)),
        ((function, 3), (function, 4)),
        (Plain(1), Plain),
    ]

    for one, other in pairs:
        assert agree(encode(one), encode(one))
        assert not agree(encode(one), encode(other)), (one, other)


@dataclasses.dataclass(frozen=True)
class Guarded:
    depth: int

    @property
    def trap(self):
        return 0

    @trap.setter
    def trap(self, value):
        raise SystemExit("a file has run a setter")


@pytest.mark.parametrize("names", [["trap"], ["depth", "trap"], ["trap", "depth"]])
def test_a_file_does_not_reach_a_setter(names):
    fields = dict.fromkeys(names, 1)

    assert isinstance(decode({"dataclass": [f"{__name__}:Guarded", fields]}), Recorded)
    assert Guarded(1) == decode(encode(Guarded(1)))


def test_of_other_objects_only_the_name_is_compared():
    assert agree(encode(Plain(1)), encode(Plain(2)))
    assert agree(encode(Holder(1).method), encode(Holder(2).method))


def test_names_agree_within_a_package_and_with_the_main_program():
    def named(name):
        return {"named": name}

    assert agree(named("jax._src.nn.functions:relu"), named("jax.nn:relu"))
    assert agree(named("__main__:act"), named("train:act"))
    assert not agree(named("torch.nn:relu"), named("jax.nn:relu"))
    assert not agree(named("jax.nn:relu"), named("jax.nn:gelu"))


class Raises:
    def __getattr__(self, name):
        raise RuntimeError(name)


def test_a_value_that_raises_is_named():
    assert {"named": f"{__name__}:Raises()"} == encode(Raises())


def test_a_value_that_holds_itself_is_named():
    value = Loose(1)
    value.n = (value, 3)

    assert agree(encode(value), encode(value))
    assert isinstance(decode(encode(value)), Recorded)


def test_fields_of_any_name_are_compared():
    Odd = collections.namedtuple("Odd", ["named", "tuple"])

    assert agree(encode(Odd(1, 2)), encode(Odd(1, 2)))
    assert not agree(encode(Odd(1, 2)), encode(Odd(1, 3)))
    assert not agree(encode(Odd("a:b", 2)), encode(Odd("__main__:b", 2)))


# --- classes that have changed ------------------------------------------------------------


def test_a_member_that_is_gone_is_not_made_up(tmp_path):
    path = tmp_path / "t.safetensors"
    Old = enum.Enum("Shade", {"DARK": 1}, module=__name__, qualname="Shade")
    New = enum.Enum("Shade", {"LIGHT": 1}, module=__name__, qualname="Shade")
    ps.save(path, Box(value=Old.DARK))

    with pytest.raises(LoadError, match=r"static value Shade\.DARK in the file"):
        ps.load(path, Box(value=New.LIGHT))
    with pytest.raises(LoadError, match=r"the file names Shade\.DARK"):
        ps.load(path, Box)


def test_classes_of_a_function_are_found_by_the_annotation(tmp_path):
    class Local(enum.Enum):
        A = 1

    class Pair(NamedTuple):
        a: Any

    class Holds(ps.State):
        pair: Pair
        local: Local = ps.static()
        many: tuple[Local, ...] | None = ps.static(default=None)

    path, before = tmp_path / "t.safetensors", Holds(Pair(1), Local.A, (Local.A,))
    ps.save(path, before)

    assert before == ps.load(path, Holds)
