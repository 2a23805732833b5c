"""`ps.vmap` names fields, and `ps.prefix` maps some of them."""

import functools

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from purestate.errors import BatchAxisError, FieldError, PlaceError
from tests.helpers import exactly


class Opt(ps.State):
    mu: jax.Array
    nu: jax.Array


class Model(ps.State):
    friction: jax.Array
    mass: jax.Array
    opt: Opt | tuple = ()
    name: str = ps.static(default="m")

    def force(self, k=1.0):
        return self.friction * self.mass.sum() * k


class Checked(ps.State):
    x: jax.Array
    total: jax.Array = ps.field(init=False)

    def __post_init__(self):
        self.total = self.x.sum()

    def __check__(self):
        if self.x.ndim != 2:
            raise ValueError("ndim")


def model(**changes):
    return Model(friction=jnp.arange(6.0), mass=jnp.ones(3)).replace(**changes)


# --- prefix ---------------------------------------------------------------------------


def test_a_prefix_has_one_value_for_each_field_and_the_static_ones():
    axes = ps.prefix(model(name="other"), friction=0)

    assert Model is type(axes)
    assert (0, None, None, "other") == (axes.friction, axes.mass, axes.opt, axes.name)


def test_a_prefix_maps_some_fields_only():
    axes = ps.prefix(model(), friction=0)

    forces = jax.vmap(lambda m: m.force(), in_axes=(axes,))(model())

    assert [0, 3, 6, 9, 12, 15] == forces.tolist()


def test_fields_that_are_not_mapped_are_not_copied_for_each_lane():
    shapes = []

    def force(m):
        shapes.append(m.mass.shape)
        return m.mass

    axes = ps.prefix(model(), friction=0)
    out = jax.vmap(force, in_axes=(axes,), out_axes=None)(model())

    assert [(3,)] == shapes
    assert (3,) == out.shape


def test_a_default_is_for_the_fields_that_are_not_named():
    axes = ps.prefix(model(), 0, mass=None)

    assert (0, None, 0) == (axes.friction, axes.mass, axes.opt)


def test_prefixes_nest():
    m = model(opt=Opt(mu=jnp.arange(6.0), nu=1.0))
    axes = ps.prefix(m, opt=ps.prefix(m.opt, mu=0))

    out = jax.vmap(lambda m: m.opt.mu + m.opt.nu, in_axes=(axes,))(m)

    assert [1, 2, 3, 4, 5, 6] == out.tolist()


def test_one_value_covers_a_whole_part():
    m = model(opt=Opt(mu=jnp.arange(6.0), nu=jnp.ones((6, 2))))

    out = jax.vmap(lambda m: m.opt.nu.sum(), in_axes=(ps.prefix(m, opt=0),))(m)

    assert [2] * 6 == out.tolist()


def test_a_prefix_serves_as_out_axes():
    m = model()
    axes = ps.prefix(m, friction=0)

    out = jax.vmap(lambda m: m.replace(friction=m.friction + 1), (axes,), axes)(m)

    assert [1, 2, 3, 4, 5, 6] == out.friction.tolist()
    assert (3,) == out.mass.shape


def test_a_prefix_of_a_class_with_checks_and_derived_fields_runs_none_of_them():
    s = Checked(x=jnp.ones((4, 2)))

    axes = ps.prefix(s, x=0)

    assert (0, None) == (axes.x, axes.total)
    assert [2, 2, 2, 2] == jax.vmap(lambda s: s.x.sum(), in_axes=(axes,))(s).tolist()


@pytest.mark.parametrize("value", [None, 0, True, "a", (1, 2)], ids=str)
def test_a_prefix_takes_any_value_as_it_is(value):
    assert value is ps.prefix(model(), value).mass
    assert value is ps.prefix(model(), mass=value).mass


@pytest.mark.parametrize(
    ("default", "values", "expected"),
    [
        (None, {"opt.mu": 0}, [None, None, 0, None]),
        (1, {"opt.*": 0}, [1, 1, 0, 0]),
        (1, {"**.nu": 0, "mass": None}, [1, None, 1, 0]),
        (1, {"opt": 2, "opt.nu": 3}, [1, 1, 2, 3]),
        (1, {"opt.nu": 3, "opt": 2}, [1, 1, 2, 2]),
        (1, {"**": 2, "friction": 3}, [3, 2, 2, 2]),
        ("a", {"*.nu": (1, 2)}, ["a", "a", "a", (1, 2)]),
    ],
)
def test_a_path_gives_a_value_for_each_leaf_and_a_later_one_wins(
    default, values, expected
):
    m = model(opt=Opt(mu=jnp.ones(6), nu=jnp.ones((6, 2))), name="other")

    found = ps.prefix(m, default, **values)

    assert expected == [found.friction, found.mass, found.opt.mu, found.opt.nu]
    assert ("other", Opt) == (found.name, type(found.opt))


def test_a_path_maps_one_leaf_in_depth():
    m = model(opt=Opt(mu=jnp.arange(6.0), nu=jnp.ones(2)))

    axes = ps.prefix(m, **{"opt.mu": 0})
    out = jax.vmap(lambda m: m.opt.mu * m.opt.nu.sum(), in_axes=(axes,))(m)

    assert [0, 2, 4, 6, 8, 10] == out.tolist()


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("opt.mi", PlaceError, "Model has no leaf 'opt.mi'; did you mean 'opt.mu'?"),
        ("**.mi", PlaceError, "Model has no leaf '**.mi'; did you mean '**.mu'?"),
        ("optt", FieldError, "Model has no field 'optt'; did you mean 'opt'?"),
    ],
)
def test_a_path_in_a_prefix_that_leads_nowhere_is_named(name, error, text):
    m = model(opt=Opt(mu=jnp.ones(6), nu=jnp.ones(2)))

    with pytest.raises(error, match=exactly(text)):
        ps.prefix(m, **{"opt.nu": 0, name: 0})


def test_fields_may_be_named_like_the_parameters():
    class S(ps.State):
        state: jax.Array
        default: jax.Array

    s = ps.prefix(S(state=1, default=2), state=0, default=1)

    assert (0, 1) == (s.state, s.default)


def test_a_prefix_works_while_tracing_and_on_shapes():
    assert 0 == ps.prefix(jax.eval_shape(model), friction=0).friction
    assert (6,) == jax.jit(
        lambda m: jax.vmap(Model.force, (ps.prefix(m, friction=0),))(m)
    )(model()).shape  # fmt: skip


def test_an_unknown_name_in_a_prefix_names_the_nearest_field():
    with pytest.raises(
        FieldError, match=r"^Model has no field 'frction'; did you mean 'friction'\?$"
    ):
        ps.prefix(model(), frction=0)


def test_a_static_name_in_a_prefix_is_refused():
    text = (
        r"^Model\.name is static, so it has no place in a prefix, which is for friction, "
        r"mass, opt\.$"
    )

    with pytest.raises(FieldError, match=text):
        ps.prefix(model(), name=0)


def test_a_prefix_with_a_wrong_shape_below_is_refused_by_jax_with_the_path():
    m = model(opt=Opt(mu=jnp.ones(6), nu=jnp.ones(6)))
    axes = ps.prefix(m, opt={"mu": 0})

    with pytest.raises(ValueError, match=r"in_axes.*opt"):
        jax.vmap(lambda m: m.friction, in_axes=(axes,))(m)


def test_a_prefix_of_something_else_is_refused_in_words():
    with pytest.raises(TypeError, match="State"):
        ps.prefix({"a": 1}, 0)


def test_a_prefix_is_a_mask_for_optax():
    optax = pytest.importorskip("optax", reason="optax needs the interop extra")

    class M(ps.State):
        w: jax.Array
        buf: jax.Array

    m = M(w=jnp.ones(2), buf=jnp.ones(2))
    mask = ps.prefix(m, w=True, buf=False)
    opt = optax.chain(
        optax.masked(optax.adamw(0.1, weight_decay=0.5), mask),
        optax.masked(optax.set_to_zero(), jax.tree.map(lambda b: not b, mask)),
    )
    g = jax.grad(lambda m: (m.w * jax.lax.stop_gradient(m.buf)).sum())(m)

    updates, _ = opt.update(g, opt.init(m), m)
    new = optax.apply_updates(m, updates)

    assert M is type(new)
    assert [1, 1] == new.buf.tolist()
    assert (new.w < 1).all()


# --- vmap -----------------------------------------------------------------------------


def test_vmap_is_jaxs():
    batch = ps.stack([model(), model(mass=jnp.zeros(3))])

    assert jax.vmap(Model.force)(batch).tolist() == ps.vmap(Model.force)(batch).tolist()


@pytest.mark.parametrize(
    "call",
    [
        lambda s: ps.vmap(lambda s, k: s.friction * k, in_axes=(0, None))(s, 2.0),
        lambda s: ps.vmap(lambda s, k: s.friction * k, (0, None), 0)(s, 2.0),
        lambda s: ps.vmap(lambda s, *, k: s.friction * k)(s, k=jnp.full(6, 2.0)),
        lambda s: ps.vmap(lambda s: s.friction * 2, axis_size=6)(s),
        lambda s: ps.vmap(lambda s: s.friction * 2, [0])(s),
        lambda s: ps.vmap(lambda s: s.friction * 2, in_axes=-1)(s),
        functools.partial(ps.vmap(Model.force), k=jnp.full(6, 2.0)),
    ],
)
def test_vmap_takes_the_options_of_jax(call):
    s = Model(friction=jnp.arange(6.0), mass=jnp.ones((6,)))

    assert [0, 2, 4, 6, 8, 10] == call(s).tolist()


def test_a_scalar_field_is_named_with_its_shape():
    class S(ps.State):
        x: jax.Array
        t: jax.Array

        def area(self):
            return self.x * self.t

    text = (
        r"^vmap of S\.area needs one size along the mapped axes, and got\n"
        r"  S\.x: 4\n"
        r"  S\.t: no axis 0, shape \(\)\n"
        r"Map only some fields with in_axes=\(ps\.prefix\(state, field=0\), \.\.\.\), or "
        r"give every leaf the batch axis, as ps\.stack does\.$"
    )

    with pytest.raises(BatchAxisError, match=text):
        ps.vmap(S.area)(S(x=jnp.ones((4, 2)), t=0.0))


SIZES = {
    "field": (
        lambda: ps.vmap(Model.force)(model()),
        r"\n  Model\.friction: 6\n  Model\.mass: 3\n",
    ),
    "inner": (
        lambda: ps.vmap(Model.force)(
            model(mass=jnp.ones(6), opt=Opt(mu=jnp.ones(6), nu=jnp.ones(5)))
        ),
        r"\n  Model\.opt\.mu: 6\n  Model\.opt\.nu: 5\n",
    ),
    "other argument": (
        lambda: ps.vmap(Model.force)(model(mass=jnp.ones((6, 3))), jnp.ones(4)),
        r"\n  Model\.mass: 6\n  argument 1: 4\n",
    ),
    "keyword": (
        lambda: ps.vmap(Model.force)(model(mass=jnp.ones((6, 3))), k=jnp.ones(4)),
        r"\n  Model\.mass: 6\n  argument 'k': 4\n",
    ),
    "prefix": (
        lambda: ps.vmap(Model.force, (ps.prefix(model(), friction=0), 0))(
            model(), jnp.ones(4)
        ),
        r"\n  Model\.friction: 6\n  argument 1: 4\n",
    ),
    "other axis": (
        lambda: ps.vmap(Model.force, in_axes=1)(
            Model(friction=jnp.ones((2, 6)), mass=jnp.ones((6, 2)))
        ),
        r"\n  Model\.friction: 6\n  Model\.mass: 2\n",
    ),
    "negative axis": (
        lambda: ps.vmap(Model.force, in_axes=-2)(
            Model(friction=jnp.ones((2, 6)), mass=jnp.ones(6))
        ),
        r"\n  Model\.friction: 2\n  Model\.mass: no axis -2, shape \(6,\)\n",
    ),
    "container": (
        lambda: ps.vmap(lambda d: d["a"])({"a": jnp.ones(2), "b": [jnp.ones(3)]}),
        r"\n  argument 0\['a'\]: 2\n  argument 0\['b'\]\[0\]: 3\n",
    ),
    "keys": (
        lambda: ps.vmap(lambda s: s.friction)(
            Model(friction=jax.random.split(jax.random.key(0), 2), mass=jnp.ones(3))
        ),
        r"\n  Model\.friction: 2\n  Model\.mass: 3\n",
    ),
}


@pytest.mark.parametrize(("call", "text"), SIZES.values(), ids=SIZES)
def test_sizes_that_differ_are_listed_by_field(call, text):
    with pytest.raises(BatchAxisError, match=text):
        call()


@pytest.mark.parametrize(
    "state", [Opt(mu=1.0, nu=2.0), Opt(mu=1.0, nu=())], ids=["two", "one"]
)
def test_leaves_that_all_lack_the_axis_are_named(state):
    with pytest.raises(BatchAxisError, match=r"\n  Opt\.mu: no axis 0, shape \(\)\n"):
        ps.vmap(lambda s: s)(state)


@pytest.mark.parametrize(
    ("in_axes", "args"),
    [
        ((0,), (model(), jnp.ones(3))),
        (({"friction": 0},), (model(),)),
        ((ps.prefix(model(name="other"), 0),), (model(),)),
    ],
    ids=["number of arguments", "class", "static value"],
)
def test_in_axes_that_do_not_fit_get_jaxs_own_error(in_axes, args):
    with pytest.raises(ValueError, match=r"^vmap in_axes "):
        ps.vmap(lambda m, k=1.0: m.friction * k, in_axes)(*args)


NONE = "None in a field is counted as one more axis, and zip() fails"


def test_a_field_that_is_none_does_not_hide_the_sizes():
    with pytest.raises(
        BatchAxisError, match=r"\n  Model\.friction: 6\n  Model\.mass: 3"
    ):
        ps.vmap(Model.force)(model(opt=None))


def test_a_field_that_is_none_does_not_hide_an_exception_of_the_user():
    def fail(m):
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine"):
        ps.vmap(fail)(ps.stack([model(opt=None)]))


def test_a_batch_axis_error_is_a_value_error_with_jaxs_own_below():
    with pytest.raises(ValueError, match=r"^vmap of Model\.force") as caught:
        ps.vmap(Model.force)(model())

    assert "vmap got inconsistent sizes" in str(caught.value.__cause__)


def test_an_exception_of_the_function_keeps_its_type():
    def fail(m):
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine") as caught:
        ps.vmap(fail)(ps.stack([model()]))

    assert ValueError is type(caught.value)


def test_vmap_keeps_name_and_signature():
    assert "Model.force" == ps.vmap(Model.force).__qualname__
    assert Model.force is ps.vmap(Model.force).__wrapped__


def test_vmap_nests_and_goes_inside_jit_and_grad():
    m = ps.stack([ps.stack([model()] * 2)] * 3)
    nested = ps.vmap(ps.vmap(Model.force))

    assert (3, 2, 6) == nested(m).shape
    assert (3, 2, 6) == ps.jit(nested)(m).shape
    assert (3, 2, 6) == ps.grad(lambda m: nested(m).sum())(m).friction.shape


def test_vmap_leaves_no_tracer_behind():
    with jax.checking_leaks():
        ps.vmap(Model.force)(ps.stack([model()] * 2))
        with pytest.raises(BatchAxisError):
            ps.vmap(Model.force)(model())
