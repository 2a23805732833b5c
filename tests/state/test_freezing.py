"""Instances are frozen once constructed, and say what to do instead."""

import copy
import copyreg
import pickle

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from purestate.errors import FrozenStateError, UnsetFieldError


class Box(ps.State):
    cache: jax.Array
    parts: dict = ps.field(default_factory=dict)

    @jax.jit
    def apply(self, x):
        self.cache = x * 2
        return x * 2

    @jax.jit
    def forget(self):
        del self.cache


ASSIGNING = (
    r"^cannot assign Box\.cache\. Inside jit, grad, vmap and scan a method works on a "
    r"copy of its object, so the value would be lost, or leak as a tracer\. Return an "
    r"updated instance:\n"
    r"    return self\.replace\(cache=\.\.\.\), out\n"
    r"and at the call:  box, out = box\.method\(\.\.\.\)"
)


def test_assigning_in_a_jitted_method_fails_at_that_line_and_stores_nothing():
    box = Box(cache=jnp.zeros(3))

    with pytest.raises(FrozenStateError, match=ASSIGNING):
        box.apply(jnp.ones(3))

    assert not isinstance(box.cache, jax.core.Tracer)
    assert [0, 0, 0] == box.cache.tolist()


@pytest.mark.parametrize(
    "same",
    [
        lambda box: box,
        copy.copy,
        copy.deepcopy,
        lambda box: pickle.loads(pickle.dumps(box)),
        lambda box: box.replace(),
        lambda box: jax.tree.map(lambda leaf: leaf, box),
    ],
    ids=["constructed", "copied", "deep-copied", "unpickled", "replaced", "rebuilt"],
)
def test_every_instance_is_frozen_however_it_came_to_be(same):
    box = same(Box(cache=jnp.zeros(3)))

    with pytest.raises(FrozenStateError, match=ASSIGNING):
        box.cache = jnp.ones(3)
    with pytest.raises(FrozenStateError, match=r"^cannot delete Box\.cache\."):
        del box.cache


def test_a_frozen_state_error_is_an_attribute_error():
    with pytest.raises(AttributeError):
        Box(cache=jnp.zeros(3)).cache = 1


@pytest.mark.parametrize(
    "transform", [jax.jit, jax.vmap, jax.grad], ids=["jit", "vmap", "grad"]
)
def test_assigning_fails_inside_every_transform(transform):
    def write(box):
        box.cache = box.cache * 2

    with pytest.raises(FrozenStateError, match=ASSIGNING):
        transform(write)(Box(cache=jnp.zeros(3)))


def test_assigning_fails_inside_scan():
    def write(box, _):
        box.cache = box.cache * 2

    with pytest.raises(FrozenStateError, match=ASSIGNING):
        jax.lax.scan(write, Box(cache=jnp.zeros(3)), None, length=2)


def test_deleting_in_a_jitted_method_fails():
    with pytest.raises(FrozenStateError, match=r"^cannot delete Box\.cache\."):
        Box(cache=jnp.zeros(3)).forget()


def test_assigning_an_undeclared_name_says_to_declare_it():
    text = (
        r"^cannot assign Box\.cahce\..*'cahce' is not a field either: declare it in the "
        r"class body, then return self\.replace\(cahce=\.\.\.\); did you mean 'cache'\?$"
    )

    with pytest.raises(FrozenStateError, match=text):
        Box(cache=jnp.zeros(3)).cahce = 1


def test_running_init_again_does_not_change_a_finished_instance():
    box = Box(cache=jnp.zeros(3))
    text = (
        r"^cannot run Box\.__init__ on a finished instance: a State is frozen\. "
        r"Construct another, Box\(\.\.\.\), or use replace\(\.\.\.\)\.$"
    )

    with pytest.raises(FrozenStateError, match=text):
        box.__init__(cache=jnp.ones(3))

    assert [0, 0, 0] == box.cache.tolist()


def test_a_hand_written_init_cannot_run_again_either():
    class Own(ps.State):
        x: int

        def __init__(self):
            self.x = 1

    with pytest.raises(FrozenStateError, match=r"^cannot run Own\.__init__ on a fin"):
        Own().__init__()


def test_own_fields_are_writable_in_post_init_and_sealed_after():
    class Light(ps.State):
        k: jax.Array
        u: jax.Array = ps.field(init=False)

        def __post_init__(self):
            self.u = jnp.sqrt(self.k)

    light = Light(k=jnp.full(3, 4.0))

    assert [2, 2, 2] == light.u.tolist()
    with pytest.raises(FrozenStateError, match=r"cannot assign Light\.u"):
        light.u = light.k


def test_an_instance_is_frozen_also_when_its_constructor_failed():
    kept = []

    class Fails(ps.State):
        x: int

        def __post_init__(self):
            kept.append(self)
            raise ValueError("no")

    with pytest.raises(
        ValueError, match=r"^no\nraised by Fails\.__post_init__; it had set x\.$"
    ):
        Fails(x=1)

    with pytest.raises(FrozenStateError, match=r"^cannot assign Fails\.x\."):
        kept[0].x = 2


def test_a_dict_that_is_changed_inside_a_transform_is_not_the_callers():
    box = Box(cache=jnp.zeros(2), parts={"a": jnp.ones(2)})

    @jax.jit
    def add(box):
        box.parts["hi"] = box.parts["a"] * 2
        return box.parts["hi"]

    add(box)

    assert ["a"] == list(box.parts)


def test_the_private_mark_cannot_be_assigned_away():
    box = Box(cache=jnp.zeros(2))

    with pytest.raises(FrozenStateError, match=r"cannot assign Box\.__class__"):
        box.__class__ = object
    with pytest.raises(FrozenStateError, match=r"cannot assign Box\.__dict__"):
        box.__dict__ = {}


def test_an_instance_without_a_constructor_cannot_be_assigned_to():
    bare = object.__new__(Box)

    with pytest.raises(
        FrozenStateError,
        match=r"^cannot assign Box\.\w+: this Box was made by object\.__new",
    ):
        bare.cache = 1


class OwnSetstate(ps.State):
    x: jax.Array
    n: int = ps.static(default=3)

    def __getstate__(self):
        return {"x": self.x}

    def __setstate__(self, state):
        for name, value in state.items():
            object.__setattr__(self, name, value)


def test_an_instance_is_frozen_after_a_setstate_of_the_users():
    back = pickle.loads(pickle.dumps(OwnSetstate(jnp.ones(2), n=5)))

    assert [1.0, 1.0] == back.x.tolist()
    assert 3 == back.n
    assert jax.tree.structure(OwnSetstate(0)) == jax.tree.structure(back)
    with pytest.raises(FrozenStateError, match=r"^cannot assign OwnSetstate\.x"):
        back.x = 7


def test_a_setstate_that_leaves_a_field_without_a_value_is_told():
    class Forgets(ps.State):
        x: jax.Array

        def __setstate__(self, state):
            pass

    with pytest.raises(UnsetFieldError, match=r"^Forgets\.__setstate__ left field x w"):
        copy_reconstructed(Forgets(x=1))


def copy_reconstructed(state):
    made = copyreg.__newobj__(type(state))
    made.__setstate__(state.__getstate__())
    return made
