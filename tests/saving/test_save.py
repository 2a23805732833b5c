"""What a save refuses, what it leaves behind, and what it keeps hold of."""

import enum
import os
import pathlib
import re
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate._saving import file
from purestate.errors import ConsumedStateError, LoadError, PersistError, SaveError
from tests.helpers import exactly, python


class Net(ps.State):
    w: object
    b: object = None


class Train(ps.State):
    w: object
    net: Net | None = None
    opt: object = None


@pytest.fixture
def path(tmp_path):
    return tmp_path / "t.safetensors"


HOLDS = "\nA file holds arrays, numbers, strings and containers of them."
END = f"{HOLDS} Declare configuration with ps.static()."


def function(x):
    return x


def test_all_that_cannot_be_saved_is_listed_and_nothing_is_written(path):
    train = Train(w=function, net=Net(w=np.array([object()])), opt={"mu": [object()]})

    with pytest.raises(
        SaveError,
        match=exactly(
            "cannot save Train:\n  w holds a function\n  net.w has dtype object\n"
            f"  opt.mu.0 holds an object of type object{END}"
        ),
    ):
        ps.save(path, train)

    assert [] == os.listdir(path.parent)


def a_leaf():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "t.safetensors")
        ps.save(path, Net(w=jnp.ones(3)))
        return ps.load(path)["w"]


REFUSED = {
    "a text array": (np.array(["a"]), "has dtype <U1"),
    "a date": (np.array(["2020"], "datetime64[s]"), "has dtype datetime64[s]"),
    "fields": (np.zeros(2, "f4,i4"), "has dtype [('f0', '<f4'), ('f1', '<i4')]"),
    "a masked array": (
        np.ma.masked_array([1, 2], [True, False]),
        "holds an object of type MaskedArray",
    ),
    "a builtin": (len, "holds a function"),
    "a class": (int, "holds an object of type type"),
    "a set": ({1}, "holds an object of type set"),
    "a shape": (jax.ShapeDtypeStruct((2,), jnp.float32), "holds an object of type ShapeDtypeStruct"),
    "an array in a file": (a_leaf(), "holds an object of type Leaf"),
    "a key that is a function": ({function: 1}, "is a dict with the key "),
}  # fmt: skip


@pytest.mark.parametrize(("value", "text"), REFUSED.values(), ids=REFUSED)
def test_a_leaf_that_a_file_cannot_hold_is_refused(path, value, text):
    with pytest.raises(SaveError) as error:
        ps.save(path, Train(w=value))

    assert str(error.value).splitlines()[1].startswith(f"  w {text}")
    with pytest.raises(SaveError):
        ps.to_dict(Train(w=value))


STATIC = ("a builtin", "a class")  # what a static field may hold


@pytest.mark.parametrize(("kind", "row"), REFUSED.items(), ids=REFUSED)
def test_static_is_offered_for_what_may_be_static(path, kind, row):
    with pytest.raises(SaveError) as error:
        ps.save(path, Train(w=row[0]))

    assert str(error.value).endswith(END if kind in STATIC else HOLDS)
    with pytest.raises(SaveError, match=f"{re.escape(HOLDS)}$"):
        ps.save(path, row[0])


def test_a_donated_array_is_refused(path):
    w = jnp.ones(3)
    jax.jit(lambda x: x + 1, donate_argnums=0)(w)

    with pytest.raises(
        SaveError, match=exactly(f"cannot save Train:\n  net.w was donated{HOLDS}")
    ):
        ps.save(path, Train(w=1, net=Net(w=w)))


def test_a_donated_state_explains_itself(path):
    state = Net(w=jnp.ones(3))
    ps.jit(lambda s: s.replace(w=s.w + 1), donate=True)(state)

    with pytest.raises(ConsumedStateError):
        ps.save(path, state)


def test_a_tracer_is_refused(path):
    def step(state):
        ps.save(path, state)
        return state

    with pytest.raises(SaveError) as error:
        jax.jit(step)(Net(w=jnp.ones(3)))

    assert str(error.value) == (
        f"cannot save Net:\n  w is a tracer: save outside of jit{HOLDS}"
    )


ADDRESSES = ["gs://b/x", "s3://bucket/run/8.safetensors", pathlib.Path("gs://b/x")]


@pytest.mark.parametrize("path", ADDRESSES)
def test_an_address_is_refused(path):
    text = str(path)
    with pytest.raises(
        SaveError,
        match=exactly(
            f"ps.save writes to a file system, and {text!r} is an address: save there "
            f"with orbax (docs/saving.md), or copy the file after."
        ),
    ):
        ps.save(path, Net(w=1))
    with pytest.raises(
        LoadError,
        match=exactly(
            f"ps.load reads from a file system, and {text!r} is an address: copy the "
            f"file first, or load with orbax and ps.from_dict (docs/saving.md)."
        ),
    ):
        ps.load(path, Net)


def test_something_that_is_no_path_is_refused():
    with pytest.raises(TypeError, match="not int"):
        ps.save(3, Net(w=1))


EXTRAS = {
    "a tuple": ({"a": [1, (2,)]}, "extra['a'][1] is of type tuple"),
    "an int key": ({1: 2}, "the key 1 of extra is of type int"),
    "an array": ([np.ones(1)], "extra[0] is of type ndarray"),
    "a scalar of numpy": (np.float64(1), "extra is of type float64"),
}


@pytest.mark.parametrize(("extra", "text"), EXTRAS.values(), ids=EXTRAS)
def test_an_extra_that_would_come_back_as_something_else_is_refused(path, extra, text):
    with pytest.raises(
        SaveError,
        match=exactly(
            f"{text}, and extra= takes JSON: dicts with keys of str, lists, str, int, "
            f"float, bool and None. Convert it, or hold it in the State."
        ),
    ):
        ps.save(path, Net(w=1), extra=extra)

    assert not path.exists()


def nested(depth, around):
    found = 1
    for _ in range(depth):
        found = around(found)
    return found


AROUND = {
    "lists": lambda x: [x],
    "dicts": lambda x: {"a": x},
    "tuples": lambda x: (x,),
    "States": lambda x: Net(w=x),
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_what_can_be_saved_can_be_loaded_however_deep(path, around):
    class Box(ps.State):
        x: object

    state = Box(x=nested(99, around))
    ps.save(path, state)

    assert state == ps.load(path, Box)
    assert state == ps.load(path, state)
    for depth in (100, 330, 5000):
        with pytest.raises(
            SaveError,
            match=r"^x\.\S+\.\.\. is nested deeper than 100, or holds itself: put it "
            r"into fewer containers\.$",
        ):
            ps.save(path, Box(x=nested(depth, around)))
    assert state == ps.load(path, state)


def test_an_extra_that_json_cannot_hold_is_refused(path):
    itself = {}
    itself["a"] = [itself]
    for extra in (itself, nested(330, AROUND["lists"])):
        with pytest.raises(SaveError, match=r"^extra is nested deeper than 100, or "):
            ps.save(path, Net(w=1), extra=extra)
    text = (
        "extra['n'] is an int of more digits than JSON readers take: give it as a text, "
        "hex(extra['n']), or hold it in the State."
    )
    with pytest.raises(SaveError, match=exactly(text)):
        ps.save(path, Net(w=1), extra={"n": 10**5000})
    assert not path.exists()

    extra = {"n": 2**14_000 - 1, "deep": nested(99, AROUND["lists"])}
    ps.save(path, Net(w=1), extra=extra)
    assert extra == ps.load(path).extra


def test_an_axis_of_a_mesh_may_have_any_name(path):
    class Axis(enum.Enum):
        DATA = 1

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), (Axis.DATA,))
    for part in (Axis.DATA, (Axis.DATA,)):
        spec = jax.sharding.PartitionSpec(part)
        w = jax.device_put(jnp.ones(3), jax.sharding.NamedSharding(mesh, spec))

        ps.save(path, Net(w=w))

        assert (jnp.ones(3) == ps.load(path, Net).w).all()


def test_the_errors_have_one_base():
    assert issubclass(SaveError, PersistError)
    assert issubclass(SaveError, TypeError)
    assert issubclass(LoadError, PersistError)
    assert issubclass(LoadError, ValueError)


@pytest.mark.parametrize("kind", [str, pathlib.Path, os.fsencode])
def test_paths_of_all_kinds_do(path, kind):
    ps.save(kind(path), Net(w=1))

    assert Net(w=1) == ps.load(kind(path), Net)


def test_a_name_without_a_folder_does(path, monkeypatch):
    monkeypatch.chdir(path.parent)

    ps.save("t.safetensors", Net(w=1))

    assert ["t.safetensors"] == os.listdir(path.parent)
    assert Net(w=1) == ps.load("t.safetensors", Net)


def test_a_folder_of_that_name_stays(path):
    path.mkdir()

    with pytest.raises(OSError, match="directory"):
        ps.save(path, Net(w=1))

    assert ["t.safetensors"] == os.listdir(path.parent)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nowhere/t.safetensors", "No such file or directory"),
        ("folder", "Is a directory"),
        ("new/", "Is a directory"),
        ("a" * 300, "File name too long"),
    ],
    ids=["no folder", "a folder", "a name that ends with a slash", "a long name"],
)
def test_an_error_of_the_system_names_the_path_that_was_given(path, name, text):
    path.with_name("folder").mkdir()
    given = os.path.join(path.parent, name)

    with pytest.raises(OSError, match=exactly(f": {given!r}")[1:]) as error:
        ps.save(given, Net(w=jnp.ones(3)))

    assert text == error.value.strerror
    assert ["folder"] == os.listdir(path.parent)


def test_no_path_at_all_is_refused():
    with pytest.raises(FileNotFoundError, match=r": ''$"):
        ps.save("", Net(w=1))


@pytest.mark.parametrize("letter", ["a", "\N{SNOWMAN}"])
def test_a_long_name_does(path, letter):
    count = 240 // len(letter.encode())
    path = path.with_name(letter * count)

    ps.save(path, Net(w=1))
    ps.save(path, Net(w=2))

    assert 2 == ps.load(path, Net).w
    assert [path] == list(path.parent.iterdir())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_neither_replaced_nor_waited_for(path):
    os.mkfifo(path)

    with pytest.raises(
        SaveError,
        match=exactly(
            f"{path} is no regular file, and ps.save would put one in its place: give "
            f"another path."
        ),
    ):
        ps.save(path, Net(w=1))
    with pytest.raises(
        LoadError,
        match=exactly(
            f"{path} is no regular file, and ps.load reads here and there: copy what "
            f"it yields to a file first."
        ),
    ):
        ps.load(path)

    assert path.is_fifo()


@pytest.mark.skipif(os.name == "nt", reason="links and modes are others on Windows")
@pytest.mark.parametrize("is_there", [True, False], ids=["a file", "nothing"])
def test_a_link_stays_and_what_it_leads_to_is_written(path, is_there):
    target = path.parent / "scratch" / "big.safetensors"
    target.parent.mkdir()
    path.symlink_to("scratch/big.safetensors")
    if is_there:
        ps.save(target, Net(w=1))

    ps.save(path, Net(w=2))

    assert path.is_symlink()
    assert 2 == ps.load(target, Net).w
    assert [target] == list(target.parent.iterdir())
    assert {path, target.parent} == {*path.parent.iterdir()}


@pytest.mark.skipif(os.name == "nt", reason="links and modes are others on Windows")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_file_that_is_replaced_keeps_its_mode(path, mode, monkeypatch):
    ps.save(path, Net(w=1))
    path.chmod(mode)
    modes, sync = [], file.sync

    def looking(opened):
        modes.append(os.fstat(opened.fileno()).st_mode & 0o777)
        sync(opened)

    monkeypatch.setattr(file, "sync", looking)
    ps.save(path, Net(w=2))

    assert [mode] == modes
    assert mode == path.stat().st_mode & 0o777
    assert 2 == ps.load(path, Net).w


# --- memory -----------------------------------------------------------------------------


def test_arrays_keep_no_copy_of_what_was_read(path):
    dtypes = ("bool", "int4", "int8", "bfloat16", "float32", "complex64")
    arrays = [jnp.ones(100, dtype) for dtype in dtypes]

    ps.save(path, arrays)

    assert [None] * len(arrays) == [array._npy_value for array in arrays]


def pointer(array):
    return array.unsafe_buffer_pointer()


@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_what_was_saved_can_be_donated(path, size):
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    w = jnp.zeros(size) + 1
    where = pointer(w)

    ps.save(path, Net(w=w))
    after = add(w)

    assert w.is_deleted()
    assert where == pointer(after)


@pytest.mark.parametrize("like", ["class", "instance"])
@pytest.mark.parametrize("size", [15, 16, 1000, 1 << 16, 1 << 20])
def test_what_was_loaded_can_be_donated(path, size, like):
    state = Net(w=jnp.zeros(size), b=[jnp.ones(size)] * 3)
    ps.save(path, state)
    add = jax.jit(lambda x: x + 1, donate_argnums=0)

    loaded = ps.load(path, Net if like == "class" else state)

    for leaf in jax.tree.leaves(loaded)[:2]:
        where = pointer(leaf)
        after = add(leaf)
        assert leaf.is_deleted()
        assert where == pointer(after)


MEMORY = """
    import re
    import jax, jax.numpy as jnp, numpy as np
    import purestate as ps

    class Box(ps.State):
        xs: list

    def used():
        text = open("/proc/self/status").read()
        return int(re.search(r"RssAnon:\\s+(\\d+)", text)[1]) >> 10

    MIB = 1 << 20
    make = jax.jit(lambda i: jnp.arange(4 * MIB, dtype=jnp.float32) + i)
    step = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)
    """


def peaks(code, path):
    """Return what the code prints, numbers of MiB, in a process of its own."""
    if sys.platform != "linux":
        pytest.skip("only Linux tells how much memory is a process's own")
    done = python(MEMORY, f"path = {str(path)!r}", code)
    assert 0 == done.returncode, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_a_save_takes_no_memory(path):
    before, during = peaks(
        """
        import os, threading
        from purestate._saving import file

        box = Box(xs=[make(i) for i in range(12)])
        ps.save(path + "0", {"a": np.ones(3)})
        jax.block_until_ready(box)
        highest = []
        write = file.write_array

        def noting(*args):
            found = write(*args)
            highest.append(used())
            return found

        file.write_array = noting
        before = used()
        ps.save(path, box)
        print(before, max(highest))
        """,
        path,
    )

    assert during - before <= 20  # of 192, whose largest leaf is 16


def test_a_load_takes_little_more_than_what_is_loaded(path):
    ps.save(
        path, Train(w=[jnp.arange(1 << 22, dtype=jnp.float32) + i for i in range(12)])
    )
    before, loading, loaded, stepped = peaks(
        """
        from purestate._saving import place

        class Train(ps.State):
            w: object
            net: object = None
            opt: object = None

        step(Train(w=[jnp.zeros(3)]))
        highest = []
        put = place._put

        def noting(batch):
            put(batch)
            highest.append(used())

        place._put = noting
        before = used()
        train = ps.load(path, Train)
        jax.block_until_ready(train)
        loaded = used()
        train = step(train)
        jax.block_until_ready(train)
        print(before, max(highest), loaded, used())
        """,
        path,
    )

    # 192 MiB in leaves of 16. Arrays that jax took over from the reader would be there
    # a second time after the step. XLA and malloc keep up to 100 for a while.
    most = 192 + 128
    assert loading - before <= most
    assert loaded - before <= most
    assert stepped - before <= most


# --- devices ----------------------------------------------------------------------------


def on_four_devices(code, path):
    done = python(
        f"""
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        import purestate as ps

        mesh = Mesh(np.array(jax.devices()), ("d",))
        path = {str(path)!r}

        def on(*axes):
            return NamedSharding(mesh, P(*axes))

        class Net(ps.State):
            w: jax.Array
            b: jax.Array

        class Train(ps.State):
            net: Net
            opt: dict
            key: jax.Array
            weak: jax.Array
            n: object = None

        def make():
            net = Net(w=jnp.arange(16.0).reshape(8, 2), b=jnp.ones(4))
            opt = {{"mu": net, "count": jnp.int32(3)}}
            return Train(net, opt, jax.random.key(0), jnp.asarray(1.0), np.arange(3))
        """,
        code,
        devices=4,
    )
    assert 0 == done.returncode, done.stderr


def test_arrays_on_several_devices_are_saved_and_go_where_they_shall(path):
    on_four_devices(
        """
        train = make()
        placed = jax.device_put(train, on())
        net = Net(jax.device_put(train.net.w, on("d")), train.net.b)
        ps.save(path, placed.replace(net=net, n=train.n))
        assert (ps.load(path)["net"]["w"] == np.arange(16.0).reshape(8, 2)).all()

        # By class: on the default device, uncommitted.
        assert ps.load(path, Train) == train
        assert not any(
            x.committed for x in jax.tree.leaves(ps.load(path, Train))
            if isinstance(x, jax.Array)
        )

        # One sharding for all, a prefix, a tree of the same class.
        found = ps.load(path, Train, sharding=on())
        assert found == train
        assert found.net.w.sharding == on() == found.key.sharding
        assert found.weak.weak_type and isinstance(found.n, np.ndarray)
        tree = ps.prefix(
            train, on(), net=Net(w=on("d"), b=on("d")), opt={"mu": on(), "count": None}
        )
        for like in (Train, train, jax.eval_shape(make)):
            found = ps.load(path, like, sharding=tree)
            assert found == train
            assert found.net.w.sharding == on("d") == found.net.b.sharding
            assert found.opt["mu"].w.sharding == on()
            assert not found.opt["count"].committed
            assert found.key.sharding == on()

        # Where the arrays of like are, if they were put there.
        like = train.replace(net=jax.device_put(train.net, on("d")))
        abstract = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=on("d"))
            if x.shape == (8, 2) else x, train)
        for like in (like, abstract):
            found = ps.load(path, like)
            assert found == train
            assert found.net.w.sharding == on("d")
            assert not found.key.committed
        like = jax.device_put(train.net.w, jax.devices()[2])
        assert ps.load(ps.load(path)["net"]["w"], like).devices() == {jax.devices()[2]}

        # An array in two places with two shardings is two arrays.
        w = jnp.ones((4, 2))
        ps.save(path, {"a": w, "b": w})
        found = ps.load(path, {"a": w, "b": w}, sharding={"a": on(), "b": on("d")})
        assert (found["a"].sharding, found["b"].sharding) == (on(), on("d"))

        for wrong in ({"a": on()}, [on(), on()], {"a": P(), "b": P()}):
            try:
                ps.load(path, {"a": w, "b": w}, sharding=wrong)
            except TypeError as error:
                assert "give a jax.sharding.Sharding, None, or a tree of them" in str(error)
            else:
                raise AssertionError(wrong)
        """,
        path,
    )


def test_arrays_keep_their_layout_through_arrays_by_name(path):
    on_four_devices(
        """
        train = make()
        w = jax.device_put(train.net.w, on("d"))
        train = train.replace(net=train.net.replace(w=w))
        arrays, manifest = ps.to_dict(train)
        assert arrays["net.w"] is w
        assert manifest["root"]["data"]["net"]["data"]["w"]["spec"] == ["d"]

        asked = []
        def leaves(want):
            asked.append(want)
            return {
                name: arrays[name] if isinstance(spec, np.ndarray)
                else jax.device_put(arrays[name], spec.sharding)
                for name, spec in want.items()
            }

        tree = ps.prefix(train, on(), net=Net(w=on(None, None), b=on("d")))
        found = ps.from_dict(manifest, Train, leaves, sharding=tree)
        (want,) = asked
        assert found == train
        assert want["net.b"].sharding == on("d") and want["key"].shape == (2,)
        assert found.net.b.sharding == on("d") and found.key.sharding == on()
        """,
        path,
    )
