"""`replace` and its two relatives in the standard library."""

import copy
import dataclasses
import functools
import sys
from dataclasses import InitVar

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from purestate.errors import DerivedFieldError, FieldError, StrictFieldError


class Counter(ps.State):
    count: jax.Array
    label: str = ps.static(default="a")


class Derived(ps.State):
    i: jax.Array
    j: jax.Array = ps.field(init=False)

    def __post_init__(self):
        self.j = 10 * self.i


def test_replace_leaves_the_original_alone_and_shares_the_rest():
    class S(ps.State):
        x: jax.Array
        y: jax.Array

    before = S(x=1, y=2)

    after = before.replace(x=jnp.int32(3))

    assert (1, 3) == (int(before.x), int(after.x))
    assert before.y is after.y
    assert S is type(after)


def test_replace_works_on_static_fields():
    after = Counter(count=1).replace(label="b")

    assert "b" == after.label
    assert jax.tree.structure(Counter(count=1, label="b")) == jax.tree.structure(after)


def test_replace_inside_jit():
    after = jax.jit(lambda c: c.replace(count=c.count + 1, label="z"))(Counter(count=1))

    assert (2, "z") == (int(after.count), after.label)


def test_an_unknown_name_fails_with_the_nearest_one_or_the_list():
    with pytest.raises(
        FieldError, match=r"^Counter has no field 'cuont'; did you mean 'count'\?$"
    ):
        Counter(count=0).replace(cuont=1)
    with pytest.raises(
        FieldError, match=r"^Counter has no field 'zzz'; its fields are count, label\.$"
    ):
        Counter(count=0).replace(zzz=1)


def test_replace_never_calls_a_hand_written_init():
    class M(ps.State):
        w: jax.Array

        def __init__(self, w):
            self.w = w * 2

    m = M(jnp.ones(()))

    assert 2.0 == float(m.w)
    for update in (m.replace, functools.partial(dataclasses.replace, m)):
        assert 5.0 == float(update(w=jnp.asarray(5.0)).w)


def test_a_derived_field_is_never_stale():
    c = Derived(i=jnp.asarray(1.0))

    assert 20.0 == float(c.replace(i=jnp.asarray(2.0)).j)
    assert 20.0 == float(dataclasses.replace(c, i=jnp.asarray(2.0)).j)
    assert 20.0 == float(jax.jit(lambda q: q.replace(i=q.i + 1))(c).j)


def test_a_derived_field_cannot_be_given():
    text = (
        r"^Derived\.j is computed in __post_init__, which runs again at every replace, so "
        r"a value given for it would be lost\. Replace what it is computed from\. If "
        r"__post_init__ only starts it, declare it with ps\.field\(init=False, "
        r"derived=False\)\.$"
    )

    with pytest.raises(DerivedFieldError, match=text):
        Derived(i=1.0).replace(j=3.0)


def test_an_init_false_field_that_post_init_leaves_alone_is_ordinary_data():
    class S(ps.State):
        x: jax.Array
        cache: jax.Array = ps.field(init=False, default=0)
        other: jax.Array = ps.field(init=False)

        def __post_init__(self):
            self.other = self.x

    s = S(x=1).replace(cache=5)

    assert 5 == int(s.cache)
    assert (5, 2) == (int(s.replace(x=2).cache), int(s.replace(x=2).other))


def test_a_derived_field_that_is_set_to_its_default_is_not_taken_for_unset():
    class S(ps.State):
        on: bool
        extra: object = ps.field(init=False, default=None)

        def __post_init__(self):
            self.extra = 1 if self.on else None

    assert S(on=True).replace(on=False).extra is None


def test_a_derived_field_set_past_setattr_is_recognised():
    class S(ps.State):
        x: int
        y: int = ps.field(init=False)

        def __post_init__(self):
            object.__setattr__(self, "y", self.x + 1)

    assert 6 == S(x=1).replace(x=5).y


def test_dataclasses_replace_keeps_init_false_fields_and_runs_converters_once():
    class S(ps.State):
        x: int = ps.field(converter=lambda v: v * 2)
        cache: int = ps.field(init=False, default=0)
        y: int = 0

    s = S(x=1).replace(cache=7)

    t = dataclasses.replace(s, y=3)

    assert (2, 7, 3) == (t.x, t.cache, t.y)


@pytest.mark.skipif(
    sys.version_info < (3, 13), reason="copy.replace exists from Python 3.13 on"
)
def test_copy_replace_reaches_the_same_code():
    assert 20.0 == float(copy.replace(Derived(i=1.0), i=2.0).j)
    with pytest.raises(FieldError, match=r"^Counter has no field 'x'"):
        copy.replace(Counter(count=1), x=2)


def test_an_initvar_without_default_must_be_given_again():
    class S(ps.State):
        x: jax.Array
        by: InitVar[float]
        y: jax.Array = ps.field(init=False)

        def __post_init__(self, by):
            self.y = self.x * by

    s = S(x=2.0, by=3.0)
    text = (
        r"^S\.replace runs __post_init__ again and needs its InitVar by: write "
        r"replace\(\.\.\., by=\.\.\.\), or give by a default\.$"
    )

    assert 8.0 == float(s.replace(x=4.0, by=2.0).y)
    with pytest.raises(FieldError, match=text):
        s.replace(x=4.0)


@pytest.mark.parametrize(
    ("old", "number", "dtype"),
    [
        (jnp.float32(1), 2, jnp.float32),
        (jnp.bfloat16(1), 1.5, jnp.bfloat16),
        (jnp.uint8(1), True, jnp.uint8),
        (jnp.uint8(1), 300, jnp.int32),
        (jnp.int32(1), 1.5, jnp.float32),
    ],
    ids=str,
)
def test_a_number_keeps_the_dtype_of_the_array_that_it_replaces(old, number, dtype):
    class S(ps.State):
        x: jax.Array | None

    after = S(x=old).replace(x=number)
    with S(x=old).draft() as drafted:
        drafted.x = number

    assert (dtype, False) == (after.x.dtype, after.x.weak_type)
    assert dtype == drafted.x.dtype


class Strict(ps.State, strict=True):
    x: jax.Array
    tree: dict = ps.field(default_factory=dict)
    n: int = ps.static(default=1)


class StillStrict(Strict):
    y: object = None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"x": jnp.zeros(2)}, r"strict and x would change from f32\[3\] to f32\[2\]\."),
        ({"x": jnp.zeros(3, jnp.int32)}, r"x would change from f32\[3\] to i32\[3\]\."),
        ({"x": None}, r"x would change from f32\[3\] to None\."),
        (
            {"tree": {"a": jnp.ones(1)}},
            r"tree\['a'\] would change from f32\[\] to f32\[1\]",
        ),
        (
            {"tree": {}},
            r"tree would change from \{'a': f32\[\]\} to \{\}\.",
        ),
        ({"tree": {"a": 1.0}}, r"tree\['a'\] would change from f32\[\] to float\."),
    ],
    ids=str,
)
@pytest.mark.parametrize("cls", [Strict, StillStrict])
def test_a_strict_class_refuses_another_shape_dtype_or_structure(cls, change, text):
    s = cls(x=jnp.zeros(3), tree={"a": jnp.ones(())})

    with pytest.raises(StrictFieldError, match=text):
        s.replace(**change)


def test_a_strict_class_accepts_the_same_type_and_other_static_values():
    s = Strict(x=jnp.zeros(3))

    assert [1, 1, 1] == s.replace(x=jnp.ones(3), n=5).x.tolist()
    with pytest.raises(
        StrictFieldError, match=r"Cast or reshape the value, construct a "
    ):
        jax.jit(lambda q: q.replace(x=q.x[:2]))(s)


def test_a_subclass_may_leave_strictness():
    class Loose(Strict, strict=False):
        pass

    assert (2,) == Loose(x=jnp.zeros(3)).replace(x=jnp.zeros(2)).x.shape


def test_a_users_own_replace_is_kept_and_can_call_super():
    class A(ps.State):
        x: int

        def replace(self, **changes):
            return super().replace(**{k: v + 1 for k, v in changes.items()})

    class B(A):
        y: int = 0

    assert 6 == A(x=1).replace(x=5).x
    assert (6, 3) == (B(x=1).replace(x=5).x, B(x=1).replace(y=2).y)


def test_replace_without_changes_is_a_copy():
    c = Counter(count=1)

    assert c == c.replace()
    assert c is not c.replace()


# --- the standard library's replace, whatever is around the constructor --------------


def logged(init):
    """Return a constructor with another around it, as loggers and checkers put one."""

    @functools.wraps(init)
    def __init__(self, *args, **kwargs):
        init(self, *args, **kwargs)

    return __init__


@pytest.mark.parametrize("times", [0, 1, 2])
def test_dataclasses_replace_does_what_replace_does_behind_a_decorated_init(times):
    class Doubled(ps.State):
        x: jax.Array = ps.field(converter=lambda x: jnp.asarray(x) * 2)
        n: int = ps.static(default=1)

    for _ in range(times):
        Doubled.__init__ = logged(Doubled.__init__)
    doubled = Doubled(1.0)

    assert doubled.replace(n=3) == dataclasses.replace(doubled, n=3)
    assert doubled.replace(x=5.0) == dataclasses.replace(doubled, x=5.0)


def test_dataclasses_replace_does_not_run_a_decorated_hand_written_init():
    class Counted(ps.State):
        x: jax.Array
        seen: jax.Array = ps.field(init=False)

        @logged
        def __init__(self, x):
            self.x, self.seen = x, 0

    counted = Counted(jnp.zeros(2)).replace(seen=jnp.int32(7))

    assert 7 == dataclasses.replace(counted, x=jnp.ones(2)).seen


def test_dataclasses_replace_works_under_the_decorator_on_top():
    @dataclasses.dataclass
    class Doubled(ps.State):
        x: jax.Array = ps.field(converter=lambda x: jnp.asarray(x) * 2)
        n: int = ps.static(default=1)

    doubled = Doubled(1.0)

    assert doubled.replace(n=3) == dataclasses.replace(doubled, n=3)


def test_the_way_in_of_dataclasses_replace_is_no_field():
    class Box(ps.State):
        x: jax.Array

    assert ["x"] == [spec.name for spec in dataclasses.fields(Box(x=1.0))]
    assert {"x": 1.0} == dataclasses.asdict(Box(x=1.0))
    assert ("x",) == Box.__match_args__
