"""A packed State in `ps.jit`, donated, in other transforms, on several devices."""

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from purestate.errors import ConsumedStateError, PackError
from tests.helpers import python
from tests.transforms.packing import Opt, Pair, Train, leaf_count, train

# Some methods meet more structures in these tests than a function should in a program.
pytestmark = pytest.mark.filterwarnings("ignore::purestate.errors.RetraceWarning")


# --- under ps.jit ---------------------------------------------------------------------


def test_a_function_receives_the_state_and_returns_it_packed():
    classes = []

    @ps.jit
    def step(state):
        classes.append(type(state))
        return state.replace(w=state.w * 2)

    packed = ps.pack(train())
    new = step(packed)

    assert [Train] == classes
    assert type(packed) is type(new)
    assert [0, 2, 4] == new.w.tolist()


def test_a_method_is_called_as_on_the_state():
    new, total = ps.pack(train()).step(by=2.0)
    expected, _ = train().step(by=2.0)

    assert expected == new.unpack()
    assert 3 == total


def test_a_loop_traces_once():
    traces = []

    @ps.jit
    def step(state):
        traces.append(1)
        return state.replace(w=state.w * 2, seen=state.seen + 1)

    packed = ps.pack(train())
    for _ in range(3):
        packed = step(packed)

    assert 1 == len(traces)
    assert 3 == packed.seen


def test_two_states_packed_alike_share_one_trace():
    traces = []

    @ps.jit
    def step(state):
        traces.append(1)
        return state

    step(ps.pack(train())), step(ps.pack(train(w=jnp.ones(3))))

    assert 1 == len(traces)


def test_packed_states_are_found_inside_containers_and_keywords():
    @ps.jit
    def step(pair, *, other):
        return {"first": pair[0], "sum": pair[0].w + other.w}

    out = step((ps.pack(train()), 1), other=ps.pack(train()))

    assert type(ps.pack(train())) is type(out["first"])
    assert [0, 2, 4] == out["sum"].tolist()


def test_a_container_of_states_can_be_packed():
    @ps.jit
    def step(nets):
        return {name: net.replace(w=net.w + 1) for name, net in nets.items()}

    packed = step(ps.pack({"a": train(), "b": train()}))

    assert 2 == leaf_count(packed)
    assert [1, 2, 3] == packed.unpack()["b"].w.tolist()


def test_a_part_of_the_state_comes_back_unpacked():
    assert Opt is type(ps.jit(lambda s: s.opt)(ps.pack(train())))


def test_states_may_change_places():
    swap = ps.jit(lambda s: s.replace(count=s.seen, seen=s.count))

    packed = swap(ps.pack(train(count=1, seen=2)))

    assert (2, 1) == (packed.count, packed.seen)


def test_lower_and_eval_shape_take_packed_states():
    packed = ps.pack(train())

    shapes = Train.whole.eval_shape(packed)

    assert (3,) == shapes.unpack().w.shape
    assert [0, 2, 4] == Train.whole.lower(packed).compile()(packed).w.tolist()


def test_disable_jit_gives_the_function_the_state():
    with jax.disable_jit():
        new, _ = ps.pack(train()).step()

    assert [1, 2, 3] == new.w.tolist()


def test_a_bound_method_is_jitted_for_all_packed_states():
    step = ps.jit(ps.pack(train()).donated, donate=False)

    assert [1, 2, 3] == step().w.tolist()


def test_plain_jax_jit_receives_the_packed_state():
    packed = ps.pack(train())

    assert 6 == jax.jit(lambda p: p.unpack().w.sum() + p.w.sum())(packed)


def test_a_large_leaf_is_updated_as_well():
    state = train(note=jnp.zeros(20_000))

    new = ps.pack(state).whole()

    assert state.whole() == new.unpack()


# --- donation -------------------------------------------------------------------------


def test_a_donated_packed_state_gives_its_buffers_away():
    packed = ps.pack(train())
    buffer = jax.tree.leaves(packed)[0]

    new = packed.donated()

    assert buffer.is_deleted()
    assert [1, 2, 3] == new.w.tolist()


@pytest.mark.parametrize(
    "use",
    [
        lambda packed: packed.w,
        lambda packed: packed.unpack(),
        lambda packed: packed.donated(),
        lambda packed: jax.tree.leaves(packed),
    ],
)
def test_a_donated_packed_state_explains_itself(use):
    packed = ps.pack(train())
    packed.donated()

    with pytest.raises(
        ConsumedStateError, match=r"^this Packed was donated to Train\.donated\(\); use"
    ):
        use(packed)
    assert "<Packed, donated to Train.donated()>" == repr(packed)


def test_a_donated_packed_state_in_a_container_explains_itself():
    step = ps.jit(lambda pair: pair[0].replace(w=pair[0].w + 1), donate=True)
    packed = ps.pack(train())

    step([packed])

    with pytest.raises(ConsumedStateError):
        packed.unpack()


def test_a_donated_loop_traces_once_and_keeps_its_count():
    packed = ps.pack(train())
    for _ in range(5):
        packed = packed.donated()

    assert 5 == packed.count


def test_the_state_stays_usable_when_its_packed_form_is_donated():
    state = train()

    ps.pack(state).donated()

    assert [0, 1, 2] == state.w.tolist()


# --- other transforms -----------------------------------------------------------------


def test_scan_outside_carries_a_packed_state():
    body = ps.jit(lambda state, x: (state.replace(w=state.w + x), state.count))

    last, _ = jax.lax.scan(body, ps.pack(train()), jnp.arange(3.0))

    assert [3, 4, 5] == last.w.tolist()
    assert type(ps.pack(train())) is type(last)


def test_scan_and_grad_and_vmap_work_inside():
    @ps.jit
    def step(state):
        slopes = jax.grad(lambda w: jnp.sum(w**2))(state.w)
        last, _ = jax.lax.scan(
            lambda s, x: (s.replace(w=s.w - x * slopes), None), state, jnp.ones(2)
        )
        return last.replace(b=jax.vmap(jnp.cumsum)(state.b))

    assert step(train()) == step(ps.pack(train())).unpack()


def test_vmap_over_another_argument_gives_a_batch_of_packed_states():
    moved = jax.vmap(lambda p, x: p.step(x)[0], in_axes=(None, 0))
    packed, by = ps.pack(train()), jnp.arange(2.0)

    batch = moved(packed, by)

    assert jax.vmap(lambda x: train().step(x)[0])(by) == batch.unpack()
    assert [3, 6] == jax.vmap(lambda p: p.w.sum())(batch).tolist()


def test_vmap_over_a_single_packed_state_is_an_error_with_the_way_out():
    with pytest.raises(
        PackError,
        match=r"^a buffer of a packed Pair holds 4 numbers and came with shape \(\)\. "
        r"A vmap, scan or slice over a packed State goes over its buffers, not over "
        r"its leaves: use packed\.unpack\(\) there, or vmap inside of the function "
        r"under ps\.jit\.",
    ):
        jax.vmap(ps.jit(lambda pair: pair.a))(
            ps.pack(Pair(a=jnp.ones(2), b=jnp.ones(2)))
        )


def test_the_gradient_of_a_packed_state_is_packed():
    loss = ps.jit(lambda pair: jnp.sum(pair.a * pair.b))
    packed = ps.pack(Pair(a=jnp.ones(2), b=jnp.arange(2.0)))

    slopes = jax.grad(loss)(packed)

    assert [0, 1] == slopes.a.tolist()
    assert Pair(a=jnp.arange(2.0), b=jnp.ones(2)) == slopes.unpack()


def test_the_gradient_has_none_in_place_of_whole_numbers():
    slopes = ps.grad(ps.jit(lambda state: jnp.sum(state.w**2)))(ps.pack(train()))

    assert [0, 2, 4] == slopes.w.tolist()
    assert slopes.unpack().count is None


# --- devices --------------------------------------------------------------------------


TWO_DEVICES = """
import jax, jax.numpy as jnp, purestate as ps
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

class S(ps.State):
    a: jax.Array
    b: jax.Array
    c: jax.Array
    d: jax.Array
    split: jax.Array

one, two = jax.devices()[:2]
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(kind,))
    put = lambda v, *spec: jax.device_put(v, NamedSharding(mesh, P(*spec)))
    state = S(put(jnp.ones(2)), put(jnp.ones((2, 3))), put(jnp.int32(1)),
              put(jnp.int32(2)), put(jnp.arange(4.0), "x"))
    packed = ps.pack(state)
    assert 3 == len(jax.tree.leaves(packed))
    assert packed.unpack() == state
    traces = []
    @ps.jit(donate=True)
    def step(s):
        traces.append(1)
        return jax.tree.map(lambda x: x + x, s)
    for _ in range(3):
        packed = step(packed)
    assert packed.a.tolist() == [8, 8] and packed.split.tolist() == [0, 8, 16, 24]
    assert packed.split.sharding.spec == P("x")
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(packed)[:2])
    assert len(traces) == 1
apart = S(jax.device_put(1.0, one), jax.device_put(2.0, two), jax.device_put(3.0, one),
          jax.device_put(4.0, two), None)
packed = ps.pack(apart)
assert 2 == len(jax.tree.leaves(packed))
assert packed.unpack() == apart
assert packed.unpack().b.devices() == {two}
"""


def test_buffers_stay_on_their_devices_and_split_leaves_stay_split():
    done = python(TWO_DEVICES, devices=2, env={"PYTHONWARNINGS": "error"})

    assert 0 == done.returncode, done.stderr
