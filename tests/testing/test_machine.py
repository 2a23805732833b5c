"""`machine`: histories of a State, and the defects that only a history shows."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from jaxtyping import Array, Float, Int

import purestate as ps
import purestate.testing as pst
from purestate.errors import LawError, StrategyError

# Without shrinking, which takes long and is not what is tested here.
FEW = settings(
    derandomize=True,
    max_examples=50,
    stateful_step_count=8,
    deadline=None,
    phases=[Phase.generate],
)


class Account(ps.State):
    balance: Float[Array, "n"]
    moves: Int[Array, ""] = 0

    @jax.jit
    def deposit(self, amount: Float[Array, "n"]):
        return self.replace(balance=self.balance + amount, moves=self.moves + 1)

    @ps.jit(donate=True)
    def close(self):
        return self.replace(balance=self.balance * 0), jnp.sum(self.balance)

    @jax.jit
    def total(self):
        return jnp.sum(self.balance)


AccountMachine = pst.machine(Account)
AccountMachine.TestCase.settings = FEW
TestAccount = AccountMachine.TestCase


def broken(cls, **options):
    with pytest.raises(LawError) as caught:
        run_state_machine_as_test(pst.machine(cls, **options), settings=FEW)
    return caught.value


class Late(Account, kw_only=True):
    @jax.jit
    def deposit(self, amount: Float[Array, "n"]):
        extra = isinstance(self.moves, jax.core.Tracer) * (self.moves >= 2)
        return self.replace(balance=self.balance + extra, moves=self.moves + 1)


def test_a_defect_of_later_steps_is_found_with_its_history():
    error = broken(Late, methods=["deposit"], fields={"moves": 0})

    assert error.law in ("jit", "vmap", "donation")
    assert "Late" == error.subject
    assert error.example.startswith("state = Late(")
    assert 3 <= error.example.count("state.deposit(")


class Named(Account):
    label: str = ps.static(default="savings")


def test_a_static_string_is_no_method():
    made = pst.machine(Named)

    assert {"call_close", "call_deposit", "call_total"} == {
        name for name in dir(made) if name.startswith("call_")
    }


@pytest.mark.parametrize(
    "options", [{"methods": ["depositt"]}, {"args": {"depositt": {}}}]
)
def test_a_name_that_is_no_method_is_refused(options):
    with pytest.raises(StrategyError, match=r"^Account has no method 'depositt'\.$"):
        pst.machine(Account, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"args": {"deposit": {"amont": 1.0}}},
            "Account.deposit has no argument 'amont'; its arguments are amount.",
        ),
        (
            {"methods": ["deposit"], "args": {"close": {}}},
            "the machine of Account has no step 'close'; its steps are deposit.",
        ),
        ({"dims": {"m": 2}}, "Account has no axis 'm'; its axes are n."),
        ({"methods": "depositt"}, "Account has no method 'depositt'."),
    ],
)
def test_a_name_that_means_nothing_is_named_with_those_that_do(options, text):
    with pytest.raises(StrategyError) as caught:
        pst.machine(Account, **options)

    assert text == str(caught.value)


class Positive(Account):
    @jax.jit
    def deposit(self, amount: Float[Array, "n"]):
        return self.replace(balance=self.balance + amount)

    def __check__(self):
        return bool((self.balance >= 0).all())


def test_a_step_that_breaks_an_invariant_is_found():
    assert "check" == broken(Positive, fields={"balance": jnp.zeros(2)}, dims=(2,)).law


class Table(ps.State):
    rows: dict[str, jax.Array]

    def fill(self):
        self.rows["a"] = jnp.ones(2)
        return self


def test_a_step_that_changes_what_was_kept_is_found():
    fields = {
        "rows": pst.arrays((2,), "float32", specials=False).map(lambda x: {"a": x})
    }

    assert "saves" == broken(Table, methods=["fill"], fields=fields).law


@jax.custom_batching.custom_vmap
def flipped(x):
    return x * 2


@flipped.def_vmap
def _(size, mapped, x):
    return x * 3, True


class Batched(ps.State):
    x: Float[Array, "n"]

    @jax.jit
    def step(self):
        return self.replace(x=flipped(self.x))


def test_a_step_that_differs_in_a_batch_is_found():
    assert "vmap" == broken(Batched).law


def test_a_step_that_keeps_a_tracer_is_found():
    class Keeper(ps.State):
        x: Float[Array, "n"]

        @jax.jit
        def step(self, kept=[]):  # noqa: B006
            kept.append(self.x.sum())
            return self.replace(x=self.x + sum(kept))

    error = broken(Keeper)

    assert ("leaks", "Keeper.step (defaults)[0][0]") == (error.law, error.path)


def test_a_class_without_methods_is_refused():
    class Still(ps.State):
        x: jax.Array

    with pytest.raises(StrategyError, match="Still has no jitted methods to step with"):
        pst.machine(Still)
