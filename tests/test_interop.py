"""States next to equinox, flax, optax, chex and orbax."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from tests.state.test_plain_jax import run_on_four_devices


class Opt(ps.State):
    mu: jax.Array


class Params(ps.State):
    w: jax.Array
    b: jax.Array
    opt: Opt | None = None
    name: str = ps.static(default="a")

    def __call__(self, x):
        return self.w @ x + self.b

    def loss(self, x):
        return (self(x) ** 2).sum()


def params(**changes):
    return Params(w=jnp.ones((2, 3)), b=jnp.zeros(2)).replace(**changes)


X = jnp.arange(3.0)


# --- equinox ----------------------------------------------------------------------------


@pytest.fixture
def eqx():
    return pytest.importorskip("equinox", reason="equinox needs the interop extra")


def test_filter_jit_and_filter_grad_take_states(eqx):
    def loss(p, mode):
        return p.loss(X) if mode == "sum" else 0.0

    g = eqx.filter_jit(eqx.filter_grad(loss))(params(), "sum")

    assert Params is type(g)
    assert [6, 6] == g.b.tolist()


def test_filter_jit_takes_a_method_and_a_callable_state(eqx):
    assert [3, 3] == eqx.filter_jit(params())(X).tolist()
    assert 18.0 == eqx.filter_jit(params().loss)(X)


def test_filter_jit_knows_static_fields_and_traces_once(eqx):
    traces = []

    @eqx.filter_jit
    def f(p):
        traces.append(p.name)
        return p.w.sum()

    f(params()), f(params(b=jnp.ones(2))), f(params(name="b"))

    assert ["a", "b"] == traces


def test_filter_vmap_takes_a_prefix(eqx):
    batch = params(b=jnp.ones((4, 2)))

    out = eqx.filter_vmap(lambda p: p(X), in_axes=(ps.prefix(batch, b=0),))(batch)

    assert (4, 2) == out.shape


def test_tree_at_changes_a_state_and_agrees_with_at(eqx):
    p = params(opt=Opt(mu=jnp.zeros(2)))

    new = eqx.tree_at(lambda p: p.opt.mu, p, jnp.ones(2))

    assert p.at(lambda p: p.opt.mu).set(jnp.ones(2)) == new


def test_partition_and_combine_take_states_apart_and_together(eqx):
    p = params(opt=Opt(mu=jnp.arange(2)))

    arrays, rest = eqx.partition(p, eqx.is_inexact_array)

    assert arrays.opt.mu is None
    assert rest.w is None
    assert p == eqx.combine(arrays, rest)


def test_a_state_in_a_module(eqx):
    class Model(eqx.Module):
        linear: eqx.nn.Linear
        state: Params

        def __call__(self, x):
            return self.linear(x) + self.state(x)

    model = Model(eqx.nn.Linear(3, 2, key=jax.random.key(0)), params())

    g = eqx.filter_jit(eqx.filter_grad(lambda m: m(X).sum()))(model)

    assert Params is type(g.state)
    assert [1, 1] == g.state.b.tolist()
    assert [1, 1] == g.linear.bias.tolist()


def test_a_module_in_a_state(eqx):
    class Train(ps.State):
        model: eqx.nn.Linear
        step: jax.Array = 0

        @ps.jit(donate=True)
        def update(self, x):
            g = ps.grad(lambda s: (s.model(x) ** 2).sum(), wrt="model")(self)
            model = eqx.apply_updates(
                self.model, jax.tree.map(lambda d: -0.01 * d, g.model)
            )
            return self.replace(model=model, step=self.step + 1)

    train = Train(model=eqx.nn.Linear(3, 2, key=jax.random.key(0)))
    before = train.model(X)

    after = train.update(X)

    assert 1 == after.step
    assert (jnp.abs(after.model(X)) < jnp.abs(before)).all()


def test_a_module_with_a_function_in_a_state_is_named(eqx):
    class Train(ps.State):
        mlp: eqx.nn.MLP

        @ps.jit
        def apply(self, x):
            return self.mlp(x)

    train = Train(mlp=eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0)))

    with pytest.raises(TypeError) as caught:
        train.apply(X)

    assert any(
        note.startswith("Train.mlp.activation holds a ")
        for note in caught.value.__notes__
    )


def test_tree_equal_and_pformat_of_equinox_take_states(eqx):
    assert eqx.tree_equal(params(), params())
    assert not eqx.tree_equal(params(), params(name="b"))
    assert "Params" in eqx.tree_pformat(params())


def test_leaves_of_a_state_can_be_serialised(eqx, tmp_path):
    p = params(b=jnp.arange(2.0))
    eqx.tree_serialise_leaves(tmp_path / "p.eqx", p)

    assert p == eqx.tree_deserialise_leaves(tmp_path / "p.eqx", params())


# --- flax -------------------------------------------------------------------------------


@pytest.fixture
def flax():
    pytest.importorskip("flax", reason="flax needs the interop extra")
    import flax.linen
    import flax.nnx
    import flax.serialization
    import flax.struct

    return flax


def test_a_flax_dataclass_in_a_state_and_the_reverse(flax):
    @flax.struct.dataclass
    class Inner:
        a: jax.Array

    @flax.struct.dataclass
    class Outer:
        p: Params

    class S(ps.State):
        inner: Inner

        @ps.jit
        def step(self):
            return self.replace(inner=self.inner.replace(a=self.inner.a + 1))

    s = S(inner=Inner(jnp.zeros(2))).step()
    outer = jax.jit(lambda o: o.replace(p=o.p.replace(b=o.p.b + 1)))(Outer(params()))

    assert [1, 1] == s.inner.a.tolist()
    assert [1, 1] == outer.p.b.tolist()
    assert [5, 5] == s.at(lambda s: s.inner.a).set(np.full(2, 5)).inner.a.tolist()


def test_a_train_state_of_flax_holds_a_state(flax):
    optax = pytest.importorskip("optax", reason="optax needs the interop extra")
    from flax.training.train_state import TrainState

    train = TrainState.create(
        apply_fn=Params.__call__, params={"p": params()}, tx=optax.sgd(0.1)
    )
    g = jax.grad(lambda d: train.apply_fn(d["p"], X).sum())(train.params)

    new = train.apply_gradients(grads=g)

    assert Params is type(new.params["p"])
    assert new.params["p"].b.tolist() == pytest.approx([-0.1, -0.1])


def test_a_state_is_a_variable_of_a_linen_module(flax):
    nn = flax.linen

    class Module(nn.Module):
        @nn.compact
        def __call__(self, x):
            weights = self.param("weights", lambda key: params())
            seen = self.variable("stats", "opt", lambda: Opt(mu=jnp.zeros(3)))
            seen.value = seen.value.replace(mu=seen.value.mu + x)
            return weights(x)

    variables = Module().init(jax.random.key(0), X)
    out, changed = Module().apply(variables, X, mutable=["stats"])

    assert Params is type(variables["params"]["weights"])
    assert [3, 3] == out.tolist()
    assert [0, 2, 4] == changed["stats"]["opt"].mu.tolist()


def test_a_state_is_the_value_of_an_nnx_variable(flax):
    nnx = flax.nnx

    class Module(nnx.Module):
        def __init__(self):
            self.opt = nnx.Variable(Opt(mu=jnp.zeros(3)))

        def __call__(self, x):
            # `.value` is deprecated for arrays; older versions have nothing else.
            if hasattr(nnx.Variable, "get_value"):
                opt = self.opt.get_value()
                self.opt.set_value(opt.replace(mu=opt.mu + x))
            else:
                self.opt.value = self.opt.value.replace(mu=self.opt.value.mu + x)
            return x

    module = Module()
    nnx.jit(lambda m, x: m(x))(module, X)
    nnx.jit(lambda m, x: m(x))(module, X)

    (opt,) = (leaf for leaf in jax.tree.leaves(nnx.state(module), is_leaf=is_opt))
    assert [0, 2, 4] == opt.mu.tolist()


def is_opt(value):
    return type(value) is Opt


def test_nnx_scan_carries_a_state(flax):
    last, seen = flax.nnx.scan(
        lambda opt, x: (opt.replace(mu=opt.mu + x), x),
        in_axes=(flax.nnx.Carry, 0),
        out_axes=(flax.nnx.Carry, 0),
    )(Opt(mu=0.0), X)

    assert 3.0 == last.mu
    assert [0, 1, 2] == seen.tolist()


def test_flax_serialization_takes_a_state_for_one_value(flax):
    tree = {"p": params()}

    # flax knows its own classes only: a State is a leaf there, to be given as a dict.
    assert tree["p"] is flax.serialization.to_state_dict(tree)["p"]


# --- optax ------------------------------------------------------------------------------


@pytest.fixture
def optax():
    return pytest.importorskip("optax", reason="optax needs the interop extra")


@pytest.mark.parametrize(
    "make",
    [
        lambda o: o.sgd(0.1),
        lambda o: o.adam(0.1),
        lambda o: o.chain(o.clip_by_global_norm(1.0), o.adamw(0.1)),
        lambda o: o.inject_hyperparams(o.adam)(learning_rate=0.1),
        lambda o: o.MultiSteps(o.adam(0.1), every_k_schedule=2),
        lambda o: o.lion(0.1),
    ],
    ids=["sgd", "adam", "chain", "inject_hyperparams", "MultiSteps", "lion"],
)
def test_an_optimizer_updates_a_state(optax, make):
    opt = make(optax)

    @jax.jit
    def update(p, s):
        updates, s = opt.update(jax.grad(Params.loss)(p, X), s, p)
        return optax.apply_updates(p, updates), s

    p, s = params(), opt.init(params())
    for _ in range(4):
        p, s = update(p, s)

    assert Params is type(p)
    assert p.loss(X) < params().loss(X)
    assert jax.tree.structure(opt.init(params())) == jax.tree.structure(s)


def test_an_optimizer_state_is_a_field_and_a_carry(optax):
    opt = optax.adam(0.1)

    class Train(ps.State):
        p: Params
        s: object
        step: jax.Array = 0

        @ps.jit
        def update(self, x):
            g = jax.grad(Params.loss)(self.p, x)
            updates, s = opt.update(g, self.s, self.p)
            p = optax.apply_updates(self.p, updates)
            return self.replace(p=p, s=s, step=self.step + 1)

    train = Train(p=params(), s=opt.init(params()))
    last, _ = jax.lax.scan(lambda t, _: (t.update(X), None), train, None, length=5)

    assert 5 == last.step
    assert 5 == last.s[0].count
    assert last.at(lambda t: t.s[0].count).set(jnp.int32(0)).s[0].count == 0
    assert last.p.loss(X) < train.p.loss(X)


def test_ps_grad_feeds_an_optimizer_where_the_state_has_integer_leaves(optax):
    p = params(opt=Opt(mu=jnp.arange(2)))
    opt = optax.sgd(0.1)

    updates, _ = opt.update(ps.grad(Params.loss)(p, X), opt.init(p))
    new = jax.tree.map(
        lambda v, u: v if u is None else v + u, p, updates, is_leaf=lambda v: v is None
    )

    assert [0, 1] == new.opt.mu.tolist()
    assert new.loss(X) < p.loss(X)


def test_masked_leaves_the_other_fields_bit_for_bit(optax):
    mask = ps.prefix(params(), True, b=False)
    opt = optax.chain(
        optax.masked(optax.adamw(0.1, weight_decay=0.5), mask),
        optax.masked(optax.set_to_zero(), jax.tree.map(lambda keep: not keep, mask)),
    )
    p = params(b=jnp.array([0.1, 0.2]))

    updates, _ = opt.update(jax.grad(Params.loss)(p, X), opt.init(p), p)
    new = optax.apply_updates(p, updates)

    assert p.b.tobytes() == new.b.tobytes()
    assert (new.w != p.w).any()


def test_labels_of_a_partition_are_a_prefix(optax):
    labels = ps.prefix(params(), "slow", b="still")
    # optax calls labels that can be called, and these are a callable State.
    opt = optax.partition(
        {"slow": optax.sgd(0.1), "still": optax.set_to_zero()}, lambda _: labels
    )

    updates, _ = opt.update(jax.grad(Params.loss)(params(), X), opt.init(params()))

    assert [0, 0] == updates.b.tolist()
    assert (updates.w != 0).any()


def test_tree_utilities_of_optax_take_states(optax):
    assert 6.0 == optax.tree.norm(params(), squared=True)
    assert params() == optax.tree.add(params(), optax.tree.zeros_like(params()))


# --- chex -------------------------------------------------------------------------------


@pytest.fixture
def chex():
    return pytest.importorskip("chex", reason="chex needs the extra `testing`")


@pytest.mark.parametrize(
    "name",
    [
        "assert_trees_all_equal",
        "assert_trees_all_close",
        "assert_trees_all_equal_shapes",
        "assert_trees_all_equal_shapes_and_dtypes",
        "assert_trees_all_equal_structs",
        "assert_trees_all_equal_dtypes",
    ],
)
def test_an_assertion_of_chex_accepts_equal_states(chex, name):
    getattr(chex, name)(params(), params())


def test_assertions_of_chex_name_the_field(chex):
    with pytest.raises(AssertionError, match=r"[./]?b"):
        chex.assert_trees_all_equal(params(), params(b=jnp.ones(2)))
    with pytest.raises(AssertionError, match=r"b"):
        chex.assert_trees_all_equal_shapes(params(), params(b=jnp.ones(3)))


def test_chex_tells_static_fields_apart(chex):
    with pytest.raises(AssertionError, match=r"name='b'"):
        chex.assert_trees_all_equal_structs(params(), params(name="b"))


def test_chex_checks_finite_and_leading_axes_of_states(chex):
    chex.assert_tree_all_finite(params())
    chex.assert_tree_shape_prefix(ps.stack([params()] * 4), (4,))
    with pytest.raises(AssertionError, match="finite"):
        chex.assert_tree_all_finite(params(b=jnp.array([1.0, jnp.nan])))


def test_a_method_passes_the_trace_counter_of_chex(chex):
    counted = jax.jit(chex.assert_max_traces(Params.loss, n=1))

    assert 18.0 == counted(params(), X)
    assert 18.0 == counted(params().replace(), X)


def test_a_chex_dataclass_in_a_state(chex):
    @chex.dataclass(frozen=True)
    class Inner:
        a: jax.Array

    class S(ps.State):
        inner: Inner

    s = jax.jit(lambda s: jax.tree.map(lambda v: v + 1, s))(
        S(inner=Inner(a=jnp.ones(2)))
    )

    assert [2, 2] == s.inner.a.tolist()
    assert [2, 2] == copy.deepcopy(s).inner.a.tolist()


# --- orbax ------------------------------------------------------------------------------


@pytest.fixture
def ocp():
    return pytest.importorskip(
        "orbax.checkpoint", reason="orbax-checkpoint needs the interop extra"
    )


def test_a_state_is_saved_and_restored_into_its_class(ocp, tmp_path):
    p = params(b=jnp.arange(2.0), opt=Opt(mu=jnp.arange(3)))

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "c", p)
        checkpointer.wait_until_finished()
        again = checkpointer.restore(tmp_path / "c", jax.tree.map(jnp.zeros_like, p))

    assert p == again


@pytest.mark.parametrize("wrap", [lambda p: p, lambda p: [{"k": p}]])
def test_a_packed_state_is_saved_and_restored(ocp, tmp_path, wrap):
    packed = ps.pack(wrap(params(opt=Opt(mu=jnp.arange(3)))), max_bytes=8)

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "c", packed)
        checkpointer.wait_until_finished()
        again = checkpointer.restore(tmp_path / "c", packed)

    assert packed == again


def test_a_state_is_restored_into_a_state_of_shapes(ocp, tmp_path):
    p = params(b=jnp.arange(2.0))

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "c", p)
        checkpointer.wait_until_finished()
        again = checkpointer.restore(tmp_path / "c", jax.eval_shape(lambda: p))

    assert p == again


def test_a_state_is_restored_on_another_layout_of_devices(ocp, tmp_path):
    run_on_four_devices(
        f"""
        import orbax.checkpoint as ocp

        class T(ps.State):
            x: jax.Array
            y: jax.Array

        t = T(x=jnp.arange(8.0), y=jnp.ones(3))
        wanted = ps.prefix(t, x=P("d"), y=P())
        abstract = jax.tree.map(
            lambda v, p: jax.ShapeDtypeStruct(
                v.shape, v.dtype, sharding=NamedSharding(mesh, p)
            ),
            t, wanted,
        )
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save({str(tmp_path / "c")!r}, t)
            checkpointer.wait_until_finished()
            r = checkpointer.restore({str(tmp_path / "c")!r}, abstract)
        assert type(r) is T and r.x.sharding.spec == P("d")
        assert (r.x == t.x).all() and (r.y == t.y).all()
        """
    )


def test_a_run_time_type_checker_asks_what_is_stored_and_not_what_is_given():
    beartype = pytest.importorskip("beartype", reason="needs the interop extra")
    jaxtyping = pytest.importorskip("jaxtyping", reason="needs the interop extra")
    Float, Int = jaxtyping.Float, jaxtyping.Int

    @jaxtyping.jaxtyped(typechecker=beartype.beartype)
    class Checked(ps.State):
        px: Float[jax.Array, "n"] = ps.field(converter=lambda x: jnp.asarray(x) / 255)
        n: Int[jax.Array, ""] = 0
        y: jax.Array = 0.5

    assert 3 == Checked(jnp.full(3, 255.0), n=3).n
    assert [1.0] * 3 == Checked(np.full(3, 255)).px.tolist()
    assert [1.0] * 3 == Checked(np.full(3, 255), y=2).replace(n=4).px.tolist()
    for wrong in ({"px": jnp.ones((2, 2))}, {"px": jnp.ones(2), "n": jnp.ones(2, int)}):
        with pytest.raises(jaxtyping.TypeCheckError):
            Checked(**wrong)
