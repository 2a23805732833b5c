"""The notes that `ps.jit` adds to errors of JAX: they name fields."""

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from tests.transforms.counters import Counter, Layer, notes_of

# Layer.total meets more structures in these tests than a function should in a program.
pytestmark = pytest.mark.filterwarnings("ignore::purestate.errors.RetraceWarning")


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
