"""Fields that `__post_init__` only starts: `ps.field(init=False, derived=False)`."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from purestate.errors import DeclarationError, FieldError


class MLP(ps.State):
    key: dataclasses.InitVar[jax.Array] = None
    w: jax.Array = ps.field(init=False, derived=False)
    rate: float = ps.static(default=0.1)

    def __post_init__(self, key):
        self.w = jax.random.normal(jax.random.key(0) if key is None else key, (2,))


class Both(ps.State):
    x: jax.Array
    calls: list = ps.static(init=False, derived=False, converter=tuple)
    w: jax.Array = ps.field(init=False, derived=False)
    twice: jax.Array = ps.field(init=False)

    def __post_init__(self):
        self.calls, self.w, self.twice = ["made"], jnp.zeros(2), self.x * 2


@pytest.fixture
def trained():
    return jax.tree.map(lambda w: jnp.full_like(w, 7.0), MLP(jax.random.key(5)))


UPDATES = {
    "replace": lambda s: s.replace(rate=0.3),
    "at": lambda s: s.at(lambda s: s.rate).set(0.3),
    "dataclasses.replace": lambda s: dataclasses.replace(s, rate=0.3),
}


@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_an_update_keeps_what_was_trained(trained, update):
    updated = update(trained)

    assert [7.0, 7.0] == updated.w.tolist()
    assert 0.3 == updated.rate


def test_a_started_field_can_be_updated_like_any_other(trained):
    with trained.draft() as drafted:
        drafted.w = jnp.ones(2)

    assert [1.0, 1.0] == trained.replace(w=jnp.ones(2)).w.tolist()
    assert [1.0, 1.0] == trained.at(lambda s: s.w).set(jnp.ones(2)).w.tolist()
    assert [1.0, 1.0] == drafted.w.tolist()


def test_an_update_of_started_fields_does_not_run_post_init(trained, monkeypatch):
    monkeypatch.setattr(MLP, "__post_init__", lambda self, key: 1 / 0)

    assert 0.5 == trained.replace(rate=0.5).rate


def test_an_init_var_in_an_update_of_started_fields_is_an_error(trained):
    with pytest.raises(
        FieldError,
        match=r"^MLP\.replace was given the InitVar key, which starts w when a MLP is made "
        r"and has no effect later: replace w, or construct another\.$",
    ):
        trained.replace(key=jax.random.key(1))


def test_beside_a_derived_field_post_init_runs_and_does_not_start_anew():
    both = Both(x=1.0).replace(w=jnp.ones(2), calls=("kept",))

    updated = both.replace(x=3.0)

    assert 6.0 == updated.twice
    assert [1.0, 1.0] == updated.w.tolist()
    assert ("kept",) == updated.calls


def test_a_constructor_of_the_users_starts_them_too():
    class Own(ps.State):
        x: jax.Array
        w: jax.Array = ps.field(init=False, derived=False)

        def __init__(self, x):
            self.x = x

        def __post_init__(self):
            self.w = self.x + 1

    assert 2.0 == Own(1.0).w
    assert 2.0 == Own(1.0).replace(x=5.0).w


@pytest.mark.parametrize("specifier", [ps.field, ps.static])
@pytest.mark.parametrize("derived", [True, False])
def test_derived_without_init_false_is_refused(specifier, derived):
    with pytest.raises(
        DeclarationError, match=r"^derived= says what becomes of a field"
    ):
        specifier(derived=derived)


def test_the_error_for_a_derived_field_names_the_way_out_and_it_works():
    class Drawn(ps.State):
        w: jax.Array = ps.field(init=False)

        def __post_init__(self):
            self.w = 1.0

    with pytest.raises(FieldError, match=r"ps\.field\(init=False, derived=False\)\.$"):
        Drawn().replace(w=2.0)

    class Started(ps.State):
        w: jax.Array = ps.field(init=False, derived=False)
        __post_init__ = Drawn.__post_init__

    assert 2.0 == Started().replace(w=2.0).w
