"""What does not fit is said at once: with field, axis and size."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import purestate as ps
from purestate import _compat
from purestate.errors import DeclarationError, ShardingError
from tests.helpers import exactly
from tests.sharding.test_shardings import MESH, Net, net


def says(*lines):
    return pytest.raises(ShardingError, match=exactly("\n".join(lines)))


def one(spec, *shape):
    """Return a State with one array."""

    class One(ps.State):
        w: jax.Array = ps.field(spec=spec)

    return One(w=jnp.ones(shape))


# --- when the class is made ----------------------------------------------------------


def test_a_mirror_of_an_unknown_field():
    with says("Train.opt has spec='nett', which is no data field: did you mean 'net'?"):

        class Train(ps.State):
            net: Net
            opt: tuple = ps.field(spec="nett")


def test_a_mirror_of_a_static_field():
    with says(
        "Train.opt has spec='size', which is no data field: its fields are net, key."
    ):

        class Train(ps.State):
            net: Net
            key: jax.Array
            opt: tuple = ps.field(spec="size")
            size: int = ps.static(default=1)


def test_a_mirror_of_itself():
    with says("Train.opt has spec='opt', which is the field itself: name another one."):

        class Train(ps.State):
            opt: tuple = ps.field(spec="opt")


def test_mirrors_in_a_circle():
    with says(
        "Train has fields that mirror each other, b -> c -> b: give one of them a "
        "PartitionSpec."
    ):

        class Train(ps.State):
            a: tuple = ps.field(spec="b")
            b: tuple = ps.field(spec="c")
            c: tuple = ps.field(spec="b")


def test_an_inherited_field_may_be_mirrored():
    class Base(ps.State):
        net: Net

    class Train(Base):
        opt: tuple = ps.field(spec="net")

    assert ("net", "opt") == Train.__match_args__


def test_a_spec_of_a_static_field():
    with pytest.raises(
        DeclarationError,
        match=exactly(
            "a static field has no spec=: it is part of the tree structure, and no "
            "array. Leave spec= out, or write ps.field()."
        ),
    ):
        ps.static(spec=P("data"))


def test_a_spec_of_another_type():
    with pytest.raises(
        TypeError,
        match=exactly(
            "spec= takes a PartitionSpec, P('data', None), a function of (path, leaf) "
            "that returns one, or the name of a field, and got ('data', None)."
        ),
    ):
        ps.field(spec=("data", None))


def test_a_spec_of_what_is_not_stored():
    with pytest.raises(
        DeclarationError,
        match=exactly(
            "Train.seed has a spec= and is not stored, so it has no arrays to split: "
            "remove spec=."
        ),
    ):

        class Train(ps.State):
            net: Net
            seed: dataclasses.InitVar = ps.field(spec=P("data"))


# --- when a State meets a mesh -------------------------------------------------------


def test_every_problem_is_listed():
    class Train(ps.State):
        net: Net
        head: dict = ps.field(spec=P("model"))

    train = Train(net=net(), head={"a": jnp.ones(3), "b": jnp.ones(4)})

    with says(
        "Train.net.w: axis 'embed' is no axis of the mesh, {'data': 4, 'model': 2}; "
        "rules={'embed': ...} maps it, None replicates",
        "Train.head['a']: dimension 0 has size 3, which 'model' (size 2) does not divide",
    ):
        ps.shardings(train, MESH, rules={"mlp": "model"})


def test_the_way_out_for_an_unknown_axis():
    state = one(P("embed"), 8)

    for axis, spec in (("data", ("data",)), (None, (None,))):
        assert spec == tuple(ps.shardings(state, MESH, rules={"embed": axis}).w.spec)


def test_a_rule_that_leads_to_no_axis():
    with says(
        "One.w: axis 'dta', to which rules= map 'embed', is no axis of the mesh, "
        "{'data': 4, 'model': 2}"
    ):
        ps.shardings(one(P("embed"), 8), MESH, rules={"embed": "dta"})


def test_a_size_that_two_axes_do_not_divide():
    with says(
        "One.w: dimension 1 has size 12, which ('data', 'model') (size 8) does not divide"
    ):
        ps.shardings(one(P(None, ("data", "model")), 3, 12), MESH)


def test_a_spec_with_more_names_than_dimensions():
    with says("One.w: spec P('data') names 1 dimension; its shape is ()"):
        ps.shardings(one(P("data")), MESH)


def test_a_spec_that_leaves_no_dimension_for_the_batch():
    with says(
        "One.w: spec P('data', 'model') names 2 dimensions, and batch= another 1; its "
        "shape is (8, 8)"
    ):
        ps.shardings(one(P("data", "model"), 8, 8), MESH, batch=(None,))


def test_an_axis_twice():
    with says("One.w: axis 'data' twice in P('data', 'data')"):
        ps.shardings(one(P("embed", "data"), 8, 8), MESH, rules={"embed": "data"})


def test_the_axis_of_the_batch_twice():
    with says("One.w: axis 'data' twice in P('data', 'data')"):
        ps.shardings(one(P("data"), 8, 8), MESH, batch="data")


def test_an_unknown_axis_of_the_batch_is_said_once():
    with says(
        "batch='runs': axis 'runs' is no axis of the mesh, {'data': 4, 'model': 2}; "
        "rules={'runs': ...} maps it, None replicates"
    ):
        ps.shardings(net(), MESH, batch="runs")


def test_a_function_that_returns_something_else():
    with says("One.w: its spec function returned 'data', which is no PartitionSpec"):
        ps.shardings(one(lambda path, leaf: "data", 8), MESH)


def test_an_error_of_a_spec_function_says_for_which_leaf():
    with pytest.raises(IndexError) as found:
        ps.shardings(one(lambda path, leaf: P(leaf.shape[2]), 8), MESH)

    assert ["raised by the spec function for One.w."] == found.value.__notes__


@pytest.mark.parametrize("call", [ps.shardings, ps.shard])
def test_no_mesh(call):
    way_out = "or call it within jax.set_mesh(mesh)."
    text = f"ps.{call.__name__} needs a mesh: give one, {way_out}"
    if not _compat.FINDS_MESH:
        text = (
            f"ps.{call.__name__} needs a mesh: give one. This version of JAX does not "
            f"say which one jax.set_mesh has set."
        )

    with says(text):
        call(net())


def test_something_else_in_place_of_a_mesh():
    with says(
        "ps.shardings takes a mesh, as jax.make_mesh makes it, and got {'data': 4}."
    ):
        ps.shardings(net(), {"data": 4})


def test_a_packed_state():
    class Pair(ps.State):
        a: jax.Array
        b: jax.Array

    packed = ps.pack(Pair(a=jnp.ones(3), b=jnp.ones(3)))

    with says(
        "ps.shardings got a packed State, in whose buffers leaves of all fields lie: "
        "unpack it, and pack it again once its arrays are where they should be."
    ):
        ps.shardings(packed, MESH)


def test_a_packed_state_in_a_field():
    class Train(ps.State):
        net: Net
        parts: dict = ps.field(spec="net")

    train = Train(net=net(), parts={"a": net(), "b": ps.pack(net())})

    with says(
        "Train.parts['b']: holds a packed State, in whose buffers leaves of all fields "
        "lie: unpack it, and pack it again once its arrays are where they should be"
    ):
        ps.shardings(train, MESH, rules={"embed": "data", "mlp": "model"})


def test_a_function_for_what_is_no_array():
    with says(
        "One.w: holds 'abc', of which JAX makes no array. What is no array belongs in a "
        "static field, ps.static()"
    ):
        ps.shardings(one(lambda path, leaf: P(), 8).replace(w="abc"), MESH)


@pytest.mark.parametrize(
    ("rules", "shown"),
    [
        ("data", "'data'"),
        ([("a", "data")], "[('a', 'data')]"),
        ({"a": {"data"}}, "{'a': {'data'}}"),
        ({"a": 0}, "{'a': 0}"),
        ({"b": "data", "a": (("data",),)}, "{'a': (('data',),)}"),
    ],
)
def test_rules_of_another_type(rules, shown):
    with pytest.raises(
        TypeError,
        match=exactly(
            "rules= takes a dict from names to axes of the mesh, {'embed': 'data'}, "
            f"several in a tuple, or None, and got {shown}."
        ),
    ):
        ps.shardings(one(P("a"), 8), MESH, rules=rules)


@pytest.mark.parametrize("batch", [1, ["model"], (["model"],), ("data", 0), P("data")])
def test_a_batch_of_another_type(batch):
    with pytest.raises(
        TypeError,
        match=exactly(
            "batch= takes the name of an axis, None, or a tuple of them with one for "
            f"each dimension in front, ('data', None), and got {batch!r}."
        ),
    ):
        ps.shardings(one(P(), 8, 8), MESH, batch=batch)


def test_a_spec_of_sums_that_are_not_done():
    try:
        spec = P("data", unreduced={"model"})
    except TypeError:
        pytest.skip("this version of JAX has no unreduced axes")

    with says(
        f"One.w: spec {spec!r} has axes that are unreduced or reduced, which only values "
        f"inside of a program are: leave them out"
    ):
        ps.shardings(one(spec, 8), MESH)


# --- when a State is moved -----------------------------------------------------------


def test_an_abstract_mesh_to_move_to():
    with says(
        "ps.shard got an AbstractMesh, which has no devices to move arrays to: give a "
        "mesh, as jax.make_mesh makes it. Inside of jit, and for ps.shardings, an "
        "abstract one will do."
    ):
        ps.shard(one(P("data"), 8), MESH)


def single():
    return jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


class Four(ps.State):
    a: object
    b: object
    c: object
    d: object


def test_what_cannot_be_moved_is_listed():
    gone = jnp.ones(3)
    gone.delete()
    state = Four(a=jax.ShapeDtypeStruct((3,), "float32"), b=gone, c="abc", d=2**40)

    with pytest.raises(ShardingError) as found:
        ps.shard(state, single())

    lines = str(found.value).splitlines()
    assert lines[0] == (
        "Four.a: is abstract and has no numbers to move. Make it in place: ps.jit(make, "
        "out_shardings=ps.shardings(jax.eval_shape(make), mesh))()"
    )
    assert lines[1] == (
        "Four.b: was deleted or donated; use what the function returned that took it"
    )
    assert lines[2] == (
        "Four.c: holds 'abc', of which JAX makes no array. What is no array belongs in a "
        "static field, ps.static()"
    )
    assert lines[3].startswith(f"Four.d: holds {2**40}, of which JAX makes no array: ")


def test_an_array_of_objects():
    state = one(P(), 8).replace(w=np.array(["a"]))

    with pytest.raises(ShardingError, match=r"^One\.w: holds array\(\['a'\]"):
        ps.shard(state, single())


def test_a_spec_that_leaves_it_to_the_compiler():
    state = one(P(P.UNCONSTRAINED), 8)

    with says(
        "One.w: its spec has P.UNCONSTRAINED, which leaves it to the compiler: outside "
        "of jit say an axis, or None"
    ):
        ps.shard(state, single())

    assert 8 == jax.jit(lambda s: ps.shard(s, single()).w.sum())(state)


def test_inside_of_shard_map():
    mesh = single()
    move = jax.shard_map(
        lambda s: ps.shard(s, mesh), mesh=mesh, in_specs=P("data"), out_specs=P("data")
    )

    with pytest.raises(ShardingError) as found:
        jax.jit(move)(one(P("data"), 8))

    assert (
        "ps.shard cannot be called inside of shard_map, where each device has its own "
        "part of an array: call it before, or after."
    ) == str(found.value).splitlines()[0]
