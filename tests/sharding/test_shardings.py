"""`ps.shardings`: which spec each leaf gets, on a mesh that needs no devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import purestate as ps
from purestate.errors import FieldError

MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
RULES = {"embed": "data", "mlp": "model"}


class Net(ps.State):
    w: jax.Array = ps.field(spec=P("embed", "mlp"))
    b: jax.Array = ps.field(spec=P("mlp"))
    width: int = ps.static(default=4)


def net():
    return Net(w=jnp.ones((8, 4)), b=jnp.zeros(4))


def specs(state, mesh=MESH, **options):
    """Return what each leaf got, as tuples by path."""
    found = ps.shardings(state, mesh, **{"rules": RULES} | options)
    return {
        jax.tree_util.keystr(path): tuple(leaf.spec)
        for path, leaf in jax.tree.leaves_with_path(found)
    }


def test_the_tree_is_that_of_the_state():
    found = ps.shardings(net(), MESH, rules=RULES)

    assert type(found) is Net
    assert 4 == found.width
    assert jax.tree.structure(net()) == jax.tree.structure(found)
    assert NamedSharding(MESH, P("data", "model")) == found.w


def test_logical_names_become_axes_of_the_mesh():
    assert {".w": ("data", "model"), ".b": ("model",)} == specs(net())


def test_a_rule_of_none_replicates():
    found = specs(net(), rules={"embed": None, "mlp": "model"})

    assert {".w": (None, "model"), ".b": ("model",)} == found


def test_a_rule_may_name_several_axes():
    found = specs(net(), rules={"embed": ("data", "model"), "mlp": None})

    assert (("data", "model"), None) == found[".w"]


def test_several_names_for_one_dimension_become_their_axes():
    class Flat(ps.State):
        w: jax.Array = ps.field(spec=P(("embed", "rest", "mlp")))

    rules = RULES | {"rest": None}

    assert {".w": (("data", "model"),)} == specs(Flat(w=jnp.ones(8)), rules=rules)


def test_axes_of_the_mesh_need_no_rules():
    class Plain(ps.State):
        w: jax.Array = ps.field(spec=P("data", None))

    assert {".w": ("data", None)} == specs(Plain(w=jnp.ones((4, 3))), rules=None)


def test_an_abstract_state_has_the_same_shardings():
    abstract = jax.eval_shape(net)

    assert ps.shardings(net(), MESH, rules=RULES) == ps.shardings(
        abstract, MESH, rules=RULES
    )


def test_a_field_without_a_spec_is_replicated():
    class Train(ps.State):
        net: Net
        key: jax.Array
        rate: float

    found = specs(Train(net=net(), key=jax.random.key(0), rate=0.1))

    assert () == found[".key"]
    assert () == found[".rate"]


def test_a_spec_holds_for_all_below_but_what_has_its_own():
    class Block(ps.State):
        w: jax.Array = ps.field(spec=P("model"))
        b: jax.Array

    class Train(ps.State):
        blocks: list = ps.field(spec=P("data"))

    block = Block(w=jnp.ones(4), b=jnp.ones(4))
    found = specs(Train(blocks=[block, jnp.ones(8)]))

    assert {
        ".blocks[0].w": ("model",),
        ".blocks[0].b": ("data",),
        ".blocks[1]": ("data",),
    } == found


def test_a_function_gets_the_path_below_the_field_and_the_leaf():
    seen = {}

    def choose(path, leaf):
        seen[path] = leaf.shape
        return P(None, "mlp") if path.endswith("['kernel']") else None

    class Train(ps.State):
        head: dict = ps.field(spec=choose)

    found = specs(Train(head={"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}))

    assert {"['kernel']": (3, 4), "['bias']": (4,)} == seen
    assert {".head['kernel']": (None, "model"), ".head['bias']": ()} == found


def test_a_function_gets_the_leaf_without_the_batch():
    class Train(ps.State):
        head: jax.Array = ps.field(
            spec=lambda path, leaf: P(*[None] * leaf.shape.index(8), "data")
        )

    batch = ps.stack([Train(head=jnp.ones((4, 8)))] * 8)

    assert {".head": (None, None, "data")} == specs(batch, batch=(None,))


def test_a_function_gets_shape_and_dtype_of_a_number_too():
    seen = []

    class Train(ps.State):
        head: dict = ps.field(spec=lambda path, leaf: seen.append(leaf))

    specs(Train(head={"rate": 0.5, "w": np.ones(3, np.float32)}))

    assert [((), jnp.float32), ((3,), jnp.float32)] == [
        (leaf.shape, leaf.dtype) for leaf in seen
    ]


def test_the_path_starts_below_the_field_at_any_depth():
    seen = []

    class Inner(ps.State):
        w: jax.Array = ps.field(spec=lambda path, leaf: seen.append(path))

    class Outer(ps.State):
        inner: list

    specs(Outer(inner=[Inner(w=jnp.ones(2))]))

    assert [""] == seen


# --- mirrors -------------------------------------------------------------------------


class Mirror(ps.State):
    opt: tuple = ps.field(spec="net")
    net: Net


def test_a_mirror_has_the_specs_of_leaves_whose_path_and_shape_it_repeats():
    found = specs(Mirror(net=net(), opt=(jnp.zeros(()), {"mu": net()}, net().w.T)))

    assert ("data", "model") == found[".opt[1]['mu'].w"]
    assert ("model",) == found[".opt[1]['mu'].b"]
    assert () == found[".opt[0]"]
    assert () == found[".opt[2]"]


def test_a_mirror_replicates_what_has_another_shape():
    factored = net().replace(w=jnp.zeros(8))

    found = specs(Mirror(net=net(), opt=(factored,)))

    assert {".w": (), ".b": ("model",)} == {
        path.removeprefix(".opt[0]"): spec
        for path, spec in found.items()
        if path.startswith(".opt")
    }


def test_the_longest_of_the_paths_that_fit_wins():
    class Train(ps.State):
        params: dict = ps.field(
            spec=lambda path, leaf: P("data") if "deep" in path else P("model")
        )
        opt: tuple = ps.field(spec="params")

    params = {"w": jnp.ones(8), "deep": {"w": jnp.ones(8)}}
    found = specs(Train(params=params, opt=(params,)))

    assert ("data",) == found[".opt[0]['deep']['w']"]
    assert ("model",) == found[".opt[0]['w']"]


def test_a_mirror_of_an_array_follows_by_shape():
    class Train(ps.State):
        w: jax.Array = ps.field(spec=P("data"))
        opt: tuple = ps.field(spec="w")

    found = specs(Train(w=jnp.ones(8), opt=(jnp.ones(8), jnp.ones(4))))

    assert {".w": ("data",), ".opt[0]": ("data",), ".opt[1]": ()} == found


def test_a_mirror_may_be_mirrored():
    class Train(ps.State):
        opt: tuple = ps.field(spec="ema")
        ema: Net = ps.field(spec="net")
        net: Net

    found = specs(Train(net=net(), ema=net(), opt=(net(),)))

    assert ("data", "model") == found[".opt[0].w"]


def test_a_mirror_inside_of_a_nested_state_looks_beside_itself():
    class Run(ps.State):
        train: Mirror

    found = specs(Run(train=Mirror(net=net(), opt=(net(),))))

    assert ("data", "model") == found[".train.opt[0].w"]


def test_a_state_that_a_mirror_does_not_repeat_has_its_own_specs():
    class Mixed(ps.State):
        v: jax.Array = ps.field(spec=P("model"))
        w: jax.Array = ps.field(spec=P("data"))

    class Train(ps.State):
        net: Net
        head: Mixed = ps.field(spec="net")

    found = specs(Train(net=net(), head=Mixed(v=jnp.ones(4), w=jnp.ones((8, 4)))))

    assert ("model",) == found[".head.v"]
    assert ("data", "model") == found[".head.w"]


# --- batches -------------------------------------------------------------------------


def test_batch_axes_stand_in_front():
    batch = ps.stack([net()] * 4)
    rules = {"embed": None, "mlp": "model"}

    found = specs(batch, batch="data", rules=rules)

    assert {".w": ("data", None, "model"), ".b": ("data", "model")} == found


def test_a_batch_axis_of_none_is_not_split():
    assert {".w": (None, "data", "model"), ".b": (None, "model")} == specs(
        ps.stack([net()] * 3), batch=(None,)
    )


def test_rules_hold_for_batch_axes():
    found = specs(
        ps.stack([net()] * 4),
        batch="runs",
        rules={"runs": "data", "embed": None, "mlp": "model"},
    )

    assert ("data", None, "model") == found[".w"]


def test_mirrors_have_the_batch_axes_too():
    batch = ps.stack([Mirror(net=net(), opt=(net(), jnp.zeros(())))] * 3)

    found = specs(batch, batch=(None,))

    assert (None, "data", "model") == found[".opt[0].w"]
    assert (None,) == found[".opt[1]"]


# --- what is given -------------------------------------------------------------------


def test_something_else_is_refused():
    with pytest.raises(FieldError, match=r"^ps\.shardings takes a State, and got"):
        ps.shardings({"w": jnp.ones(3)}, MESH)


def test_specs_for_shard_map_are_a_map_away():
    found = jax.tree.map(lambda s: s.spec, ps.shardings(net(), MESH, rules=RULES))

    assert P("data", "model") == found.w
