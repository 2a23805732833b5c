"""Classes, methods and host functions that are broken on purpose, and who notices.

Each is caught by the law that is about its defect, by name.
"""

import copy
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Int

import purestate as ps
import purestate.testing as pst
from purestate.errors import LawError

Vector = Float[Array, "n"]


# --- classes ---------------------------------------------------------------------------


def registered(flatten=None, unflatten=None, keys=("a", "b"), **body):
    """Return a dataclass of two arrays, registered by hand, with defects."""

    @dataclasses.dataclass
    class Mutant:
        a: Vector
        b: Int[Array, ""]

        def replace(self, **changes):
            return dataclasses.replace(self, **changes)

    for name, value in body.items():
        setattr(Mutant, name, value)

    def plain(aux, leaves):
        made = object.__new__(Mutant)
        made.a, made.b = leaves
        return made

    def with_keys(s):
        children, aux = (flatten or (lambda s: ((s.a, s.b), None)))(s)
        named = zip(map(jax.tree_util.GetAttrKey, keys), children, strict=True)
        return tuple(named), aux

    make = plain if unflatten is None else functools.partial(unflatten, Mutant)
    jax.tree_util.register_pytree_with_keys(Mutant, with_keys, make)
    return Mutant


def filled(cls, a, b):
    made = object.__new__(cls)
    made.a, made.b = a, b
    return made


class Identity:
    """Auxiliary data without an equality of its own."""


class Silent:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def two_steps(self, **changes):
    made = copy.copy(self)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def zeroing(self, **changes):
    made = two_steps(self, **changes)
    if "a" in changes and changes["a"] is not self.a:
        made.b = jnp.int32(77)
    return made


def in_place(self, **changes):
    for name, value in changes.items():
        setattr(self, name, value)
    return self


def stale():
    @dataclasses.dataclass
    class Stale:
        a: Vector
        total: jax.Array = dataclasses.field(init=False)

        def __post_init__(self):
            self.total = self.a * 2

        replace = two_steps

    def unflatten(_, leaves):
        made = object.__new__(Stale)
        made.a, made.total = leaves
        return made

    jax.tree_util.register_pytree_with_keys(
        Stale,
        lambda s: (
            [(jax.tree_util.GetAttrKey(n), getattr(s, n)) for n in ("a", "total")],
            None,
        ),
        unflatten,
    )
    return Stale


def first_wins(self, **changes):
    made = two_steps(self, **changes)
    if getattr(self, "touched", False):
        return self
    made.touched = True
    return made


_SHARED = jnp.zeros(3)
_KEPT = []


class Shares(ps.State):
    a: Vector
    work: jax.Array

    def __init__(self, a: Vector):
        self.a, self.work = a, _SHARED


class Doubles(ps.State):
    a: Vector
    twin: jax.Array

    def __init__(self, a: Vector):
        self.a = self.twin = a


class Keeps(ps.State):
    a: Vector

    def __post_init__(self):
        _KEPT.append(self.a)
        type(self).last = self.a


class Reads(ps.State):
    a: Int[Array, ""]

    def __post_init__(self):
        if self.a == 12345:
            raise ValueError("too large")


class Equal(ps.State):
    a: Vector
    n: int = ps.static()

    def __eq__(self, other):
        return True


def equal_by(compare, **body):
    """Return a State of two arrays and two static values, with an `==` of its own."""

    class Compared(ps.State):
        a: Vector
        b: Int[Array, ""]
        n: int = ps.static(default=3)
        note: str = ps.static(default="", compare=False)

        def __eq__(self, other):
            if type(other) is not type(self):
                return NotImplemented
            return compare(self, other)

        __hash__ = None

    for name, value in body.items():
        setattr(Compared, name, value)
    return Compared


def all_fields(s, other):
    same = bool((s.a == other.a).all() and s.b == other.b)
    return same and s.n == other.n


EQUALITIES = {
    "of the same class": lambda s, other: True,
    "by one array": lambda s, other: s.n == other.n and bool((s.a == other.a).all()),
    "by its arrays": lambda s, other: bool((s.a == other.a).all() and s.b == other.b),
    "by its static values": lambda s, other: s.n == other.n,
    "by shapes": lambda s, other: s.n == other.n and s.a.shape == other.a.shape,
    "by any number": lambda s, other: bool((s.a == other.a).any()),
    "by the first number": lambda s, other: bool((s.a == other.a)[:1].all()),
    "by a sum that only grows": lambda s, other: bool(s.a.sum() <= other.a.sum()),
    "by identity": lambda s, other: s is other,
    "never": lambda s, other: False,
    "number by number": lambda s, other: s.a == other.a,
    "as a number of numpy": lambda s, other: np.bool_(all_fields(s, other)),
    "as an array": lambda s, other: jnp.asarray(all_fields(s, other)),
    "or a number": lambda s, other: int(all_fields(s, other)),
}


@pytest.mark.parametrize("way", EQUALITIES)
def test_a_wrong_equality_is_caught(way):
    with pytest.raises(LawError) as caught:
        pst.check_state(equal_by(EQUALITIES[way]), laws=["equality"])

    assert "equality" == caught.value.law


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            {"__eq__": lambda self, other: True},
            "== says True of an object of another class.",
        ),
        ({"__ne__": lambda self, other: False}, "and != is not the opposite."),
    ],
)
def test_a_wrong_equality_is_told_what_is_wrong(body, text):
    with pytest.raises(LawError) as caught:
        pst.check_state(equal_by(all_fields, **body), laws=["equality"])

    assert text in str(caught.value)


def roughly(s, other):
    near = jnp.allclose(s.a, other.a, equal_nan=True) and s.b == other.b
    return bool(near) and s.n == other.n


@pytest.mark.parametrize("compare", [all_fields, roughly])
def test_an_equality_of_ones_own_passes(compare):
    assert pst.check_state(equal_by(compare), laws=["equality"]).examples["equality"]


def test_fields_that_do_not_count_are_no_difference():
    class Cached(ps.State):
        a: Vector
        guess: Vector = ps.field(compare=False, default=0)

        def __eq__(self, other):
            return type(other) is Cached and bool((self.a == other.a).all())

        __hash__ = None

    assert pst.check_state(Cached, laws=["equality"]).examples["equality"]


class Hashed(ps.State):
    n: int = ps.static()

    def __hash__(self):
        return id(self)


class Mute(ps.State):
    a: Vector

    def __repr__(self):
        return f"Mute({self.a.shape})"


class Forgets(ps.State):
    a: Vector

    def __getstate__(self):
        return {"a": self.a * 0 + 7}


class Copies(ps.State):
    a: Vector

    def __deepcopy__(self, memo):
        return type(self)(self.a.astype("complex64"))


class NotThere(ps.State):
    a: Vector

    def at(self, where):
        place = super().at(where)
        place.set = lambda value: self
        return place


class Lossy(ps.State):
    a: Vector

    def draft(self):
        @dataclasses.dataclass
        class Draft(Silent):
            pass

        draft = Draft()
        draft.__dict__ |= self.__dict__
        return draft


class Unchecked(ps.State):
    a: Vector
    act: object = ps.static(default=None)

    def replace(self, **changes):
        made = copy.copy(self)
        for name, value in changes.items():
            object.__setattr__(made, name, value)
        return made


class Numbers(ps.State):
    a: Vector
    b: Vector

    def replace(self, **changes):
        changes = {n: v if v is None else jnp.asarray(v) for n, v in changes.items()}
        return super().replace(**changes)


class AllNumbers(ps.State):
    a: Vector
    b: Vector

    def replace(self, **changes):
        return jax.tree.map(jnp.asarray, super().replace(**changes))


class Scaled(ps.State):
    a: Vector
    b: Vector


def scaling(init):
    """Return a constructor that changes what it hands on."""

    @functools.wraps(init)
    def __init__(self, *args, **kwargs):
        twice = {n: 2 * v if isinstance(v, jax.Array) else v for n, v in kwargs.items()}
        init(self, *args, **twice)

    return __init__


Scaled.__init__ = scaling(Scaled.__init__)


class Slots:
    __slots__ = ("extra",)


class Slotted(Slots, ps.State):
    """Cannot change its class, which is how a State explains that it was donated."""

    a: Vector


CLASSES = {
    "unflatten runs a hook": (
        lambda: registered(unflatten=lambda cls, _, leaves: cls(*leaves)),
        "no_code",
    ),
    "unflatten converts leaves": (
        lambda: registered(
            unflatten=lambda cls, _, leaves: filled(cls, *map(jnp.asarray, leaves))
        ),
        "any_leaf",
    ),
    "unflatten validates leaves": (
        lambda: registered(
            unflatten=lambda cls, _, ls: filled(cls, *(x + 0 * len(x.shape) for x in ls))
        ),
        "any_leaf",
    ),
    "a dropped leaf": (
        lambda: registered(
            flatten=lambda s: ((s.a,), None),
            unflatten=lambda cls, _, leaves: filled(cls, leaves[0], jnp.int32(9)),
            keys=("a",),
        ),
        "rebuild",
    ),
    "a forgotten field": (
        lambda: registered(
            flatten=lambda s: ((s.a,), None),
            unflatten=lambda cls, _, leaves: two_steps(object.__new__(cls), a=leaves[0]),
            keys=("a",),
        ),
        "rebuild",
    ),
    "swapped fields": (
        lambda: registered(unflatten=lambda cls, _, ls: filled(cls, ls[1], ls[0])),
        "rebuild",
    ),
    "a static array": (
        lambda: registered(
            flatten=lambda s: ((s.a,), s.b),
            unflatten=lambda cls, b, leaves: filled(cls, leaves[0], b),
            keys=("a",),
        ),
        "arrays_are_leaves",
    ),
    "two leaves of one name": (lambda: registered(keys=("a", "a")), "key_paths"),
    "key paths that lead nowhere": (lambda: registered(keys=("a", "z")), "key_paths"),
    "structures compared by identity": (
        lambda: registered(flatten=lambda s: ((s.a, s.b), Identity())),
        "equal_structures",
    ),
    "replace that does nothing": (
        lambda: registered(replace=lambda self, **changes: self),
        "get_put",
    ),
    "replace that touches another field": (lambda: registered(replace=zeroing), "shares_the_rest"),
    "replace in place": (lambda: registered(replace=in_place), "leaves_the_source"),
    "the first replace wins": (lambda: registered(replace=first_wins), "put_put"),
    "a stale derived field": (stale, "constructs"),
    "a default buffer for all instances": (lambda: Shares, "donation"),
    "one buffer in two fields": (lambda: Doubles, "donation"),
    "a constructor that keeps a tracer": (lambda: Keeps, "constructs_in_jit"),
    "a constructor that reads values": (lambda: Reads, "constructs_in_jit"),
    "== is always true": (lambda: Equal, "equality"),
    "a hash by identity": (lambda: Hashed, "hashes"),
    "a repr that asks leaves for shapes": (lambda: Mute, "shows"),
    "a pickle of something else": (lambda: Forgets, "pickles"),
    "unflatten that swaps what was saved": (
        lambda: registered(unflatten=lambda cls, _, ls: filled(cls, ls[1], ls[0])),
        "saves",
    ),
    "a deepcopy of another dtype": (lambda: Copies, "copies"),
    "at that sets nothing": (lambda: NotThere, "at"),
    "a draft that loses assignments": (lambda: Lossy, "draft"),
    "replace that stores any static value": (lambda: Unchecked, "static_methods"),
    "replace that makes arrays of flags": (lambda: Numbers, "flags"),
    "replace that makes arrays of other flags": (lambda: AllNumbers, "flags"),
    "a constructor that changes what it is given": (lambda: Scaled, "dataclass_replace"),
    "a failed donation without a word": (lambda: Slotted, "failed_donation"),
}  # fmt: skip


@pytest.mark.parametrize("mutant", CLASSES)
def test_a_broken_class_is_caught_by_the_law_about_it(mutant):
    make, law = CLASSES[mutant]

    with pytest.raises(LawError) as caught:
        pst.check_state(make(), laws=[law])  # others may break at the same example

    assert law == caught.value.law


def test_a_method_of_a_state_in_a_static_field_is_told_with_the_field():
    with pytest.raises(LawError) as caught:
        pst.check_state(Unchecked, laws=["static_methods"])

    assert str(caught.value).startswith(
        "Unchecked breaks the law 'static_methods' at Unchecked.act, on cpu.\n"
        "The law: a static field refuses methods of what holds arrays.\n"
        "it took a method of a State: jit would compile the arrays of that into the "
        "program.\n"
    )


def test_a_flag_that_is_changed_is_told_with_the_field():
    with pytest.raises(LawError) as caught:
        pst.check_state(AllNumbers, laws=["flags"])

    assert "in a tree of None, replace(" in str(caught.value)


# --- methods ---------------------------------------------------------------------------

CALLS = []
LOG = []


@jax.custom_jvp
def wrong_slope(x):
    return jnp.sin(x)


wrong_slope.defjvp(lambda xs, ts: (jnp.sin(xs[0]), 2 * jnp.cos(xs[0]) * ts[0]))


@jax.custom_vjp
def wrong_pullback(x):
    return jnp.sin(x)


wrong_pullback.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (-jnp.cos(x) * ct,))


@jax.custom_batching.custom_vmap
def wrong_batch(x):
    return x * 2


@wrong_batch.def_vmap
def _(size, mapped, x):
    return x[::-1] * 2, True


class Walker(ps.State):
    x: Vector
    count: Int[Array, ""] = 0

    def numbered(self):
        CALLS.append(1)
        return self.replace(x=self.x + len(CALLS))

    def traced_differently(self):
        return self.replace(x=self.x + isinstance(self.x, jax.core.Tracer))

    def remembers(self):
        LOG.append(self.x)
        return self.replace(x=self.x + 1)

    def slope(self):
        return wrong_slope(self.x)

    def pullback(self):
        return wrong_pullback(self.x)

    def batch(self):
        return wrong_batch(self.x)

    def drifts(self):
        return self.replace(count=self.count + 1.5)

    def weakens(self):
        return self.replace(count=jnp.where(self.count > 0, 1, 2))

    def doubles(self):
        return Twice(self.x, self.x)

    @jax.jit
    def jitted_reads_a_global(self):
        return self.x + len(CALLS)


class Leaky(ps.State):
    x: Vector

    def keeps_on_the_class(self):
        type(self).last = self.x * 2
        return self


class Twice(ps.State):
    a: Vector
    b: Vector

    def again(self):
        return self.replace(a=self.b)


class Table(ps.State):
    rows: dict[str, jax.Array]

    def fills(self):
        self.rows["new"] = jnp.ones(2)
        return self


class Host(ps.State):
    buffer: np.ndarray

    def writes(self):
        if isinstance(self.buffer, np.ndarray):
            self.buffer[...] = 3
        return self.buffer * 1


METHODS = {
    "a hidden counter": (Walker.numbered, "repeats"),
    "another result under jit": (Walker.traced_differently, "jit"),
    "a tracer in a global list": (Walker.remembers, "leaks"),
    "a tracer on the class": (Leaky.keeps_on_the_class, "leaks"),
    "a wrong slope": (Walker.slope, "jvp"),
    "a wrong pullback": (Walker.pullback, "grad"),
    "rows of a batch in the wrong order": (Walker.batch, "vmap"),
    "a counter that becomes a float": (Walker.drifts, "one_trace"),
    "a counter that becomes weak": (Walker.weakens, "one_trace"),
    "one buffer in two fields of the result": (Twice.again, "donation"),
    "a dict that is filled in place": (Table.fills, "arguments"),
    "a numpy array that is written to": (Host.writes, "arguments"),
}


@pytest.mark.parametrize("mutant", METHODS)
def test_a_broken_method_is_caught_by_the_law_about_it(mutant):
    method, law = METHODS[mutant]

    with pytest.raises(LawError) as caught:
        pst.check_method(
            method, fields={} if "numpy" not in mutant else {"buffer": HOST}
        )

    assert law == caught.value.law


HOST = pst.arrays((3,), "float32").map(lambda x: np.array(x))


# --- what is kept from one call to the next ------------------------------------------------

TOTALS = []
TABLE = {}


class Total:
    last = 0.0


def keepers():
    """Return methods that keep something outside of their State, made anew."""
    last, kept, calls = None, [], []
    TOTALS.clear()
    TABLE.clear()
    Total.last = 0.0

    @functools.lru_cache
    def ramp(n):
        return jnp.arange(n) * 1.0

    class Keeper(ps.State):
        x: Vector

        def in_a_default(self, kept=[]):  # noqa: B006
            kept.append(self.x.sum())
            return self.replace(x=self.x + sum(kept))

        def in_a_default_by_name(self, *, kept=[]):  # noqa: B006
            kept.append(self.x)
            return self.replace(x=self.x + sum(kept))

        def in_a_default_unread(self, kept=[]):  # noqa: B006
            kept.append(self.x.sum())
            return self

        def in_a_default_asked_for_its_value(self, kept=[]):  # noqa: B006
            kept.append(self.x.sum())
            return self.replace(x=self.x * float(kept[0]))

        def in_a_closure(self):
            kept.append(self.x.sum())
            return self.replace(x=self.x + sum(kept))

        def in_a_variable_of_a_closure(self):
            nonlocal last
            before, last = last, self.x.sum()
            return self.replace(x=self.x + (0 if before is None else before))

        def in_a_global(self):
            TOTALS.append(self.x.sum())
            return self.replace(x=self.x + sum(TOTALS))

        def in_a_global_filled_once(self):
            if "ramp" not in TABLE:
                TABLE["ramp"] = jnp.arange(3.0).sum()
            return self.replace(x=self.x + TABLE["ramp"])

        def in_a_class(self):
            Total.last = Total.last + self.x.sum()
            return self.replace(x=self.x + Total.last)

        def in_a_cache(self):
            return self.replace(x=self.x + ramp(1))

        def in_a_count_that_ends(self):
            calls.append(1)
            if len(calls) > 8:
                raise ValueError("spent")
            return self

    return Keeper


KEEPERS = [name for name in vars(keepers()) if name.startswith("in_")]


@pytest.mark.parametrize("name", KEEPERS)
def test_what_a_method_keeps_outside_is_found(name):
    with pytest.raises(LawError) as caught:
        pst.check_method(getattr(keepers(), name))

    assert caught.value.law in ("repeats", "leaks")


@pytest.mark.parametrize("law", ["jit", "vmap", "donation", "grad"])
@pytest.mark.parametrize("name", KEEPERS)
def test_what_a_method_keeps_outside_is_blamed_on_no_other_law(name, law):
    with pytest.raises(LawError) as caught:
        pst.check_method(getattr(keepers(), name), laws=["repeats", law, "leaks"])

    assert caught.value.law in ("repeats", "leaks")


def test_what_is_kept_outside_is_told_with_its_place():
    with pytest.raises(LawError) as caught:
        pst.check_method(keepers().in_a_default)

    assert str(caught.value) == (
        "Keeper.in_a_default breaks the law 'leaks' at "
        "Keeper.in_a_default (defaults)[0][0], on cpu.\n"
        "The law: tracing it leaves no tracer behind.\n"
        "a tracer was left there by an earlier trace, and is used again.\n"
        "Something is kept from one call to the next: in a default argument, a "
        "closure, a global or a class.\n"
        "Found with:\n"
        "    Keeper(x=jnp.zeros((2,), 'float32')).in_a_default()"
    )


def test_a_method_that_raises_after_some_calls_is_told_so():
    with pytest.raises(LawError) as caught:
        pst.check_method(keepers().in_a_count_that_ends)

    assert (
        "it gave a result before, and then raised ValueError: spent\n"
        "Something is kept from one call to the next"
    ) in str(caught.value)


def test_the_way_out_of_what_is_kept_outside_holds():
    class Keeper(ps.State):
        x: Vector
        kept: Float[Array, ""] = 0.0

        def step(self):
            kept = self.kept + self.x.sum()
            return self.replace(x=self.x + kept, kept=kept)

    assert pst.check_method(Keeper.step).examples["leaks"]


def constructors():
    """Return classes whose making keeps something outside, made anew."""
    kept, calls = [], []

    class Default(ps.State):
        x: Vector

        def __init__(self, x: Vector, kept=[]):  # noqa: B006
            kept.append(x)
            self.x = x + sum(kept)

    class Closure(ps.State):
        x: Vector

        def __post_init__(self):
            kept.append(self.x.sum())
            sum(kept)

    class Ends(ps.State):
        x: Vector

        def __post_init__(self):
            calls.append(1)
            if len(calls) > 8:
                raise ValueError("spent")

    return {"Default": Default, "Closure": Closure, "Ends": Ends}


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("Default", "equality"),
        ("Closure", "constructs_in_jit"),
        ("Ends", "equal_structures"),
    ],
)
def test_what_a_constructor_keeps_outside_is_found(name, law):
    x = pst.arrays((2,), "float32", specials=False)
    with pytest.raises(LawError) as caught:
        pst.check_state(constructors()[name], fields={"x": x})

    assert law == caught.value.law


# --- host functions ----------------------------------------------------------------------

random = np.random.default_rng(0)
warm = {"start": 0.0}


def norm(x: Vector):
    return x / (1 + np.linalg.norm(x))


def noisy(x: Vector):
    return (x + random.normal(size=x.shape)).astype(x.dtype)


def warm_start(x: Vector):
    warm["start"] = warm["start"] / 2 + 1
    return x + np.float32(warm["start"])


def sine(x: Vector):
    return np.sin(x)


def slope(args, tangents):
    return 1.5 * np.cos(args[0]) * tangents[0]


def pullback(args, cotangent):
    return (np.cos(args[0]) ** 2 * cotangent,)


def like(x):
    return x


def summing(x: Vector):
    SUMS.append(x)
    return sum(SUMS)


SUMS = []
HOSTS = {
    "a sum over all calls": (ps.host_function(summing, out=like), "repeats"),
    "noise without a key": (ps.host_function(noisy, out=like), "repeats"),
    "a warm start": (ps.host_function(warm_start, out=like), "repeats"),
    "a norm over the whole batch": (
        ps.host_function(norm, out=like, vmap="vectorized"),
        "vmap",
    ),
    "a wrong jvp": (ps.host_function(sine, out=like, jvp=slope), "jvp"),
    "a wrong vjp": (ps.host_function(sine, out=like, vjp=pullback), "jvp"),
    "a derivative of zero": (ps.host_function(sine, out=like, grad="zero"), "jvp"),
}


@pytest.mark.parametrize("mutant", HOSTS)
def test_a_broken_host_function_is_caught_by_the_law_about_it(mutant):
    fn, law = HOSTS[mutant]

    with pytest.raises(LawError) as caught:
        pst.check_host(fn)

    assert law == caught.value.law


# --- what is right is let through --------------------------------------------------------


@pytest.mark.parametrize("cls", [registered, lambda: Walker, lambda: Twice])
def test_a_class_without_defects_passes(cls):
    assert pst.check_state(cls()).examples["rebuild"]


class Right(ps.State):
    x: Vector
    count: Int[Array, ""] = 0

    @ps.jit(donate=True, static_argnames="mode")
    def step(self, dt: Float[Array, ""], mode: str = "a"):
        x = self.x + dt * jnp.maximum(self.x, 0.0)
        return self.replace(x=x, count=self.count + 1), jnp.sum(x)


def test_a_method_without_defects_passes_all_laws():
    report = pst.check_method(Right.step)

    assert {"sharded", "backends_agree"} == set(report.skipped)


def test_a_host_function_without_defects_passes_all_laws():
    report = pst.check_host(ps.host_function(sine, grad="fd", upcast=True))

    assert {"backends_agree"} == set(report.skipped)
