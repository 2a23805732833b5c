"""The notes that `ps.jit` adds to errors of JAX: they name fields."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
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


class Net(ps.State):
    w: jax.Array

    def apply(self, x):
        return self.w * x


PARTIAL = (
    "\nLayer.act holds a {} with arrays in it, and as a static value it would be refused. "
    "Keep it as data, `act={}`, or write a method or property that calls it."
)


@pytest.mark.parametrize(
    ("act", "kind", "partial"),
    [
        (Net(w=2.0).apply, "method", "jax.tree_util.Partial(Net.apply, net)"),
        (jnp.ones(2).dot, "method", "jax.tree_util.Partial(jnp.dot, x)"),
        (
            np.ones(2).dot,
            "builtin_function_or_method",
            "jax.tree_util.Partial(jnp.dot, x)",
        ),
        (
            functools.partial(jnp.add, jnp.ones(2)),
            "partial",
            "jax.tree_util.Partial(add, ...)",
        ),
    ],
    ids=["State", "jax", "numpy", "partial"],
)
def test_a_callable_with_arrays_is_not_advised_to_be_static(act, kind, partial):
    with pytest.raises(TypeError) as caught:
        Layer(w=jnp.ones(2), act=act).total()

    assert str(caught.value).endswith(PARTIAL.format(kind, partial))
    assert [] == notes_of(caught.value)


def test_the_advised_partial_is_traced_with_its_arrays():
    class Solver(ps.State):
        y: jax.Array
        rhs: object

        @ps.jit
        def step(self):
            return self.rhs(self.y)

    net = Net(w=2.0)
    solver = Solver(y=3.0, rhs=jax.tree_util.Partial(Net.apply, net))

    assert 6 == solver.step()
    with pytest.raises(
        TypeError, match=r"`rhs=jax\.tree_util\.Partial\(Net\.apply, net\)`"
    ):
        Solver(y=3.0, rhs=net.apply).step()


def test_a_method_of_what_holds_no_arrays_may_be_static():
    with pytest.raises(TypeError) as caught:
        Layer(w=jnp.ones(2), act="a".join).total()

    (note,) = notes_of(caught.value)
    assert note.endswith("`act: ... = ps.static()`, if it is configuration.")


def test_a_value_without_a_hash_is_not_advised_to_be_static():
    with pytest.raises(TypeError) as caught:
        Layer(w=jnp.ones(2), act={1}).total()

    (note,) = notes_of(caught.value)
    assert note == (
        "Layer.act holds a set, which jax cannot trace, and which has no hash, so that it "
        "cannot be static either."
    )


@pytest.mark.parametrize(
    "act",
    [{1: 1.0, "a": 2.0}, collections.defaultdict(float, {1: 1.0, "a": 2.0})],
    ids=["dict", "defaultdict"],
)
def test_a_dict_whose_keys_cannot_be_sorted_is_named_with_its_field(act):
    with pytest.raises((ValueError, TypeError)) as caught:
        Layer(w=jnp.ones(2), parts={"k": [act]}).total()

    assert str(caught.value).endswith(
        "\nLayer.parts['k'][0] is a dict with keys that cannot be sorted, 1 and 'a', and "
        "jax sorts them. Use keys of one type, str for example."
    )


def test_so_it_is_by_a_class_that_checks_itself():
    class Checked(ps.State):
        d: dict

        def __check__(self):
            return True

    with pytest.raises(ValueError, match="sorting pytree dictionary keys") as caught:
        Checked(d={1: 1.0, "a": 2.0})

    assert notes_of(caught.value)[0] == (
        "Checked.d is a dict with keys that cannot be sorted, 1 and 'a', and jax sorts "
        "them. Use keys of one type, str for example."
    )


def test_a_value_error_of_the_user_keeps_its_text():
    @ps.jit
    def f(layer):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        f(Layer(w=1.0))

    assert ("mine",) == caught.value.args


class Dense(ps.State):
    kernel: jax.Array
    bias: jax.Array

    @ps.jit
    def __call__(self, x):
        return x @ self.kernel + self.bias


def test_labels_that_optax_takes_for_a_function_are_recognised():
    optax = pytest.importorskip("optax", reason="optax needs the interop extra")
    dense = Dense(kernel=jnp.ones((3, 2)), bias=jnp.zeros(2))
    labels = ps.prefix(dense, "a", bias="b")
    parts = {"a": optax.sgd(0.5), "b": optax.set_to_zero()}

    with pytest.raises(TypeError) as caught:
        optax.multi_transform(parts, labels).init(dense)

    (note,) = notes_of(caught.value)
    assert note == (
        "this Dense holds only strings, as labels do that ps.prefix made. It has a "
        "__call__, so optax.multi_transform takes it for a function: give it "
        "`lambda _: labels`."
    )
    tx = optax.multi_transform(parts, lambda _: labels)
    updates, _ = tx.update(dense, tx.init(dense), dense)
    assert ([-0.5] * 2, [0, 0]) == (updates.kernel[0].tolist(), updates.bias.tolist())


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
