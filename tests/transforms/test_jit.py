"""`ps.jit` is `jax.jit` for every kind of callable, with notes that name fields."""

import abc
import functools
import gc
import inspect
import subprocess
import sys
import textwrap
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import JitDeclarationError

# Layer.total meets more structures in this file than a function should in a program.
pytestmark = pytest.mark.filterwarnings("ignore::purestate.errors.RetraceWarning")


class Counter(ps.State):
    n: jax.Array
    size: int = 2

    @ps.jit
    def step(self, k):
        return self.replace(n=self.n + k * self.size), self.n

    def plain(self, k):
        return self.replace(n=self.n + k)

    def __call__(self, k):
        return self.n * k


class Layer(ps.State):
    w: jax.Array
    act: object = None
    parts: dict = ps.field(default_factory=dict)

    @ps.jit
    def total(self):
        return self.w.sum()

    @ps.jit
    def to_numpy(self):
        return np.asarray(self.w)

    @ps.jit
    def outer(self):
        return self.to_numpy()


class Kinds(ps.State):
    x: jax.Array

    @ps.jit
    @staticmethod
    def twice(x):
        return x * 2

    @staticmethod
    @ps.jit
    def thrice(x):
        return x * 3

    @ps.jit
    @classmethod
    def full(cls, n):
        return cls(x=jnp.full(3, n))

    @classmethod
    @ps.jit
    def filled(cls, n):
        return cls(x=jnp.full(3, n))

    @ps.jit
    @property
    def total(self):
        """The sum."""
        return self.x.sum()

    @property
    @ps.jit
    def largest(self):
        """The maximum."""
        return self.x.max()

    @ps.jit(static_argnames="axis")
    def mean(self, *, axis=None):
        """Return the mean."""
        return self.x.mean(axis)


def notes_of(error):
    """Return what purestate noted, without JAX's remark on its own traceback."""
    return [note for note in error.__notes__ if "internal frames" not in note]


# --- methods ---------------------------------------------------------------------------


def test_a_jitted_method_takes_and_returns_its_state():
    first = Counter(n=0)

    second, old = first.step(3)
    third, _ = second.step(3)

    assert [0, 6, 12, 0] == [int(v) for v in (first.n, second.n, third.n, old)]


def test_a_method_reads_its_own_instance_and_never_a_constant():
    class Scale(ps.State):
        factor: jax.Array

        @ps.jit
        def apply(self, x):
            return self.factor * x

    scale = Scale(factor=2.0)

    assert 6.0 == scale.apply(3.0)
    assert 15.0 == scale.replace(factor=5.0).apply(3.0)
    assert 6.0 == scale.apply(3.0)
    assert "2.0" not in str(jax.make_jaxpr(Scale.apply)(scale, 3.0))


@pytest.mark.parametrize("owner", [Kinds, Kinds(x=jnp.ones(3))], ids=["cls", "self"])
def test_static_and_class_methods_work_in_either_order(owner):
    assert 4.0 == owner.twice(2.0)
    assert 6.0 == owner.thrice(2.0)
    assert Kinds(x=jnp.full(3, 2.0)) == owner.full(2.0)
    assert Kinds(x=jnp.full(3, 2.0)) == owner.filled(2.0)


def test_properties_work_in_either_order():
    kinds = Kinds(x=jnp.arange(3.0))

    assert 3.0 == kinds.total
    assert 2.0 == kinds.largest
    assert "The sum." == Kinds.total.__doc__
    assert "The maximum." == Kinds.largest.__doc__


def test_a_property_keeps_its_setter():
    def get(self):
        return self.x

    def put(self, value):
        """Refuse nothing."""

    made = ps.jit(property(get, put))

    assert put is made.fset
    assert get is made.fget.__wrapped__


def test_class_methods_of_a_subclass_make_the_subclass():
    class Sub(Kinds):
        pass

    assert Sub is type(Sub.full(1.0))
    assert Sub is type(Sub.filled(1.0))
    assert Kinds is type(Kinds.full(1.0))


def test_the_class_of_a_class_method_may_have_another_name():
    class S(ps.State):
        x: jax.Array

        @ps.jit
        @classmethod
        def make(klass, n):
            return klass(x=n)

    assert S(x=2.0) == S.make(2.0)


def test_a_method_of_a_plain_class_may_be_a_class_method():
    class Plain:
        @ps.jit
        @classmethod
        def twice(cls, x):
            return 2 * x

    assert 4.0 == Plain.twice(2.0)


def test_an_abstract_method_stays_abstract():
    class Base(ps.State):
        x: jax.Array

        @ps.jit
        @abc.abstractmethod
        def step(self): ...

    with pytest.raises(
        TypeError, match=r"abstract class Base .*abstract method '?step"
    ):
        Base(x=1.0)


def test_an_override_can_call_the_method_of_its_base():
    class Sub(Counter):
        @ps.jit
        def step(self, k):
            moved, _ = super().step(k)
            return moved.replace(n=moved.n * 10)

    assert 60 == Sub(n=0).step(3).n


def test_a_cached_property_can_be_jitted():
    class S(ps.State):
        x: jax.Array

        @functools.cached_property
        @ps.jit
        def total(self):
            return self.x.sum()

    s = S(x=jnp.ones(3))

    assert s.total is s.total


# --- bound methods and callable States ------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"static_argnames": ()}, {"inline": True}])
def test_a_bound_method_has_one_trace_for_all_instances(options):
    traces = []

    class S(ps.State):
        x: jax.Array

        def step(self, k):
            traces.append(1)
            return self.x + k

    assert [1, 2, 3] == [float(ps.jit(S(x=i).step, **options)(1)) for i in range(3)]
    assert 1 == len(traces)


def test_other_options_make_another_program_of_a_bound_method():
    class S(ps.State):
        x: jax.Array

        def pick(self, k):
            return (self.x, k)[1]

    s = S(x=1.0)

    assert 2 == ps.jit(s.pick, static_argnames="k")(2)
    assert 2 == ps.jit(s.pick)(jnp.asarray(2))


def test_a_bound_method_that_is_jitted_already_stays_as_it_is():
    counter = Counter(n=1)

    assert 3 == ps.jit(counter.step)(1)[0].n
    assert not hasattr(Counter.step, "__purestate_compiled__")


def test_a_callable_state_is_compiled_once_for_all_instances():
    traces = []

    class F(ps.State):
        x: jax.Array

        def __call__(self, y):
            traces.append(1)
            return self.x.sum() * y

    assert [0, 2, 4] == [float(ps.jit(F(x=float(i)))(2.0)) for i in range(3)]
    assert 1 == len(traces)


def test_a_state_made_while_tracing_is_a_callable_for_every_transform():
    class F(ps.State):
        x: jax.Array

        def __call__(self, y):
            return self.x.sum() * y

    @ps.jit
    def f(x):
        g = F(x=x)
        assert () == jax.eval_shape(g, 1.0).shape
        return jax.vmap(g)(jnp.ones(2)) + jax.grad(g)(1.0) + ps.jit(g)(1.0)

    assert [9, 9] == f(jnp.arange(3.0)).tolist()
    assert [18, 18] == f(jnp.arange(3.0) + 1).tolist()


def test_a_state_in_plain_jit_is_pointed_to_ps_jit():
    with pytest.raises(TypeError, match=r"ps\.jit\(state\)"):
        jax.jit(Counter(n=1))(1.0)


@pytest.mark.parametrize(
    "pick", [lambda s: s, lambda s: s.plain], ids=["callable", "bound"]
)
@pytest.mark.parametrize("name", ["lower", "trace", "eval_shape"])
def test_what_jax_offers_of_a_bound_function_wants_no_self(pick, name):
    fn = pick(Counter(n=1))

    ours = getattr(ps.jit(fn), name)(2)

    assert jax.tree.map(jnp.shape, jax.eval_shape(fn, 2)) == (
        jax.tree.map(jnp.shape, getattr(ours, "out_info", ours))
    )


def test_a_decorated_method_is_not_taken_for_the_one_that_it_wraps():
    class Base(ps.State):
        x: jax.Array

        def f(self, y):
            return self.x * y

    assert 2.0 == ps.jit(Base(x=1.0).f)(2.0)

    class Sub(Base):
        @functools.wraps(Base.f)
        def f(self, y):
            return Base.f(self, y) + 100

    assert 102.0 == ps.jit(Sub(x=1.0).f)(2.0)


# --- other callables --------------------------------------------------------------------


class Affine:
    def __init__(self, slope):
        self.slope = slope

    def __call__(self, x):
        return self.slope * x + 1

    def method(self, x):
        return self.slope * x


class Slotted:
    __slots__ = ()

    def __call__(self, x):
        return 3.0 * x + 1


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: 3 * x, 6.0),
        (functools.partial(lambda k, x: k * x, 3), 6.0),
        (functools.partial(lambda x, k: k * x, k=3), 6.0),
        (Affine(3), 7.0),
        (Slotted(), 7.0),
        (Affine(3).method, 6.0),
        (jnp.sin, np.sin(np.float32(2))),
        (jax.jit(lambda x: 3 * x), 6.0),
        (ps.jit(lambda x: 3 * x), 6.0),
        (jax.vmap(lambda x: 3 * x, axis_size=1, in_axes=None, out_axes=None), 6.0),
    ],
    ids=[
        "lambda",
        "partial",
        "partial by name",
        "instance",
        "slotted instance",
        "method of a plain object",
        "ufunc",
        "jax.jit",
        "ps.jit",
        "vmap",
    ],
)
def test_every_callable_can_be_jitted(fn, expected):
    assert expected == pytest.approx(float(ps.jit(fn)(2.0)))


def test_a_state_class_can_be_jitted():
    assert Kinds(x=jnp.ones(3)) == ps.jit(Kinds)(jnp.ones(3))


def test_a_builtin_can_be_jitted():
    assert 3.0 == ps.jit(sum)([1.0, 2.0])


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_a_coroutine_function_is_refused_by_jax_itself():
    async def f(x):
        return x

    made = []

    def kept(x):
        made.append(f(x))
        return made[-1]

    with pytest.raises(TypeError, match=r"coroutine'>.*not a valid JAX type"):
        ps.jit(kept)(1.0)
    made[0].close()


def test_something_that_cannot_be_called_is_refused():
    text = (
        r"^ps\.jit takes a function, a method or a callable State, and got an object of "
        r"type int\.$"
    )

    with pytest.raises(JitDeclarationError, match=text):
        ps.jit(3)


def test_a_declaration_error_is_a_type_error():
    with pytest.raises(TypeError):
        ps.jit("step")


# --- what a wrapper must keep -----------------------------------------------------------


def test_name_doc_module_and_signature_are_those_of_the_function():
    assert "mean" == Kinds.mean.__name__
    assert "Kinds.mean" == Kinds.mean.__qualname__
    assert "Return the mean." == Kinds.mean.__doc__
    assert __name__ == Kinds.mean.__module__
    assert "(self, *, axis=None)" == str(inspect.signature(Kinds.mean))


def test_the_function_itself_stays_within_reach():
    def f(x):
        return x

    assert f is ps.jit(f).__wrapped__


@pytest.mark.parametrize("name", ["lower", "trace", "eval_shape", "clear_cache"])
def test_what_a_jitted_function_offers_in_jax_is_there(name):
    assert callable(getattr(Kinds.mean, name))


def test_a_method_can_be_lowered_and_compiled_ahead():
    counter = Counter(n=1)

    compiled = Counter.step.lower(counter, 2).compile()

    assert 5 == compiled(counter, 2)[0].n


def test_eval_shape_returns_a_state_of_shapes():
    moved, _ = Counter.step.eval_shape(Counter(n=1), 2)

    assert Counter is type(moved)
    assert jax.ShapeDtypeStruct((), jnp.int32) == moved.n


def test_a_cleared_cache_traces_again():
    traces = []

    @ps.jit
    def f(x):
        traces.append(1)
        return x

    f(1.0), f(1.0)
    f.clear_cache()
    f(1.0)

    assert 2 == len(traces)


@pytest.mark.parametrize("transform", [ps.grad, ps.value_and_grad, ps.vmap])
def test_a_transformed_function_does_not_offer_what_belongs_to_the_inner_one(transform):
    assert not hasattr(transform(ps.jit(lambda x: x**2)), "lower")


def test_options_of_jax_jit_are_passed_on():
    @ps.jit(static_argnums=1, inline=True)
    def f(x, n):
        return (x,) * n

    assert 3 == len(f(1.0, 3))


def test_static_arguments_by_name_key_the_cache():
    traces = []

    class S(ps.State):
        x: jax.Array

        @ps.jit(static_argnames=("axis",))
        def total(self, axis):
            traces.append(axis)
            return self.x.sum(axis)

    s = S(x=jnp.ones((2, 3)))

    assert [(3,), (2,), (3,)] == [s.total(axis=a).shape for a in (0, 1, 0)]
    assert [0, 1] == traces


def test_one_static_name_may_be_given_as_a_string():
    f = ps.jit(lambda x, axis: x.sum(axis), static_argnames="axis")

    assert (3,) == f(jnp.ones((2, 3)), axis=0).shape


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype("int32"),
        *(
            pytest.param(
                kind,
            )
            for kind in (jnp.int32, np.int32)
        ),
    ],
    ids=["np.dtype", "jnp.int32", "np.int32"],
)
def test_a_dtype_can_be_a_static_argument(dtype):
    f = ps.jit(lambda x, dtype: x.astype(dtype), static_argnames="dtype")

    assert jnp.int32 == f(jnp.ones(2), dtype=dtype).dtype


def test_a_decorator_with_options_and_one_without_are_the_same():
    assert 2 == ps.jit()(lambda x: x + 1)(1)
    assert 2 == ps.jit(donate=False)(lambda x: x + 1)(1)


# --- what is refused at decoration ------------------------------------------------------

STATIC = (
    r" would make {} static: jit would then compile its arrays into the program and "
    r"return stale results\. Leave it out: a State is traced, and its ps\.static\(\) "
    r"fields are static already\.$"
)


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": 0},
        {"static_argnums": (1, 0)},
        {"static_argnums": -2},
        {"static_argnames": "self"},
        {"static_argnames": ("k", "self")},
    ],
    ids=str,
)
def test_self_is_never_static(options):
    with pytest.raises(
        JitDeclarationError, match=r"^ps\.jit\(S\.step\)" + STATIC.format("self")
    ):

        class S(ps.State):
            x: jax.Array

            @ps.jit(**options)
            def step(self, k):
                return self.x


@pytest.mark.parametrize("options", [{"static_argnums": 1}, {"static_argnames": "b"}])
def test_a_parameter_annotated_as_a_state_is_never_static(options):
    def f(a, b: Counter):
        return a

    with pytest.raises(
        JitDeclarationError, match=r"^ps\.jit\(f\)" + STATIC.format("b")
    ):
        ps.jit(f, **options)


@pytest.mark.parametrize(
    "annotation", [Counter | None, list[Counter], "Counter"], ids=str
)
def test_a_parameter_annotated_with_a_state_inside_is_never_static(annotation):
    def f(a):
        return a

    f.__annotations__["a"] = annotation

    with pytest.raises(
        JitDeclarationError, match=r"^ps\.jit\(f\)" + STATIC.format("a")
    ):
        ps.jit(f, static_argnames="a")


def test_other_parameters_may_be_static():
    assert 3 == ps.jit(lambda k, s: s.n * k, static_argnums=0)(3, Counter(n=1))


# --- notes ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [len, "relu", object()], ids=["fn", "str", "object"])
def test_a_value_that_jax_cannot_trace_is_named_with_its_field(value):
    layer = Layer(w=jnp.ones(2), act=value)
    kind = type(value).__name__

    with pytest.raises(TypeError) as caught:
        layer.total()

    (note,) = notes_of(caught.value)
    assert note == (
        f"Layer.act holds a {kind}, which jax cannot trace: declare it static, "
        f"`act: ... = ps.static()`, if it is configuration."
    )


def test_every_field_that_jax_cannot_trace_is_named():
    with pytest.raises(TypeError) as caught:
        Layer(w="a", act=len).total()

    assert ["Layer.w", "Layer.act"] == [
        note.split()[0] for note in notes_of(caught.value)
    ]


@pytest.mark.parametrize(
    ("args", "kwargs", "place"),
    [((1.0, "a"), {}, "argument 1"), ((1.0,), {"mode": "a"}, "argument 'mode'")],
)
def test_an_argument_that_jax_cannot_trace_is_pointed_to_static_argnames(
    args, kwargs, place
):
    f = ps.jit(lambda x, mode: x)

    with pytest.raises(TypeError) as caught:
        f(*args, **kwargs)

    assert notes_of(caught.value) == [
        f"{place} holds a str, which jax cannot trace: name it in static_argnames."
    ]


def test_a_value_in_a_container_is_blamed_on_its_field():
    with pytest.raises(TypeError) as caught:
        Layer(w=1.0, parts={"k": "v"}).total()

    (note,) = notes_of(caught.value)
    assert note.startswith("Layer.parts['k'] holds a str")
    assert "`parts['k']: ... = " not in note


@pytest.mark.parametrize(
    "call",
    [
        lambda fail: ps.jit(fail, static_argnames="mode")(1.0, mode="a"),
        lambda fail: ps.jit(fail, static_argnums=1)(1.0, "a"),
        lambda fail: ps.jit(classmethod(fail)).__get__(None, Counter)(1.0),
    ],
    ids=["by name", "by number", "class"],
)
def test_a_type_error_of_the_user_is_not_blamed_on_static_arguments(call):
    def fail(cls, mode=None):
        raise TypeError("mine")

    with pytest.raises(TypeError, match=r"^mine") as caught:
        call(fail)

    assert [] == notes_of(caught.value)


NUMPY = (
    "{} gave a traced value to numpy, or to code that needs numbers: under jit it has "
    "none yet. Use jnp in place of np, or ps.host_function(code) to call the code when the "
    "program runs."
)


def test_a_tracer_that_numpy_got_is_explained():
    with pytest.raises(jax.errors.TracerArrayConversionError) as caught:
        Layer(w=jnp.ones(2)).to_numpy()

    assert [NUMPY.format("Layer.to_numpy")] == notes_of(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.outer(),
        lambda s: jax.jit(lambda s: s.to_numpy())(s),
        lambda s: jax.vmap(lambda s: s.to_numpy())(s),
        lambda s: jax.grad(lambda s: s.to_numpy().sum())(s),
    ],
    ids=["ps.jit", "jit", "vmap", "grad"],
)
def test_the_innermost_jitted_function_adds_the_note(call):
    with pytest.raises(jax.errors.TracerArrayConversionError) as caught:
        call(Layer(w=jnp.ones(2)))

    assert [NUMPY.format("Layer.to_numpy")] == notes_of(caught.value)


def test_nested_jitted_functions_add_one_note():
    with pytest.raises(jax.errors.TracerArrayConversionError) as caught:
        Layer(w=jnp.ones(2)).outer()

    assert 1 == len(notes_of(caught.value))


GONE = (
    "{} was donated to an earlier jitted call, which reused the memory. Use the State "
    "that this call returned, or copy with jnp.copy before donating."
)


def test_a_deleted_array_is_named_with_its_field():
    layer = Layer(w=jnp.ones(2), act=jnp.ones(3))
    layer.act.delete()

    with pytest.raises(RuntimeError, match="Array has been deleted") as caught:
        ps.jit(lambda layer: jax.tree.map(jnp.negative, layer))(layer)

    assert [GONE.format("Layer.act")] == notes_of(caught.value)


def test_many_deleted_arrays_are_counted():
    layer = Layer(w=jnp.ones(2), parts={f"k{i}": jnp.ones(2) for i in range(7)})
    jax.tree.map(lambda leaf: leaf.delete(), layer)

    with pytest.raises(RuntimeError, match="Array has been deleted") as caught:
        ps.jit(lambda layer: jax.tree.map(jnp.negative, layer))(layer)

    (note,) = notes_of(caught.value)
    assert "Layer.parts['k3'] and 3 more were donated to an earlier" in note


def test_a_deleted_argument_that_is_no_state_is_named_by_its_place():
    x = jnp.ones(2)
    x.delete()

    with pytest.raises(RuntimeError, match="Array has been deleted") as caught:
        ps.jit(lambda d: d["a"])({"a": x})

    assert [GONE.format("argument 0['a']")] == notes_of(caught.value)


def test_an_exception_of_the_user_keeps_type_arguments_and_attributes():
    class Diverged(ArithmeticError):
        def __init__(self, step):
            super().__init__("diverged", step)
            self.step = step

    @ps.jit
    def f(s):
        raise Diverged(3)

    with pytest.raises(Diverged) as caught:
        f(Counter(n=1))

    assert (("diverged", 3), 3) == (caught.value.args, caught.value.step)
    assert [] == notes_of(caught.value)


def test_an_exception_without_a_dict_passes_through():
    class Slim(Exception):
        __slots__ = ()

        def __setattr__(self, name, value):
            if name.startswith("__purestate"):
                raise TypeError(name)
            super().__setattr__(name, value)

    @ps.jit
    def f(x):
        raise Slim("slim")

    with pytest.raises(Slim, match=r"^slim"):
        f(1.0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, StopIteration])
def test_control_exceptions_pass_through(error):
    @ps.jit
    def f(x):
        raise error("stop")

    with pytest.raises(error, match=r"^stop"):
        f(1.0)


# --- inside and around jax.jit, threads, memory -----------------------------------------


def test_jitted_functions_nest_in_any_order():
    def f(s):
        return s.replace(n=s.n + 1)

    forms = [
        ps.jit(ps.jit(f)),
        ps.jit(jax.jit(f)),
        jax.jit(ps.jit(f)),
        jax.jit(lambda s: ps.jit(f)(s)),
        ps.jit(lambda s: ps.jit(f)(s)),
    ]

    assert [2] * 5 == [int(form(Counter(n=1)).n) for form in forms]


def test_a_jitted_function_of_a_jitted_function_is_traced_once():
    traces = []

    @ps.jit
    @ps.jit
    def f(x):
        traces.append(1)
        return x

    f(1.0), f(2.0)

    assert 1 == len(traces)


def test_one_trace_serves_calls_by_position_and_instances():
    traces = []

    class S(ps.State):
        x: jax.Array
        name: str = ps.static(default="a")

        @ps.jit
        def step(self):
            traces.append(self.name)
            return self.replace(x=self.x + 1)

    s = S(x=0)
    for _ in range(3):
        s = s.step()
    S(x=5).step(), S(x=5, name="b").step(), S(x=6, name="b").step()

    assert ["a", "b"] == traces


def test_no_tracer_leaks_from_a_jitted_method():
    with jax.checking_leaks():
        counter, _ = Counter(n=1).step(2)
        ps.jit(counter.plain)(1)
        ps.jit(counter)(1)
        jax.vmap(lambda k: counter.step(k)[0].n)(jnp.arange(3))
        jax.lax.scan(lambda s, _: (s.step(1)[0], None), counter, None, length=2)
        with pytest.raises(jax.errors.TracerArrayConversionError):
            Layer(w=jnp.ones(2)).to_numpy()
        with pytest.raises(AttributeError, match="nope"):
            ps.jit(lambda s: s.nope)(counter)


def test_a_jitted_method_keeps_no_instance_and_no_array():
    class S(ps.State):
        x: jax.Array

        @ps.jit
        def step(self):
            return self.replace(x=self.x + 1)

        @ps.jit
        def fail(self):
            raise ValueError("no")

        def free(self, k):
            return self.x * k

    def use():
        s = S(x=jnp.ones(3))
        new = s.step()
        ps.jit(s.free)(2.0)
        with pytest.raises(ValueError, match="no"):
            s.fail()
        with pytest.raises(TypeError):
            ps.jit(lambda s, mode: s)(s, "a")
        return [weakref.ref(v) for v in (s, s.x, new, new.x)]

    alive = use()
    gc.collect()

    assert [None] * 4 == [ref() for ref in alive]


def test_threads_share_a_jitted_method():
    class S(ps.State):
        x: jax.Array

        @ps.jit
        def step(self):
            return self.replace(x=self.x + 1)

        def plain(self):
            return self.x

    failures, start = [], threading.Barrier(4)

    def work(size):
        start.wait()
        try:
            s = S(x=jnp.zeros(size))
            for _ in range(50):
                s = s.step()
            assert [50.0] * size == ps.jit(s.plain)().tolist()
        except Exception as error:  # noqa: BLE001  # a thread's error is reported below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(1 + i,)) for i in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]

    assert [] == failures


class Modal(ps.State):
    x: jax.Array
    train: bool = True
    n: int = 3

    @ps.jit
    def branch(self):
        return self.x if self.train else -self.x

    @ps.jit
    def size(self):
        return jnp.zeros(self.n)


@pytest.mark.parametrize(
    ("name", "field"), [("branch", "train: bool"), ("size", "n: int")]
)
def test_a_flag_or_size_in_a_data_field_is_pointed_to_static(name, field):
    with pytest.raises(Exception, match=r"traced|Shapes must be") as caught:
        getattr(Modal(x=1.0), name)()

    place = f"Modal.{field.partition(':')[0]}"
    assert any(
        note.startswith(f"{place} is data, which jit traces, so it has no value here.")
        and f"`{field} = ps.static()`" in note
        for note in caught.value.__notes__
    )


def test_jitted_functions_methods_and_classes_can_be_cloudpickled(tmp_path):
    pytest.importorskip("cloudpickle", reason="cloudpickle needs the interop extra")
    (tmp_path / "make.py").write_text(
        textwrap.dedent(
            """
            import sys, cloudpickle, jax, jax.numpy as jnp, purestate as ps

            class Box(ps.State):
                x: jax.Array

                @ps.jit(donate=True)
                def step(self):
                    return self.replace(x=self.x + 1)

                def plain(self):
                    return self.x * 2

            box = Box(x=jnp.ones(2))
            made = (Box, box, ps.jit(lambda x: x + 1), ps.jit(box.plain))
            assert [2, 2] == made[3]().tolist()
            sys.stdout.buffer.write(cloudpickle.dumps(made))
            """
        )
    )
    code = """if True:
        import pickle, sys
        Box, box, add, plain = pickle.loads(sys.stdin.buffer.read())
        assert [2, 2] == plain().tolist() and 2 == add(1)
        assert [2, 2] == box.step().x.tolist()
        assert "<Box, donated to Box.step()>" == repr(box)
        print("fine")
    """
    data = subprocess.run(
        [sys.executable, tmp_path / "make.py"], capture_output=True, check=True
    ).stdout

    used = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True)

    assert (b"", b"fine\n") == (used.stderr, used.stdout)


def test_a_class_method_may_have_static_arguments():
    class S(ps.State):
        x: jax.Array

        @ps.jit(static_argnums=1)
        @classmethod
        def make(cls, n, v):
            return cls(x=v * n)

    assert 6 == int(S.make(2, 3).x)


def test_a_function_may_call_its_first_parameter_cls():
    assert 3.0 == float(ps.jit(lambda cls, x: cls + x)(1.0, 2.0))


@pytest.mark.parametrize("number", [1, -1, np.int64(1)])
def test_static_arguments_by_number(number):
    assert (3,) == ps.jit(lambda x, n: jnp.zeros(n) + x, static_argnums=number)(
        1.0, 3
    ).shape


def test_shardings_of_bound_methods_are_not_mixed_up():
    counter = Counter(n=1)
    first, second = object(), object()

    made = [ps.jit(counter.step, compiler_options={"x": o}) for o in (first, second)]

    assert made[0] is not made[1]


def test_a_container_that_cannot_be_copied_is_no_obstacle():
    class Frozen(dict):
        def __setitem__(self, key, value):
            raise TypeError("frozen")

        def __hash__(self):
            return 0

    assert 3.0 == float(
        ps.jit(lambda d, x: x + len(d), static_argnums=0)(Frozen(), 3.0)
    )


def test_with_jit_disabled_calls_are_no_traces():
    f = ps.jit(lambda x: x + 1)

    with jax.disable_jit():
        assert 20.0 == f(19.0)
        for i in range(20):
            f(i)


def test_a_state_without_call_cannot_be_jitted():
    with pytest.raises(
        JitDeclarationError, match=r"^ps\.jit takes a function, a method or"
    ):
        ps.jit(Layer(w=1.0))


def test_a_partial_object_keeps_the_name_of_its_function():
    def scaled(x, by):
        return x * by

    assert "scaled" in ps.jit(functools.partial(scaled, by=2)).__name__


def test_a_user_s_error_is_not_taken_for_one_about_a_field():
    class T(ps.State):
        x: jax.Array
        n: int = 1

    def fail(t):
        raise ValueError("concrete things like numpy.ndarray.n")

    with pytest.raises(ValueError, match="concrete") as caught:
        ps.jit(fail)(T(x=1.0))

    assert not [note for note in notes_of(caught.value) if "is data" in note]
