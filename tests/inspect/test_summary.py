"""`summary` shows what a State holds, without looking at a number of it."""

import builtins
import io
import re
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate._inspect.summary import Summary
from purestate._schema.marks import SHOWN
from tests.helpers import ROOT, exactly, python


class Net(ps.State):
    w: jax.Array
    b: jax.Array


class Train(ps.State):
    net: Net
    mean: Net
    tied: jax.Array
    key: jax.Array
    count: ps.Array = 0
    rate: object = 0.1
    extra: object = None
    width: int = ps.static(default=3)


def net():
    return Net(w=jnp.ones((512, 256)), b=jnp.ones(256))


def make():
    first = net()
    mean = first.replace(b=jnp.zeros(256))
    return Train(net=first, mean=mean, tied=first.w, key=jax.random.key(0))


def text(state, depth=2):
    """Return the table behind a line break, as it is pinned here."""
    return f"\n{ps.summary(state, depth)}\n"


def test_a_table_of_fields():
    assert """
field  type                   numbers    bytes
----------------------------------------------
net    Net of 2               131.3 k  513 KiB
  w    f32[512,256]           131.1 k  512 KiB
  b    f32[256]                   256    1 KiB
mean   Net of 2                   256    1 KiB
  w    f32[512,256] (shared)
  b    f32[256]                   256    1 KiB
tied   f32[512,256] (shared)
key    key<fry>[]                   1      8 B
count  i32[]                        1      4 B
rate   float                        1
extra  None
----------------------------------------------
Train  8 leaves               131,587  514 KiB
""" == text(make())


def test_what_is_below_the_depth_counts_all_the_same():
    assert """
field  type                   numbers    bytes
----------------------------------------------
net    Net of 2               131.3 k  513 KiB
mean   Net of 2                   256    1 KiB
tied   f32[512,256] (shared)
key    key<fry>[]                   1      8 B
count  i32[]                        1      4 B
rate   float                        1
extra  None
----------------------------------------------
Train  8 leaves               131,587  514 KiB
""" == text(make(), 1)
    assert """
field  type      numbers    bytes
---------------------------------
Train  8 leaves  131,587  514 KiB
""" == text(make(), 0)


def test_containers_and_odd_leaves_have_rows():
    tree = {"[red]": [np.ones(3, np.int8), "text", {}], "b": (1j, True)}

    assert """
field      type          numbers  bytes
---------------------------------------
['[red]']  list of 2           3    3 B
  [0]      i8[3](numpy)        3    3 B
  [1]      str
  [2]      dict
['b']      tuple of 2          2
  [0]      complex             1
  [1]      bool                1
---------------------------------------
dict       4 leaves            5    3 B
""" == text(tree)


@pytest.mark.parametrize(
    ("given", "last"),
    [
        (jnp.ones(3), "f32[3]  1 leaf        3   12 B"),
        ({}, "dict   0 leaves        0    0 B"),
        (None, "None   0 leaves        0    0 B"),
    ],
)
def test_what_has_no_parts_is_one_line(given, last):
    assert last == str(ps.summary(given)).split("\n")[-1]
    assert 1 == len(ps.summary(given))


@pytest.mark.parametrize(
    ("count", "shown"),
    [(999, "999"), (1000, "1 k"), (123_456, "123.5 k"), (999_960, "1 M")],
)
def test_numbers_have_four_digits_and_a_unit(count, shown):
    given = [jax.ShapeDtypeStruct((count,), "int8")]

    line = str(ps.summary(given)).split("\n")[2]

    assert re.fullmatch(rf"\[0\] +i8\S+ +{shown} +\S+ \S+", line)


def test_rows_are_values():
    rows = ps.summary(make())

    assert isinstance(rows, Summary)
    assert ["Train.net", "Train.net.w"] == [row.path for row in rows[:2]]
    assert (131_072, 524_288, 1, 2) == (
        rows[1].numbers,
        rows[1].bytes,
        rows[1].leaves,
        rows[1].depth,
    )
    assert [row.path for row in rows if row.shared] == ["Train.mean.w", "Train.tied"]
    assert ("Train", 0, 8) == (rows[-1].path, rows[-1].depth, rows[-1].leaves)
    assert (131_587, 526_348) == (rows.numbers, rows.bytes)
    assert str(rows) == repr(rows)


def test_the_parts_add_up_to_the_whole():
    rows = ps.summary(make())
    top = [row for row in rows if row.depth == 1]

    assert rows.numbers == sum(row.numbers for row in top)
    assert rows.bytes == sum(row.bytes for row in top)


def test_a_part_all_of_which_stands_elsewhere_is_shared():
    both = net()

    row = ps.summary([both, both])[3]

    assert ("[1]", True, 0) == (row.path, row.shared, row.numbers)


def test_equal_numbers_and_types_are_not_shared_arrays():
    spec = jax.ShapeDtypeStruct((2,), "float32")

    assert (6, 16) == (
        ps.summary([spec, spec, 1, 1]).numbers,
        ps.summary([spec, spec, 1, 1]).bytes,
    )


def test_an_abstract_state_has_the_table_of_a_concrete_one():
    assert text(net()) == text(jax.eval_shape(net))


def test_a_traced_state_is_shown_as_such():
    seen = []

    jax.jit(jax.vmap(lambda n: seen.append(text(n)) or n.b))(ps.stack([net()] * 2))

    assert [
        """
field  type                  numbers    bytes
---------------------------------------------
w      f32[512,256](traced)  131.1 k  512 KiB
b      f32[256](traced)          256    1 KiB
---------------------------------------------
Net    2 leaves              131,328  513 KiB
"""
    ] == seen


def test_a_batch_counts_all_of_its_members():
    assert 2 * ps.summary(net()).numbers == ps.summary(ps.stack([net()] * 2)).numbers


def test_a_packed_state_is_shown_by_its_fields():
    packed = ps.pack(Train(net=net(), mean=net(), tied=jnp.ones(3), key=jnp.ones(2)))

    assert """
field          type          numbers      bytes
-----------------------------------------------
net            Net of 2      131.3 k    513 KiB
  w            f32[512,256]  131.1 k    512 KiB
  b            f32[256]          256      1 KiB
mean           Net of 2      131.3 k    513 KiB
  w            f32[512,256]  131.1 k    512 KiB
  b            f32[256]          256      1 KiB
tied           f32[3]              3       12 B
key            f32[2]              2        8 B
count          i32[]               1        4 B
rate           float               1
extra          None
-----------------------------------------------
Packed(Train)  8 leaves      262,663  1.002 MiB
""" == text(packed)
    assert "Packed(Net) of 2" == ps.summary({"a": ps.pack(net())})[0].type


def test_a_class_may_offer_what_is_to_be_shown():
    class Saved(dict):
        pass

    spec = jax.ShapeDtypeStruct((3,), "float32")
    setattr(Saved, SHOWN, lambda self: ("Old", {".w": spec, ".n": {"k": self["n"]}}))

    assert """
field    type       numbers  bytes
----------------------------------
w        f32[3]           3   12 B
n        dict of 1        1
  ['k']  int              1
----------------------------------
Old      2 leaves         4   12 B
""" == text(Saved(n=1))


class Mean(NamedTuple):
    mu: object
    nu: object


def test_what_a_file_holds_is_shown_as_the_state_was(tmp_path):
    state = make().replace(tied=jnp.ones(3), mean=net(), extra=Mean(jnp.ones(2), [1]))
    for saved in (state, {"b": [state.net, 2], "c": (state.key,)}, state.extra):
        tree = {"a": saved} if saved is not state else state
        ps.save(tmp_path / "it.safetensors", tree)

        assert text(tree, 4) == text(ps.load(tmp_path / "it.safetensors"), 4)


def test_deleted_arrays_are_shown_and_a_donated_state_says_where_it_went():
    class Counter(ps.State):
        c: jax.Array

        @ps.jit(donate=True)
        def step(self):
            return self.replace(c=self.c + 1)

    counter, gone = Counter(c=jnp.ones(2)), jnp.ones(2)
    counter.step()
    gone.delete()

    assert "f32[2](deleted)" == ps.summary([gone])[0].type
    with pytest.raises(ps.errors.ConsumedStateError, match=r"donated to Counter\.step"):
        ps.summary(counter)


def test_a_class_is_refused():
    with pytest.raises(
        TypeError,
        match=exactly(
            "ps.summary is of an instance, and Net is a class. jax.eval_shape(make) "
            "returns an instance without its numbers."
        ),
    ):
        ps.summary(Net)


@pytest.mark.parametrize("depth", [-1, True, 1.5, None])
def test_a_depth_that_is_no_number_of_levels_is_refused(depth):
    with pytest.raises(
        ValueError,
        match=exactly(
            f"ps.summary(depth={depth}): give how many levels to show, as an int that "
            f"is not negative."
        ),
    ):
        ps.summary({}, depth)


def test_names_are_escaped_in_html():
    shared = jnp.ones(2)

    shown = ps.summary({"<b>&": {"x": shared}, "c": shared})._repr_html_()

    assert "[&#x27;&lt;b&gt;&amp;&#x27;]</td>" in shown
    assert "<b>" not in shown
    assert 1 == shown.count("opacity")
    assert 5 == shown.count("<tr")
    left, right = "text-align: left", "text-align: right"
    assert (
        f'<tr><td style="{left}; padding-left: 2em">[&#x27;x&#x27;]</td>'
        f'<td style="{left}">f32[2]</td><td style="{right}">2</td>'
        f'<td style="{right}">8 B</td></tr>' in shown
    )


def test_a_console_of_rich_prints_the_table_as_it_is():
    console = pytest.importorskip("rich.console", reason="needs the interop extra")
    found = ps.summary({"[red]": jnp.ones(2), ":smile:": [1]})
    out, narrow = io.StringIO(), io.StringIO()

    console.Console(file=out, width=100).print(found)
    console.Console(file=narrow, width=20).print(found)

    assert f"{found}\n" == out.getvalue()
    assert len(out.getvalue().split("\n")) == len(narrow.getvalue().split("\n"))


def test_a_console_of_rich_shows_what_matters_less_dimly():
    console = pytest.importorskip("rich.console", reason="needs the interop extra")
    shared = jnp.ones(2)

    screen = console.Console(force_terminal=True, color_system="standard", width=100)
    with screen.capture() as capture:
        screen.print(ps.summary([shared, shared]))

    bold, dim, end = "\x1b[1m", "\x1b[2m", "\x1b[0m"
    lines = capture.get().strip("\n").split("\n")
    assert [bold, dim, "[0]", dim, dim, bold] == [
        line[:4].strip(" f") for line in lines
    ]
    assert all(line.endswith(end) for line in lines if line.startswith("\x1b"))


def test_it_needs_no_rich(monkeypatch):
    real = builtins.__import__

    def refusing(name, *args, **kwargs):
        assert name.partition(".")[0] != "rich"
        return real(name, *args, **kwargs)

    found = ps.summary([1])
    monkeypatch.setattr(builtins, "__import__", refusing)
    console = types.SimpleNamespace(
        render_str=lambda text, **_: types.SimpleNamespace(stylize=lambda style: None)
    )

    assert str(found)
    assert found._repr_html_()
    assert 5 == len(list(found.__rich_console__(console, None)))


SHARDED = """
import jax, jax.numpy as jnp, purestate as ps
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

class Net(ps.State):
    w: jax.Array
    b: jax.Array
    other: object = None

auto = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
explicit = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)

def net(mesh):
    return Net(
        w=jax.device_put(jnp.ones((512, 256)), NamedSharding(mesh, P("data", "model"))),
        b=jax.device_put(jnp.ones((256, 4)), NamedSharding(mesh, P(("data", "model"), None))),
    )
"""


def test_an_array_that_is_split_brings_a_column():
    done = python(
        SHARDED,
        """
        n = net(auto)
        print(ps.summary(n.replace(other=(jnp.ones(256), n.w, 1))))
        print(ps.summary(jax.device_put(n, NamedSharding(auto, P()))))
        print(ps.summary(n)._repr_html_().count("<th"))
        """,
        devices=8,
    )

    assert "" == done.stderr
    assert (
        """\
field  type                   numbers    bytes  sharding
--------------------------------------------------------------------
w      f32[512,256]           131.1 k  512 KiB  P('data', 'model')
b      f32[256,4]             1.024 k    4 KiB  P(('data', 'model'))
other  tuple of 3                 257    1 KiB
  [0]  f32[256]                   256    1 KiB
  [1]  f32[512,256] (shared)                    P('data', 'model')
  [2]  int                          1
--------------------------------------------------------------------
Net    5 leaves               132,353  517 KiB  65.5 KiB per device
field  type          numbers    bytes
-------------------------------------
w      f32[512,256]  131.1 k  512 KiB
b      f32[256,4]    1.024 k    4 KiB
other  None
-------------------------------------
Net    2 leaves      132,096  516 KiB
11
"""
        == done.stdout
    )


def test_bytes_per_device_count_the_device_that_holds_most():
    done = python(
        SHARDED,
        """
        n = net(auto)
        first, last = jax.devices()[0], jax.devices()[-1]
        for other in (
            None,
            jax.device_put(jnp.ones(256), first),
            [jax.device_put(jnp.ones(256), d) for d in (first, last)],
            [jax.device_put(jnp.ones(256), NamedSharding(auto, P())), jnp.ones(512)],
            n.w,
        ):
            print(ps.summary(n.replace(other=other))[-1].sharding)
        """,
        devices=8,
    )

    assert "" == done.stderr
    assert [
        "64.5 KiB per device",
        "65.5 KiB per device",
        "65.5 KiB per device",
        "67.5 KiB per device",
        "64.5 KiB per device",
    ] == done.stdout.strip().split("\n")


def test_types_that_say_how_they_are_split_are_shown():
    done = python(
        SHARDED,
        """
        with jax.set_mesh(explicit):
            n = net(explicit)
            jax.jit(lambda n: print([row.sharding for row in ps.summary(n)]) or n)(n)
            spec = jax.eval_shape(lambda n: n, n)
            print([row.sharding for row in ps.summary(spec)])
        print([row.sharding for row in ps.summary(ps.pack(net(auto)))])
        """,
        devices=8,
    )

    assert "" == done.stderr
    expected = (
        "[\"P('data', 'model')\", \"P(('data', 'model'))\", '', '64.5 KiB per device']"
    )
    assert [expected] * 3 == done.stdout.strip().split("\n")


def test_the_page_shows_the_table_of_a_state_that_is_split():
    page = (ROOT / "docs" / "looking.md").read_text()
    state = re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]
    place = """
    from jax.sharding import NamedSharding, PartitionSpec as P
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    train = jax.device_put(train, NamedSharding(mesh, P()))
    w = jax.device_put(train.net.w, NamedSharding(mesh, P("data", "model")))
    train = train.at(lambda t: t.net.w).set(w).replace(tied=w)
    print(ps.summary(train), end="")
    """

    done = python(state, place, devices=8)

    assert "" == done.stderr
    assert f"<!-- sharded -->\n```\n{done.stdout}\n```\n" in page


def test_it_is_imported_when_it_is_asked_for():
    done = python(
        """
        import sys, purestate as ps
        assert "purestate._inspect.summary" not in sys.modules
        ps.summary({})
        assert "rich" not in sys.modules
        """
    )

    assert "" == done.stderr


def test_nothing_of_an_array_is_fetched():
    class Watched(jax.ShapeDtypeStruct):
        def __array__(self, *args):
            raise AssertionError("its numbers were asked for")

    here, watched = net(), Watched((3,), "float32")

    with jax.transfer_guard("disallow"):
        found = ps.summary([here, watched])

    assert 131_331 == found.numbers


def test_arrays_that_a_node_makes_when_it_is_flattened_are_counted_each():
    @jax.tree_util.register_pytree_node_class
    class Halves:
        def __init__(self, whole):
            self.whole = whole

        def tree_flatten(self):
            return (self.whole[:4], self.whole[4:]), None

        @classmethod
        def tree_unflatten(cls, _, parts):
            return cls(np.concatenate(parts))

    assert 32 == ps.summary([Halves(np.arange(8.0)) for _ in range(4)]).numbers


@pytest.mark.parametrize(
    ("held", "numbers", "size"),
    [
        ({"dtype": "float32", "shape": (2, 3)}, 6, 0),
        ({"dtype": np.dtype("float32"), "shape": (2, 3), "sharding": "none"}, 6, 24),
        ({"dtype": np.dtype("float32"), "shape": None}, 0, 0),
        ({"dtype": None, "shape": ("batch", 3)}, 0, 0),
    ],
)
def test_what_only_looks_like_an_array_counts_as_far_as_it_can(held, numbers, size):
    shown = ps.summary([types.SimpleNamespace(**held), jnp.ones(1)])

    assert (numbers + 1, size + 4) == (shown.numbers, shown.bytes)


def test_containers_that_lie_too_deep_are_refused():
    tree = []
    for _ in range(2000):
        tree = [tree]
    expected = (
        "ps.summary: the containers lie within each other too deeply, some hundreds of "
        "levels, or one of them holds itself."
    )

    with pytest.raises(ValueError, match=exactly(expected)):
        ps.summary(tree)
