"""Subclassing: fields, static-ness, hooks and class keywords are inherited."""

import abc
import dataclasses
import pickle
import typing

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from purestate.errors import DeclarationError, InheritedInitError

T = typing.TypeVar("T")


def test_static_is_inherited_through_levels_and_plain_dataclass_mixins():
    @dataclasses.dataclass
    class Mixin:
        m: int = dataclasses.field(metadata={"static": True})

    class A(ps.State):
        a: jax.Array
        b: int = ps.static(default=2)

    class B(A, Mixin):
        c: float = 3.0

    class C(B):
        d: int = ps.static(default=4)

    s = C(m=1, a=jnp.ones(1))

    assert 2 == len(jax.tree.leaves(s))
    assert (7,) == jax.jit(lambda q: jnp.zeros(q.b + q.d + q.m))(s).shape


def test_a_subclass_may_redeclare_a_static_field_as_data_and_back():
    class A(ps.State):
        x: int = ps.static(default=1)

    class B(A):
        x: jax.Array = 2

    class C(B):
        x: int = ps.static(default=3)

    assert [0, 1, 0] == [len(jax.tree.leaves(cls())) for cls in (A, B, C)]
    assert isinstance(B().x, jax.Array)
    assert 3 == C().x


def test_class_keywords_reach_the_users_init_subclass():
    class Base(ps.State):
        def __init_subclass__(cls, tag="none", **kw):
            super().__init_subclass__(**kw)
            cls.tag = tag

    class Tagged(Base, tag="foo", kw_only=True):
        a: jax.Array

    assert "foo" == Tagged(a=jnp.ones(1)).tag
    assert 1 == len(jax.tree.leaves(Tagged(a=jnp.ones(1))))


def test_an_init_subclass_that_does_not_call_super_is_noticed():
    class Base(ps.State):
        x: int

        def __init_subclass__(cls):
            pass

    class Child(Base):
        pass

    text = (
        r"^Child was not set up as a State: an __init_subclass__ among its bases does "
    )

    with pytest.raises(DeclarationError, match=text):
        Child(x=1)


def test_generic_bases_and_abstract_methods():
    class Base(ps.State, typing.Generic[T]):
        x: jax.Array

        @abc.abstractmethod
        def area(self): ...

    class Square(Base[int]):
        side: jax.Array

        def area(self):
            return self.side**2

    s = Square(x=jnp.zeros(1), side=jnp.asarray(3.0))

    assert 9.0 == float(jax.jit(lambda q: q.area())(s))
    assert isinstance(jax.tree.map(lambda v: v, s), Base)
    with pytest.raises(TypeError, match="abstract method"):
        Base(x=1)


def test_a_generic_class_can_be_parametrised_in_the_call():
    class Holder(ps.State, typing.Generic[T]):
        x: T

    assert 3 == Holder[int](x=3).x


def test_abc_and_protocol_mix_in():
    class Shape(typing.Protocol):
        def area(self) -> float: ...

    class A(ps.State, abc.ABC):
        @property
        @abc.abstractmethod
        def n(self): ...

    class B(A, Shape):
        n: int

        def area(self):
            return 2.0

    assert 2 == B(n=2).n
    assert [3] == jax.tree.leaves(jax.tree.map(lambda v: v + 1, B(n=2)))
    with pytest.raises(TypeError, match="abstract"):
        A()


def test_diamonds_and_several_bases_with_fields():
    class Root(ps.State):
        r: jax.Array

    class Left(Root):
        a: jax.Array

        def __check__(self):
            seen.append("left")

    class Right(Root):
        b: jax.Array

        def __check__(self):
            seen.append("right")

    class Both(Left, Right):
        c: jax.Array

    seen = []

    both = Both(r=1, b=2, a=3, c=4)

    assert ["right", "left"] == seen
    assert ["r", "b", "a", "c"] == [f.name for f in dataclasses.fields(both)]
    assert [1, 2, 3, 4] == list(map(int, jax.tree.leaves(both)))


def test_a_field_overrides_an_inherited_property_or_slot():
    @dataclasses.dataclass(slots=True)
    class Slotted:
        a: int

    class Base(ps.State):
        @property
        def n(self):
            return 0

    class S(Base, Slotted):
        n: jax.Array

    s = S(a=1, n=2)

    assert (1, 2) == (s.a, int(s.n))
    assert 2 == len(jax.tree.leaves(s))
    assert (3, 2) == (s.replace(a=3).a, int(s.replace(a=3).n))


@pytest.mark.parametrize(
    ("value", "what"),
    [(3, "value"), (property(lambda self: 1), "property or method")],
    ids=["value", "property"],
)
def test_overriding_a_field_without_annotation_is_refused(value, what):
    class A(ps.State):
        x: int = 1

    text = rf"^B\.x is a {what} without an annotation, but x is a field of a base class"

    with pytest.raises(DeclarationError, match=text):
        type("B", (A,), {"x": value})


def test_a_hand_written_init_that_cannot_set_a_new_field_is_refused():
    class A(ps.State):
        a: jax.Array

        def __init__(self):
            self.a = 1

    class Fine(A):
        b: int = 2

    text = (
        r"^B inherits the hand-written A\.__init__, which cannot set its new field b\. "
        r"Give b a default, or write B\.__init__ and call super\(\)\.__init__\(\.\.\.\) in "
    )

    assert 2 == Fine().b
    with pytest.raises(InheritedInitError, match=text):

        class B(A):
            b: int


def test_a_mixin_with_an_init_that_calls_super():
    class Counted:
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.count = self.count + 1

    class A(ps.State):
        count: int

        def __init__(self, count):
            self.count = count

    class B(Counted, A):
        pass

    assert 3 == B(2).count


def test_plain_mixins_bring_methods_and_properties():
    class Area:
        @property
        def doubled(self):
            return self.x * 2

    class S(Area, ps.State):
        x: jax.Array

    assert 4 == int(jax.jit(lambda s: s.doubled)(S(x=2)))


def test_a_frozen_dataclass_can_be_a_mixin():
    @dataclasses.dataclass(frozen=True)
    class Config:
        n: int = 1

    class S(ps.State, Config):
        x: jax.Array = 2

    assert 1 == S().n


def test_classes_made_by_make_dataclass_and_type():
    made = dataclasses.make_dataclass(
        "Made",
        [
            ("x", jax.Array),
            ("n", int, ps.static(default=2)),
            ("parts", list, ps.field(default_factory=list)),
        ],
        bases=(ps.State,),
    )
    typed = type("Typed", (ps.State,), {"__annotations__": {"x": jax.Array}})

    assert made(x=1.0) == made(1.0)
    assert 1 == len(jax.tree.leaves(made(x=1.0)))
    assert 5 == made(x=1.0).replace(n=5).n
    assert 1 == len(jax.tree.leaves(typed(x=1.0)))


def test_a_dataclass_decorator_on_top_changes_nothing():
    @dataclasses.dataclass
    class S(ps.State):
        x: jax.Array
        y: float = 1.0
        z: list = dataclasses.field(default_factory=list)
        n: int = ps.static(default=3)

    assert S(1) == S(1)
    assert "S(x=i32[], y=1.0, z=[], n=3)" == repr(S(1))
    assert [] == S(1).z
    with pytest.raises(AttributeError, match="replace"):
        S(1).x = 2


def test_string_annotations_and_pseudo_fields_are_understood():
    cls = type(
        "S",
        (ps.State,),
        {
            "__annotations__": {
                "x": "jax.Array",
                "n": "typing.ClassVar[int]",
                "i": "dataclasses.InitVar[int]",
            },
            "__module__": __name__,
            "i": 3,
            "__post_init__": lambda self, i: None,
        },
    )

    assert ["x"] == [f.name for f in dataclasses.fields(cls)]
    assert isinstance(cls(x=1).x, jax.Array)


def test_match_statements_work():
    class P(ps.State):
        x: int
        y: int

    match P(1, 2):
        case P(a, y=b):
            pass

    assert (1, 2) == (a, b)


def test_a_class_that_cloudpickle_has_found_again_can_be_inherited():
    cloudpickle = pytest.importorskip("cloudpickle", reason="needs the interop extra")

    class Base(ps.State):
        x: jax.Array = 1

    pickle.loads(cloudpickle.dumps(Base()))

    class Derived(Base):
        y: jax.Array = 2

    assert 1 == Derived().x
