"""`ps.grad` differentiates the floating leaves of a State, or those that `wrt` names."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import FieldError, NothingToDifferentiateError, PlaceError


class Params(ps.State):
    mult: jax.Array
    shift: jax.Array


class Train(ps.State):
    w: jax.Array
    params: Params
    step: jax.Array
    key: jax.Array
    extra: object = None
    n: int = ps.static(default=2)

    @property
    def mult(self):
        return self.params.mult

    def loss(self, x=1.0):
        return (self.w**2).sum() * x + self.params.mult * self.params.shift


def train(**changes):
    return Train(
        w=jnp.array([1.0, 2.0]),
        params=Params(mult=3.0, shift=5.0),
        step=7,
        key=jax.random.key(0),
    ).replace(**changes)


# --- what is differentiated -------------------------------------------------------------


def test_the_gradient_has_the_class_and_none_where_nothing_is_floating():
    g = ps.grad(Train.loss)(train())

    assert Train is type(g)
    assert [2, 4] == g.w.tolist()
    assert (5.0, 3.0) == (g.params.mult, g.params.shift)
    assert (None, None, None, 2) == (g.step, g.key, g.extra, g.n)


def test_an_integer_and_a_key_never_break_it():
    def loss(s):
        noise = jax.random.normal(s.key, s.w.shape)
        return ((s.w + noise * 0) ** 2).sum() * (1.0 + 0 * s.step)

    assert [2, 4] == ps.grad(loss)(train()).w.tolist()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_the_gradient_has_the_dtype_of_its_leaf(dtype):
    s = train(w=jnp.ones(2, dtype))

    assert dtype == ps.grad(Train.loss)(s).w.dtype


def test_leaves_in_containers_and_python_floats_count():
    s = train(extra={"a": [1.0, 2], "b": np.float32(3), "c": True})

    g = ps.grad(lambda s: s.extra["a"][0] * s.extra["b"])(s)

    assert ([3.0, None], 1.0, None) == (g.extra["a"], g.extra["b"], g.extra["c"])


def test_the_value_comes_first_with_value_and_grad():
    value, g = ps.value_and_grad(Train.loss)(train())

    assert 20.0 == value
    assert [2, 4] == g.w.tolist()


def test_what_is_not_differentiated_reaches_the_function_as_it_is():
    seen, s = [], train()

    ps.grad(lambda s: (seen.append(s.step), s.w.sum())[1])(s)

    assert s.step is seen[0]


@pytest.mark.parametrize(
    "value", ["relu", jnp.sin, object()], ids=["str", "function", "object"]
)
def test_a_value_that_is_no_number_is_passed_through(value):
    g = ps.grad(lambda s: s.w.sum() if s.extra is value else 0.0)(train(extra=value))

    assert [1, 1] == g.w.tolist()
    assert g.extra is None


def test_a_gradient_can_be_subtracted_where_there_is_one():
    s = train()
    g = ps.grad(Train.loss)(s)

    new = jax.tree.map(
        lambda p, d: p if d is None else p - 0.1 * d, s, g, is_leaf=lambda v: v is None
    )

    assert new.w.tolist() == pytest.approx([0.8, 1.6])
    assert 7 == new.step


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda d: (d["a"] ** 2).sum() * d["n"], {"a": [4.0, 8.0], "n": None}),
        (lambda d: d["a"].sum(), {"a": [1.0, 1.0], "n": None}),
    ],
)
def test_plain_trees_are_differentiated_likewise(fn, expected):
    found = ps.grad(fn)({"a": jnp.array([1.0, 2.0]), "n": 2})

    assert expected == {"a": found["a"].tolist(), "n": found["n"]}


def test_an_array_is_differentiated_as_by_jax():
    f = lambda x: (x**3).sum()  # noqa: E731
    x = jnp.arange(3.0)

    assert jax.grad(f)(x).tolist() == ps.grad(f)(x).tolist()


def test_a_method_of_the_instance_is_a_function_of_its_argument():
    assert 5.0 == ps.grad(train().loss)(1.0)


def test_a_callable_state_is_a_function_of_its_argument():
    class F(ps.State):
        x: jax.Array

        def __call__(self, y):
            return self.x.sum() * y

    f = F(x=jnp.arange(3.0))

    assert 3.0 == ps.grad(f)(2.0)
    assert (6.0, 3.0) == ps.value_and_grad(f)(2.0)


def test_the_function_may_be_a_partial():
    assert 2.0 == ps.grad(functools.partial(lambda x, k: k * x, k=2.0))(3.0)


# --- wrt --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrt", ["w", ("w",), ["w"], iter(["w"])], ids=["str", "tuple", "list", "iterator"]
)
def test_a_name_limits_the_gradient_to_that_field(wrt):
    g = ps.grad(Train.loss, wrt=wrt)(train())

    assert [2, 4] == g.w.tolist()
    assert (None, None) == (g.params, g.step)


def test_several_names_may_be_given():
    g = ps.grad(Train.loss, wrt=("params", "w"))(train())

    assert [2, 4] == g.w.tolist()
    assert 5.0 == g.params.mult


def test_names_given_once_serve_every_call():
    f = ps.grad(Train.loss, wrt=(name for name in ["w"]))

    assert [2, 4] == f(train()).w.tolist()
    assert [2, 4] == f(train()).w.tolist()


def test_a_selector_returns_the_gradient_of_that_part_alone():
    g = ps.grad(Train.loss, wrt=lambda s: s.params)(train())

    assert Params(mult=5.0, shift=3.0) == g


def test_a_selector_may_pick_several_parts():
    w, mult = ps.grad(Train.loss, wrt=lambda s: (s.w, s.params.mult))(train())

    assert ([2, 4], 5.0) == (w.tolist(), mult)


def test_a_selector_may_go_through_a_property_and_containers():
    s = train(extra=[{"a": 2.0}])

    assert 5.0 == ps.grad(Train.loss, wrt=lambda s: s.mult)(s)
    assert 4.0 == ps.grad(lambda s: s.extra[0]["a"] ** 2, lambda s: s.extra[0]["a"])(s)


def test_a_selected_part_keeps_none_where_nothing_is_floating():
    s = train(extra=[1.0, 2])

    assert [1.0, None] == ps.grad(lambda s: s.extra[0] * 1.0, lambda s: s.extra)(s)


UNKNOWN = {
    "name": ("ww", FieldError, r"^Train has no field 'ww'; did you mean 'w'\?$"),
    "one of several": (("w", "keyy"), FieldError, r"^Train has no field 'keyy'; did you"),
    "selector": (
        lambda s: s.params.mul,
        PlaceError,
        r"^Train\.params has no field 'mul'; did you mean 'mult'\?$",
    ),
    "no place": (
        lambda s: 3,
        PlaceError,
        r"^the selector of at\(\) returned an object of type int instead of a place",
    ),
    "overlap": (
        lambda s: (s.params, s.params.mult),
        PlaceError,
        r"^at\(\) got overlapping places Train\.params and Train\.params\.mult: ",
    ),
    "static name": ("n", FieldError, r"^Train\.n is static, so it has no gradient and no leaves; choose from w, params,"),
    "static selector": (
        lambda s: s.n,
        NothingToDifferentiateError,
        r"^Train has no floating-point leaf among those to differentiate: Train\(",
    ),
    "integer": ("step", NothingToDifferentiateError, r"^Train has no floating-point "),
    "key": (lambda s: s.key, NothingToDifferentiateError, r"^Train has no floating-"),
    "nothing": ((), NothingToDifferentiateError, r"^Train has no floating-point leaf"),
}  # fmt: skip


@pytest.mark.parametrize(("wrt", "error", "text"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_cannot_be_differentiated_is_refused(wrt, error, text):
    with pytest.raises(error, match=text):
        ps.grad(Train.loss, wrt=wrt)(train())


def test_the_name_of_a_property_is_refused_with_the_way_out():
    with pytest.raises(FieldError, match=r"property.*lambda"):
        ps.grad(Train.loss, wrt="mult")(train())


def test_the_name_of_a_static_field_is_said_to_be_static():
    with pytest.raises(FieldError, match=r"Train\.n is static"):
        ps.grad(Train.loss, wrt="n")(train())


def test_a_static_field_among_the_selected_has_no_gradient():
    class S(ps.State):
        a: jax.Array
        n: int = ps.static(default=0)

    _, n = ps.grad(lambda s: s.a * 3.0, wrt=lambda s: (s.a, s.n))(S(a=1.0))

    assert n is None


def test_names_for_something_that_is_not_a_state_are_paths():
    slope = ps.grad(lambda d: d["w"] * d["b"], wrt="w")({"w": 1.0, "b": 3.0})

    assert {"w": 3.0, "b": None} == slope
    with pytest.raises(
        PlaceError, match=r"^dict has no leaf 'v'; its leaves are b, w\.$"
    ):
        ps.grad(lambda d: d["w"], wrt="v")({"w": 1.0, "b": 3.0})


@pytest.mark.parametrize(
    ("wrt", "expected"),
    [
        (ps.leaves("params"), [None, 5.0, 3.0]),
        (ps.leaves("**.mult"), [None, 5.0, None]),
        ("params.shift", [None, None, 3.0]),
        (["w", "params.shift"], [[2.0, 4.0], None, 3.0]),
        (~ps.leaves("params"), [[2.0, 4.0], None, None]),
        (ps.leaves(lambda x: x.ndim == 1), [[2.0, 4.0], None, None]),
        (ps.floats, [[2.0, 4.0], 5.0, 3.0]),
        (ps.leaves("**"), [[2.0, 4.0], 5.0, 3.0]),  # what is not a float has none
    ],
)
def test_a_choice_leaves_none_for_other_leaves(wrt, expected):
    g = ps.grad(Train.loss, wrt=wrt)(train())

    found = [g.w, g.params.mult, g.params.shift]
    assert expected == [None if x is None else x.tolist() for x in found]
    assert (Params, None, None) == (type(g.params), g.step, g.key)


def test_python_floats_have_a_gradient_by_name_and_not_by_choice():
    tree = {"w": 2.0, "b": jnp.float32(3.0)}

    by_name = ps.grad(lambda d: d["w"] * d["b"], wrt=lambda d: (d["w"], d["b"]))(tree)
    by_choice = ps.grad(lambda d: d["w"] * d["b"], wrt=ps.leaves("**"))(tree)

    assert (3.0, 2.0) == by_name
    assert {"w": None, "b": 2.0} == by_choice


def test_a_choice_is_checked_against_the_argument_that_is_differentiated():
    with pytest.raises(
        PlaceError, match=r"^Train has no leaf 'param\.mult'; did you m"
    ):
        ps.grad(Train.loss, wrt="param.mult")(train())
    with pytest.raises(
        PlaceError, match=r"^Params has no leaf 'w'; its leaves are mul"
    ):
        ps.grad(lambda p: p.mult, wrt=ps.floats & ~ps.leaves("w"))(train().params)
    with pytest.raises(
        NothingToDifferentiateError, match=r"^Train has no floating-poi"
    ):
        ps.grad(Train.loss, wrt=ps.leaves("step"))(train())


# --- nothing to differentiate -----------------------------------------------------------


def test_a_state_without_floating_leaves_is_refused_by_name():
    class Count(ps.State):
        n: jax.Array

    text = (
        r"^Count has no floating-point leaf among those to differentiate: "
        r"Count\(n=i32\[\]\)\. Pass floats, or select others with wrt=; integers, "
        r"booleans and keys have no gradient\.$"
    )

    with pytest.raises(NothingToDifferentiateError, match=text):
        ps.grad(lambda s: s.n * 1.0)(Count(n=1))


@pytest.mark.parametrize("value", [1, True, None, {"a": 2}], ids=str)
def test_other_arguments_without_floating_leaves_are_refused(value):
    text = r"^the argument has no floating-point leaf among those to differentiate: "

    with pytest.raises(NothingToDifferentiateError, match=text):
        ps.grad(lambda x: 1.0)(value)


def test_the_error_is_a_type_error_as_jaxs_own():
    with pytest.raises(TypeError):
        ps.grad(lambda x: x * 1.0)(1)


# --- has_aux, argnums, holomorphic ------------------------------------------------------


def test_aux_comes_along():
    def loss(s, x):
        return s.loss(x), s.replace(step=s.step + 1)

    g, aux = ps.grad(loss, has_aux=True)(train(), 2.0)
    (value, again), same = ps.value_and_grad(loss, has_aux=True)(train(), 2.0)

    assert ([4, 8], 8) == (g.w.tolist(), aux.step)
    assert (25.0, 8, [4, 8]) == (value, again.step, same.w.tolist())


def test_another_argument_can_be_differentiated():
    def loss(x, s, y):
        return s.loss(x) * y

    g = ps.grad(loss, argnums=1)(1.0, train(), 2.0)

    assert [4, 8] == g.w.tolist()
    assert 10.0 == ps.grad(loss, argnums=0)(1.0, train(), y=2.0)


def test_other_arguments_may_be_anything():
    g = ps.grad(lambda s, mode, *, fn: fn(s.w).sum() if mode == "a" else 0.0)(
        train(), "a", fn=jnp.square
    )

    assert [2, 4] == g.w.tolist()


def test_the_argument_may_be_counted_from_the_end():
    assert jax.grad(lambda a, b: a * b, argnums=-1)(2.0, 3.0) == (
        ps.grad(lambda a, b: a * b, argnums=-1)(2.0, 3.0)
    )


def test_several_arguments_can_be_differentiated():
    assert (3.0, 2.0) == ps.grad(lambda a, b: a * b, argnums=(0, 1))(2.0, 3.0)


def test_a_call_by_keyword_only_is_refused_as_jax_refuses_it():
    with pytest.raises(TypeError, match="positional argument"):
        ps.grad(lambda s: s.w.sum())(s=train())


def test_complex_leaves_are_differentiated_as_by_jax():
    s = train(w=jnp.array([3.0 + 4.0j]))

    real = ps.grad(lambda s: jnp.abs(s.w).sum() + s.params.mult)(s)
    found = ps.grad(lambda s: (s.w**2).sum(), holomorphic=True)(s)

    assert jnp.allclose(jax.grad(lambda w: jnp.abs(w).sum())(s.w), real.w)
    assert 1.0 == real.params.mult
    assert [6 + 8j] == found.w.tolist()
    assert found.params.mult is None


def test_a_function_that_returns_no_scalar_gets_jaxs_own_error():
    with pytest.raises(TypeError, match="Gradient only defined for scalar-output"):
        ps.grad(lambda s: s.w)(train())


def test_an_exception_of_the_function_keeps_its_type():
    class Diverged(ArithmeticError):
        pass

    def loss(s):
        raise Diverged("no")

    with pytest.raises(Diverged, match=r"^no"):
        ps.grad(loss)(train())


# --- inside other transforms ------------------------------------------------------------

JITS = [
    jax.jit,
    pytest.param(
        ps.jit,
    ),
]


@pytest.mark.parametrize("jit", JITS)
def test_it_works_inside_jit(jit):
    g = jit(lambda s: ps.grad(Train.loss)(s))(train())

    assert [2, 4] == g.w.tolist()
    assert g.step is None


@pytest.mark.parametrize("jit", JITS)
def test_it_can_be_jitted(jit):
    assert [2, 4] == jit(ps.grad(Train.loss))(train()).w.tolist()


def test_it_differentiates_jitted_functions():
    assert [2, 4] == ps.grad(ps.jit(lambda s: s.loss()))(train()).w.tolist()


def test_it_works_inside_vmap():
    batch = ps.stack([train(), train(w=jnp.array([3.0, 4.0]))])

    g = jax.vmap(lambda s: ps.grad(Train.loss, wrt="w")(s))(batch)

    assert [[2, 4], [6, 8]] == g.w.tolist()


def test_it_works_over_a_batch_of_other_arguments():
    g = jax.vmap(ps.grad(Train.loss, wrt="w"), in_axes=(None, 0))(train(), jnp.ones(3))

    assert (3, 2) == g.w.shape


def test_it_works_inside_scan():
    def step(s, _):
        g = ps.grad(Train.loss, wrt="w")(s)
        return s.replace(w=s.w - 0.25 * g.w, step=s.step + 1), None

    last, _ = jax.lax.scan(step, train(), None, length=3)

    assert [0.125, 0.25] == last.w.tolist()
    assert 10 == last.step


def test_it_can_be_nested_for_a_second_derivative():
    hessian = ps.grad(lambda s: ps.grad(Train.loss, wrt="w")(s).w.sum(), wrt="w")

    assert [2, 2] == hessian(train()).w.tolist()


def test_it_leaves_no_tracer_behind():
    with jax.checking_leaks():
        ps.grad(Train.loss)(train())
        ps.value_and_grad(Train.loss, wrt=lambda s: s.params)(train())
        jax.jit(ps.grad(Train.loss))(train())


def test_it_never_constructs():
    class Checked(ps.State):
        x: jax.Array

        def __init__(self, size):
            self.x = jnp.ones(size)

        def __check__(self):
            if self.x.ndim != 1:
                raise ValueError("ndim")

    g = ps.grad(lambda s: (s.x**2).sum(), wrt="x")(Checked(3))

    assert [2, 2, 2] == g.x.tolist()


def test_name_and_signature_are_those_of_the_function():
    assert (
        "loss" == ps.grad(Train.loss).__name__ == ps.value_and_grad(Train.loss).__name__
    )
    assert Train.loss is ps.grad(Train.loss).__wrapped__


@pytest.mark.parametrize("argnums", [[0, 1], (0, 1), (1, -2)], ids=str)
def test_several_arguments_give_several_gradients(argnums):
    found = ps.grad(lambda a, b: a * b, argnums=argnums)(2.0, 3.0)

    assert jax.grad(lambda a, b: a * b, argnums=tuple(argnums))(2.0, 3.0) == found


def test_positions_given_for_wrt_are_pointed_to_argnums():
    with pytest.raises(TypeError, match=r"^wrt takes names .* go into argnums=\.$"):
        ps.grad(lambda a, b: a * b, (0, 1))


def test_an_argument_cannot_be_differentiated_twice():
    with pytest.raises(
        TypeError, match=r"with respect to positional argument \(0, -2\)"
    ):
        ps.grad(lambda a, b: a * b, argnums=(0, -2))(2.0, 3.0)
