"""`purestate.optax.Optimizer` does what optax does, once compiled for all instances."""

import copy
import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import Float

import purestate as ps
import purestate.testing as pst
from purestate.optax import Optimizer
from tests.helpers import python
from tests.training import steps
from tests.training.steps import FLOATS, Net, Train, X, loss, net

# One method serves the programs of all of these tests.
pytestmark = pytest.mark.filterwarnings("ignore::purestate.errors.RetraceWarning")


def by_hand(tx, wrt, model, steps=3):
    """Return a model that was trained without `Optimizer`."""

    @jax.jit
    def step(model, state):
        grads = ps.grad(loss, wrt=wrt)(model, X)
        trained, rest = ps.partition(model, wrt)
        updates, state = tx.update(grads, state, trained)
        return ps.combine(optax.apply_updates(trained, updates), rest), state

    state = tx.init(ps.partition(model, wrt)[0])
    for _ in range(steps):
        model, state = step(model, state)
    return model


def trained(train, times=3):
    for _ in range(times):
        train, _ = train.step(X)
    return train


RECIPES = {
    "adam": (optax.adam, (1e-2,), {}),
    "adamw": (optax.adamw, (1e-2,), {"mask": ~ps.leaves("**.bias")}),
    "sgd": (optax.sgd, (1e-2,), {"momentum": 0.9}),
    "lion": (optax.lion, (1e-2,), {}),
    "adafactor": (optax.adafactor, (1e-2,), {}),
    "muon": (optax.contrib.muon, (1e-2,), {}),
    "cosine": (steps.cosine, (1e-2, 10), {}),
    "clipped": (steps.clipped, (1e-2,), {"norm": 1.0}),
    "variadic": (steps.with_extras, (1e-2, 1.0, 2.0), {"b1": 0.8}),
}
recipes = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


@recipes
def test_a_step_is_bit_for_bit_that_of_optax(recipe):
    make, args, kwargs = recipe

    hand = by_hand(make(*args, **kwargs), FLOATS, net())

    assert hand == trained(Train(make, *args, **kwargs)).net


@pytest.mark.parametrize(
    "wrt",
    [
        FLOATS,
        ps.leaves("layers.0"),
        FLOATS & ~ps.leaves("**.bias"),
        ps.leaves(steps.matrices) & FLOATS,
    ],
    ids=str,
)
def test_every_choice_trains_the_same_leaves_as_optax(wrt):
    assert by_hand(optax.adam(0.1), wrt, net()) == (
        trained(Train(optax.adam, 0.1, wrt=wrt)).net
    )


@pytest.mark.parametrize(
    ("wrt", "chosen"),
    [
        ("layers.0", ps.leaves("layers.0")),
        (["layers.0", "**.bias"], ps.leaves("layers.0", "**.bias")),
        ([ps.leaves("layers.0"), "**.bias"], ps.leaves("layers.0", "**.bias")),
    ],
)
def test_paths_are_kept_as_a_choice(wrt, chosen):
    assert chosen == Optimizer(net(), optax.adam, 0.1, wrt=wrt).wrt


def test_several_steps_accumulate_as_in_optax():
    tx = steps.accumulated(1e-2, 2).gradient_transformation()

    train = trained(Train(steps.accumulated, 1e-2, 2), 4)

    assert by_hand(tx, FLOATS, net(), 4) == train.net
    assert net().layers == trained(Train(steps.accumulated, 1e-2, 2), 1).net.layers


def test_lbfgs_gets_values_of_the_whole_model():
    model, wrt = net(), FLOATS
    of = functools.partial(loss, x=X)
    value, grads = ps.value_and_grad(of, wrt=wrt)(model)
    held, rest = ps.partition(model, wrt)
    tx = optax.lbfgs()
    updates, _ = tx.update(
        grads,
        tx.init(held),
        held,
        value=value,
        grad=grads,
        value_fn=lambda part: of(ps.combine(part, rest)),
    )

    _, new = Optimizer(model, optax.lbfgs, wrt=wrt).update(
        model, grads=grads, value=value, grad=grads, value_fn=of
    )

    assert ps.combine(optax.apply_updates(held, updates), rest) == new
    assert of(new) < value


@recipes
def test_instances_and_copies_share_one_program(recipe):
    make, args, kwargs = recipe
    first = Train(make, *args, **kwargs)
    others = [
        Train(make, *args, **kwargs),
        copy.deepcopy(first),
        pickle.loads(pickle.dumps(first)),
    ]

    first.step(X)
    with pst.assert_traces(0, of=Train.step):
        results = [other.step(X) for other in others]

    assert [first.step(X)] * 3 == results


def test_cloudpickle_keeps_the_program():
    cloudpickle = pytest.importorskip("cloudpickle", reason="needs the interop extra")
    train = Train(optax.adam, 0.1)
    train.step(X)

    with pst.assert_traces(0, of=Train.step):
        pickle.loads(cloudpickle.dumps(train)).step(X)


def test_another_process_has_the_same_program():
    head = "import pickle, sys, optax; from tests.training.steps import *"
    make = "made = Train(cosine, 0.1, steps=10)"
    sent = python(head, make, "sys.stdout.buffer.write(pickle.dumps(made))", text=False)
    assert 0 == sent.returncode, sent.stderr.decode()

    used = python(
        head,
        make,
        """
        import jax, purestate.testing as pst
        got = pickle.loads(sys.stdin.buffer.read())
        assert jax.tree.structure(got) == jax.tree.structure(made)
        made.step(X)
        with pst.assert_traces(0, of=Train.step):
            got.step(X)
        """,
        text=False,
        input=sent.stdout,
    )

    assert 0 == used.returncode, used.stderr.decode()


def test_a_function_of_the_script_itself_is_a_factory():
    done = python(
        """
        import pickle, jax, jax.numpy as jnp, optax
        from purestate.optax import Optimizer
        def make(rate):
            return optax.sgd(optax.cosine_decay_schedule(rate, 5))
        opt = Optimizer(jnp.ones(2), make, 0.1)
        assert pickle.loads(pickle.dumps(opt)) == opt
        """
    )

    assert "" == done.stderr


def test_arguments_by_position_and_by_name_are_one_program():
    made = [
        Optimizer(net(), optax.adam, 0.1, 0.8),
        Optimizer(net(), optax.adam, b1=0.8, learning_rate=0.1),
        Optimizer(net(), functools.partial(optax.adam, b1=0.8), 0.1),
    ]

    assert 1 == len({jax.tree.structure(opt) for opt in made})


def test_integers_of_numpy_are_those_of_python():
    one, other = (
        Optimizer(net(), steps.accumulated, 0.1, n(2)) for n in (int, np.int64)
    )

    assert jax.tree.structure(one) == jax.tree.structure(other)


@pytest.mark.parametrize(
    "schedule",
    [
        steps.halving,
        steps.jitted,
        steps.constant,
        steps.Schedules.fixed,
        steps.Schedules.of_class,
        steps.Warmup(0.1),
        steps.Warmup(0.1).scaled,
    ],
    ids=["function", "jitted", "lambda", "static", "class", "callable", "bound"],
)
def test_schedules_that_a_module_has_are_constants(schedule):
    hand = by_hand(optax.adam(schedule), FLOATS, net())

    assert hand == trained(Train(optax.adam, schedule)).net


def test_a_callable_dataclass_is_a_factory():
    hand = by_hand(optax.sgd(0.1, 0.5), FLOATS, net())

    assert hand == trained(Train(steps.Maker(0.5), 0.1)).net
    with pst.assert_traces(0, of=Train.step):
        Train(steps.Maker(0.5), 0.1).step(X)


def test_every_factory_of_optax_is_found():
    names = ["adabelief", "adadelta", "adagrad", "adamax", "adamaxw", "amsgrad"]
    names += ["fromage", "lamb", "lars", "nadam", "noisy_sgd", "novograd", "radam"]
    names += ["rmsprop", "rprop", "sgd", "sign_sgd", "sm3", "yogi"]
    extra = {"noisy_sgd": {"key": 0}}
    for name in names:
        opt = Optimizer(jnp.ones(3), getattr(optax, name), 0.1, **extra.get(name, {}))
        assert pickle.loads(pickle.dumps(opt)) == opt


def test_array_arguments_are_data():
    train = Train(optax.adam, jnp.float32(1e-2))
    train.step(X)

    with pst.assert_traces(0, of=Train.step):
        faster = train.at(lambda t: t.opt.hyperparams["learning_rate"]).set(0.1)
        new, _ = faster.step(X)

    assert trained(Train(optax.adam, np.float32(0.1)), 1).net == new.net
    assert ["learning_rate"] == list(train.opt.hyperparams)


def test_a_sweep_of_rates_is_a_batch():
    rates = jnp.array([1e-3, 1e-2, 1e-1])

    batch = jax.vmap(lambda rate: Train(optax.adam, rate))(rates)
    swept = jax.vmap(lambda train: train.step(X)[0])(batch)

    for rate, one in zip(rates, ps.unstack(swept), strict=True):
        pst.assert_close(trained(Train(optax.adam, rate), 1).net, one.net)


def test_an_array_that_was_given_outlives_donation():
    rate = jnp.float32(0.1)

    Train(optax.adam, rate).donated(X)

    assert pytest.approx(0.1) == float(rate)


def test_two_are_stacked():
    two = ps.stack([Train(optax.adam, 0.1), Train(optax.adam, 0.1)])

    made = jax.vmap(lambda train: train.step(X)[0])(two)

    expected = Train(optax.adam, 0.1).step(X)[0]
    for one in ps.unstack(made):
        pst.assert_close(expected.opt, one.opt)


def test_a_scan_carries_it():
    def body(train, _):
        return train.step(X)

    made, _ = jax.lax.scan(body, Train(optax.adam, 0.1), length=3)

    pst.assert_close(trained(Train(optax.adam, 0.1)), made)


def test_a_donated_step_gives_the_same():
    train = Train(optax.adam, 0.1)
    for _ in range(3):
        train, _ = train.donated(X)

    assert trained(Train(optax.adam, 0.1)) == train


def test_it_is_packed():
    packed, _ = ps.pack(Train(optax.adam, 0.1)).step(X)

    assert trained(Train(optax.adam, 0.1), 1) == packed.unpack()


def test_a_training_step_keeps_the_laws_of_methods():
    class Fit(ps.State):
        w: Float[jax.Array, "n"]
        opt: Optimizer

        def __init__(self, w: Float[jax.Array, "n"]):
            self.w = w
            self.opt = Optimizer(w, optax.sgd, 0.1, momentum=0.9)

        def step(self):
            opt, w = self.opt.update(self.w, grads=2 * self.w)
            return self.replace(w=w, opt=opt)

    pst.check_method(Fit.step)


def test_what_is_not_trained_comes_back_as_it_went_in():
    model = net()
    opt = Optimizer(model, optax.adam, 0.1, wrt="layers.0")
    grads = ps.grad(loss, wrt="layers.0")(model, X)

    _, new = opt.update(model, grads=grads)

    assert model.layers[1].kernel is new.layers[1].kernel
    assert model.key is new.key
    assert (2.0, 1) == (new.scale, new.dim)
    assert opt.state[0].mu.layers[1].kernel is None


def test_gradients_of_more_than_is_trained_are_left_out():
    model = net()
    opt = Optimizer(model, optax.adam, 0.1, wrt="layers.0")
    some, all_of_them = ps.grad(loss, wrt="layers.0"), ps.grad(loss, wrt=FLOATS)

    assert opt.update(model, grads=some(model, X)) == (
        opt.update(model, grads=all_of_them(model, X))
    )


def test_none_stands_for_a_part_without_gradients():
    model = net()
    opt = Optimizer(model, optax.adam, 0.1, wrt="layers.0")
    grads = ps.grad(loss, wrt=FLOATS)(model, X)
    layers = [grads.layers[0], None]
    bare = jax.tree.unflatten(
        jax.tree.structure(Net([0, 0], 0), is_leaf=None), [*layers, *[None] * 4]
    )

    assert opt.update(model, grads=grads) == opt.update(model, grads=bare)


def equinox_module():
    eqx = pytest.importorskip("equinox", reason="equinox needs the interop extra")
    return eqx.nn.Linear(2, 3, key=jax.random.key(0))


def linen_params():
    linen = pytest.importorskip("flax.linen", reason="flax needs the interop extra")
    return linen.Dense(3).init(jax.random.key(0), X)


def frozen_params():
    core = pytest.importorskip("flax.core", reason="flax needs the interop extra")
    return core.freeze(linen_params())


def nnx_state():
    nnx = pytest.importorskip("flax.nnx", reason="flax needs the interop extra")
    return nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"w": jnp.ones(3), "deep": {"b": jnp.ones(2), "n": 3, "f": 1.0}},
        lambda: jnp.ones(3),
        equinox_module,
        linen_params,
        frozen_params,
        nnx_state,
    ],
    ids=["dicts", "array", "equinox", "linen", "frozen", "nnx"],
)
def test_params_are_any_pytree(make):
    params = make()
    held, rest = ps.partition(params, ps.floats)
    tx = optax.adam(0.1)
    grads = jax.tree.map(jnp.ones_like, held)
    updates, _ = tx.update(grads, tx.init(held), held)
    hand = ps.combine(optax.apply_updates(held, updates), rest)
    opt = Optimizer(params, optax.adam, 0.1)

    again, new = opt.update(params, grads=grads)

    pst.assert_same(hand, new)
    assert jax.tree.structure(opt) == jax.tree.structure(again)


def test_a_python_float_stays_inside_of_jit():
    params = {"rate": 1.0, "w": jnp.ones(2)}
    opt = Optimizer(params, optax.adam, 0.1)

    _, new = jax.jit(lambda opt, p: opt.update(p, grads=p))(opt, params)

    assert 1.0 == new["rate"]


def test_a_subclass_has_fields_of_its_own():
    class Counting(Optimizer):
        steps: jax.Array = ps.field(default=0, dtype=jnp.int32)

        def __init__(self, params, *args, **kwargs):
            self.steps = 0
            super().__init__(params, *args, **kwargs)

        def update(self, params, /, *, grads, **extra):
            opt, params = super().update(params, grads=grads, **extra)
            return opt.replace(steps=self.steps + 1), params

    opt, _ = Counting(X, optax.adam, 0.1).update(X, grads=X)

    assert (Counting, 1) == (type(opt), int(opt.steps))


def test_the_program_is_that_of_optax():
    train, tx = Train(optax.adam, 0.1), optax.adam(0.1)

    def hand(model, state):
        value, grads = ps.value_and_grad(loss, wrt=FLOATS)(model, X)
        held, rest = ps.partition(model, FLOATS)
        updates, state = tx.update(grads, state, held)
        return ps.combine(optax.apply_updates(held, updates), rest), state, value

    ours = jax.make_jaxpr(lambda t: Train.step.__wrapped__(t, X))(train).eqns
    theirs = jax.make_jaxpr(hand)(train.net, train.opt.state).eqns

    assert [eqn.primitive for eqn in theirs] == [eqn.primitive for eqn in ours]


DEVICES = """
import jax, jax.numpy as jnp, numpy as np, optax, purestate as ps
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from purestate.optax import Optimizer
mesh = Mesh(np.array(jax.devices()), ("d",))
w = jnp.arange(8.0)
opt = Optimizer(w, optax.adam, 0.1)
_, expected = opt.update(w, grads=w)
"""


@pytest.mark.parametrize(
    "use",
    [
        """
        placed = jax.device_put(w, NamedSharding(mesh, P("d")))
        made = Optimizer(placed, optax.adam, 0.1)
        made, new = jax.jit(lambda o, w: o.update(w, grads=w))(made, placed)
        assert made.state[0].mu.sharding.is_equivalent_to(placed.sharding, 1)
        """,
        """
        spec = jax.tree.map(lambda x: P("d") if x.ndim else P(), opt)
        step = lambda o, w: o.update(w, grads=w)
        _, new = jax.jit(jax.shard_map(
            step, mesh=mesh, in_specs=(spec, P("d")), out_specs=(spec, P("d"))
        ))(opt, w)
        """,
    ],
    ids=["sharded", "shard_map"],
)
def test_four_devices_share_the_work(use):
    check = "assert np.allclose(new, expected) and len(new.sharding.device_set) == 4"

    done = python(DEVICES, use, check, devices=4)

    assert "" == done.stderr


@pytest.mark.parametrize("rate", [np.float32(0.1), np.logspace(-1, 0, 2)[0]])
def test_a_floating_point_number_of_numpy_is_data(rate):
    opt = Optimizer(X, optax.adam, rate, b1=np.float64(0.9), nesterov=np.bool_(0))

    assert {"learning_rate", "b1"} == opt.hyperparams.keys()
    assert opt.hyperparams["learning_rate"].dtype == jnp.float32
    assert opt.make.keywords["nesterov"] is False
