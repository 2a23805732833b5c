"""Optimizers without a spec go where the leaves go that they train."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import purestate as ps
from tests.helpers import exactly
from tests.sharding.test_shardings import MESH, Net, net, specs

optax = pytest.importorskip("optax", reason="needs the extra `optax`")
from purestate.optax import Optimizer  # noqa: E402  # it imports optax


class Train(ps.State):
    net: Net
    opt: Optimizer
    key: jax.Array


def train(make=optax.adam, *args, **options):
    args = args or (1e-3,)
    return Train(
        net=net(), opt=Optimizer(net(), make, *args, **options), key=jax.random.key(0)
    )


def moments(state, **options):
    found = specs(state, **options)
    return {path: spec for path, spec in found.items() if path.startswith(".opt")}


def test_moments_mirror_what_is_trained():
    assert {
        ".opt.state[0].count": (),
        ".opt.state[0].mu.w": ("data", "model"),
        ".opt.state[0].mu.b": ("model",),
        ".opt.state[0].nu.w": ("data", "model"),
        ".opt.state[0].nu.b": ("model",),
    } == moments(train())


def test_so_do_those_of_an_abstract_state():
    assert moments(train()) == moments(jax.eval_shape(train))


def test_hyperparameters_are_replicated():
    found = moments(train(optax.sgd, jnp.float32(0.1), momentum=0.9))

    assert () == found[".opt.hyperparams['learning_rate']"]
    assert ("data", "model") == found[".opt.state[0].trace.w"]


def test_factors_of_adafactor_are_replicated():
    found = moments(train(optax.adafactor, 1e-3, min_dim_size_to_factor=4))

    by_name = {path.rpartition("]")[2]: spec for path, spec in found.items()}
    assert {(), ("model",)} == set(by_name.values())
    assert () == by_name[".v_row.w"]
    assert ("model",) == by_name[".v.b"]


def test_only_what_is_trained_counts():
    found = moments(train(wrt=ps.leaves("w")))

    assert ("data", "model") == found[".opt.state[0].mu.w"]
    assert ".opt.state[0].mu.b" not in found


def test_an_optimizer_in_a_container_mirrors_too():
    class Gan(ps.State):
        net: Net
        opts: dict

    found = specs(Gan(net=net(), opts={"fast": Optimizer(net(), optax.adam, 1e-3)}))

    assert ("data", "model") == found[".opts['fast'].state[0].mu.w"]


def test_optimizers_of_two_models_find_their_own():
    class Two(ps.State):
        net: Net
        head: jax.Array = ps.field(spec=P("data"))
        opt: Optimizer
        opt_head: Optimizer

    head = jnp.ones(8)
    found = specs(
        Two(
            net=net(),
            head=head,
            opt=Optimizer(net(), optax.adam, 1e-3),
            opt_head=Optimizer(head, optax.adam, 1e-3),
        )
    )

    assert ("data", "model") == found[".opt.state[0].mu.w"]
    assert ("data",) == found[".opt_head.state[0].mu"]


def test_batched_moments_are_found():
    batch = ps.stack([train()] * 3)

    assert (None, "data", "model") == moments(batch, batch=(None,))[
        ".opt.state[0].nu.w"
    ]


def test_a_declared_mirror_is_no_candidate():
    class Averaged(ps.State):
        net: Net
        ema: Net = ps.field(spec="net")
        opt: Optimizer

    state = Averaged(net=net(), ema=net(), opt=Optimizer(net(), optax.adam, 1e-3))

    assert ("data", "model") == moments(state)[".opt.state[0].mu.w"]


def test_several_that_fit_are_named():
    class Averaged(ps.State):
        net: Net
        ema: Net
        opt: Optimizer

    state = Averaged(net=net(), ema=net(), opt=Optimizer(net(), optax.adam, 1e-3))

    with pytest.raises(
        ps.errors.ShardingError,
        match=exactly(
            "Averaged.opt: its moments repeat net and ema alike. Say which one: opt = "
            'ps.field(spec="net")'
        ),
    ):
        specs(state)


def test_none_that_fits_is_said():
    class Part(ps.State):
        net: Net
        opt: Optimizer

    state = Part(net=net(), opt=Optimizer({"w": net().w}, optax.adam, 1e-3))

    with pytest.raises(
        ps.errors.ShardingError,
        match=exactly(
            "Part.opt: its moments repeat no other field of the class. Say where they "
            'go: opt = ps.field(spec="model"), if they are those of model, or a '
            "function of (path, leaf)"
        ),
    ):
        specs(state)


def test_the_way_out_for_both():
    class Averaged(ps.State):
        net: Net
        ema: Net
        opt: Optimizer = ps.field(spec="net")

    state = Averaged(net=net(), ema=net(), opt=Optimizer(net(), optax.adam, 1e-3))

    assert ("data", "model") == moments(state)[".opt.state[0].mu.w"]


def test_nobody_is_asked_where_nothing_is_split():
    class Part(ps.State):
        w: jax.Array
        opt: Optimizer

    state = Part(w=jnp.ones(3), opt=Optimizer({"w": jnp.ones(3)}, optax.adam, 1e-3))

    assert {()} == set(specs(state).values())


def test_nobody_is_asked_for_an_optimizer_without_moments():
    class Averaged(ps.State):
        net: Net
        ema: Net
        opt: Optimizer

    state = Averaged(net=net(), ema=net(), opt=Optimizer(net(), optax.sgd, 1e-3))

    assert ("data", "model") == specs(state)[".ema.w"]


def test_a_plain_state_of_optax_mirrors_by_declaration():
    class Plain(ps.State):
        net: Net
        opt: tuple = ps.field(spec="net")

    state = Plain(net=net(), opt=optax.adam(1e-3).init(net()))

    assert ("data", "model") == specs(state, MESH)[".opt[0].mu.w"]
