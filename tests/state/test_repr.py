"""repr is short, shows what matters and never raises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps


class Train(ps.State):
    step: jax.Array
    params: dict
    opt: tuple


TRAIN = Train(
    step=jnp.asarray(0),
    params={f"l{i}": jnp.ones((64, 64)) for i in range(3)},
    opt=(jnp.ones(1000),),
)


def test_repr_shows_names_dtypes_and_shapes():
    assert (
        "Train(\n"
        "  step=i32[],\n"
        "  params={'l0': f32[64,64], 'l1': f32[64,64], 'l2': f32[64,64]},\n"
        "  opt=(f32[1000],)\n"
        ")"
    ) == repr(TRAIN)


def test_repr_of_a_large_state_is_bounded():
    class Node(ps.State):
        a: jax.Array
        b: jax.Array

    large = Train(
        step=0,
        params={f"p{i}": [Node(a=1, b=2)] * 100 for i in range(100)},
        opt=tuple(range(1000)),
    )

    assert len(repr(large)) < 5000
    assert "... 92 more" in repr(large)
    assert "... 992 more" in repr(large)


def test_repr_never_raises_in_half_built_traced_or_rebuilt_states():
    seen = []

    class S(ps.State):
        x: jax.Array
        y: jax.Array

        def __init__(self, x):
            seen.append(repr(self))
            self.x = x
            seen.append(repr(self))
            self.y = x

    s = S(jnp.ones(2))
    jax.jit(lambda q: (seen.append(repr(q)), q.x)[1])(s)
    structure = jax.tree.structure(s)
    seen += [repr(structure.unflatten([object(), None])), repr(structure)]

    assert [
        "S(x=<unset>, y=<unset>)",
        "S(x=f32[2], y=<unset>)",
        "S(x=f32[2](traced), y=f32[2](traced))",
    ] == seen[:3]
    assert "y=None" in seen[3]
    assert 5 == len(seen)


def test_repr_of_a_donated_buffer():
    s = Train(step=0, params={}, opt=())
    s.step.delete()

    assert "Train(step=i32[](deleted), params={}, opt=())" == repr(s)


class Raises:
    def __repr__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.ones(2), "f32[2](numpy)".replace("f32", "f64")),
        (jnp.ones(2, jnp.bfloat16), "bf16[2]"),
        (jnp.ones(2, jnp.uint8), "u8[2]"),
        (jax.random.key(0), "key<fry>[]"),
        (jax.ShapeDtypeStruct((2,), jnp.float32), "f32[2]"),
        (Raises(), "<Raises>"),
        ("a" * 500, "aaa..."),
        (float, "float"),
        (max, "<built-in function max>"),
        (None, "None"),
    ],
    ids=[
        "numpy",
        "bf16",
        "u8",
        "key",
        "struct",
        "raises",
        "long",
        "type",
        "call",
        "none",
    ],
)
def test_repr_of_odd_values(value, text):
    class S(ps.State):
        x: object

    assert text in repr(S(x=value))


def test_repr_of_a_cycle_ends():
    parts = []
    s = Train(step=0, params={}, opt=(parts,))
    parts.append(s)

    assert "<recursive>" in repr(s)


def test_fields_with_repr_false_are_left_out():
    class S(ps.State):
        x: int
        secret: str = ps.field(repr=False, default="s")

    assert "S(x=1)" == repr(S(x=1))


def test_pformat_can_show_values():
    class S(ps.State):
        x: jax.Array

    assert "S(x=3)" == ps.pformat(S(x=3), values=True)
    assert "{'a': S(x=i32[])}" == ps.pformat({"a": S(x=3)})


def test_rich_shows_the_fields():
    rich = pytest.importorskip("rich.pretty", reason="rich needs the interop extra")

    class S(ps.State):
        x: int
        y: int = 2

    assert "S(x=1, y=2)" == rich.pretty_repr(S(x=1))


# treescope reads every public name of numpy, the deprecated ones too.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_treescope_renders_a_state():
    treescope = pytest.importorskip(
        "treescope", reason="treescope needs the interop extra"
    )

    assert "params" in treescope.render_to_text(TRAIN)


def test_key_paths_name_the_fields():
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(TRAIN)]

    assert [
        ".step",
        ".params['l0']",
        ".params['l1']",
        ".params['l2']",
        ".opt[0]",
    ] == paths


def test_the_format_spec_values_shows_the_numbers(capfd):
    class Pair(ps.State):
        x: jax.Array

    jax.jit(lambda p: jax.debug.print("{p:values} {p}", p=p))(Pair(x=2.5))
    jax.effects_barrier()

    assert "Pair(x=2.5) Pair(x=f32[])\n" == capfd.readouterr().out
    assert "Pair(x=f32[])   " == f"{Pair(x=2.5):16}"
