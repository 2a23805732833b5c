"""Jitted methods that are edited while the program runs, or sent to other processes."""

import contextlib

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from tests.helpers import python


def class_that(by, **options):
    """Return a class as a reloaded module makes it: all names are the same."""

    class Box(ps.State):
        x: jax.Array

        @ps.jit(**options)
        def step(self):
            return self.replace(x=self.x + by)

        @ps.jit
        @property
        def total(self):
            return self.x.sum() + by

        @ps.jit
        @staticmethod
        def moved(x):
            return x + by

        @ps.jit
        @classmethod
        def made(cls, x):
            return cls(x=x + by)

        def plain(self):
            return self.x

    return Box


def update_function(old, new):
    """Do what IPython's autoreload does to a function that stands in a class."""
    names = ["__code__", "__defaults__", "__doc__", "__closure__", "__globals__"]
    for name in [*names, "__dict__"]:
        with contextlib.suppress(AttributeError, TypeError):
            setattr(old, name, getattr(new, name))


def reload(old, new):
    for get in (
        lambda cls: cls.step,
        lambda cls: cls.__dict__["total"].fget,
        lambda cls: cls.moved,
        lambda cls: cls.made.__func__,
    ):
        update_function(get(old), get(new))


def test_an_edited_method_takes_effect():
    cls = class_that(by=1)
    box = cls(x=jnp.ones(2))
    assert [2, 2] == box.step().x.tolist()

    reload(cls, class_that(by=10))

    assert [11, 11] == box.step().x.tolist()
    assert 12 == box.total
    assert 11 == cls.moved(1.0)
    assert [11] == cls.made(jnp.ones(1)).x.tolist()


@pytest.mark.parametrize("donates", [True, False])
def test_so_does_an_edited_decorator(donates):
    cls = class_that(by=1, donate=not donates)
    cls(x=jnp.ones(2)).step()

    reload(cls, class_that(by=10, donate=donates))
    box = cls(x=jnp.ones(2))

    assert [11, 11] == box.step().x.tolist()
    assert donates == ("donated" in repr(box))


def test_an_edited_method_is_lowered_and_bound_anew():
    cls = class_that(by=1)
    box = cls(x=jnp.ones(2))
    bound = ps.jit(box.step)

    reload(cls, class_that(by=10))

    assert [11, 11] == bound().x.tolist()
    assert [11, 11] == cls.step.lower(box).compile()(box).x.tolist()


def test_an_edited_method_is_still_known_to_packed_states():
    cls = class_that(by=1)
    reload(cls, class_that(by=10))

    assert [11, 11] == ps.pack(cls(x=jnp.ones(2))).step().unpack().x.tolist()


def test_a_function_around_a_jitted_one_is_not_taken_for_it():
    cls = class_that(by=1)
    cls.plain.__dict__.update(cls.step.__dict__)  # as functools.wraps does

    with pytest.raises(ps.errors.PackedAttributeError, match=r"is not under ps\.jit"):
        _ = ps.pack(cls(x=jnp.ones(2))).plain


def test_a_pool_that_pickles_methods_by_name_can_send_a_class_of_the_script():
    pytest.importorskip("cloudpickle", reason="cloudpickle needs the interop extra")
    used = python(
        """
        import io, pickle, sys, types, cloudpickle, jax, jax.numpy as jnp, purestate as ps

        def by_name(method):  # as joblib's pools do
            return getattr, (method.__self__, method.__func__.__name__)

        class Pickler(cloudpickle.Pickler):
            dispatch_table = cloudpickle.Pickler.dispatch_table.new_child(
                {types.MethodType: by_name}
            )

        class Box(ps.State):
            x: jax.Array

            @ps.jit
            def step(self):
                return self.replace(x=self.x + 1)

            @ps.jit(donate=True)
            def given(self):
                return self.replace(x=self.x + 2)

        @ps.jit
        def twice(x):
            return 2 * x

        box = Box(jnp.ones(2))
        file = io.BytesIO()
        Pickler(file).dump((lambda b: b.step(), box.given, box, twice, ps.jit(box.step)))
        f, given, other, g, bound = pickle.loads(file.getvalue())
        assert [2, 2] == f(other).x.tolist() == g(jnp.ones(2)).tolist()
        assert [2, 2] == bound().x.tolist()
        assert [3, 3] == given().x.tolist()
        """
    )

    assert (0, "") == (used.returncode, used.stderr)
