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
            "go: opt = ps.field(spec=choose), with a function choose(path, leaf)"
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


# --- parts of what is trained ---------------------------------------------------------


class Halves(ps.State):
    enc: dict = ps.field(spec=P("data"))
    dec: dict = ps.field(spec=P("model"))


def halves():
    return Halves(enc={"w": jnp.ones((8, 4))}, dec={"v": jnp.ones((8, 2))})


def whole():
    return {"encoder": {"w": jnp.ones((8, 4))}, "decoder": {"w": jnp.ones((8, 2))}}


def adam(params):
    return Optimizer(params, optax.adam, 1e-3)


def no_mirror(place, field, name):
    text = (
        f"{place}: spec={name!r} has no leaf of this path and shape. Say where it goes: "
        f"{field} = ps.field(spec=choose), with a function choose(path, leaf)"
    )
    return pytest.raises(ps.errors.ShardingError, match=exactly(text))


def test_a_mirror_of_the_whole_for_an_optimizer_of_a_part():
    class Train(ps.State):
        m: Halves
        opt: Optimizer = ps.field(spec="m")

    with no_mirror("Train.opt.state[0].mu['v']", "opt", "m"):
        specs(Train(m=halves(), opt=adam({"v": jnp.ones((8, 3))})))


def test_a_mirror_of_a_part_for_an_optimizer_of_the_whole():
    class Train(ps.State):
        enc: dict = ps.field(spec=P("data"))
        opt: Optimizer = ps.field(spec="enc")

    params = whole()
    opt = adam((params["encoder"], params["decoder"]))

    with no_mirror("Train.opt.state[0].mu[1]['w']", "opt", "enc"):
        specs(Train(enc=params["encoder"], opt=opt))


def test_optimizers_in_a_list_that_mirror_a_list():
    class Train(ps.State):
        nets: list = ps.field(spec=P("data"))
        opts: list = ps.field(spec="nets")

    nets = list(whole().values())

    with pytest.raises(ps.errors.ShardingError) as found:
        specs(Train(nets=nets, opts=[adam(net) for net in nets]))

    assert 2 == len(str(found.value).splitlines())
    assert str(found.value).startswith("Train.opts[0].state[0].mu['w']: spec='nets'")


def test_the_way_out_for_a_part():
    def choose(path, leaf):
        return P("data") if path.endswith("['w']") else None

    class Train(ps.State):
        nets: list = ps.field(spec=P("data"))
        opts: list = ps.field(spec=choose)

    nets = list(whole().values())
    found = specs(Train(nets=nets, opts=[adam(net) for net in nets]))

    assert ("data",) == found[".opts[1].state[0].nu['w']"]
    assert () == found[".opts[1].state[0].count"]


def test_a_function_decides_for_the_moments_of_a_state():
    class Train(ps.State):
        parts: dict
        opt: Optimizer = ps.field(
            spec=lambda path, leaf: P("data") if leaf.shape == (8,) else None
        )

    options = {"min_dim_size_to_factor": 2}
    opt = Optimizer(net(), optax.adafactor, 1e-3, **options)
    found = specs(Train(parts={"a": net()}, opt=opt))

    factors = {found[".opt.state[0].v_row.w"], found[".opt.state[0].v_col.w"]}
    assert {("data",), ()} == factors


def test_a_state_in_a_mirror_keeps_its_own_optimizer():
    class Part(ps.State):
        v: jax.Array = ps.field(spec=P("data", "model"))
        bias: jax.Array
        opt: Optimizer = ps.field(spec="v")

    class Train(ps.State):
        net: Net
        parts: list = ps.field(spec="net")

    v = jnp.ones((8, 2))
    found = specs(Train(net=net(), parts=[Part(v=v, bias=jnp.ones(3), opt=adam(v))]))

    assert ("data", "model") == found[".parts[0].v"]
    assert ("data", "model") == found[".parts[0].opt.state[0].mu"]
    assert () == found[".parts[0].bias"]


def test_a_plain_mirror_that_repeats_nothing():
    class Train(ps.State):
        params: dict = ps.field(spec=P("data"))
        opt: tuple = ps.field(spec="params")

    opt = optax.adam(1e-3).init(whole()["encoder"] | {"v": jnp.ones(8)})

    with no_mirror("Train.opt[0].mu['v']", "opt", "params"):
        specs(Train(params=whole(), opt=opt))


def test_factors_are_no_mistake_of_a_mirror():
    class Train(ps.State):
        params: dict = ps.field(spec=P("data"))
        opt: tuple = ps.field(spec="params")
        own: Optimizer = ps.field(spec="params")

    params, options = {"w": jnp.ones((8, 4))}, {"min_dim_size_to_factor": 2}
    opt = optax.adafactor(1e-3, **options).init(params)
    own = Optimizer(params, optax.adafactor, 1e-3, **options)
    found = specs(Train(params=params, opt=opt, own=own))

    assert {()} == {found[path] for path in found if not path.startswith(".params")}


# --- what is trained is further out ----------------------------------------------------


class Trainer(ps.State):
    opt: Optimizer
    count: jax.Array


def test_an_optimizer_in_a_state_beside_the_model():
    class Outer(ps.State):
        net: Net
        trainer: Trainer

    state = Outer(net=net(), trainer=Trainer(opt=adam(net()), count=jnp.zeros(())))

    with pytest.raises(
        ps.errors.ShardingError,
        match=exactly(
            "Outer.trainer.opt: its moments repeat net of Outer. Say so there: "
            'trainer = ps.field(spec="net")'
        ),
    ):
        specs(state)


def test_the_way_out_for_it():
    class Outer(ps.State):
        net: Net
        trainer: Trainer = ps.field(spec="net")

    state = Outer(net=net(), trainer=Trainer(opt=adam(net()), count=jnp.zeros(())))
    found = specs(state)

    assert ("data", "model") == found[".trainer.opt.state[0].mu.w"]
    assert () == found[".trainer.count"]


def test_an_optimizer_of_what_no_state_around_it_has():
    class Outer(ps.State):
        net: Net
        trainer: Trainer

    opt = adam({"w": jnp.ones((8, 4))})

    with pytest.raises(
        ps.errors.ShardingError,
        match=r"^Outer\.trainer\.opt: its moments repeat no other",
    ):
        specs(Outer(net=net(), trainer=Trainer(opt=opt, count=jnp.zeros(()))))


def test_nobody_is_asked_where_what_is_trained_is_replicated():
    class Probe(ps.State):
        head: dict
        opt: Optimizer

    class Outer(ps.State):
        net: Net
        probe: Probe

    head = {"k": jnp.ones((4, 4))}
    found = specs(Outer(net=net(), probe=Probe(head=head, opt=adam(head))))

    assert () == found[".probe.opt.state[0].mu['k']"]


def test_optimizers_of_many_models_are_not_all_started_for_each(monkeypatch):
    class Three(ps.State):
        a: dict = ps.field(spec=P("data"))
        b: dict = ps.field(spec=P("data"))
        c: dict = ps.field(spec=P("data"))
        opts: list

    nets = [{"w": jnp.ones((8, width))} for width in (1, 2, 3)]
    state = Three(*nets, opts=list(map(adam, nets)))
    asked = []
    mirrors = Optimizer.__purestate_mirrors__
    monkeypatch.setattr(
        Optimizer,
        "__purestate_mirrors__",
        lambda self, params: asked.append(1) or mirrors(self, params),
    )

    found = specs(state)

    assert ("data",) == found[".opts[2].state[0].mu['w']"]
    assert 3 == len(asked)


def test_memories_of_lbfgs_are_replicated():
    class Train(ps.State):
        params: dict = ps.field(spec=P("data"))
        memory: Optimizer
        said: Optimizer = ps.field(spec="params")

    params = {"w": jnp.ones((8, 2))}
    lbfgs = Optimizer(params, optax.lbfgs, 1e-3)
    found = specs(Train(params=params, memory=lbfgs, said=lbfgs))

    for field in ("memory", "said"):
        assert () == found[f".{field}.state[0].diff_params_memory['w']"]
        assert ("data",) == found[f".{field}.state[0].params['w']"]
