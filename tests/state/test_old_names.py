"""`was=`, `version=` and `__migrate__`: what a class declares for older files."""

import copy
import dataclasses

import jax
import pytest

import purestate as ps
from purestate._schema.fields import old_names
from purestate._schema.layout import layout_of
from purestate.errors import DeclarationError
from tests.helpers import through_cloudpickle


def old(cls, name):
    return old_names(layout_of(cls).specs[name])


def test_a_field_and_a_static_field_carry_their_old_names():
    class Train(ps.State):
        ema: jax.Array = ps.field(was="avg")
        loss: ps.Array = ps.field(was=("cost", "error"), default=0)
        width: int = ps.static(was="size", default=8)
        plain: int = ps.static(default=1)

    assert ("avg",) == old(Train, "ema")
    assert ("cost", "error") == old(Train, "loss")
    assert ("size",) == old(Train, "width")
    assert () == old(Train, "plain")


def test_a_subclass_inherits_the_old_names_of_its_fields():
    class Train(ps.State):
        ema: jax.Array = ps.field(was="avg")

    class Longer(Train):
        more: jax.Array

    assert ("avg",) == old(Longer, "ema")


def test_the_metadata_of_a_field_with_an_old_name_keeps_what_was_given():
    class Train(ps.State):
        ema: jax.Array = ps.field(was="avg", metadata={"unit": "m"})

    (found,) = dataclasses.fields(Train)

    assert "m" == found.metadata["unit"]


def test_the_version_is_inherited_and_the_old_names_of_the_class_are_not():
    class Train(ps.State, version=2, was=("Trainer", "Run")):
        pass

    class Longer(Train):
        pass

    class Newer(Train, version=3, was="Newest"):
        pass

    class First(ps.State):
        pass

    kept = [(layout_of(c).version, layout_of(c).was) for c in (Train, Longer, Newer)]
    assert [(2, ("Trainer", "Run")), (2, ()), (3, ("Newest",))] == kept
    assert (0, ()) == (layout_of(First).version, layout_of(First).was)


def test_the_class_keywords_do_not_reach_the_init_subclass_of_a_mixin():
    seen = []

    class Mixin:
        def __init_subclass__(cls, **kwargs):
            seen.append(kwargs)
            super().__init_subclass__()

    class Train(ps.State, Mixin, version=1, was="Run", tag="mine"):
        pass

    assert [{"tag": "mine"}] == seen


def test_cloudpickle_carries_the_version_and_the_old_names():
    through_cloudpickle(
        """
        import jax, jax.numpy as jnp, purestate as ps
        class Train(ps.State, version=2, was="Run"):
            ema: jax.Array = ps.field(was="avg")
        made = Train(ema=jnp.ones(2))
        """,
        """
        from purestate._schema.layout import layout_of
        layout = layout_of(type(made))
        assert (2, ("Run",)) == (layout.version, layout.was)
        assert ("avg",) == layout.specs["ema"].metadata["was"]
        """,
    )


@pytest.mark.parametrize("version", [-1, True, 1.0, "2"])
def test_a_version_is_an_int_from_0_up(version):
    with pytest.raises(
        DeclarationError,
        match=rf"^Train has version={version!r}: give an int, 0 or more\. Files record "
        r"it, and __migrate__ is told which version a file has\.$",
    ):

        class Train(ps.State, version=version):
            pass


@pytest.mark.parametrize("was", [3, "", ("a", 1), ["a"], None])
@pytest.mark.parametrize("specifier", [ps.field, ps.static])
def test_the_old_names_of_a_field_are_strings(specifier, was):
    with pytest.raises(DeclarationError) as raised:
        specifier(was=was)

    assert (
        f"was={was!r}: give the old name as a string, or a tuple of old names."
        == str(raised.value)
    )


def test_the_old_names_of_a_class_are_strings():
    with pytest.raises(
        DeclarationError,
        match=r"^class Train: was=\['Run'\]: give the old name as a string, or a tuple "
        r"of old names\.$",
    ):

        class Train(ps.State, was=["Run"]):
            pass


def test_a_class_was_not_called_what_it_is_called():
    with pytest.raises(
        DeclarationError,
        match=r"^class Train has its own name in was=\('Run', 'Train'\): give the names "
        r"that it had before\.$",
    ):

        class Train(ps.State, was=("Run", "Train")):
            pass


def test_an_old_name_is_no_field_of_the_class():
    with pytest.raises(
        DeclarationError,
        match=r"^Train\.ema has was='avg', which is a field of Train: a file's avg "
        r"would be meant for both\. Remove was=, or move the value in __migrate__\.$",
    ):

        class Train(ps.State):
            ema: jax.Array = ps.field(was="avg")
            avg: int = ps.static(default=1)


def test_an_old_name_is_no_field_of_a_subclass():
    class Train(ps.State):
        ema: jax.Array = ps.field(was="avg")

    with pytest.raises(
        DeclarationError,
        match=r"^Longer\.ema has was='avg', which is a field of Longer: ",
    ):

        class Longer(Train):
            avg: jax.Array


def test_an_old_name_belongs_to_one_field():
    with pytest.raises(
        DeclarationError,
        match=r"^Train\.ema and Train\.slow both have was='avg': leave it to one, and "
        r"make the other in __migrate__\.$",
    ):

        class Train(ps.State):
            ema: jax.Array = ps.field(was="avg")
            slow: jax.Array = ps.field(was=("old", "avg"))


def test_what_is_not_stored_has_no_old_name():
    with pytest.raises(
        DeclarationError,
        match=r"^Train\.seed has was='start' and is not stored, so no file holds it: "
        r"remove was=\.$",
    ):

        class Train(ps.State):
            seed: dataclasses.InitVar[int] = ps.field(was="start")

            def __post_init__(self, seed):
                pass


def test_migrate_is_a_static_or_a_class_method():
    class Static(ps.State, version=1):
        @staticmethod
        def __migrate__(saved, version):
            return saved

    class Bound(ps.State, version=1):
        @classmethod
        def __migrate__(cls, saved, version):
            return saved

    saved = {"a": 1}
    assert saved is Static.__migrate__(saved, 0)
    assert saved is Bound.__migrate__(saved, 0)
    with pytest.raises(
        DeclarationError,
        match=r"^Method\.__migrate__ must be a static method, and is a function: files "
        r"are migrated before there is an instance\. Write @staticmethod above "
        r"`def __migrate__\(saved, version\)`\.$",
    ):

        class Method(ps.State):
            def __migrate__(self, saved, version):
                return saved


def test_a_migration_that_would_never_run_is_an_error():
    for keywords in ({}, {"version": 0}):
        with pytest.raises(
            DeclarationError,
            match=r"^Train has __migrate__ and no version, so it would never run: files "
            r"of an older version are migrated\. Write class Train\(\.\.\., "
            r"version=1\), and a higher number at each change\.$",
        ):

            class Train(ps.State, **keywords):
                @staticmethod
                def __migrate__(saved, version):
                    return saved


def test_a_migration_may_be_of_a_class_whose_version_is_inherited():
    class Base(ps.State, version=2):
        pass

    class Train(Base):
        @staticmethod
        def __migrate__(saved, version):
            return saved

    assert {} == Train.__migrate__({}, 1)


def test_an_instance_of_a_versioned_class_is_like_any_other():
    class Train(ps.State, version=1, was="Run"):
        ema: ps.Array = ps.field(was="avg", default=1.0)

    train = Train()

    assert 1 == len(jax.tree.leaves(train))
    assert train == copy.copy(train.replace(ema=1.0))
    assert "Train(ema=f32[])" == repr(train)
