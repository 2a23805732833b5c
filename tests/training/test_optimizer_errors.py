"""What `Optimizer` refuses, what it says, and that what it says helps."""

import contextlib
import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import purestate as ps
from purestate.errors import OptimizerError, PlaceError
from purestate.optax import Optimizer
from tests.helpers import python
from tests.training import steps
from tests.training.steps import X, loss, net

WRITE = (
    "Write a function at the top of a module and give that:\n"
    "    def make(rate, steps):\n"
    "        return optax.adamw(optax.cosine_decay_schedule(rate, steps))\n"
    "    Optimizer(model, make, 1e-3, 10_000)"
)
MADE = (
    "got a transformation that is already made. It consists of functions that no other "
    "instance or process has, so that every instance would compile, and none could be "
    "pickled. "
)


@contextlib.contextmanager
def refused(text):
    """Expect this text; pytest's `match` would look at the notes of purestate too."""
    with pytest.raises(OptimizerError) as caught:
        yield
    assert text == str(caught.value)


def test_a_transformation_is_refused():
    text = (
        f"Optimizer {MADE}Give the function and its arguments, Optimizer(model, "
        f"optax.adam, 1e-3), or a function of yours that returns it."
    )
    with refused(text):
        Optimizer(X, optax.adam(1e-3))
    with refused(text):
        Optimizer(X, optax.MultiSteps(optax.adam(1e-3), 2))

    Optimizer(X, optax.adam, 1e-3)


def test_a_transformation_as_an_argument_is_refused():
    with refused(f"chain {MADE}{WRITE}"):
        Optimizer(X, optax.chain, optax.clip(1.0), optax.adam(1e-3))
    with refused(f"MultiSteps {MADE}{WRITE}"):
        Optimizer(X, optax.MultiSteps, optax.adam(1e-3), 2)

    Optimizer(X, steps.cosine, 1e-3, 10_000)


@pytest.mark.parametrize("make", [3, "adam", None], ids=str)
def test_what_is_not_a_function_is_refused(make):
    with refused(
        f"Optimizer takes the function that makes the transformation, Optimizer(model, "
        f"optax.adam, 1e-3), and got {make!r}."
    ):
        Optimizer(X, make)


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("schedule", optax.cosine_decay_schedule(0.1, 5)),
        ("<lambda>", functools.partial(lambda step: step)),
        ("<lambda>", (lambda: lambda step: 0.1)()),
    ],
)
def test_a_function_made_by_another_is_refused_as_an_argument(name, rate):
    if isinstance(rate, functools.partial):

        def local(step):
            return 0.1

        name, rate = "local", functools.partial(local)
    with refused(
        f"Optimizer got the function {name}, as argument learning_rate of adam, which "
        f"its module does not have under that name: it was made by another function, "
        f"so no other instance or process has the same. {WRITE}"
    ):
        Optimizer(X, optax.adam, rate)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, functools.partial])
def test_a_factory_made_by_another_function_is_refused(wrap):
    def local(rate):
        return optax.adam(rate)

    with refused(
        f"Optimizer got the function local, which its module does not have under that "
        f"name: it was made by another function, so no other instance or process has "
        f"the same. {WRITE}"
    ):
        Optimizer(X, wrap(local), 0.1)


class Rate:
    """Equal to itself only."""

    def __call__(self, step):
        return 0.1

    def halved(self, step):
        return 0.05


@pytest.mark.parametrize("rate", [Rate(), Rate().halved], ids=["object", "method"])
def test_an_object_that_is_equal_to_itself_only_is_refused(rate):
    with refused(
        "Optimizer got an object of Rate as argument learning_rate of adam, which is "
        "equal to itself only: no other instance or process has the same, so that each "
        "would compile. Make Rate a frozen dataclass, or give a function at the top of "
        "a module."
    ):
        Optimizer(X, optax.adam, rate)

    Optimizer(X, optax.adam, steps.Warmup(0.1))


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ((), "missing a required argument: 'learning_rate'"),
        ((1, 2, 3, 4, 5, 6, 7, 8), "too many positional arguments"),
    ],
)
def test_arguments_are_checked_at_construction(args, problem):
    with refused(f"Optimizer cannot call adam with these arguments: {problem}."):
        Optimizer(X, optax.adam, *args)


@pytest.mark.parametrize(
    ("mask", "key", "kind"),
    [({"a": 1}, "mask", "dict"), ([1], "mask", "list"), (([1],), "mask[0]", "list")],
)
def test_what_cannot_be_compared_is_refused(mask, key, kind):
    with refused(
        f"Optimizer keeps the arguments of adamw to compare them, and {key}, of type "
        f"{kind}, cannot be compared. For a mask give a choice of leaves, "
        f"mask=~ps.leaves('**.bias'), for a list a tuple."
    ):
        Optimizer(X, optax.adamw, 0.1, mask=mask)

    Optimizer(net(), optax.adamw, 0.1, mask=~ps.leaves("**.bias"), wrt=steps.FLOATS)


@pytest.mark.parametrize(
    ("args", "place"),
    [((jnp.float32(0.1),), "0"), ((0.1, np.ones(2)), "1"), (((X,),), "0[0]")],
)
def test_an_array_needs_an_argument_with_a_name(args, place):
    with refused(
        f"Optimizer keeps arrays as data by the name of the argument, and with_extras "
        f"got one at {place}, where it has no name of its own. Let the function take "
        f"it as an argument with a name, or give a Python number."
    ):
        Optimizer(X, steps.with_extras, *args)

    assert ["b1"] == list(
        Optimizer(X, steps.with_extras, 0.1, b1=jnp.float32(0.9)).hyperparams
    )


def nothing(rate):
    return None


def test_a_factory_of_something_else_is_refused():
    with refused(
        "nothing returned None, which is not an optax transformation. Give a function "
        "that returns one, as optax.adam does."
    ):
        Optimizer(X, nothing, 0.1)


def broken(rate):
    raise KeyError(rate)


def test_an_error_of_the_factory_names_it():
    with pytest.raises(KeyError) as caught:
        Optimizer(X, broken, 0.1)

    assert (
        "raised by broken, which makes the transformation of an Optimizer."
        in caught.value.__notes__
    )


def test_a_test_of_leaves_made_by_another_function_is_refused():
    with refused(
        "Optimizer got wrt= with the function <lambda>, which was made by another "
        "function, so no other instance or process has the same. Write it at the top "
        "of a module,\n"
        "    def matrices(x):\n"
        "        return x.ndim > 1\n"
        "or give a path: wrt=ps.leaves('**.kernel')."
    ):
        Optimizer(X, optax.adam, 0.1, wrt=~ps.leaves(lambda x: x.ndim > 1))

    Optimizer(X, optax.adam, 0.1, wrt=ps.leaves(steps.matrices))


@pytest.mark.parametrize("wrt", [None, 3, (), [3]], ids=str)
def test_wrt_is_a_choice_or_paths(wrt):
    with refused(
        f"Optimizer takes wrt= as a choice of leaves or as paths, and got {wrt!r}: "
        f"wrt=ps.leaves('encoder'), wrt=~ps.leaves('**.bias'). With a function of a "
        f"leaf, ps.leaves(matrices), that function stands at the top of a module:\n"
        f"    def matrices(x):\n"
        f"        return x.ndim > 1"
    ):
        Optimizer(X, optax.adam, 0.1, wrt=wrt)


def test_a_path_to_no_leaf_is_named():
    with pytest.raises(PlaceError, match=r"^Net has no leaf 'layer'; "):
        Optimizer(net(), optax.adam, 0.1, wrt="layer")


def test_there_must_be_something_to_train():
    with refused(
        "Optimizer has nothing to train: Net has no floating-point array among "
        "ps.leaves('count'). Give arrays of floats, or another wrt=."
    ):
        Optimizer(net(), optax.adam, 0.1, wrt="count")


FIT = (
    "Differentiate with ps.grad(loss, wrt=opt.wrt), or train less: Optimizer(..., "
    "wrt=ps.leaves(...))."
)


@pytest.mark.parametrize(
    ("grads", "places"),
    [
        (lambda g: None, "Layer.kernel: None\nLayer.bias: None"),
        (lambda g: 3, "Layer: int of another structure"),
        (lambda g: g.replace(bias=None), "Layer.bias: None"),
        (lambda g: g.replace(bias=jnp.ones(2)), "Layer.bias: shape (2,), for (3,)"),
        (lambda g: g.replace(bias=[1]), "Layer.bias: shape (1,), for (3,)"),
    ],
)
def test_gradients_fit_what_is_trained(grads, places):
    layer = net().layers[0]
    opt = Optimizer(layer, optax.adam, 0.1)

    with refused(
        f"update() got no gradient that fits what is trained:\n{places}\n{FIT}"
    ):
        opt.update(layer, grads=grads(layer))


def test_gradients_of_less_than_is_trained_are_refused():
    model = net()
    opt = Optimizer(model, optax.adam, 0.1, wrt="layers")
    less = ps.grad(loss, wrt="layers.0")(model, X)

    with refused(
        f"update() got no gradient that fits what is trained:\n"
        f"Net.layers[1].kernel: None\nNet.layers[1].bias: None\n{FIT}"
    ):
        opt.update(model, grads=less)

    opt.update(model, grads=ps.grad(loss, wrt=opt.wrt)(model, X))
    Optimizer(model, optax.adam, 0.1, wrt="layers.0").update(model, grads=less)


def test_params_have_the_leaves_of_the_start():
    opt = Optimizer({"a": X}, optax.adam, 0.1)

    with refused(
        "update() got a dict with 2 leaves, and this optimizer was made for params "
        "with 1. Make a new one: Optimizer(params, ...)."
    ):
        opt.update({"a": X, "b": X}, grads={"a": X, "b": X})


def test_swapped_arguments_are_refused():
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were"):
        Optimizer(X, optax.adam, 0.1).update(X, X)


def test_a_lambda_of_a_module_cannot_be_pickled():
    opt = Optimizer(X, optax.adam, steps.constant)

    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(opt)


def test_without_optax_the_import_says_what_to_install():
    done = python("import sys; sys.modules['optax'] = None; import purestate.optax")

    assert (
        "ModuleNotFoundError: purestate.optax needs optax, the extra `optax`: pip "
        "install optax." in done.stderr
    )


@pytest.mark.parametrize("mask", [lambda c: c, lambda c: ~c, lambda c: ps.floats & ~c])
def test_a_path_to_no_leaf_in_a_mask_is_named(mask):
    text = "Net has no leaf '**.bais'; did you mean '**.bias'?"

    with pytest.raises(PlaceError) as caught:
        Optimizer(
            net(), optax.adamw, 0.1, mask=mask(ps.leaves("**.bais")), wrt=steps.FLOATS
        )
    assert text == str(caught.value)


def test_a_path_to_no_leaf_is_found_inside_of_an_argument():
    text = "^Net has no leaf 'bais'; "

    for inside in (
        functools.partial(steps.halving, ps.leaves("bais")),
        ((~ps.leaves("bais"),),),
        steps.Warmup(ps.leaves("bais")),
    ):
        with pytest.raises(PlaceError, match=text):
            Optimizer(net(), steps.with_extras, 0.1, inside, wrt=steps.FLOATS)


@pytest.mark.parametrize(
    ("make", "wrt"),
    [(optax.adam, "encodr"), (optax.adam, ~ps.floats), (broken, steps.FLOATS)],
)
def test_the_notes_of_an_error_say_nothing_of_the_fields_of_the_optimizer(make, wrt):
    with pytest.raises((PlaceError, OptimizerError, KeyError)) as caught:
        Optimizer(net(), make, 0.1, wrt=wrt)
    assert (
        "raised by Optimizer.__init__; it had set no field." in caught.value.__notes__
    )
