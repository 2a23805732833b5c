"""`check_state`, `check_method`, `check_host`: what they say, return and compile."""

import re

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Int

import purestate as ps
import purestate.testing as pst
from purestate.errors import LawError, StrategyError
from purestate.testing._counting import recorded
from purestate.testing._laws.law import LAWS
from tests.helpers import ROOT
from tests.hosts import x64

PAGE = ROOT / "docs" / "testing.md"
Vector = Float[Array, "n"]


class Ball(ps.State):
    position: Vector
    velocity: Vector
    bounces: Int[Array, ""] = 0

    def step(self, dt: Float[Array, ""]):
        position = self.position + dt * self.velocity
        return self.replace(position=position, bounces=self.bounces + 1)

    def wrong(self, dt: Float[Array, ""]):
        return self.position + dt * (1 + isinstance(dt, jax.core.Tracer))

    def named(self, mode: str, dt: Float[Array, ""]):
        return self.position * (dt if mode == "a" else 1)

    def shifted(self, by):
        return self.position + by

    def refused(self, dt: Float[Array, ""]):
        raise KeyError("never")


class Heavy(Ball, kw_only=True):
    mass: Float[Array, ""]


class Wrong(ps.State):
    x: Float[Array, "n"]
    n: int = ps.static(default=3)

    def __eq__(self, other):
        return 0

    __hash__ = None


def broken(check, *args, **options):
    with pytest.raises(LawError) as caught:
        check(*args, **options)
    return caught.value


def test_a_broken_law_is_told_with_place_backend_and_smallest_instance():
    assert str(broken(pst.check_method, Ball.wrong)).startswith(
        "Ball.wrong breaks the law 'jit', on cpu.\n"
        "The law: jit gives what the plain call gives.\n"
        "eager and jitted:\n"
        "[0]: "
    )


def test_the_instance_found_is_the_smallest():
    example = broken(pst.check_method, Ball.wrong).example

    assert "position=jnp.zeros((2,), 'float32')" in example
    assert "bounces=jnp.asarray(0, 'int32')" in example


def test_the_error_carries_the_facts():
    error = broken(pst.check_state, Wrong, laws=["equality"])

    assert ("equality", "Wrong", "cpu") == (error.law, error.subject, error.backend)
    assert "Wrong(x=jnp.zeros((2,), 'float32'), n=3)" == error.example


def test_the_example_of_a_method_can_be_pasted():
    error = broken(pst.check_method, Ball.wrong)

    assert (2,) == eval(error.example, {"jnp": jnp, "Ball": Ball}).shape


def test_only_the_named_laws_are_looked_at():
    report = pst.check_state(Ball, laws=["rebuild", "jit"], examples=3)

    assert {"rebuild": 3, "jit": 3} == report.examples


def test_laws_can_be_left_out():
    report = pst.check_state(Ball, without=["pickles"], examples=2)

    assert "pickles" not in report.examples
    assert "rebuild" in report.examples


def test_one_law_may_be_named_without_a_list():
    assert {"rebuild"} == set(
        pst.check_state(Ball, laws="rebuild", examples=2).examples
    )


def test_an_unknown_law_is_named():
    with pytest.raises(
        LookupError, match="no law 'rebiuld' for a state; did you mean 'rebuild'"
    ):
        pst.check_state(Ball, laws=["rebiuld"])


def test_laws_are_listed_by_kind():
    assert pst.laws("host").keys() < pst.laws("method").keys()

    with pytest.raises(
        LookupError, match="no laws for 'fish', only for state, method, host"
    ):
        pst.laws("fish")


def test_every_law_stands_on_the_page_with_its_promise():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE))
    for kind in LAWS:
        for name, law in LAWS[kind].items():
            assert f"| `{name}` | {law.promise} |" in PAGE.read_text()

    assert rows.keys() == {name for kind in LAWS for name in LAWS[kind]}


def test_a_method_is_looked_at_for_another_class():
    report = pst.check_method(Heavy.step, on=Heavy, examples=3)

    assert "Heavy.step" == report.subject


def test_a_function_of_a_state_is_looked_at_like_a_method():
    def step(ball: Ball, dt: Float[Array, ""]) -> Ball:
        return ball.step(dt)

    report = pst.check_method(step, examples=3)

    assert {"scan", "donation", "jvp"} <= report.examples.keys()


def test_strings_are_static_by_themselves():
    assert "jvp" in pst.check_method(Ball.named, examples=3).examples


def test_an_argument_that_says_nothing_is_named():
    with pytest.raises(StrategyError, match=r"Ball\.shifted\.by, which has neither"):
        pst.check_method(Ball.shifted)


def test_arguments_take_strategies_and_values():
    pst.check_method(Ball.shifted, args={"by": st.sampled_from([1.0, 2.0])}, examples=3)
    pst.check_method(Ball.shifted, args={"by": 1.0}, examples=3)


def test_an_unknown_argument_is_named():
    with pytest.raises(
        StrategyError, match=r"no argument 'bt'; its arguments are by\."
    ):
        pst.check_method(Ball.shifted, args={"bt": 1.0})


@pytest.mark.parametrize("static", [["mod"], "mod"])
def test_an_unknown_static_argument_is_named(static):
    with pytest.raises(
        StrategyError,
        match=r"^Ball\.named has no argument 'mod'; its arguments are mode, dt\.$",
    ):
        pst.check_method(Ball.named, static=static)


def test_a_host_function_names_its_axes_and_arguments():
    @ps.host_function(out=lambda x: x)
    def halve(x: Vector):
        return x / 2

    with pytest.raises(
        StrategyError, match=r"halve has no axis 'm'; its axes are n\.$"
    ):
        pst.check_host(halve, dims={"m": 2})
    with pytest.raises(
        StrategyError, match=r"halve has no argument 'y'; its arguments are x\.$"
    ):
        pst.check_host(halve, static="y")


def test_fields_of_a_function_without_a_state_are_refused():
    with pytest.raises(
        StrategyError,
        match=r"is not a method of a State, for whose constructor fields= is: give its "
        r"arguments by args=\.$",
    ):
        pst.check_method(lambda x: x, fields={"x": 1.0})


def test_a_method_that_raises_is_shown_with_its_arguments():
    with pytest.raises(
        StrategyError,
        match=r"(?s)Ball\.refused\(\.\.\.\) raised KeyError.*Ball\(.*args=\{",
    ):
        pst.check_method(Ball.refused)


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (
            pst.check_method,
            "takes a method or a function, and got an object of type int",
        ),
        (pst.check_host, "takes a host function, and got an object of type int"),
    ],
)
def test_anything_else_is_refused(check, text):
    with pytest.raises(StrategyError, match=text):
        check(3)


def test_a_method_that_is_bound_to_an_instance_is_refused():
    ball = Ball(position=jnp.zeros(2), velocity=jnp.zeros(2))

    with pytest.raises(
        StrategyError,
        match=r"^Ball\.step is bound to an instance, and check_method draws instances: "
        r"get it from the class, check_method\(Ball\.step\)\.$",
    ):
        pst.check_method(ball.step)


def test_host_functions_with_effects_are_refused():
    with pytest.raises(StrategyError, match="has effects, so that the same call twice"):
        pst.check_host(ps.host_function(print, effects=True, out=None))


def test_a_scan_that_cannot_be_says_why():
    class Grows(ps.State):
        x: Float[Array, "n"]

        def step(self):
            return self.replace(x=jnp.concatenate([self.x, self.x]))

    report = pst.check_method(Grows.step, examples=3)

    assert "the new state has another structure or type" == report.skipped["scan"]


def test_the_first_argument_of_a_function_can_be_what_a_scan_carries():
    def halve(x: Vector):
        return x / 2

    report = pst.check_method(halve, examples=3)

    assert 3 >= report.examples["scan"] > 0


def test_a_result_that_is_a_python_number_is_no_false_alarm():
    def halve(x: Vector):
        return x / 2, 3, 0.5, True

    report = pst.check_method(halve, examples=3)

    assert report.examples["vmap"] == 3


class Kinked(ps.State):
    x: Vector

    def sort(self):
        return jnp.sort(self.x), jax.lax.top_k(self.x, 1)[0]

    def narrow(self):
        return self.x + 0.1 * jnp.abs(self.x)

    def relu(self):
        return jnp.maximum(self.x, 0) + jnp.abs(self.x) + jnp.floor(self.x)

    def steep(self):
        return jnp.exp(2 * self.x) * jnp.sin(5 * self.x)

    def counted(self):
        def more(carry):
            return carry[0] < 3

        return jax.lax.while_loop(more, lambda c: (c[0] + 1, c[1] * 2), (0, self.x))[1]


@pytest.mark.parametrize("name", ["relu", "steep", "sort", "narrow"])
def test_kinks_and_steep_slopes_are_no_false_alarm(name):
    report = pst.check_method(getattr(Kinked, name), laws=["jvp", "grad"])

    assert report.examples["jvp"] > 10


def test_derivatives_that_jax_does_not_offer_are_left_out():
    report = pst.check_method(Kinked.counted, laws=["jvp", "grad"])

    assert "jax offers none" in report.skipped["grad"]


@jax.custom_jvp
def nearly(x):
    return jnp.sin(x)


nearly.defjvp(lambda xs, ts: (jnp.sin(xs[0]), 1.001 * jnp.cos(xs[0]) * ts[0]))


def test_with_x64_small_errors_of_derivatives_are_found():
    def check(dtype):
        x = pst.arrays((3,), dtype, specials=False)
        pst.check_method(lambda x: nearly(x), args={"x": x}, laws=["jvp"])

    check("float32")
    with x64():
        error = broken(check, "float64")

    assert "jvp" == error.law


class Plain(ps.State):
    w: Float[Array, "n m"]
    b: Float[Array, "m"]
    count: Int[Array, ""] = 0

    @jax.jit
    def __call__(self, x: Float[Array, "n"]):
        return jnp.tanh(x @ self.w + self.b)

    @jax.jit
    def step(self, x: Float[Array, "n"]):
        b = self.b - x @ self.w
        return self.replace(b=b, count=self.count + 1)


@pytest.mark.parametrize(
    "check",
    [
        lambda: pst.check_state(Plain, examples=100),
        lambda: pst.check_method(Plain.step, examples=100),
        lambda: pst.check_method(Plain.__call__, examples=100),
    ],
)
def test_a_hundred_examples_compile_at_most_twenty_programs(check):
    jax.clear_caches()

    with recorded() as events:
        report = check()

    compiled = [fun for event, fun in events if event == "backend_compile_duration"]
    assert 100 <= max(report.examples.values())
    assert len(compiled) <= 20, sorted(compiled)


def test_numpy_arguments_and_plain_numbers_are_fine():
    class Held(ps.State):
        buffer: np.ndarray
        scale: float

        def scaled(self, by: float):
            return self.buffer * self.scale * by

    pst.check_state(Held, examples=5)
    pst.check_method(Held.scaled, examples=5)


class Held(ps.State):
    x: jax.Array


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (int, r"check_state takes a State class, or a dataclass: int has no fields\."),
        (3, r"a dataclass, and got an object of type int\."),
        (
            Held(x=jnp.zeros(2)),
            r"and got an object of type Held: write check_state\(Held\)\.",
        ),
    ],
    ids=["a class without fields", "a number", "an instance"],
)
def test_what_is_no_state_class_is_refused(given, text):
    with pytest.raises(StrategyError, match=text):
        pst.check_state(given)
