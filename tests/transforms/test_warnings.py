"""What `ps.jit` warns about while it traces, and that it warns at the user's line."""

import functools
import inspect
import warnings

import jax
import jax.numpy as jnp
import optax
import pytest

import purestate as ps
from purestate.errors import (
    InPlaceWarning,
    LostUpdateWarning,
    PurestateWarning,
    RetraceWarning,
    StateDriftWarning,
)


class Inner(ps.State):
    m: jax.Array


class Box(ps.State):
    x: jax.Array
    opt: Inner | None = None
    parts: object = None
    n: int = ps.static(default=0)


def line():
    return inspect.currentframe().f_back.f_lineno


# --- retraces ---------------------------------------------------------------------------


def box_function():
    """Return a new jitted function, whose count of traces begins at zero."""
    return ps.jit(lambda box: box.x)


def all_calls(f, calls):
    """Make the calls, all but the last of which may not warn."""
    *first, last = calls
    for args, kwargs in first:
        f(*args, **kwargs)
    with pytest.warns(RetraceWarning) as caught:
        f(*last[0], **last[1])
    return str(caught[0].message)


def positional(*values):
    return [((value,), {}) for value in values]


ADVICE = (
    "\nEach trace compiles anew. Keep types fixed, and make what changes at every call "
    "a data field instead of a static one."
)

CHANGES = {
    "static value": (
        positional(*(Box(x=1.0, n=i) for i in range(8))),
        "Box.n: static value 6 -> 7",
    ),
    "static type": (
        positional(*(Box(x=1.0, n=i) for i in (6, 5, 4, 3, 2, 0, 1, True))),
        "Box.n: static value 1 -> True",
    ),
    "shape": (
        positional(*(Box(x=jnp.ones(i)) for i in range(8))),
        "Box.x: shape (6,) -> (7,)",
    ),
    "dtype": (
        positional(
            *(Box(x=jnp.ones(i)) for i in range(7)), Box(x=jnp.ones(6, jnp.int32))
        ),
        "Box.x: dtype float32 -> int32",
    ),
    "weak type": (
        positional(*(Box(x=None, parts=jnp.ones(i)) for i in range(6)),
                   Box(x=None, parts=1.0), Box(x=None, parts=jnp.float32(1))),
        "Box.parts: weak type True -> False",
    ),
    "inner shape": (
        positional(*(Box(x=1.0, opt=Inner(m=jnp.ones(i))) for i in range(8))),
        "Box.opt.m: shape (6,) -> (7,)",
    ),
    "inner structure": (
        positional(*(Box(x=1.0, parts={f"k{i}": 1.0}) for i in range(8))),
        "Box.parts: structure ['k6'] -> ['k7']",
    ),
    "class in a field": (
        positional(*(Box(x=1.0, n=i) for i in range(7)),
                   Box(x=1.0, n=6, opt=Inner(m=1.0))),
        "Box.opt: class NoneType -> Inner",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("calls", "change"), CHANGES.values(), ids=CHANGES)
def test_the_eighth_trace_of_a_function_names_what_changed(calls, change):
    @ps.jit
    def f(box):
        return box.x

    text = all_calls(f, calls)

    head = "f is being traced for the 8th time; since the last time:\n"
    assert head + change + ADVICE == text


ARGUMENTS = {
    "static argument": (
        [((1.0,), {"k": i}) for i in range(8)],
        "argument k: static value 6 -> 7",
    ),
    "static tuple": (
        [((1.0,), {"k": ("a", i)}) for i in range(8)],
        "argument k: static value 6 -> 7",
    ),
    "shape": (
        [((jnp.ones(i),), {}) for i in range(8)],
        "argument 0: shape (6,) -> (7,)",
    ),
    "weak type": (
        [((jnp.ones(i),), {}) for i in range(6)]
        + [((jnp.float32(1),), {}), ((1.0,), {})],
        "argument 0: weak type False -> True",
    ),
    "a key of a dict": (
        [(({"a": jnp.ones(i)},), {}) for i in range(8)],
        "argument 0['a']: shape (6,) -> (7,)",
    ),
    "one argument more": (
        [((1.0,) * (i + 1), {}) for i in range(8)],
        "argument 7: class NoneType -> f32[]",
    ),
    "one keyword more": (
        [((1.0,), {f"b{j}": 1.0 for j in range(i)}) for i in range(8)],
        "argument b6: class NoneType -> f32[]",
    ),
    "another class": (
        [((jnp.ones(i),), {}) for i in range(7)] + [((Inner(m=1.0),), {})],
        "argument 0: class f32[6] -> Inner",
    ),
}


@pytest.mark.parametrize(("calls", "change"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_a_change_outside_of_a_state_is_told_with_the_argument(calls, change):
    @functools.partial(ps.jit, static_argnames="k")
    def f(*args, k=0, **kwargs):
        return args

    assert f"\n{change}\n" in all_calls(f, calls)


class OneRepr:
    def __repr__(self):
        return "OneRepr"


def made_in_a_function_with_a_long_name():
    return [lambda x, i=i: x * i for i in range(8)]


UNSEEN = "static values count as equal when the first 60 characters of their repr are"


@pytest.mark.parametrize(
    "values",
    [
        ["a" * 60 + str(i) for i in range(8)],
        [OneRepr() for _ in range(8)],
        made_in_a_function_with_a_long_name(),
    ],
    ids=["strings", "objects", "functions"],
)
def test_a_new_static_argument_at_every_call_is_noticed(values):
    f = ps.jit(lambda x, k: x, static_argnames="k")

    text = all_calls(f, [((1.0,), {"k": value}) for value in values])

    assert "argument k" in text


def test_a_change_in_the_second_of_two_states_is_told_with_the_argument():
    f = ps.jit(lambda a, b: a.m)

    text = all_calls(f, [((Inner(m=1.0), Inner(m=jnp.ones(i))), {}) for i in range(8)])

    assert "argument 1" in text


def test_every_later_trace_warns_again():
    f = box_function()
    all_calls(f, positional(*(Box(x=jnp.ones(i)) for i in range(8))))

    with pytest.warns(RetraceWarning, match=r"for the 9th time; since the last time:"):
        f(Box(x=jnp.ones(8)))


def test_calls_with_known_types_are_no_traces():
    f = box_function()

    for _ in range(5):
        for i in range(7):
            f(Box(x=jnp.ones(i)))


def test_other_uses_of_the_same_types_are_no_retraces():
    f, box = box_function(), Box(x=jnp.ones(3))

    for _ in range(9):
        f.lower(box), f.trace(box), f.eval_shape(box), jax.eval_shape(f, box)
        jax.make_jaxpr(f)(box), jax.jit(lambda b: f(b))(box)
        jax.vmap(f, axis_size=2, in_axes=None)(box)
        jax.grad(lambda b: f(b).sum())(box)
        f.clear_cache()
        f(box)


def test_each_function_counts_for_itself():
    for i in range(9):
        box_function()(Box(x=jnp.ones(i)))


def test_methods_count_over_all_instances():
    class S(ps.State):
        x: jax.Array
        n: int = ps.static()

        def read(self):
            return self.x

    for i in range(7):
        ps.jit(S(x=1.0, n=i).read)()
    with pytest.warns(RetraceWarning, match=r"S\.n: static value 6 -> 7\n"):
        ps.jit(S(x=1.0, n=7).read)()


def test_an_optimizer_made_anew_is_told_from_the_last_with_the_way_out():
    class Train(ps.State):
        w: jax.Array
        tx: object = ps.static()

    f = ps.jit(lambda train: train.w)
    text = all_calls(f, positional(*(Train(1.0, optax.sgd(0.1)) for _ in range(8))))

    line = next(line for line in text.splitlines() if line.startswith("Train.tx: "))
    assert "static value GradientTransformationExtraArgs" in line
    assert line.endswith(
        " -> another, and no two of optax are equal: use purestate.optax.Optimizer, or "
        "functools.partial(optax.adam, 1e-3)"
    )


def test_the_way_out_for_an_optimizer_in_a_static_field_works():
    class Train(ps.State):
        w: jax.Array
        tx: object = ps.static(default=functools.partial(optax.sgd, 0.1))

        @ps.jit
        def step(self):
            traced.append(1)
            updates, _ = self.tx().update(self.w, self.tx().init(self.w))
            return self.replace(w=self.w + updates)

    traced = []
    for _ in range(9):
        assert 0.9 == pytest.approx(float(Train(1.0).step().w))
    assert [1] == traced


def test_a_static_field_that_the_method_does_not_read_is_named_all_the_same():
    class Shape(ps.State):
        length: jax.Array
        idx: int = ps.static()

    traces = []

    @ps.jit
    def area(s):
        traces.append(1)
        return s.length**2

    two, three = Shape(length=1.0, idx=2), Shape(length=1.0, idx=3)
    area(two), area(three), area(three)

    assert 2 == len(traces)
    assert "Shape.idx: static value 2 -> 3" == str(ps.diff(two, three))


# --- drift ------------------------------------------------------------------------------

DRIFTS = {
    "shape": (lambda b: b.replace(x=b.x[:1]), "Box.x: shape (3,) -> (1,)"),
    "dtype": (
        lambda b: b.replace(x=b.x.astype(jnp.int32)),
        "Box.x: dtype float32 -> int32",
    ),
    "weak type": (
        lambda b: b.replace(parts=jnp.asarray(1.0)),
        "Box.parts: weak type False -> True",
    ),
    "structure": (
        lambda b: b.replace(opt=None, parts=(b.parts,)),
        "Box.opt: class Inner -> NoneType\nBox.parts: class f32[](traced) -> tuple",
    ),
    "inner": (
        lambda b: b.replace(opt=b.opt.replace(m=b.opt.m[0])),
        "Box.opt.m: shape (2,) -> ()",
    ),
    "static value": (lambda b: b.replace(n=1), "Box.n: static value 0 -> 1"),
    "with results": (
        lambda b: (b.replace(x=b.x[:1]), b.x),
        "Box.x: shape (3,) -> (1,)",
    ),
}


@pytest.mark.parametrize(("change", "told"), DRIFTS.values(), ids=DRIFTS)
def test_a_state_that_comes_back_as_another_type_is_told(change, told):
    @ps.jit
    def step(box):
        return change(box)

    box = Box(x=jnp.ones(3), opt=Inner(m=jnp.ones(2)), parts=jnp.float32(0))
    with pytest.warns(StateDriftWarning) as caught:
        step(box)

    assert str(caught[0].message) == (
        f"step returns its Box changed:\n{told}\nThe next call will be traced again, "
        f"and scan would refuse it. Cast or reshape inside step, or start from the "
        f"type that it returns."
    )


@pytest.mark.parametrize(
    "part",
    [
        lambda box: ps.grad(lambda b: b.x.sum(), wrt="x")(box),
        lambda box: ps.partition(box, "x")[0],
        lambda box: ps.partition(box, "x"),
    ],
    ids=["gradient", "part", "both parts"],
)
@pytest.mark.parametrize("pack", [lambda box: box, ps.pack], ids=["plain", "packed"])
def test_a_part_of_a_state_is_no_drift(part, pack):
    box = Box(x=jnp.ones(3), opt=Inner(m=jnp.ones(2)), parts=jnp.float32(0))

    found = ps.jit(part)(pack(box))  # a warning is an error

    first = found[0] if isinstance(found, tuple) else found
    assert (1, 3) == (len(jax.tree.leaves(first)), len(jax.tree.leaves(box)))


def test_drift_is_told_while_tracing_only():
    step = ps.jit(lambda box: box.replace(n=1))

    with pytest.warns(StateDriftWarning):
        step(Box(x=1.0))
    step(Box(x=1.0))


@pytest.mark.parametrize(
    "fn",
    [
        lambda box: box.replace(x=box.x + 1),
        lambda box: (box.replace(x=box.x * 2), box.x.sum(), None),
        lambda box: [box, box.x],
        lambda box: box.x[:1],
        lambda box: box.opt,
        lambda box: {"box": box.replace(x=box.x[:1])},
        lambda box: (),
        lambda box: None,
        lambda box: jax.tree.map(lambda leaf: leaf + 1, box),
    ],
)
def test_a_function_that_keeps_its_state_or_returns_none_is_silent(fn):
    ps.jit(fn)(Box(x=jnp.ones(3), opt=Inner(m=jnp.ones(2))))


def test_a_number_in_a_field_annotated_as_one_does_not_drift():
    class S(ps.State):
        x: jax.Array
        rate: float = 0.5

        @ps.jit
        def step(self):
            return self.replace(x=self.x * self.rate, rate=self.rate * 2)

    s = S(x=1.0).step().step()

    assert (0.5, 2.0) == (s.x, s.rate)


# --- lost updates -----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize(
    "fn", [lambda b: b.x + 1, lambda b: None, lambda b: (b.x, b.opt), lambda b: b.opt]
)
def test_a_donated_method_that_returns_no_state_warns(fn):
    class S(Box):
        @ps.jit(donate=True)
        def step(self):
            return fn(self)

    with pytest.warns(LostUpdateWarning) as caught:
        S(x=jnp.ones(3), opt=Inner(m=jnp.ones(2))).step()

    assert str(caught[0].message) == (
        "S.step donates its S but returns none: after the call its arrays are gone. "
        "Return self.replace(...), or drop donate=True."
    )


@pytest.mark.parametrize(
    "fn",
    [
        lambda b: b,
        lambda b: (b, b.x * 2),
        lambda b: (b.x * 2, b),
        lambda b: {"a": [b]},
    ],
    ids=["state", "first", "last", "inside"],
)
def test_a_donated_method_that_returns_its_state_anywhere_is_silent(fn):
    ps.jit(fn, donate=True)(Box(x=jnp.ones(3)))


def test_a_method_that_donates_nothing_may_return_what_it_likes():
    ps.jit(lambda box: box.x)(Box(x=1.0))


def test_a_parameter_donated_by_name_that_does_not_come_back_warns():
    f = ps.jit(lambda k, box: box.x + k, donate="box")

    with pytest.warns(LostUpdateWarning, match=r"donates its Box but returns none"):
        f(1.0, Box(x=jnp.ones(3)))


# --- where it is said -------------------------------------------------------------------


def drift():
    return ps.jit(lambda box: box.replace(n=1))


class Callers(Box):
    @ps.jit
    def drift(self):
        return self.replace(x=self.x[:1])


def under_vmap(f, box):
    return jax.vmap(f)(box), line()


def under_scan(f, box):
    return (
        jax.lax.scan(lambda c, _: (c, f(box).x), 0, None, length=2),
        line() - 1,
    )


def under_jit(f, box):
    return jax.jit(lambda box: f(box))(box), line()


def under_eval_shape(f, box):
    return jax.eval_shape(f, box), line()


def under_ps_jit(f, box):
    return ps.jit(lambda box: f(box).x)(box), line()


def directly(f, box):
    return f(box), line()


@pytest.mark.parametrize(
    "call",
    [directly, under_vmap, under_scan, under_jit, under_eval_shape, under_ps_jit],
)
def test_a_warning_points_at_the_line_of_the_user(call):
    with pytest.warns(StateDriftWarning) as caught:
        _, number = call(drift(), Box(x=jnp.ones(2)))

    assert (__file__, number) == (caught[0].filename, caught[0].lineno)


def test_a_warning_of_a_method_points_at_the_call():
    box = Callers(x=jnp.ones(2))

    with pytest.warns(StateDriftWarning) as caught:
        _, number = box.drift(), line()

    assert (__file__, number) == (caught[0].filename, caught[0].lineno)


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_all_warnings_point_at_the_call():
    f = ps.jit(lambda box: box.x.sum(), donate=True)
    for i in range(7):
        with pytest.warns(LostUpdateWarning):
            f(Box(x=jnp.ones(i)))

    with pytest.warns() as caught:
        _, number = f(Box(x=jnp.ones(8))), line()

    ours = [w for w in caught if isinstance(w.message, PurestateWarning)]
    assert [RetraceWarning, LostUpdateWarning] == [w.category for w in ours]
    assert {(__file__, number)} == {(w.filename, w.lineno) for w in ours}


def test_warnings_that_are_errors_stop_the_call_and_leave_the_function_usable():
    f = drift()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(StateDriftWarning, match=r"Box\.n: static value 0 -> 1"):
            f(Box(x=1.0))
    with pytest.warns(StateDriftWarning):
        assert 1 == f(Box(x=1.0)).n


def test_warnings_are_user_warnings_of_one_base():
    for kind in (LostUpdateWarning, RetraceWarning, StateDriftWarning):
        assert issubclass(kind, PurestateWarning)
    assert issubclass(PurestateWarning, UserWarning)


def test_no_warning_under_plain_jax_jit():
    f = jax.jit(lambda box: box.replace(x=box.x[:1]))

    for i in range(1, 10):
        f(Box(x=jnp.ones(i)))


# --- containers that are changed in place --------------------------------------------------


class Logged(ps.State):
    x: jax.Array
    log: dict = ps.field(default_factory=dict)

    @ps.jit
    def lost(self):
        self.log["x"] = self.x * 2
        return self.log["x"]

    @ps.jit
    def returned(self):
        self.log["x"] = self.x * 2
        return self

    @ps.jit
    def fine(self):
        return self.x


def test_a_container_that_is_changed_in_vain_is_warned_about():
    text = (
        r"^Logged\.lost changes a dict, list or array inside its Logged in place\. Under jit "
        r"that is a copy, so the caller's Logged does not see it\. Return an updated one: "
        r"self\.replace\(field=\{\*\*self\.field, \.\.\.\}\)\.$"
    )

    with pytest.warns(InPlaceWarning, match=text):
        Logged(x=1.0).lost()


def test_a_container_that_is_changed_and_returned_is_drift():
    with pytest.warns(
        StateDriftWarning, match=r"Logged\.log: structure empty -> \['x'\]"
    ):
        assert {"x": 2.0} == Logged(x=1.0).returned().log


def test_reading_a_container_is_no_change():
    assert 1.0 == Logged(x=1.0, log={"a": [1]}).fine()


def test_values_that_look_alike_are_said_to():
    class Made:
        def __repr__(self):
            return "Made()"

    f = ps.jit(lambda s: s.x)

    class Holder(ps.State):
        x: jax.Array
        made: object = ps.static()

    def call_often():
        for _ in range(8):
            f(Holder(x=1.0, made=Made()))

    with pytest.warns(RetraceWarning, match=r"Made\(\) -> another that looks the same"):
        call_often()
