"""Classes that have changed since a file was written, and everything that differs."""

import dataclasses
import sys
import types
import warnings
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import FrozenDict

import purestate as ps
from purestate.errors import LoadError, LoadWarning
from purestate.optax import Optimizer
from tests.helpers import exactly


@pytest.fixture
def path(tmp_path):
    return tmp_path / "8.safetensors"


def state_class(name, _bases=(ps.State,), _body=None, _keywords=None, **fields):
    """Return a State class: two versions of a program have two of the same name.

    Args:
        name: of the class.
        fields: an annotation by name, or a pair of it and the default.
    """
    kinds = {n: v[0] if isinstance(v, tuple) else v for n, v in fields.items()}
    defaults = {n: v[1] for n, v in fields.items() if isinstance(v, tuple)}
    body = {"__annotations__": kinds, "__module__": __name__, **defaults}
    return types.new_class(
        name, _bases, _keywords or {}, lambda ns: ns.update(body | (_body or {}))
    )


def versioned(version, migrate, name="Train", **fields):
    return state_class(
        name,
        _body={"__migrate__": staticmethod(migrate)},
        _keywords={"version": version},
        **fields,
    )


def differences(path, like, **options):
    """Return the lines of the error that a load raises."""
    with pytest.raises(LoadError) as error:
        ps.load(path, like, **options)
    head, *lines = str(error.value).splitlines()
    assert head.startswith(f"{path} does not fit ")
    return [line[2:] for line in lines if line.startswith("  ")]


Array = jax.Array
W = jnp.arange(4.0)


# --- fields that come and go ------------------------------------------------------------


def test_a_new_field_gets_its_default_and_a_warning(path):
    ps.save(path, state_class("Train", w=Array)(w=W))
    Train = state_class("Train", w=Array, ema=(Array, 0.5))

    with pytest.warns(
        LoadWarning,
        match=exactly(f"{path} has no Train.ema: the defaults of the class are used."),
    ):
        train = ps.load(path, Train)

    assert jnp.float32 == train.ema.dtype
    assert 0.5 == train.ema


def test_a_new_field_gets_its_default_next_to_an_instance_that_is_alike(path):
    ps.save(path, state_class("Train", w=Array)(w=W))
    Train = state_class(
        "Train", w=Array, ema=(Array, 0.5), n=(int, ps.static(default=3))
    )

    with pytest.warns(LoadWarning, match="Train.ema, Train.n"):
        train = ps.load(path, Train(w=W, ema=7.0))

    assert 0.5 == train.ema
    assert 3 == train.n


def test_the_warning_names_the_line_that_loads(path):
    ps.save(path, state_class("Train", w=Array)(w=W))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ps.load(path, state_class("Train", w=Array, n=(int, 1)))

    assert [__file__] == [warning.filename for warning in caught]


def test_a_new_field_without_a_default_is_an_error(path):
    ps.save(path, state_class("Train", w=Array)(w=W))
    Train = state_class("Train", w=Array, ema=Array)

    assert differences(path, Train) == [
        "Train.ema: not in the file, and it has no default (a default or __migrate__)"
    ]
    assert differences(path, Train(w=W, ema=W)) == [
        "Train.ema: not in the file (allow='keep' keeps what like has)"
    ]


def test_a_new_field_is_kept_from_an_instance(path):
    ps.save(path, state_class("Train", w=Array)(w=W))
    Train = state_class("Train", w=Array, ema=Array)

    train = ps.load(path, Train(w=W + 1, ema=W + 2), allow="keep")

    assert train == Train(w=W, ema=W + 2)


def test_nothing_can_be_kept_from_an_abstract_instance(path):
    ps.save(path, state_class("Train", w=Array)(w=W))
    Train = state_class("Train", w=Array, ema=Array)
    like = jax.eval_shape(lambda: Train(w=W, ema=W))

    assert differences(path, like, allow="keep") == [
        "Train.ema: not in the file, and like has no numbers (give an instance)"
    ]


@pytest.mark.parametrize("kind", ["class", "instance"])
def test_a_removed_field_is_an_error_until_it_is_dropped(path, kind):
    ps.save(path, state_class("Train", w=Array, avg=Array)(w=W, avg=W))
    Train = state_class("Train", w=Array)
    like = Train if kind == "class" else Train(w=W)

    assert differences(path, like) == [
        (
            "Train.avg: in the file only (allow='drop' leaves it out; ps.field(was=...) if "
            "it was renamed)"
        )
    ]
    assert ps.load(path, like, allow="drop") == Train(w=W)


def test_a_rename_does_not_pass_as_added_and_removed(path):
    ps.save(path, state_class("Train", avg=Array)(avg=W))
    Train = state_class("Train", ema=Array)

    assert differences(path, Train) == [
        (
            "Train.ema: not in the file, and it has no default (a default, __migrate__, or "
            "ps.field(was=...) if 'avg' is its old name)"
        ),
        (
            "Train.avg: in the file only (allow='drop' leaves it out; ps.field(was=...) if "
            "it was renamed)"
        ),
    ]


@pytest.mark.parametrize("was", ["avg", ("mean", "avg")])
@pytest.mark.parametrize("kind", ["class", "instance"])
def test_a_renamed_field_is_found_by_its_old_name(path, was, kind):
    ps.save(path, state_class("Train", avg=Array)(avg=W))
    Train = state_class("Train", ema=(Array, ps.field(was=was)))

    train = ps.load(path, Train if kind == "class" else Train(ema=W))

    assert train == Train(ema=W)


def test_a_renamed_static_field_is_found_by_its_old_name(path):
    static = ps.static()
    ps.save(path, state_class("Train", n=(int, static))(n=3))
    Train = state_class("Train", width=(int, ps.static(was="n")))

    assert ps.load(path, Train) == Train(width=3)


def test_a_field_that_is_there_is_not_taken_from_its_old_name(path):
    ps.save(path, state_class("Train", avg=Array, ema=Array)(avg=W, ema=W + 1))
    Train = state_class("Train", ema=(Array, ps.field(was="avg")))

    assert ps.load(path, Train, allow="drop") == Train(ema=W + 1)


# --- classes ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["class", "instance"])
def test_a_renamed_class_is_found_by_its_old_name(path, kind):
    ps.save(path, state_class("Train", w=Array)(w=W))
    Trainer = state_class("Trainer", w=Array)

    assert differences(path, Trainer if kind == "class" else Trainer(w=W)) == [
        (
            "Trainer: a Train in the file, a Trainer expected (if it was renamed: class "
            "Trainer(ps.State, was='Train'))"
        )
    ]

    Trainer = state_class("Trainer", _keywords={"was": ("Old", "Train")}, w=Array)
    like = Trainer if kind == "class" else Trainer(w=W)
    assert ps.load(path, like) == Trainer(w=W)


def test_a_renamed_class_inside_is_found_by_its_old_name(path):
    Old = state_class("Old", w=Array)
    ps.save(path, state_class("Train", net=Old)(net=Old(w=W)))
    New = state_class("New", _keywords={"was": "Old"}, w=Array)

    for annotation in (New, New | None, list[New]):
        Train = state_class("Train", net=annotation)
        assert ps.load(path, Train) == Train(net=New(w=W))


def test_a_renamed_class_without_an_annotation_is_found_by_its_old_name():
    manifest, arrays = manifest_with("LostNet")
    New = state_class("NewNet", _keywords={"was": "LostNet"}, w=Array)
    Train = state_class("Train", net=Any)

    assert ps.from_dict(manifest, Train, arrays) == Train(net=New(w=W))


def test_a_class_of_that_very_name_comes_before_one_that_had_it(path):
    Old = state_class("OldNet", w=Array)
    New = state_class("NextNet", _keywords={"was": "OldNet"}, w=Array)

    for annotation in (Any, New | Old, Old | New, list[Any]):
        Train = state_class("Train", net=annotation)
        ps.save(path, Train(net=Old(w=W)))
        assert Old is type(ps.load(path, Train).net)


def test_a_class_of_that_very_name_comes_before_one_of_its_last_part(path):
    inner = {"__qualname__": "Outer.Part"}
    Inner = state_class("Part", _body=inner, w=Array)
    Part = state_class("Part", w=Array)

    for annotation in (Any, Part | Inner, Inner | Part):
        Train = state_class("Train", nets=tuple[annotation, ...])
        train = Train(nets=(Inner(w=W), Part(w=W)))
        ps.save(path, train)
        assert [Inner, Part] == [*map(type, ps.load(path, Train).nets)]


def test_classes_of_one_name_in_two_modules_are_told_apart(path):
    first = state_class("Layer", _body={"__module__": "first"}, w=Array)
    second = state_class("Layer", _body={"__module__": "second"}, w=Array)

    for annotation in (Any, first | second, second | first):
        Train = state_class("Train", one=annotation, other=annotation)
        train = Train(one=first(w=W), other=second(w=W))
        ps.save(path, train)
        loaded = ps.load(path, Train)
        assert [first, second] == [type(loaded.one), type(loaded.other)]


def test_named_tuples_of_one_name_in_two_modules_are_told_apart(path, monkeypatch):
    pairs = []
    for name in ("first_pairs", "second_pairs"):
        module = types.ModuleType(name)
        exec(
            "import typing\nclass Two(typing.NamedTuple):\n    a: object", vars(module)
        )
        monkeypatch.setitem(sys.modules, name, module)
        pairs.append(module.Two)
    Train = state_class("Train", many=tuple[pairs[0] | pairs[1], ...])
    ps.save(path, Train(many=(pairs[1](W), pairs[0](W))))

    assert pairs[::-1] == [*map(type, ps.load(path, Train).many)]


def manifest_with(name):
    """Return what was saved of a Train with a Net, whose name no class here has."""
    Net = state_class("Net", w=Array)
    arrays, manifest = ps.to_dict(state_class("Train", net=Any)(net=Net(w=W)))
    manifest["root"]["data"]["net"]["state"] = name
    return manifest, arrays


def test_a_class_of_another_name_inside_tells_how_to_rename_it():
    manifest, arrays = manifest_with("GoneNet")
    Other = state_class("OtherNet", w=Array)

    with pytest.raises(
        LoadError,
        match=exactly(
            "the manifest does not fit Train:\n"
            "  Train.net: a GoneNet in the file, a OtherNet expected (if it was "
            "renamed: class OtherNet(ps.State, was='GoneNet'))"
        ),
    ):
        ps.from_dict(manifest, state_class("Train", net=Other), arrays)


def test_a_class_that_is_not_there_is_an_error():
    manifest, arrays = manifest_with("GoneNet")

    with pytest.raises(LoadError) as error:
        ps.from_dict(manifest, state_class("Train", net=Any), arrays)

    assert str(error.value).splitlines()[1] == (
        f"  Train.net: the file holds a GoneNet, and no such State class exists here "
        f"(import {__name__}, or give an instance as like)"
    )


def test_the_class_of_the_annotation_comes_before_others_of_its_name(path):
    first = state_class("Net", w=Array)
    ps.save(path, state_class("Train", net=Any)(net=first(w=W)))
    last = state_class("Net", w=Array)

    assert first is type(ps.load(path, state_class("Train", net=first)).net)
    assert last is type(ps.load(path, state_class("Train", net=Any)).net)


def test_a_member_of_a_union_is_found_by_its_name(path):
    A, B = state_class("UnionA", w=Array), state_class("UnionB", w=Array)
    Train = state_class("Train", net=A | B | None)

    for net in (A(w=W), B(w=W), None):
        ps.save(path, Train(net=net))
        assert ps.load(path, Train) == Train(net=net)


def test_a_subclass_of_the_annotation_is_found(path):
    Base = state_class("BaseNet", w=Array)
    Deep = state_class("DeepNet", _bases=(Base,), v=Array)
    Train = state_class("Train", net=Base)
    train = Train(net=Deep(w=W, v=W))

    ps.save(path, train)

    assert ps.load(path, Train) == train


def test_modules_are_not_compared(path):
    body = {"__module__": "__main__"}
    ps.save(path, state_class("Train", _body=body, w=Array)(w=W))
    Train = state_class("Train", w=Array)

    assert ps.load(path, Train) == Train(w=W)


# --- versions ---------------------------------------------------------------------------


def test_a_newer_file_is_an_error(path):
    ps.save(path, versioned(2, None, w=Array)(w=W))

    assert differences(path, versioned(1, None, w=Array)) == [
        (
            "Train: version 2 of Train in the file, and the class is version 1 (update the "
            "code)"
        )
    ]


def test_a_migration_moves_changes_and_reads(path):
    Adam = state_class("Adam", mu=dict)
    Train = state_class("Train", w=Array, width=(int, ps.static()), opt=Adam)
    ps.save(path, Train(w=W, width=3, opt=Adam(mu={"w": W + 1})))

    def migrate(saved, version):
        if version < 1:
            saved["lr"] = 0.5 * saved.pop("width")
        if version < 2:
            saved["opt"]["mu"] = saved["opt"]["mu"]["w"]
        saved["scale"] = jnp.asarray(saved["w"]).sum()
        return saved

    Adam = state_class("Adam", mu=Array)
    Train = versioned(2, migrate, w=Array, lr=Array, scale=Array, opt=Adam)
    expected = Train(w=W, lr=1.5, scale=6.0, opt=Adam(mu=W + 1))

    assert ps.load(path, Train) == expected
    assert ps.load(path, expected) == expected
    assert ps.load(path, jax.eval_shape(lambda: expected)) == expected


def test_a_part_that_is_moved_is_not_read(path, monkeypatch):
    ps.save(path, state_class("Train", a=Array, b=Array)(a=W, b=W))
    reads = []
    from purestate._saving.file import File

    read = File.read

    def counting(self, names):
        reads.append(sorted(names))
        return read(self, names)

    monkeypatch.setattr(File, "read", counting)

    def migrate(saved, version):
        return {"c": saved["a"]}

    ps.load(path, versioned(1, migrate, c=Array))

    assert [["a"]] == reads


def test_a_migration_does_not_run_for_its_own_version(path):
    def migrate(saved, version):
        raise AssertionError

    Train = versioned(1, migrate, w=Array)
    ps.save(path, Train(w=W))

    assert ps.load(path, Train) == Train(w=W)


def test_outer_classes_migrate_first_and_inner_ones_from_their_own_version(path):
    Net = state_class("Net", w=Array)
    Train = state_class("Train", net=Net, bias=Array)
    ps.save(path, Train(net=Net(w=W), bias=W))
    seen = []

    def of_train(saved, version):
        seen.append(("Train", version))
        saved["net"]["bias"] = saved.pop("bias")
        return saved

    def of_net(saved, version):
        seen.append(("Net", version, sorted(saved)))
        saved["b"] = saved.pop("bias")
        return saved

    Net = versioned(3, of_net, "Net", w=Array, b=Array)
    Train = versioned(1, of_train, net=Net)

    assert ps.load(path, Train) == Train(net=Net(w=W, b=W))
    assert seen == [("Train", 0), ("Net", 0, ["bias", "w"])]


def test_old_names_count_after_a_migration(path):
    ps.save(path, state_class("Train", a=Array)(a=W))

    def migrate(saved, version):
        saved["b"] = saved.pop("a")
        return saved

    Train = versioned(1, migrate, c=(Array, ps.field(was="b")))

    assert ps.load(path, Train) == Train(c=W)


def test_a_migration_without_a_result_is_an_error(path):
    ps.save(path, state_class("Train", w=Array)(w=W))

    with pytest.raises(
        LoadError,
        match=exactly("Train.__migrate__ returned None; return the dict of fields."),
    ):
        ps.load(path, versioned(1, lambda saved, version: None, w=Array))


def test_the_error_of_a_migration_says_which_one_it_was(path):
    ps.save(path, state_class("Train", w=Array)(w=W))

    def migrate(saved, version):
        return saved["nothing"]

    with pytest.raises(KeyError) as error:
        ps.load(path, versioned(2, migrate, w=Array))

    assert error.value.__notes__ == [
        "raised by Train.__migrate__ for Train saved as version 0."
    ]


def test_a_migration_does_not_change_what_was_loaded_without_a_class(path):
    ps.save(path, state_class("Train", a=Array)(a=W))

    def migrate(saved, version):
        saved["b"] = saved.pop("a")
        return saved

    found = ps.load(path)
    Train = versioned(1, migrate, b=Array)

    assert ps.load(found, Train) == ps.load(found, Train) == Train(b=W)
    assert ["a"] == list(found)


def test_a_migration_may_make_states_tuples_and_arrays(path):
    Net = state_class("Net", w=Array)
    ps.save(path, state_class("Train", w=Array)(w=W))

    def migrate(saved, version):
        pair = Pair(saved["w"], np.arange(3))
        return {"net": Net(w=W + 1), "pair": pair, "n": 3}

    Train = versioned(1, migrate, net=Net, pair=Pair, n=(int, ps.static()))
    expected = Train(net=Net(w=W + 1), pair=Pair(W, np.arange(3)), n=3)

    assert ps.load(path, Train) == expected
    assert ps.load(path, expected) == expected


class In(ps.State):
    a: Any
    n: Any = ps.static(default=None)


def migrated(path, make, **fields):
    """Return a class that makes its only field `i` of the `w` that was saved."""
    ps.save(path, state_class("Outer", w=Array, act=(Any, ps.static()))(w=W, act=act))
    return versioned(1, lambda saved, _: {"i": make(saved)}, "Outer", **fields)


UNREAD = {
    "a State": (lambda w: In(a=w), In(a=W)),
    "States in a State": (lambda w: In(a=[In(a=w), w, 3]), In(a=[In(a=W), W, 3])),
    "a class of others": (
        lambda w: jax.tree_util.Partial(jnp.sin, w),
        jax.tree_util.Partial(jnp.sin, W),
    ),
}


@pytest.mark.parametrize(("make", "expected"), UNREAD.values(), ids=UNREAD)
def test_what_a_migration_did_not_read_is_read_wherever_it_lies(path, make, expected):
    Outer = migrated(path, lambda saved: make(saved["w"]), i=Any)
    likes = [Outer, Outer(i=expected)] if isinstance(expected, ps.State) else [Outer]

    for like in likes:
        found = ps.load(path, like)
        assert found == Outer(i=expected)
        leaves = jax.tree.leaves(found)
        assert all(isinstance(leaf, jax.Array | int) for leaf in leaves)


LEFT = {
    "an array": (
        lambda saved: saved["w"],
        "",
        "an array of the file in a static field",
    ),
    "an array in a tuple": (
        lambda saved: (1, saved["w"]),
        "[1]",
        "an array of the file",
    ),
    "a function in a tuple": (
        lambda saved: (saved["act"],),
        "[0]",
        f"the file names <{__name__}:act>, which it cannot hold (give an instance as like",
    ),
}


@pytest.mark.parametrize(("make", "step", "text"), LEFT.values(), ids=LEFT)
def test_what_a_migration_left_in_a_static_field_is_an_error(path, make, step, text):
    Outer = migrated(path, make, i=(Any, ps.static()))
    (found,) = differences(path, Outer)
    assert found.startswith(f"Outer.i{step}: {text}")

    Outer = migrated(path, lambda saved: In(a=3, n=make(saved)), i=Any)
    (found,) = differences(path, Outer)
    assert found.startswith(f"Outer.i.n{step}: {text}")


def test_the_way_out_of_an_array_in_a_static_field_works(path):
    def migrate(saved):
        return np.asarray(saved["w"])[2].item()

    assert 2.0 == ps.load(path, migrated(path, migrate, i=(Any, ps.static()))).i


@pytest.mark.parametrize("to_data", [True, False])
@pytest.mark.parametrize("kind", ["class", "instance"])
def test_a_field_that_becomes_static_or_data_needs_a_migration(path, to_data, kind):
    data, static = (
        state_class("Train", n=Any),
        state_class("Train", n=(Any, ps.static())),
    )
    before, after = (static, data) if to_data else (data, static)
    ps.save(path, before(n=3))
    texts = ("a static value", "data") if to_data else ("data", "a static value")

    assert differences(path, after if kind == "class" else after(n=3)) == [
        (
            f"Train.n: {texts[0]} in the file, {texts[1]} expected (version= and "
            f"__migrate__ tell how it moved)"
        )
    ]


def test_a_migration_makes_a_static_value_data(path):
    ps.save(path, state_class("Train", n=(int, ps.static()))(n=3))
    Train = versioned(1, lambda saved, version: saved, n=ps.Array)

    train = ps.load(path, Train)

    assert train == Train(n=3)
    assert jnp.int32 == train.n.dtype


# --- shapes, dtypes, kinds --------------------------------------------------------------


class Pair(NamedTuple):
    a: Any
    b: Any


class Box(ps.State):
    x: Any
    n: int = ps.static(default=4)


def test_all_that_differs_is_listed_at_once(path):
    class Opt(ps.State):
        count: Any
        mu: dict

    class Train(ps.State):
        w: Any
        opt: Opt
        width: int = ps.static()

    ps.save(path, Train(w=W, opt=Opt(count=jnp.int32(1), mu={"w": W}), width=8))
    like = Train(w=jnp.zeros(5), opt=Opt(count=jnp.int16(1), mu={"v": W}), width=4)

    with pytest.raises(
        LoadError,
        match=exactly(f"""{path} does not fit Train:
  Train.w: shape (4,) in the file, (5,) expected
  Train.opt.count: int32 in the file, int16 expected (allow='cast' converts)
  Train.opt.mu['v']: not in the file (allow='keep' keeps what like has)
  Train.opt.mu['w']: in the file only (allow='drop' leaves it out)
  Train.width: static value 8 in the file, 4 expected (allow='static' takes the one expected)"""),
    ):
        ps.load(path, like)

    like = like.replace(w=W)
    loaded = ps.load(path, like, allow=("cast", "keep", "drop", "static"))
    assert loaded == like.replace(opt=Opt(count=jnp.int16(1), mu={"v": W}))


def test_of_many_differences_twenty_are_listed(path):
    ps.save(path, Box(x=[1.0] * 25))

    found = differences(path, Box(x=[1] * 25))

    assert 21 == len(found)
    assert "and 5 more" == found[-1]


def test_nothing_is_read_before_all_fits(path, monkeypatch):
    from purestate._saving.file import File

    ps.save(path, Box(x=[W, W + 1]))
    monkeypatch.setattr(File, "read", lambda *_: pytest.fail("an array was read"))

    assert 1 == len(differences(path, Box(x=[W, jnp.zeros(5)])))


MISFITS = {
    "an int for a float": (
        1,
        1.0,
        "int in the file, float expected (allow='cast' converts)",
    ),
    "a number for an array": (
        1,
        jnp.float32(1),
        "int in the file, an array of float32 expected (allow='cast' converts)",
    ),
    "an array for a number": (
        jnp.float32(1),
        1.0,
        "an array of float32 in the file, a float expected",
    ),
    "a text for an array": ("a", W, "a str in the file, an array of float32 expected"),
    "a key for an array": (
        jax.random.key(0),
        jnp.zeros(()),
        "a key<fry> in the file, float32 expected",
    ),
    "an array for a key": (
        jnp.zeros(()),
        jax.random.key(0),
        "float32 in the file, a key<fry> expected",
    ),
    "a key of another kind": (
        jax.random.key(0, impl="rbg"),
        jax.random.key(0),
        "a key<rbg> in the file, a key<fry> expected",
    ),
    "keys of another shape": (
        jax.random.split(jax.random.key(0)),
        jax.random.key(0),
        "shape (2,) in the file, () expected",
    ),
    "one more axis": (
        jnp.ones((1, 1)),
        jnp.ones(1),
        "shape (1, 1) in the file, (1,) expected",
    ),
    "None for an array": (None, W, "None in the file, an array of float32 expected"),
    "an array for None": (W, None, "an array of float32 in the file, None expected"),
    "a list for a tuple": ([W], (W,), "a list in the file, a tuple expected"),
    "a dict for a list": ({"a": W}, [W], "a dict in the file, a list expected"),
    "a dict in order": (
        OrderedDict(a=W),
        {"a": W},
        "a OrderedDict in the file, a dict expected",
    ),
    "a named tuple for a tuple": (
        Pair(W, W),
        (W, W),
        f"a {__name__}:Pair in the file, a tuple expected",
    ),
    "a tuple for a named tuple": (
        (W, W),
        Pair(W, W),
        f"a tuple in the file, a {__name__}:Pair expected",
    ),
    "a State for a dict": (Box(x=W), {"x": W}, "a Box in the file, a dict expected"),
    "a dict for a State": ({"x": W}, Box(x=W), "a dict in the file, a Box expected"),
}


@pytest.mark.parametrize(("saved", "expected", "text"), MISFITS.values(), ids=MISFITS)
def test_a_leaf_or_container_of_another_kind_is_an_error(path, saved, expected, text):
    ps.save(path, Box(x=saved))

    assert differences(path, Box(x=expected)) == [f"Box.x: {text}"]


def test_items_of_a_list_can_be_kept_and_dropped(path):
    ps.save(path, Box(x=[1, 2]))

    assert differences(path, Box(x=[5])) == [
        "Box.x[1]: in the file only (allow='drop' leaves it out)"
    ]
    assert differences(path, Box(x=[5, 6, 7])) == [
        "Box.x[2]: not in the file (allow='keep' keeps what like has)"
    ]
    assert [1] == ps.load(path, Box(x=[5]), allow="drop").x
    assert [1, 2, 7] == ps.load(path, Box(x=[5, 6, 7]), allow="keep").x


CASTS = {
    "narrower": (W, W.astype(jnp.bfloat16)),
    "int to float": (jnp.arange(3), jnp.arange(3.0)),
    "number to array": (3, jnp.float32(3)),
    "number to number": (3, 3.0),
    "to numpy's": (W, np.arange(4, dtype=np.float64)),
}


@pytest.mark.parametrize(("saved", "like"), CASTS.values(), ids=CASTS)
def test_a_cast_that_is_asked_for_converts(path, saved, like):
    ps.save(path, Box(x=saved))

    found = ps.load(path, Box(x=like), allow="cast")

    assert found == Box(x=like)
    assert type(like) is type(found.x)


LOSSES = {
    "too large": (np.array([2**40]), np.zeros(1, np.int32)),
    "too large for jax": (np.array([1, 2**40]), jnp.zeros(2, jnp.int32)),
    "of the other sign": (np.array([-1], np.int8), np.zeros(1, np.uint8)),
    "not finite": (jnp.array([jnp.nan]), jnp.zeros(1, jnp.int32)),
    "with a fraction": (jnp.array([0.5]), jnp.zeros(1, jnp.int32)),
    "complex": (jnp.array([1j]), jnp.zeros(1)),
    "infinite once narrow": (jnp.array([1e38]), jnp.zeros(1, jnp.float16)),
    "an int that is infinite": (jnp.array([10**6]), jnp.zeros(1, jnp.float16)),
    "no bool": (jnp.array([2]), jnp.zeros(1, bool)),
    "of four bits": (jnp.array([100]), jnp.zeros(1, jnp.int4)),
    "the last of many": (
        np.append(np.zeros(2_000_000), 0.5),
        np.zeros(2_000_001, np.int32),
    ),
    "a number": (2.5, 2),
    "a number for a bool": (2**40, True),
    "a number for an array": (2**40, jnp.int32(0)),
}


@pytest.mark.parametrize(("saved", "like"), LOSSES.values(), ids=LOSSES)
def test_a_cast_that_makes_other_numbers_is_told_of(path, saved, like):
    ps.save(path, Box(x=[W, saved]))

    with pytest.warns(
        LoadWarning,
        match=exactly(
            f"{path} has numbers in Box.x[1] that the type expected cannot hold (too "
            f"large, not finite, with a fraction or an imaginary part): allow='cast' "
            f"made others of them."
        ),
    ):
        found = ps.load(path, Box(x=[W, like]), allow="cast")

    assert type(like) is type(found.x[1])


KEPT = {
    "rounded": (jnp.array([0.1, jnp.nan, jnp.inf]), jnp.zeros(3, jnp.bfloat16)),
    "ints as floats": (jnp.array([2**24 + 1]), jnp.zeros(1)),
    "real": (jnp.array([1 + 0j, jnp.nan]), jnp.zeros(2)),
    "to complex": (jnp.array([1.5]), jnp.zeros(1, jnp.complex64)),
    "whole": (jnp.array([-3.0]), jnp.zeros(1, jnp.int4)),
    "bools": (jnp.array([0, 1]), jnp.zeros(2, bool)),
    "none": (jnp.zeros((0, 2)), jnp.zeros((0, 2), jnp.int8)),
    "a large int": (10**30, 1.0),
    "a large int for an array": (10**30, jnp.float32(0)),
    "a float": (0.1, np.float32(0)),
}


@pytest.mark.parametrize(("saved", "like"), KEPT.values(), ids=KEPT)
def test_a_cast_that_rounds_is_what_was_asked_for(path, saved, like):
    ps.save(path, Box(x=saved))

    loaded = ps.load(path, Box(x=like), allow="cast").x

    found, expected = (np.asarray(x).astype(complex) for x in (loaded, saved))
    np.testing.assert_allclose(found, expected, 0.01)


IMPOSSIBLE = {
    "a complex number": (1j, 1.0, "1j in the file, which is no float"),
    "nan": (float("nan"), 1, "nan in the file, which is no int"),
    "infinity": (float("inf"), 1, "inf in the file, which is no int"),
    "a large int": (10**400, 1.0, f"{10**400} in the file, which is no float"),
    "a large int for an array": (
        10**30,
        jnp.int32(0),
        f"{10**30} in the file, which int32 cannot hold",
    ),
    "a larger int for an array": (
        10**400,
        jnp.float32(0),
        f"{10**400} in the file, which float32 cannot hold",
    ),
}


@pytest.mark.parametrize(("saved", "like", "text"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_cast_that_there_is_not_is_a_difference(path, saved, like, text):
    ps.save(path, Box(x=saved))

    assert [f"Box.x: {text}"] == differences(path, Box(x=like), allow="cast")


NO_LIKES = {
    "a class": (lambda: dict, "dict"),
    "the class of all": (lambda: ps.State, "State"),
    "a class of equinox": (lambda: eqx.nn.MLP, "MLP"),
    "an annotation": (lambda: dict[str, Net], f"dict[str, {__name__}.Net]"),
    "a union": (lambda: Net | None, f"{__name__}.Net | None"),
    "a class of numpy": (lambda: np.ndarray, "ndarray"),
}


@pytest.mark.parametrize(("like", "name"), NO_LIKES.values(), ids=NO_LIKES)
def test_an_annotation_that_is_no_state_class_is_no_like(path, like, name):
    ps.save(path, Net(w=W))

    for allow in ((), "static"):
        assert differences(path, like(), allow=allow) == [
            (
                f"the tree: {name} expected, which is no State class (give one, an "
                f"instance, or a list, tuple or dict that holds them)"
            )
        ]


def test_a_function_is_no_like(path):
    ps.save(path, make())

    for allow in ((), "static"):
        assert differences(path, make, allow=allow) == [
            (
                "the tree: the function make expected, which no file holds (if it makes "
                "what is expected: jax.eval_shape(make))"
            )
        ]


def test_a_function_takes_the_place_of_no_array(path):
    ps.save(path, {"a": W})

    (found,) = differences(path, {"a": jnp.sin}, allow="static")

    assert found.startswith("['a']: the function sin expected, which no file holds")


def test_a_state_is_no_source():
    for source, name in ((Box(x=W), "Box"), (None, "NoneType"), (3, "int")):
        with pytest.raises(
            TypeError,
            match=exactly(
                f"ps.load takes a path, or a part of what ps.load(path) returned and a "
                f"class or an instance as like: got a {name} as the first and a type as "
                f"like."
            ),
        ):
            ps.load(source, Box)


def test_a_load_inside_of_jit_is_an_error(path):
    ps.save(path, Box(x=W))

    @jax.jit
    def inside(box):
        (found,) = differences(path, box)
        return found == (
            "Box.x: a tracer expected, which is no array yet (load outside of jit, or "
            "give what jax.eval_shape returns)"
        )

    assert inside(Box(x=W))


def test_keys_are_never_cast(path):
    ps.save(path, Box(x=jax.random.key(0)))

    assert differences(path, Box(x=jnp.zeros(2, jnp.uint32)), allow="cast")


def test_an_instance_says_which_leaves_are_of_numpy(path):
    ps.save(path, Box(x=[W, np.arange(3)]))

    found = ps.load(path, Box(x=[np.zeros(4, np.float32), np.arange(3)])).x

    assert [np.ndarray, np.ndarray] == [type(leaf) for leaf in found]
    assert all(leaf.flags.writeable for leaf in found)


def test_a_dtype_that_jax_has_only_in_its_wide_mode_is_not_cast_silently(path):
    with (
        jax.enable_x64(True)
        if hasattr(jax, "enable_x64")
        else jax.experimental.enable_x64()
    ):
        ps.save(path, Box(x=jnp.arange(4, dtype=jnp.float64)))

    assert differences(path, Box) == [
        (
            "Box.x: float64 in the file, which jax has only with jax_enable_x64 "
            "(allow='cast' converts to float32)"
        )
    ]
    assert ps.load(path, Box, allow="cast") == Box(x=W)


# --- what a file can only name ----------------------------------------------------------


def act(x):
    return x


class Named(ps.State):
    w: jax.Array
    act: Any = ps.static()


def test_a_function_comes_from_the_instance(path):
    ps.save(path, Named(w=W, act=act))

    assert ps.load(path, Named(w=W, act=act)) == Named(w=W, act=act)
    assert differences(path, Named) == [
        (
            f"Named.act: the file names <{__name__}:act>, which it cannot hold (give an "
            f"instance as like, or a default in the class)"
        )
    ]
    assert differences(path, Named(w=W, act=jnp.tanh)) == [
        (
            f"Named.act: static value <{__name__}:act> in the file, <jax.numpy:tanh> "
            f"expected (allow='static' takes the one expected)"
        )
    ]


def test_a_lambda_is_named_as_python_names_it(path):
    Train = state_class("Train", act=(Any, ps.static()))
    ps.save(path, Train(act=LAMBDA))

    assert differences(path, Train) == [
        (
            f"Train.act: the file names <{__name__}:<lambda>>, which it cannot hold (give "
            f"an instance as like)"
        )
    ]


def test_a_lambda_is_not_taken_from_the_default_of_the_class(path):
    ps.save(path, state_class("Train", act=(Any, ps.static()))(act=LAMBDA))
    Train = state_class("Train", act=(Any, ps.static(default=lambda x: 2 * x)))

    assert 1 == len(differences(path, Train))


class Tokens:
    pass


def test_an_object_from_the_default_of_the_class_is_told_of(path):
    Train = state_class("Train", tokens=(Any, ps.static(default=Tokens())))
    ps.save(path, Train())

    with pytest.warns(LoadWarning, match=r"has only names for Train\.tokens: "):
        assert ps.load(path, Train) == Train()


def test_what_no_more_than_a_name_is_known_of_is_told_once(path):
    def box(optimizer):
        return Box(x=[Named(w=W, act=LAMBDA)] * 2, n=optimizer)

    ps.save(path, box(optax.sgd(0.1)))
    like = box(optax.adam(0.1))

    with pytest.warns(LoadWarning) as found:
        assert ps.load(path, like) == like
    (warning,) = found
    assert str(warning.message) == (
        f"{path} has only names for Box.x[0].act, Box.x[1].act, Box.n: a lambda, a "
        f"function made in a function, or an object without a repr. They are taken as "
        f"they are here, and may be others than were saved. A function at the top of a "
        f"module can be told from others."
    )
    assert __file__ == warning.filename


LAMBDA = lambda x: x  # noqa: E731


def test_a_function_comes_from_the_default_of_the_class(path):
    ps.save(path, Named(w=W, act=act))
    WithDefault = state_class("Named", w=Array, act=(Any, ps.static(default=act)))
    WithOther = state_class("Named", w=Array, act=(Any, ps.static(default=jnp.tanh)))

    assert ps.load(path, WithDefault).act is act
    assert 1 == len(differences(path, WithOther))


class Net(ps.State):
    w: jax.Array


class Trained(ps.State):
    net: Net
    opt: Optimizer


def make():
    net = Net(w=W)
    return Trained(net=net, opt=Optimizer(net, optax.adam, 1e-3))


def test_an_optimizer_needs_an_instance_which_may_be_abstract(path):
    ps.save(path, make())

    with pytest.raises(LoadError) as error:
        ps.load(path, Trained)
    assert str(error.value) == (
        f"{path} does not fit Trained:\n"
        f"  Trained.opt.make: the file names partial(<optax._src.alias:adam>, "
        f"learning_rate=0.001), which it cannot hold (give an instance as like, or a "
        f"default in the class)\n"
        f"  Trained.opt.wrt: the file names "
        f"ps.leaves(<purestate._instance.leaves:is_float>), which it cannot hold (give "
        f"an instance as like, or a default in the class)\n"
        f"An instance given as like may be abstract: jax.eval_shape(make), which "
        f"computes nothing."
    )

    for like in (make(), jax.eval_shape(make)):
        assert ps.load(path, like) == make()


def test_settings_of_an_optimizer_are_compared(path):
    ps.save(path, make())
    net = Net(w=W)
    like = Trained(net=net, opt=Optimizer(net, optax.adam, 1e-2))

    (found,) = differences(path, like)

    assert found == (
        "Trained.opt.make: static value partial(<optax._src.alias:adam>, "
        "learning_rate=0.001) in the file, partial(<optax._src.alias:adam>, "
        "learning_rate=0.01) expected (allow='static' takes the one expected)"
    )
    assert like.opt.make == ps.load(path, like, allow="static").opt.make


def test_a_jitted_partial_needs_an_instance(path):
    made = Box(x=jax.tree_util.Partial(act, W))
    ps.save(path, made)
    found = differences(path, Box)

    assert 1 == len(found)
    assert found[0].endswith(
        ":Partial, which only an instance can rebuild (give an instance as like)"
    )
    assert jax.tree.structure(made) == jax.tree.structure(ps.load(path, made))


def test_a_module_of_equinox_needs_an_instance(path):
    mlp = eqx.nn.MLP(2, 2, 3, 1, key=jax.random.key(0))
    box = Box(x=mlp)
    ps.save(path, box)

    assert differences(path, Box) == [
        (
            "Box.x: the file holds a equinox.nn._mlp:MLP, which only an instance can "
            "rebuild (give an instance as like)"
        )
    ]
    for like in (box, eqx.filter_eval_shape(lambda: box)):
        # Its default is a lambda, and no array or static value.
        with pytest.warns(LoadWarning, match=r"for Box\.x\.final_activation: a lambda"):
            assert eqx.tree_equal(box, ps.load(path, like))


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Rated:
    a: Any
    rate: int = dataclasses.field(metadata={"static": True}, default=7)


class Wrapping:
    """A class of others without key paths."""

    def __init__(self, a, about):
        self.a, self.about = a, about


jax.tree_util.register_pytree_node(
    Wrapping, lambda w: ((w.a,), w.about), lambda about, parts: Wrapping(*parts, about)
)

FOREIGN = {
    "a partial": (
        jax.tree_util.Partial(jnp.sin, W),
        jax.tree_util.Partial(jnp.cos, W),
        "<jax.numpy:sin> in the file, <jax.numpy:cos> expected",
    ),
    "a dataclass": (Rated(W), Rated(W, 99), "(7,) in the file, (99,) expected"),
    "a module": (
        eqx.nn.LayerNorm(2, eps=1e-5),
        eqx.nn.LayerNorm(2, eps=0.5),
        "1e-05, True, True) in the file",
    ),
    "aux data that are a value": (
        Wrapping(W, "a"),
        Wrapping(W, "b"),
        "'a' in the file, 'b' expected",
    ),
    "a dict with a default": (
        defaultdict(list, a=W),
        defaultdict(dict, a=W),
        "(<builtins:list>,) in the file, (<builtins:dict>,) expected",
    ),
}


@pytest.mark.parametrize(("saved", "like", "text"), FOREIGN.values(), ids=FOREIGN)
def test_static_parts_of_classes_of_others_are_compared(path, saved, like, text):
    ps.save(path, Box(x=saved))

    (found,) = differences(path, Box(x=like))

    assert found.startswith("Box.x: static value ")
    assert text in found
    assert found.endswith("(allow='static' takes the one expected)")
    loaded = ps.load(path, Box(x=saved))
    assert jax.tree.structure(Box(x=saved)) == jax.tree.structure(loaded)
    loaded = ps.load(path, Box(x=like), allow="static")
    assert jax.tree.structure(Box(x=like)) == jax.tree.structure(loaded)


def test_keys_of_a_container_of_others_are_no_static_values(path):
    ps.save(path, Box(x=[defaultdict(list, a=W, b=W), FrozenDict(a=W, b=W)]))
    like = Box(x=[defaultdict(list, a=W), FrozenDict(a=W)])

    assert differences(path, like) == [
        "Box.x[0]['b']: in the file only (allow='drop' leaves it out)",
        "Box.x[1]['b']: in the file only (allow='drop' leaves it out)",
    ]
    assert ps.load(path, like, allow="drop") == like


def test_a_file_without_static_parts_of_classes_of_others_is_read():
    box = Box(x=Rated(W))
    arrays, manifest = ps.to_dict(box)
    del manifest["root"]["data"]["x"]["aux"]

    found = ps.from_dict(manifest, box, arrays)

    assert jax.tree.structure(box) == jax.tree.structure(found)


def test_a_foreign_class_of_another_name_is_an_error(path):
    ps.save(path, Box(x=eqx.nn.Linear(2, 2, key=jax.random.key(0))))

    (found,) = differences(path, Box(x=eqx.nn.LayerNorm(2)))

    assert found == (
        "Box.x: a equinox.nn._linear:Linear in the file, a "
        "equinox.nn._normalisation:LayerNorm expected"
    )


def test_another_word_in_allow_is_an_error(path):
    ps.save(path, Box(x=W))

    with pytest.raises(
        ValueError,
        match=exactly(
            "allow='all': give 'cast', 'drop', 'keep' or 'static', or several of them."
        ),
    ):
        ps.load(path, Box, allow=("cast", "all"))


def test_an_instance_in_like_that_no_file_can_hold_is_named(path):
    ps.save(path, Box(x=W))

    assert differences(path, Box(x=object())) == [
        (
            "Box.x: an object of type object expected, which no file holds (declare it "
            "with ps.static())"
        )
    ]


def test_a_dataclass_of_another_process_may_have_changed(path):
    @dataclasses.dataclass(frozen=True)
    class Config:
        depth: int = 2

    ps.save(path, Box(x=W, n=Config()))
    old = Box(x=W, n=Config())

    @dataclasses.dataclass(frozen=True)
    class Config:
        depth: int = 2
        width: int = 3

    assert ps.load(path, old).n is old.n
    assert differences(path, Box(x=W, n=Config())) == [
        (
            "Box.n: static value test_a_dataclass_of_another_process_may_have_changed."
            "<locals>.Config(depth=2) in the file, test_a_dataclass_of_another_process_may_"
            "have_changed.<locals>.Config(depth=2, width=3) expected (allow='static' takes "
            "the one expected)"
        )
    ]


def test_what_a_migration_makes_is_compared_with_the_instance(path):
    ps.save(path, state_class("Train", w=Array)(w=W))
    Net = state_class("Net", w=Array)
    Train = versioned(1, lambda saved, version: {"net": Net(w=jnp.ones(2))}, net=Net)

    assert differences(path, Train(net=Net(w=W))) == [
        "Train.net: what was made has another structure than like"
    ]


def test_a_long_static_value_is_cut_in_messages(path):
    ps.save(path, Box(x=W, n="a" * 500))

    (found,) = differences(path, Box(x=W, n=1))

    assert found == (
        f"Box.n: static value '{'a' * 196}... in the file, 1 expected (allow='static' "
        f"takes the one expected)"
    )


# --- other engines ----------------------------------------------------------------------


def test_something_that_is_no_manifest_is_refused():
    with pytest.raises(
        LoadError,
        match=exactly(
            "the manifest is not one that ps.to_dict returned (KeyError: 'purestate')"
        ),
    ):
        ps.from_dict({}, Box, {})


def test_a_manifest_of_a_later_format_is_refused():
    _, manifest = ps.to_dict(Box(x=W))

    with pytest.raises(
        LoadError,
        match=exactly("the manifest has format 2, newer than this purestate reads (1)"),
    ):
        ps.from_dict(manifest | {"purestate": 2}, Box, {})


def test_arrays_that_are_not_those_of_the_manifest_are_refused():
    arrays, manifest = ps.to_dict(Box(x={"a": W, "b": W + 1, "c": W + 2, "d": W + 3}))
    del arrays["x.a"]
    arrays["x.b"] = arrays["x.b"].astype(jnp.bfloat16)
    arrays["x.c"] = [0.0, 1.0, 2.0, 3.0]

    with pytest.raises(
        LoadError,
        match=exactly(
            "leaves does not fit the manifest:\n"
            "  x.a: nothing given, float32[4] expected\n"
            "  x.b: bfloat16[4] given, float32[4] expected\n"
            "  x.c: a list given, float32[4] expected"
        ),
    ):
        ps.from_dict(manifest, Box, arrays)


def test_only_what_is_needed_is_asked_for_and_only_when_all_fits():
    before = state_class("Train", w=Array, avg=Array, empty=Array, n=np.ndarray)
    arrays, manifest = ps.to_dict(
        before(w=W, avg=W, empty=jnp.zeros((0, 3)), n=np.arange(3))
    )
    Train = state_class("Train", w=Array, empty=Array, n=np.ndarray)
    asked = []

    def leaves(wanted):
        asked.append(wanted)
        return arrays

    with pytest.raises(LoadError):
        ps.from_dict(manifest, Train, leaves)
    assert not asked
    found = ps.from_dict(manifest, Train, leaves, allow="drop")

    assert found == Train(w=W, empty=jnp.zeros((0, 3)), n=np.arange(3))
    assert ["n", "w"] == sorted(arrays.keys() & asked[0].keys())
    assert 1 == len(asked)
    assert ((4,), jnp.float32) == (asked[0]["w"].shape, asked[0]["w"].dtype)
    assert type(asked[0]["n"]) is np.ndarray


# --- what is given in place of arrays, of a path, of a word ------------------------------


class Two(ps.State):
    w: Array
    b: Array


def two():
    return Two(w=W, b=W[:2])


LEAVES = {
    "nothing": (None, "NoneType"),
    "a list": ([W], "list"),
    "a function of nothing": (lambda wanted: None, "NoneType"),
    "a function of a list": (lambda wanted: [W], "list"),
}


@pytest.mark.parametrize(("leaves", "kind"), LEAVES.values(), ids=LEAVES)
def test_arrays_that_have_no_names_are_refused(leaves, kind):
    _, manifest = ps.to_dict(two())
    text = (
        f"leaves= takes the arrays by name, as ps.to_dict returned them, or a function "
        f"that returns such a mapping; this is of type {kind}."
    )

    with pytest.raises(LoadError, match=exactly(text)):
        ps.from_dict(manifest, Two, leaves)


@pytest.mark.parametrize("like", [Two, two()], ids=["class", "instance"])
def test_arrays_without_numbers_are_refused_by_name(like):
    _, manifest = ps.to_dict(two())

    with pytest.raises(LoadError) as error:
        ps.from_dict(manifest, like, lambda wanted: wanted)

    assert str(error.value).splitlines()[1:] == [
        "  w: a ShapeDtypeStruct given, float32[4] expected",
        "  b: a ShapeDtypeStruct given, float32[2] expected",
    ]


def test_arrays_that_are_missing_are_named():
    arrays, manifest = ps.to_dict(two())
    del arrays["w"]

    with pytest.raises(LoadError) as error:
        ps.from_dict(manifest, Two, arrays)

    assert str(error.value).splitlines()[1:] == [
        "  w: nothing given, float32[4] expected"
    ]


@pytest.mark.parametrize("allow", [None, 3])
def test_a_word_in_allow_that_is_none_is_an_error(path, allow):
    text = (
        f"allow={allow!r}: give 'cast', 'drop', 'keep' or 'static', or several of them."
    )

    with pytest.raises(ValueError, match=exactly(text)):
        ps.load(path, Two, allow=allow)


def test_parts_may_be_loaded_next_to_arrays(path, monkeypatch):
    ps.save(path, two())
    part = {"z": np.ones(()), "w": ps.load(path)["w"], "y": np.ones(1000)}
    like = {"z": np.zeros(()), "w": W, "y": np.ones(1000)}

    found = ps.load(part, like)

    assert (found["w"] == W).all()
    assert 1 == found["z"]
