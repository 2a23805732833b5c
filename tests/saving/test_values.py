"""Static values in a file, one test a kind; the file itself never fails for one."""

import collections
import contextlib
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import json
import math
import operator
import os
import pathlib
import re
import sys
import types
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import purestate as ps
from purestate._saving.values import Recorded, agree, decode, encode, is_vague
from purestate.errors import LoadError, LoadWarning


class Color(enum.Enum):
    RED = 1
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Ranks(enum.IntFlag):
    ONE = 1
    TWO = 2


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    n: int
    m: Any = None


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
    "flags": Mode.READ | Mode.WRITE,
    "no flag": Mode(0),
    "a flag that is an int": Ranks.ONE | Ranks.TWO,
    "a flag without a name": Ranks.ONE | 8,
    "a range": range(1, 9, 2),
    "a path": pathlib.Path("a/b"),
    "a pure path": pathlib.PureWindowsPath("a/b"),
    "a spec": P("x", None, ("y", "z")),
    "a text of numpy": np.str_("a"),
    "a dtype of the other order": np.dtype(">f4"),
    "a dataclass with slots": Slotted(3, (1,)),
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


class Own(int):
    pass


class Shows:
    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


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
    "a bound method": (Holder(1).method, "Holder(function=1, n=1).method"),
    "a bound method of Python": ("a".upper, "'a'.upper"),
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
    "a mapping": (types.MappingProxyType({}), "mappingproxy({})"),
    "a class of two names": (collections.OrderedDict, "<collections:OrderedDict>"),
}


@pytest.mark.parametrize(("value", "text"), NAMED.values(), ids=NAMED)
def test_what_holds_a_callable_is_recorded_and_never_made(value, text):
    found = decode(encode(value))

    assert isinstance(found, Recorded)
    assert repr(found).endswith(text)
    assert agree(encode(value), found.encoded)


def maybe_warns(vague):
    """Return the context of a load of what no more than a name is known of, or not."""
    if vague:
        return pytest.warns(LoadWarning, match="has only names for Box.value: a lambda")
    return contextlib.nullcontext()


SAVEABLE = {name: value for name, (value, _) in NAMED.items() if name != "a mapping"}


@pytest.mark.parametrize("value", SAVEABLE.values(), ids=SAVEABLE)
def test_what_holds_a_callable_comes_from_the_instance(tmp_path, value):
    path, before = tmp_path / "t.safetensors", Box(value=value)
    ps.save(path, before)

    with maybe_warns(value in (LAMBDA, SAVEABLE["an object"])):
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
        (Holder(1).method, Holder(2).method),
        ("a".upper, "b".upper),
        (math, json),
        (os, os.path),
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


SHOWN = {
    "ufuncs of numpy": (np.add, np.multiply),
    "ufuncs of jax": (jnp.add, jnp.multiply),
    "timedeltas": (datetime.timedelta(1), datetime.timedelta(2)),
    "decimals": (decimal.Decimal(1), decimal.Decimal(2)),
    "fractions": (fractions.Fraction(1, 2), fractions.Fraction(1, 3)),
    "patterns": (re.compile("a"), re.compile("b")),
    "a subclass of int": (Own(1), Own(2)),
    "getters": (operator.itemgetter(0), operator.itemgetter(1)),
    "generic aliases": (list[int], list[str]),
    "unions": (int | None, str | None),
    "long reprs": (Shows("a" * 5000), Shows("a" * 4999 + "b")),
    "a structured dtype": (np.dtype([("a", "f4")]), np.dtype([("b", "f4")])),
    "dates of numpy": (np.datetime64("2020"), np.datetime64("2021")),
    "primitives": (jax.lax.add_p, jax.lax.mul_p),
}


@pytest.mark.parametrize(("one", "other"), SHOWN.values(), ids=SHOWN)
def test_objects_that_show_their_parts_are_compared_by_what_they_show(one, other):
    assert agree(encode(one), encode(one))
    assert not agree(encode(one), encode(other))
    assert isinstance(decode(encode(one)), Recorded)
    assert not is_vague(encode(one))
    assert 2500 > len(json.dumps(encode(one)))


def test_of_other_objects_only_the_name_is_compared():
    assert agree(encode(Plain(1)), encode(Plain(2)))
    assert is_vague(encode(Plain(1)))
    assert is_vague(encode((functools.partial(function, LAMBDA), 3)))
    assert not is_vague(encode((functools.partial(function, b=len), Holder(1), math)))


def test_of_what_says_where_arrays_lie_only_the_class_is_recorded():
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))

    for value in (jax.devices()[0], mesh, NamedSharding(mesh, P())):
        (name,) = encode(value).values()
        assert name.endswith(f":{type(value).__qualname__}")
        assert not is_vague(encode(value))


def test_a_name_of_another_module_agrees_if_the_old_one_leads_nowhere_else(monkeypatch):
    norm = jax.scipy.stats.norm.logpdf
    laplace = jax.scipy.stats.laplace.logpdf
    moved = {"named": encode(norm)["named"].replace(".norm:", ".gone:")}

    assert not agree(encode(norm), encode(laplace))
    assert agree(moved, encode(norm))
    # Under the old name there is still what has moved.
    monkeypatch.setitem(sys.modules, "jax.old", types.SimpleNamespace(logpdf=norm))
    assert agree({"named": "jax.old:logpdf"}, encode(norm))
    assert not agree({"named": "jax.old:logpdf"}, encode(laplace))


def test_functions_in_functions_of_two_modules_are_told_apart(monkeypatch):
    def outer():
        return lambda: None

    for name in ("pack.one", "pack.two"):
        module = types.SimpleNamespace(outer=types.FunctionType(outer.__code__, {}))
        monkeypatch.setitem(sys.modules, name, module)
    named = [
        {"named": f"pack.{x}:outer.<locals>.<lambda>"} for x in ("one", "two", "old")
    ]

    assert not agree(named[0], named[1])
    assert agree(named[2], named[1])


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


def test_flags_that_are_gone_are_not_made_up():
    Old = enum.Flag("Switch", ["A", "B"], module=__name__, qualname="Switch")
    New = enum.Flag("Switch", ["A"], module=__name__, qualname="Switch")

    assert isinstance(decode(encode(Old.A | Old.B), [New]), Recorded)
    assert New.A is decode(encode(Old.A), [New])


def test_no_code_of_a_flag_runs():
    class Runs(enum.Flag):
        A = 1
        B = 2

        @classmethod
        def _missing_(cls, value):
            raise AssertionError

    assert isinstance(
        decode({"flag": [f"x:{Runs.__qualname__}", ["A", "B"], 0]}, [Runs]), Recorded
    )


def test_no_setter_of_a_property_runs():
    @dataclasses.dataclass(frozen=True)
    class Config:
        n: int = 0

        @property
        def other(self):
            raise AssertionError

        @other.setter
        def other(self, value):
            raise AssertionError

    name = f"x:{Config.__qualname__}"

    assert Config(3) == decode({"dataclass": [name, {"n": 3}]}, [Config])
    for fields in ({"n": 3, "other": 1}, {"other": 1}):
        found = decode({"dataclass": [name, fields]}, [Config])
        assert isinstance(found, Recorded)


def test_classes_come_from_the_annotation_before_others_of_their_name(
    tmp_path, monkeypatch
):
    code = """
import dataclasses, enum
class Shade(enum.Enum):
    A = 1
@dataclasses.dataclass(frozen=True)
class Size:
    n: int
"""
    first, second = types.ModuleType("first_shades"), types.ModuleType("second_shades")
    for module in (first, second):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(code, vars(module))
    path = tmp_path / "t.safetensors"

    class Holds(ps.State):
        by: dict[first.Shade, Any]
        shade: Any = ps.static()
        size: Any = ps.static()

    ps.save(path, Holds(by={first.Shade.A: 1}, shade=first.Shade.A, size=first.Size(3)))

    class Holds(ps.State):
        by: dict[second.Shade, Any]
        shade: second.Shade = ps.static()
        size: second.Size | None = ps.static()

    expected = Holds(by={second.Shade.A: 1}, shade=second.Shade.A, size=second.Size(3))
    assert ps.load(path, Holds) == expected
    monkeypatch.setattr(second.Shade, "_member_map_", {})
    with pytest.raises(LoadError, match=r"Holds.shade: the file names Shade.A"):
        ps.load(path, Holds)


FORGED = [
    {"named": 5},
    {"shown": [5, "a"]},
    {"shown": ["a:b", 5]},
    {"shown": ["a:b"]},
    {"method": ["a:b", {"named": 5}]},
    {"method": [5, 1]},
    {"partial": 5},
    {"partial": [{"named": "a:b"}, [], [1]]},
    {"parts": ["a:b", {"c": {"named": []}}]},
    {"flag": ["a:b", 5, 0]},
    {"tuple": [{"named": {}}]},
    {"range": [1, 2, 0]},
    {"path": ["os", "a"]},
    {"numpy_str": 5, "more": 1},
]


@pytest.mark.parametrize("value", FORGED, ids=map(str, FORGED))
def test_a_forged_value_is_damage(value):
    arrays, manifest = ps.to_dict(Box(value=1))
    manifest["root"]["static"]["value"] = value

    with pytest.raises(LoadError, match=r"^the manifest is not one that ps\.to_dict"):
        ps.from_dict(manifest, Box(value=1), arrays)
