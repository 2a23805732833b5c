"""JAX's own transforms take States and their methods as they are, without `ps.*`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from tests.helpers import python


class Opt(ps.State):
    mu: jax.Array


class Box(ps.State):
    x: jax.Array
    opt: Opt
    n: jax.Array = 0
    key: object = None
    gain: float = ps.static(default=2.0)

    def __check__(self):
        if self.x.ndim > 2:
            raise ValueError("ndim")

    def step(self, k=1.0):
        return self.replace(
            x=self.x * self.gain * k,
            opt=self.opt.replace(mu=self.opt.mu + 1),
            n=self.n + 1,
        )

    def loss(self):
        return (self.x**2).sum() + self.opt.mu.sum()

    @jax.jit
    def jitted(self, k):
        return self.step(k)

    @functools.partial(jax.jit, donate_argnums=0)
    def donated(self):
        return self.step()

    @functools.partial(jax.jit, static_argnames="times")
    def repeated(self, times):
        for _ in range(times):
            self = self.step()
        return self


class Weights(ps.State):
    """Floating leaves only, as `jax.grad` wants them."""

    w: jax.Array
    opt: Opt
    name: str = ps.static(default="a")

    def loss(self, x=1.0):
        return (self.w**2).sum() * x + self.opt.mu.sum()


def box(**changes):
    return Box(x=jnp.ones(3), opt=Opt(mu=jnp.zeros(2))).replace(**changes)


def weights():
    return Weights(w=jnp.array([1.0, 2.0]), opt=Opt(mu=jnp.zeros(2)))


USES = {
    "jit": lambda: jax.jit(Box.step)(box()),
    "jitted method": lambda: box().jitted(1.0),
    "donated method": lambda: box().donated(),
    "static argument": lambda: box().repeated(times=2),
    "bound method": lambda: jax.jit(box().step)(2.0),
    "vmap of a method": lambda: jax.vmap(box().step)(jnp.ones(4)),
    "vmap of a batch": lambda: jax.vmap(Box.step)(ps.stack([box(), box()])),
    "vmap of jit": lambda: jax.vmap(box().jitted)(jnp.ones(4)),
    "grad": lambda: jax.grad(Weights.loss)(weights()),
    "value_and_grad": lambda: jax.value_and_grad(Weights.loss)(weights()),
    "grad of jit": lambda: jax.grad(jax.jit(Weights.loss))(weights()),
    "jacfwd": lambda: jax.jacfwd(Weights.loss)(weights()),
    "hessian": lambda: jax.hessian(Weights.loss)(weights()),
    "jvp": lambda: jax.jvp(Weights.loss, (weights(),), (weights(),)),
    "vjp": lambda: jax.vjp(Weights.loss, weights())[1](1.0),
    "linearize": lambda: jax.linearize(Weights.loss, weights())[1](weights()),
    "checkpoint": lambda: jax.grad(jax.checkpoint(Weights.loss))(weights()),
    "scan": lambda: jax.lax.scan(
        lambda b, k: (b.step(k), b), box(), jnp.ones(3)
    ),
    "while_loop": lambda: jax.lax.while_loop(lambda b: b.n < 3, Box.step, box()),
    "fori_loop": lambda: jax.lax.fori_loop(0, 3, lambda i, b: b.step(), box()),
    "cond": lambda: jax.lax.cond(True, Box.step, lambda b: b, box()),
    "switch": lambda: jax.lax.switch(1, [lambda b: b, Box.step], box()),
    "map": lambda: jax.lax.map(Box.step, ps.stack([box(), box()])),
    "associative_scan": lambda: jax.lax.associative_scan(
        lambda a, b: jax.tree.map(jnp.add, a, b), ps.stack([weights(), weights()])
    ),
    "eval_shape": lambda: jax.eval_shape(Box.step, box()),
    "make_jaxpr": lambda: jax.make_jaxpr(Box.step)(box()).jaxpr.outvars and None,
    "lower": lambda: jax.jit(Box.step).lower(box()).compile()(box()),
    "device_put": lambda: jax.device_put(box()),
    "device_get": lambda: jax.device_get(box()),
    "block_until_ready": lambda: jax.block_until_ready(box()),
    "pure_callback": lambda: jax.jit(
        lambda b: jax.pure_callback(lambda b: b, jax.eval_shape(lambda: b), b)
    )(box()),
    "custom_jvp": lambda: jax.grad(custom_jvp)(weights()),
    "closure_convert": lambda: jax.closure_convert(Weights.loss, weights())[0](
        weights()
    ),
}  # fmt: skip


@jax.custom_jvp
def custom_jvp(s):
    return s.loss()


@custom_jvp.defjvp
def custom_jvp_rule(primals, tangents):
    (s,), (t,) = primals, tangents
    return s.loss(), 3.0 * t.w.sum()


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_transform_of_jax_works_and_leaks_no_tracer(use):
    with jax.checking_leaks():
        out = use()

    assert not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(out))


def states_in(tree):
    is_state = lambda part: isinstance(part, (Box, Weights))  # noqa: E731
    return [part for part in jax.tree.leaves(tree, is_leaf=is_state) if is_state(part)]


@pytest.mark.parametrize("name", [name for name in USES if name not in (
    "make_jaxpr", "closure_convert")])  # fmt: skip
def test_a_transform_of_jax_returns_the_class_with_its_static_fields(name):
    for state in states_in(USES[name]()):
        assert Opt is type(state.opt)
        assert (2.0 if type(state) is Box else "a") == (
            state.gain if type(state) is Box else state.name
        )


# --- values -----------------------------------------------------------------------------


def test_jit_agrees_with_eager():
    assert box().step() == jax.jit(Box.step)(box())


def test_vmap_agrees_with_single_calls():
    boxes = [box(), box(x=jnp.zeros(3))]

    mapped = jax.vmap(Box.step)(ps.stack(boxes))

    assert [b.step() for b in boxes] == ps.unstack(mapped)


def test_grad_is_the_same_class_with_the_same_static_fields():
    g = jax.grad(Weights.loss)(weights())

    assert Weights(w=jnp.array([2.0, 4.0]), opt=Opt(mu=jnp.ones(2))) == g


def test_scan_carries_a_state_and_stacks_those_it_returns():
    last, seen = jax.lax.scan(lambda b, _: (b.step(), b.opt), box(), None, length=3)

    assert [8, 8, 8] == last.x.tolist()
    assert [0, 1, 2] == seen.mu[:, 0].tolist()
    assert 3 == last.n


def test_a_number_in_a_field_annotated_as_an_array_stays_a_counter_in_scan():
    last, _ = jax.lax.scan(lambda b, _: (b.step(), None), box(), None, length=3)

    assert (jnp.int32, False) == (last.n.dtype, last.n.weak_type)


def test_a_carry_of_another_dtype_is_named_with_its_field_by_jax_itself():
    class Fire(ps.State):
        pos: jax.Array
        n_pos: jax.Array

    def step(fire, _):
        n = jnp.where(fire.pos.sum() > 0, fire.n_pos + 1, 0.0)
        return fire.replace(n_pos=n), None

    with pytest.raises(TypeError, match=r"fire\.n_pos") as caught:
        jax.lax.scan(step, Fire(pos=jnp.zeros((5, 3)), n_pos=0), None, length=3)

    text = str(caught.value)
    assert "int32" in text
    assert "float32" in text
    assert "fire.pos" not in text


def test_a_carry_of_another_shape_or_structure_is_named_with_its_field():
    with pytest.raises(TypeError, match=r"b\.opt\.mu") as caught:
        jax.lax.scan(
            lambda b, _: (b.at(lambda b: b.opt.mu).set(jnp.ones(3)), None),
            box(),
            None,
            length=2,
        )
    assert "float32[2]" in str(caught.value)
    with pytest.raises(TypeError, match=r"b\.opt"):
        jax.lax.scan(lambda b, _: (b.replace(opt=None), None), box(), None, length=2)


def test_a_carry_of_another_static_value_shows_both_with_the_field_name():
    with pytest.raises(TypeError, match=r"gain=2\.0(.|\n)*gain=3\.0"):
        jax.lax.scan(lambda b, _: (b.replace(gain=3.0), None), box(), None, length=2)


def test_branches_of_cond_that_differ_in_a_static_field_are_told_apart():
    with pytest.raises(
        TypeError, match=r"gain=2\.0(.|\n)*gain=3\.0|gain=3\.0(.|\n)*2\.0"
    ):
        jax.lax.cond(True, lambda b: b, lambda b: b.replace(gain=3.0), box())


def test_static_fields_choose_the_program():
    f = jax.jit(lambda b: b.x * b.gain)

    assert [2, 3, 2] == [float(f(box(gain=g))[0]) for g in (2.0, 3.0, 2.0)]


def test_two_instances_of_a_class_share_a_trace():
    traces = []

    @jax.jit
    def f(b):
        traces.append(1)
        return b.x

    f(box()), f(box()), f(box().step()), f(jax.tree.map(lambda v: v, box()))

    assert 1 == len(traces)


def test_a_container_that_a_traced_function_changes_is_a_fresh_one():
    class S(ps.State):
        d: dict

    s = S(d={"a": jnp.ones(2)})

    def f(s):
        s.d["b"] = s.d["a"] * 2
        return s.d["b"]

    jax.jit(f)(s)

    assert ["a"] == list(s.d)


def test_custom_vjp_may_return_none_for_a_field_or_the_whole():
    @jax.custom_vjp
    def f(s, k):
        return (s.w * k).sum()

    def forward(s, k):
        return f(s, k), (s, k)

    def backward(kept, ct):
        s, k = kept
        return s.replace(w=ct * k * jnp.ones_like(s.w), opt=None), None

    f.defvjp(forward, backward)

    g = jax.grad(f)(weights(), 3.0)

    assert [3, 3] == g.w.tolist()
    assert [0, 0] == g.opt.mu.tolist()


def test_custom_vjp_works_for_a_class_with_checks():
    class S(ps.State):
        x: jax.Array

        def __check__(self):
            if self.x.ndim != 1:
                raise ValueError("ndim")

    @jax.custom_vjp
    def f(s):
        return s.x.sum()

    f.defvjp(lambda s: (f(s), None), lambda _, ct: (S(x=ct * jnp.full(3, 7.0)),))

    assert [7, 7, 7] == jax.grad(f)(S(x=jnp.ones(3))).x.tolist()


def test_nondiff_arguments_of_custom_vjp_may_be_states_without_data():
    class Mode(ps.State):
        scale: float = ps.static(default=2.0)

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def f(mode, x):
        return mode.scale * x

    f.defvjp(lambda mode, x: (f(mode, x), None), lambda mode, _, ct: (mode.scale * ct,))

    assert 2.0 == jax.grad(f, argnums=1)(Mode(), 1.0)


def test_eval_shape_returns_a_state_of_shapes_that_can_be_used_again():
    shapes = jax.eval_shape(Box.step, box())

    assert Box is type(shapes)
    assert (3,) == shapes.x.shape
    assert shapes.x == jax.eval_shape(Box.step, shapes).x


def test_a_checkpointed_method_gives_the_same_gradient():
    def loss(s):
        return jax.checkpoint(lambda s: s.loss())(s)

    assert jax.grad(Weights.loss)(weights()) == jax.grad(loss)(weights())


def test_a_callable_state_goes_through_vmap_grad_and_eval_shape():
    class F(ps.State):
        x: jax.Array

        def __call__(self, y):
            return self.x.sum() * y

    @jax.jit
    def f(x):
        g = F(x=x)
        jax.eval_shape(g, 1.0)
        return jax.vmap(g)(jnp.ones(2)) + jax.grad(g)(1.0)

    assert [6, 6] == f(jnp.arange(3.0)).tolist()


def test_keys_go_through_jit_and_split():
    b = jax.jit(lambda b: b.replace(key=jax.random.split(b.key)[0]))(
        box(key=jax.random.key(0))
    )

    assert jax.dtypes.issubdtype(b.key.dtype, jax.dtypes.prng_key)


def test_a_state_can_be_a_carry_next_to_other_containers():
    def body(carry, x):
        (b, total), log = carry
        return ((b.step(), total + x), log | {"n": b.n}), None

    start = ((box(), jnp.float32(0)), {"n": jnp.int32(0)})
    ((b, total), log), _ = jax.lax.scan(body, start, jnp.ones(4))

    assert (4, 4.0, 3) == (b.n, total, log["n"])


def test_numpy_leaves_come_back_as_arrays_of_jax():
    b = jax.jit(lambda b: b)(box(x=np.ones(3, np.float32)))

    assert isinstance(b.x, jax.Array)


# --- on several devices -----------------------------------------------------------------

FOUR = """
    import jax, jax.numpy as jnp, numpy as np, purestate as ps
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()), ("d",))
    assert 4 == mesh.size

    class S(ps.State):
        x: jax.Array
        y: jax.Array
        n: int = ps.static(default=1)

        def __post_init__(self):
            assert self.x.ndim == 2

        def double(self):
            return self.replace(x=self.x * 2)

    s = S(x=jnp.ones((8, 2)), y=jnp.ones(3))
    spec = ps.prefix(s, x=P("d"), y=P())
    is_spec = lambda v: isinstance(v, P)
    shardings = jax.tree.map(lambda p: NamedSharding(mesh, p), spec, is_leaf=is_spec)
"""


def run_on_four_devices(code):
    done = python(FOUR, code, devices=4)

    assert 0 == done.returncode, done.stderr


def test_shard_map_takes_a_prefix_as_its_specs():
    run_on_four_devices(
        """
        shapes = []
        def f(s):
            shapes.append(s.x.shape)
            return s.double()
        for jit in (jax.jit, ps.jit):
            r = jit(jax.shard_map(f, mesh=mesh, in_specs=(spec,), out_specs=spec))(s)
            assert (r.x == 2).all() and r.n == 1
            assert r.x.sharding.is_equivalent_to(shardings.x, 2), r.x.sharding
        assert {(2, 2)} == set(shapes)
        """
    )


def test_device_put_and_jit_take_a_prefix_of_shardings():
    run_on_four_devices(
        """
        put = jax.device_put(s, shardings)
        assert put.x.sharding.spec == P("d") and put.y.sharding.spec == P()
        for jit in (jax.jit, ps.jit):
            f = jit(S.double, in_shardings=(shardings,), out_shardings=shardings)
            assert f(put).x.sharding == shardings.x
            assert f(s).x.sharding == shardings.x
        """
    )


def test_a_donated_and_sharded_state_is_consumed():
    run_on_four_devices(
        """
        put = jax.device_put(s, shardings)
        new = ps.jit(S.double, donate=True)(put)
        assert new.x.sharding == shardings.x
        assert repr(put) == "<S, donated to S.double()>", put
        """
    )


@pytest.mark.skipif(
    jax.__version_info__ < (0, 11), reason="JAX itself crashes: segmentation fault"
)
def test_a_shared_buffer_on_several_devices_is_copied():
    run_on_four_devices(
        """
        import warnings
        z = jax.device_put(jnp.ones((8, 2)), NamedSharding(mesh, P("d")))
        step = ps.jit(lambda s: jax.tree.map(lambda v: v + 1, s), donate=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            new = step(S(x=z, y=z))
        assert (new.x == 2).all() and (new.y == 2).all()
        (said,) = caught
        assert "in S.x and S.y" in str(said.message)
        """
    )


def test_wrong_specs_are_named_by_field():
    run_on_four_devices(
        """
        wrong = ps.prefix(s, x=P(None, None, "d"), y=P())
        try:
            jax.shard_map(S.double, mesh=mesh, in_specs=(wrong,), out_specs=spec)(s)
        except ValueError as error:
            assert ".x" in str(error), error
            assert ".y" not in str(error), error
        else:
            raise SystemExit("no error")
        """
    )
