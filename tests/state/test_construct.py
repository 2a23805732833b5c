"""Constructing: generated and hand-written, with defaults, converters and checks."""

import contextlib
import dataclasses
import gc
import inspect
import traceback
import weakref
from dataclasses import KW_ONLY, InitVar
from typing import Annotated, Any, ClassVar, NewType, Optional

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import (
    CheckError,
    DeclarationError,
    FieldError,
    FrozenStateError,
    NumberError,
    ReservedNameError,
    UnannotatedArrayError,
    UndeclaredFieldError,
    UnfinishedStateError,
    UnsetFieldError,
)

jaxtyping = pytest.importorskip(
    "jaxtyping", reason="jaxtyping annotations need the interop extra"
)
Float, Float32, Int, Bool, UInt8 = (
    jaxtyping.Float,
    jaxtyping.Float32,
    jaxtyping.Int,
    jaxtyping.Bool,
    jaxtyping.UInt8,
)
Alias = NewType("Alias", jax.Array)


class Pair(ps.State):
    x: jax.Array
    y: float = 1.0


# --- arguments ---------------------------------------------------------------------


def test_fields_are_given_by_position_or_keyword():
    assert Pair(1.0, 2.0) == Pair(x=1.0, y=2.0) == Pair(1.0, y=2.0)


def test_an_unknown_field_names_the_nearest_one():
    with pytest.raises(
        FieldError, match=r"^Pair has no field 'xx'; did you mean 'x'\?$"
    ):
        Pair(xx=1, y=2)
    with pytest.raises(
        FieldError, match=r"^Pair has no field 'q'; its fields are x, y\.$"
    ):
        Pair(1, q=2)


def test_a_missing_field_is_named_with_the_call_to_write():
    class Three(ps.State):
        a: jax.Array
        b: int
        c: object
        d: int = 0

    text = (
        r"^Three needs a value for fields a, c: write Three\(a=\.\.\., b=\.\.\., "
        r"c=\.\.\.\), or give a a default\.$"
    )

    with pytest.raises(FieldError, match=text):
        Three(b=1)
    with pytest.raises(FieldError, match=r"^Three needs a value for field c: write"):
        Three(1, 2)


def test_a_field_given_twice_is_pythons_own_error():
    with pytest.raises(
        TypeError, match=r"^.*Pair\.__init__\(\) got multiple values for a"
    ):
        Pair(1, x=2)


def test_a_field_that_init_does_not_take_says_so():
    class Light(ps.State):
        k: int
        u: int = ps.field(init=False, default=0)

    text = (
        r"^Light does not take 'u', which is declared with init=False: set it in __post"
    )

    with pytest.raises(FieldError, match=text):
        Light(k=1, u=2)


def test_the_signature_is_the_one_of_a_dataclass():
    class S(ps.State):
        a: int
        b: list = ps.field(default_factory=list)
        _: KW_ONLY
        c: int = 3

    assert "(a: int, b: list = <factory>, *, c: int = 3) -> None" == str(
        inspect.signature(S)
    )
    assert ("a", "b") == S.__match_args__


def test_a_field_may_be_called_self():
    class S(ps.State):
        self: int
        cls: int = 2

    assert 1 == S(1).self
    assert 3 == S(self=3).self


def test_keyword_only_fields_come_last_and_may_lack_defaults():
    class Base(ps.State, kw_only=True):
        a: int = 0

    class Child(Base):
        b: int

    assert (1, 2) == (Child(1, a=2).b, Child(1, a=2).a)


def test_a_field_without_default_after_one_with_a_default_is_refused():
    text = r"^Bad\.b has no default but follows a, which has one, so positions would be"

    with pytest.raises(DeclarationError, match=text):

        class Bad(ps.State):
            a: int = 0
            b: int


# --- defaults ----------------------------------------------------------------------


def test_a_factory_makes_a_default_per_instance():
    class S(ps.State):
        parts: list = ps.field(default_factory=list)

    assert [] == S().parts
    assert S().parts is not S().parts


def test_every_instance_has_a_copy_of_an_array_default():
    template = np.zeros(2)

    class S(ps.State):
        a: jax.Array = jnp.ones(2)
        b: np.ndarray = template
        c: jax.Array = ps.field(default=jnp.ones(3))
        d: np.ndarray = dataclasses.field(default_factory=lambda: np.ones(1))

    template[:] = 7
    first, second = S(), S()
    first.b[:] = 5

    assert first.a is not second.a
    assert [1, 1] == second.a.tolist()
    assert [0, 0] == second.b.tolist()
    assert [1, 1, 1] == first.c.tolist()


@pytest.mark.parametrize("default", [[], {}, set()], ids=str)
def test_a_mutable_default_is_refused(default):
    with pytest.raises(
        DeclarationError, match=r"^Bad: mutable default .* default_factory"
    ):
        type("Bad", (ps.State,), {"__annotations__": {"x": list}, "x": default})


def test_class_attributes_are_those_of_a_dataclass():
    class S(ps.State):
        a: int = 5
        b: list = ps.field(default_factory=list)
        n: ClassVar[int] = 7

    assert 5 == S.a
    assert 7 == S.n
    assert [] == jax.tree.leaves(S(a=None, b=None))


# --- Python numbers in array fields ---------------------------------------------------


@pytest.mark.parametrize(
    "annotation",
    [
        jax.Array,
        jax.Array | None,
        Optional[jax.Array],  # noqa: UP045  # the older spelling is what is tested
        Annotated[jax.Array, "metres"],
        Float[jax.Array, ""],
        Float[jax.Array, "..."] | None,
        Float[jax.Array | np.ndarray, ""],
        jax.Array | np.ndarray,
        Alias,
        "jax.Array",
        "jax.Array | None",
        "Array",
        "OnlyForCheckers.Array",
    ],
    ids=str,
)
def test_a_number_in_an_array_field_gets_a_strong_dtype(annotation):
    cls = type("S", (ps.State,), {"__annotations__": {"x": annotation}})

    x = cls(x=1.5).x

    assert isinstance(x, jax.Array)
    assert (jnp.float32, False, ()) == (x.dtype, x.weak_type, x.shape)


@pytest.mark.parametrize(
    "annotation",
    [
        float,
        int,
        Any,
        object,
        jax.typing.ArrayLike,
        jax.Array | float,
        np.ndarray,
        "float",
    ],
    ids=str,
)
def test_a_number_elsewhere_stays_what_it_is(annotation):
    cls = type("S", (ps.State,), {"__annotations__": {"x": annotation}})

    assert float is type(cls(x=1.5).x)


@pytest.mark.parametrize(
    ("annotation", "number", "dtype"),
    [
        (jax.Array, True, jnp.bool_),
        (jax.Array, 1, jnp.int32),
        (jax.Array, 1.0, jnp.float32),
        (jax.Array, 1j, jnp.complex64),
        (Float[jax.Array, ""], 0, jnp.float32),
        (Int[jax.Array, ""], True, jnp.int32),
        (UInt8[jax.Array, ""], 3, jnp.uint8),
        (jaxtyping.UInt[jax.Array, ""], 3, jnp.uint32),
        (Float32[jax.Array, ""], 3, jnp.float32),
        (jaxtyping.BFloat16[jax.Array, ""], 3, jnp.bfloat16),
        (jaxtyping.Complex[jax.Array, ""], 3, jnp.complex64),
        (Float32[jax.Array, ""] | Int[jax.Array, ""], 3, jnp.int32),
    ],
    ids=str,
)
def test_the_annotation_decides_the_dtype_of_a_number(annotation, number, dtype):
    cls = type("S", (ps.State,), {"__annotations__": {"x": annotation}})

    assert dtype == cls(x=number).x.dtype


def test_the_dtype_of_a_field_decides_first():
    class S(ps.State):
        x: jax.Array = ps.field(dtype=jnp.bfloat16)
        n: Any = ps.field(dtype=jnp.uint8, default=0)

    assert jnp.bfloat16 == S(x=1).x.dtype
    assert jnp.uint8 == S(x=1).n.dtype
    assert jnp.int32 == S(x=jnp.int32(1)).x.dtype


@pytest.mark.parametrize(
    ("annotation", "number", "text"),
    [
        (
            Int[jax.Array, ""],
            0.5,
            r"^S\.x holds an integer dtype and 0\.5 does not fit",
        ),
        (
            UInt8[jax.Array, ""],
            -1,
            r"^S\.x holds uint8 and -1 does not fit: pass an array",
        ),
        (UInt8[jax.Array, ""], 256, r"^S\.x holds uint8 and 256 does not fit"),
        (jax.Array, 2**40, r"^S\.x holds int32 and 1099511627776 does not fit"),
        (jaxtyping.Key[jax.Array, ""], 0, r"^S\.x holds prng_key and 0 does not fit"),
    ],
    ids=str,
)
def test_a_number_that_does_not_fit_is_refused(annotation, number, text):
    cls = type("S", (ps.State,), {"__annotations__": {"x": annotation}})

    with pytest.raises(NumberError, match=text):
        cls(x=number)


def test_a_python_counter_survives_scan_and_is_traced_once():
    class Fire(ps.State):
        pos: jax.Array
        n_pos: jax.Array = 0

    traces = []

    @jax.jit
    def step(fire):
        traces.append(1)
        return fire.replace(n_pos=fire.n_pos + 1)

    fire = Fire(pos=jnp.zeros((5, 3)))
    fire = step(step(fire))
    fire, _ = jax.lax.scan(
        lambda f, _: (f.replace(n_pos=f.n_pos + 1), None), fire, None, 3
    )

    assert (5, jnp.int32) == (int(fire.n_pos), fire.n_pos.dtype)
    assert 1 == len(traces)


def test_a_number_stays_weak_nowhere_after_replace_and_hand_written_init():
    class S(ps.State):
        x: jax.Array

        def __init__(self):
            self.x = 1

    assert not S().x.weak_type
    assert not S().replace(x=2).x.weak_type


# --- hand-written constructors ---------------------------------------------------------


def test_any_signature_of_init_works_with_rebuild_jit_and_replace():
    class X(ps.State):
        x: jax.Array

        def __init__(self, *, y: bool):
            self.x = jnp.asarray(int(y))

    leaves, structure = jax.tree.flatten(X(y=True))

    assert 1 == int(jax.tree.unflatten(structure, leaves).x)
    assert 2 == int(jax.jit(lambda q: q.replace(x=q.x + 1))(X(y=True)).x)
    assert "(*, y: bool)" == str(inspect.signature(X))


def test_fields_that_a_hand_written_init_leaves_out_take_their_defaults():
    class M(ps.State):
        w: jax.Array
        hist: list = ps.field(default_factory=list)
        cache: object = None

        def __init__(self, w):
            self.w = w * 2

    m = M(jnp.ones(2))
    n = m.replace(cache=jnp.arange(2))

    assert ([], None) == (m.hist, m.cache)
    assert {"w", "hist", "cache"} <= vars(m).keys()
    assert 2 == len(jax.tree.leaves(n))


def test_a_field_left_unset_is_named():
    class M(ps.State):
        w: jax.Array
        b: jax.Array

        def __init__(self):
            self.w = 1

    text = (
        r"^M\.__init__ left field b without a value: assign `self\.b = \.\.\.` in it, or "
        r"give b a default\."
    )

    with pytest.raises(UnsetFieldError, match=text):
        M()


def test_an_undeclared_attribute_says_to_declare_it():
    class M(ps.State):
        weight: jax.Array

        def __init__(self):
            self.wieght = 1

    text = (
        r"^M declares no field 'wieght', so it cannot be assigned: jax would not see it\. "
        r"Declare it in the class body, `wieght: jax\.Array` \(or `= ps\.static\(\)` for "
        r"configuration\); did you mean 'weight'\?"
    )

    with pytest.raises(UndeclaredFieldError, match=text):
        M()
    with pytest.raises(AttributeError):
        M()


def test_a_class_variable_is_not_assigned_on_an_instance():
    class M(ps.State):
        count: ClassVar[int] = 0

        def __init__(self):
            self.count = 1

    text = (
        r"^M\.count is a ClassVar or an InitVar, which instances do not hold: assign it"
    )

    with pytest.raises(UndeclaredFieldError, match=text):
        M()


def test_a_field_cannot_be_deleted_while_constructing():
    class M(ps.State):
        x: int

        def __init__(self):
            self.x = 1
            del self.x

    text = r"^cannot delete M\.x: every field of a State has a value\. Assign another, such"

    with pytest.raises(FrozenStateError, match=text):
        M()


def test_a_property_setter_works_while_constructing():
    class M(ps.State):
        radius: float

        def __init__(self, d):
            self.diameter = d

        @property
        def diameter(self):
            return self.radius * 2

        @diameter.setter
        def diameter(self, value):
            self.radius = value / 2

    assert 3.0 == M(6.0).radius
    with pytest.raises(AttributeError, match=r"^cannot assign M\.diameter"):
        M(6.0).diameter = 2


def test_super_init_of_a_generated_and_of_a_hand_written_constructor():
    class A(ps.State):
        a: jax.Array

    class B(A):
        b: jax.Array

        def __init__(self, n):
            super().__init__(a=n)
            self.b = self.a + 1

    class C(B):
        c: jax.Array

        def __init__(self, n):
            self.c = n
            super().__init__(n)

    assert (1, 2, 1) == tuple(map(int, jax.tree.leaves(C(1))))


def test_a_hand_written_init_may_call_jitted_methods_once_all_is_set():
    class M(ps.State):
        x: jax.Array
        n: int = ps.static(default=2)

        def __init__(self):
            self.x = jnp.ones(2)
            self.n = 3
            self.x = self.twice()

        @jax.jit
        def twice(self):
            return self.x * self.n

    assert [3, 3] == M().x.tolist()


def test_a_half_built_state_given_to_jax_names_what_is_missing():
    class M(ps.State):
        x: jax.Array
        y: jax.Array

        def __init__(self):
            self.x = 1
            jax.tree.leaves(self)

    text = (
        r"^this M is not finished: y has no value yet, because its constructor is still"
    )

    with pytest.raises(UnfinishedStateError, match=text):
        M()


# --- failing constructors ----------------------------------------------------------------


def test_an_error_in_a_constructor_keeps_its_type_and_gains_a_note():
    class Boom(Exception):
        pass

    class M(ps.State):
        x: int
        y: int

        def __init__(self):
            self.x = 1
            raise Boom("no")

    with pytest.raises(Boom) as caught:
        M()

    assert ["raised by M.__init__; it had set x."] == caught.value.__notes__


def test_reading_a_value_under_a_trace_points_to_check():
    class Geo(ps.State):
        base: jax.Array
        scale: jax.Array

        def __post_init__(self):
            if float(self.scale) <= 0:
                raise ValueError("scale must be positive")

    geo = Geo(base=jnp.zeros(3), scale=jnp.asarray(1.0))
    moved = jax.jit(lambda q, by: q.replace(base=q.base + by))(geo, 0.5)
    assert [0.5, 0.5, 0.5] == moved.base.tolist()
    with pytest.raises(ValueError, match=r"^scale must be positive"):
        Geo(base=jnp.zeros(3), scale=jnp.asarray(-1.0))

    with pytest.raises(jax.errors.ConcretizationTypeError) as caught:
        jax.jit(lambda x: Geo(base=x, scale=x))(1.0)

    assert (
        "Geo.__post_init__ read the value of a field while jax was tracing, where it has "
        "none. Put checks on values into Geo.__check__, which is skipped while tracing, "
        "and compute with jnp instead of float(), int(), bool()."
    ) in caught.value.__notes__


def test_nothing_is_kept_alive_also_after_a_constructor_that_raised():
    alive = []

    class M(ps.State):
        x: jax.Array
        n: object = ps.static(default=None)

        def __post_init__(self):
            alive.append(weakref.ref(self))
            if self.n == "bad":
                raise ValueError("no")

    for n in ("good", "bad"):
        with contextlib.suppress(ValueError):
            M(x=jnp.ones(3), n=n).replace(x=2)
    gc.collect()

    assert 2 == len(alive)
    assert [None, None] == [ref() for ref in alive]


def test_a_traceback_shows_the_lines_of_generated_code():
    def fails():
        raise ValueError("no")

    class M(ps.State):
        x: list = ps.field(default_factory=fails)

    try:
        M()
    except ValueError as error:
        text = "".join(traceback.format_exception(error))

    assert "<purestate test_construct." in text.replace("tests.state.", "")
    assert "x = _ps_factory_x()" in text


# --- __post_init__, InitVar, converters, checks ---------------------------------------------


def test_rebuilding_never_runs_hooks_and_takes_any_leaf():
    class Boxes(ps.State):
        arr: jax.Array

        def __post_init__(self):
            assert self.arr.ndim > 1

    boxes = Boxes(arr=jnp.ones((2, 2, 4)))
    structure = jax.tree.structure(boxes)

    assert (2,) == jax.vmap(lambda q: q.arr.sum())(boxes).shape
    for leaf in (object(), None, "name", 0):
        assert leaf is structure.unflatten([leaf]).arr
    jax.jit(lambda q: q).lower(boxes)
    with pytest.raises(AssertionError):
        Boxes(arr=jnp.ones(3))


def test_a_static_value_derived_from_an_array_survives_jit():
    class D(ps.State):
        a: jax.Array
        total: int = ps.static(init=False, default=0)

        def __post_init__(self):
            self.total = int(self.a.sum())

    assert (6,) == jax.jit(lambda q: jnp.zeros(q.total))(D(a=jnp.arange(4))).shape


def test_an_initvar_reaches_post_init_and_is_not_stored():
    class S(ps.State):
        x: jax.Array
        scale: InitVar[float] = 2.0

        def __post_init__(self, scale):
            self.x = self.x * scale

    assert 6.0 == float(S(x=3.0).x)
    assert 1.5 == float(S(x=3.0, scale=0.5).x)
    assert "scale" not in vars(S(x=3.0))


def test_a_converter_runs_once_per_construction_and_for_changed_fields():
    calls = []

    def double(value):
        calls.append(value)
        return value * 2

    class A(ps.State):
        x: int = ps.field(converter=double)
        y: int = ps.field(converter=double, default=10)

    class B(A):
        def __init__(self, x):
            super().__init__(x=x)

    assert (2, 20) == (A(x=1).x, A(x=1).y)
    calls.clear()
    assert (2, 20) == (B(1).x, B(1).y)
    assert [1, 10, 1, 10] == calls
    calls.clear()
    assert (6, 20) == (A(x=1).replace(x=3).x, A(x=1).replace(x=3).y)
    assert 2 == calls.count(3)


def test_an_error_in_a_converter_names_the_field():
    class S(ps.State):
        n: int = ps.field(converter=int)

    with pytest.raises(ValueError, match="invalid literal") as caught:
        S(n="many")

    assert "raised by the converter of S.n, which was given 'many'." in (
        caught.value.__notes__
    )


class Positive(ps.State):
    x: jax.Array
    ran: ClassVar[list] = []

    def __check__(self):
        self.ran.append("base")
        if not (self.x > 0).all():
            raise ValueError("x must be positive")


class Short(Positive):
    def __check__(self):
        self.ran.append("child")
        return self.x.size < 4


def test_checks_run_base_first_after_construction_and_replace():
    Positive.ran.clear()

    Short(x=jnp.ones(3)).replace(x=jnp.ones(2))

    assert ["base", "child", "base", "child"] == Positive.ran


def test_a_failing_check_keeps_its_type_and_says_whose_it_is():
    text = (
        r"^x must be positive\nraised by Positive\.__check__ for Short\(x=f32\[2\]\)\.$"
    )

    with pytest.raises(ValueError, match=text):
        Short(x=-jnp.ones(2))
    with pytest.raises(ValueError, match=text):
        Short(x=jnp.ones(2)).replace(x=-jnp.ones(2))


def test_a_check_that_returns_false_is_a_check_error():
    text = (
        r"^Short\.__check__ returned False for this Short: its invariant does not hold\. "
        r"Raise an error with your own text in __check__ to say which one\."
    )

    with pytest.raises(CheckError, match=text):
        Short(x=jnp.ones(4))


def test_checks_are_skipped_while_a_leaf_has_no_value():
    Positive.ran.clear()
    s = jax.tree.structure(Short(x=jnp.ones(1)))
    Positive.ran.clear()

    jax.jit(lambda x: Short(x=x))(-1.0)
    jax.eval_shape(lambda x: Short(x=x), 1.0)
    Short(x=jax.ShapeDtypeStruct((2,), jnp.float32))
    s.unflatten([-jnp.ones(9)])

    assert [] == Positive.ran


# --- class bodies that are refused --------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [np.zeros(2), jnp.zeros(2), [jnp.zeros(2)], {"a": np.zeros(2)}, (np.zeros(1), 2)],
    ids=["numpy", "jax", "list", "dict", "tuple"],
)
def test_an_array_without_annotation_is_refused(value):
    text = (
        r"^Bad\.w is an array without an annotation: every instance would share it, and "
        r"jit would compile its values into the program as constants\. Declare a field, "
        r"`w: jax\.Array = \.\.\.`, or, for a true constant, move it out of the class\.$"
    )

    with pytest.raises(UnannotatedArrayError, match=text):
        type("Bad", (ps.State,), {"w": value})


@pytest.mark.parametrize("name", ["replace", "at", "draft"])
def test_a_field_named_like_a_method_of_state_is_refused(name):
    text = (
        rf"^Bad cannot have a field '{name}': State has a method of that name, which the "
        rf"field would hide\. Choose another, such as `{name}_`\.$"
    )

    with pytest.raises(ReservedNameError, match=text):
        type("Bad", (ps.State,), {"__annotations__": {name: int}})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("__hidden__", r"cannot have a field named '__hidden__': choose an identifier"),
        ("_ps_cls", r"cannot have a field named '_ps_cls': choose an identifier"),
        (
            "class",
            r"cannot have a field named 'class', which is a keyword of Python: use",
        ),
        ("a b", r"cannot have a field named 'a b': choose an identifier"),
    ],
)
def test_a_name_that_cannot_be_a_field_is_refused(name, text):
    with pytest.raises(DeclarationError, match=text):
        type("Bad", (ps.State,), {"__annotations__": {name: int}})


def test_a_specifier_without_annotation_is_refused():
    text = (
        r"^Bad\.x has a field specifier but no annotation: write `x: SomeType = \.\.\.`"
    )

    with pytest.raises(DeclarationError, match=text):
        type("Bad", (ps.State,), {"x": ps.static(default=1)})


def test_slots_are_refused():
    with pytest.raises(
        DeclarationError, match=r"^Bad declares __slots__, which State doe"
    ):

        class Bad(ps.State):
            __slots__ = ("x",)


def test_a_tracer_as_default_is_refused():
    def make(x):
        class Bad(ps.State):
            w: jax.Array = x

    with pytest.raises(
        DeclarationError, match=r"^the default of Bad\.w is a tracer: the"
    ):
        jax.jit(make)(1.0)


def test_unknown_options_of_a_specifier_are_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'defualt'"):
        ps.field(defualt=1)
    with pytest.raises(ValueError, match="both default and default_factory"):
        ps.static(default=1, default_factory=int)
