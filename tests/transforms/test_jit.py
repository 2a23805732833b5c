"""`ps.jit` is `jax.jit` for methods and for States that are called."""

import abc
import functools

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from purestate.errors import JitDeclarationError
from tests.transforms.counters import Counter, Kinds

# Layer.total meets more structures in these tests than a function should in a program.
pytestmark = pytest.mark.filterwarnings("ignore::purestate.errors.RetraceWarning")


# --- methods --------------------------------------------------------------------------


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


# --- what is refused at decoration ----------------------------------------------------


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
