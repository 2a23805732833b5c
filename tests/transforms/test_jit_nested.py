"""`ps.jit` inside and around `jax.jit`, in threads, in other processes; its memory."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import JitDeclarationError
from tests.helpers import in_threads, through_cloudpickle
from tests.transforms.counters import Counter, Layer, notes_of

# Layer.total meets more structures in these tests than a function should in a program.
pytestmark = pytest.mark.filterwarnings("ignore::purestate.errors.RetraceWarning")


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

    def work(size):
        s = S(x=jnp.zeros(size))
        for _ in range(50):
            s = s.step()
        assert [50.0] * size == ps.jit(s.plain)().tolist()

    in_threads(work, range(1, 5))


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


def test_jitted_functions_methods_and_classes_can_be_cloudpickled():
    through_cloudpickle(
        """
        import jax, jax.numpy as jnp, purestate as ps

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
        """,
        """
        Box, box, add, plain = made
        assert [2, 2] == plain().tolist() and 2 == add(1)
        assert [2, 2] == box.step().x.tolist()
        assert "<Box, donated to Box.step()>" == repr(box)
        """,
    )


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
