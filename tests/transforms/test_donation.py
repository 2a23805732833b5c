"""A donated State hands over its memory, and says so when it is used again."""

import copy
import gc
import pickle
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
from purestate.errors import (
    ConsumedStateError,
    JitDeclarationError,
    LostUpdateWarning,
    PurestateError,
    SharedBufferWarning,
)
from tests.helpers import in_threads
from tests.transforms.donors import Box, Nets, Opt

# Box.step meets more structures in these tests than a function should in a program.
pytestmark = pytest.mark.filterwarnings("ignore::purestate.errors.RetraceWarning")


class Mode(ps.State):
    name: str = ps.static(default="train")


CONSUMED = (
    r"^this Box was donated to Box\.step\(\); use the instance that it returned\. To "
    r"keep the old one, copy it before the call: jax\.tree\.map\(jnp\.copy, state\)\.$"
)


@pytest.fixture
def consumed():
    box = Box(x=jnp.ones(3), opt=Opt(mu=jnp.ones(2)))
    box.step()
    return box


# --- what a donated State does --------------------------------------------------------


def test_a_donated_method_returns_the_update_and_frees_the_old_buffer():
    box = Box(x=jnp.ones(3))
    old = box.x

    new = box.step()

    assert [2, 2, 2] == new.x.tolist()
    assert old.is_deleted()


USES = {
    "field": lambda box: box.x,
    "method": lambda box: box.double(),
    "donated method": lambda box: box.step(),
    "method of the class": lambda box: Box.double(box),
    "unknown attribute": lambda box: box.nope,
    "call": lambda box: box(),
    "assignment": lambda box: setattr(box, "x", 1),
    "deletion": lambda box: delattr(box, "x"),
    "replace": lambda box: box.replace(x=1),
    "at": lambda box: box.at(lambda b: b.x),
    "draft": lambda box: box.draft(),
    "==": lambda box: box == box,
    "== from the left": lambda box: Box(x=1) == box,
    "!=": lambda box: box != 3,
    "hash": lambda box: hash(box),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "tree.map": lambda box: jax.tree.map(jnp.copy, box),
    "tree.leaves": jax.tree.leaves,
    "paths": jax.tree.leaves_with_path,
    "inside a container": lambda box: jax.tree.leaves({"a": [box]}),
    "jit": lambda box: jax.jit(lambda b: b)(box),
    "ps.jit": lambda box: ps.jit(lambda b: b)(box),
    "vmap": lambda box: jax.vmap(lambda b: b)(box),
    "ps.vmap": lambda box: ps.vmap(lambda b: b)(box),
    "grad": lambda box: jax.grad(lambda b: b.x.sum())(box),
    "ps.grad": lambda box: ps.grad(lambda b: b.x.sum())(box),
    "scan": lambda box: jax.lax.scan(lambda b, _: (b, None), box, None, length=2),
    "eval_shape": lambda box: jax.eval_shape(lambda b: b, box),
    "device_put": jax.device_put,
    "block_until_ready": jax.block_until_ready,
    "diff": lambda box: ps.diff(Box(x=1), box),
    "stack": lambda box: ps.stack([box]),
    "unstack": ps.unstack,
    "donation_report": lambda box: ps.donation_report(Box.step, box),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_donated_state_refuses_every_use(use, consumed):
    with pytest.raises(ConsumedStateError) as caught:
        use(consumed)

    assert caught.match(CONSUMED.removesuffix("$"))


@pytest.mark.parametrize(
    "use",
    [
        lambda box: box[0],
        len,
        iter,
        lambda box: box + 1,
        lambda box: -box,
        lambda box: box < 1,
    ],
    ids=["getitem", "len", "iter", "+", "-", "<"],
)
def test_a_donated_state_refuses_operators_of_its_class(use, consumed):
    with pytest.raises(ConsumedStateError, match=CONSUMED):
        use(consumed)


def test_a_prefix_of_a_donated_state_is_refused(consumed):
    with pytest.raises(ConsumedStateError, match=CONSUMED):
        ps.prefix(consumed, x=0)


def test_a_donated_state_still_has_a_repr(consumed):
    assert "<Box, donated to Box.step()>" == repr(consumed)
    assert "<Box, donated to Box.step()>" == f"{consumed}"


@pytest.mark.parametrize("text", [ps.pformat, lambda box: repr(Box(x=1, parts=[box]))])
def test_a_donated_state_is_printed_inside_others(text, consumed):
    assert "<Box, donated to Box.step()>" in text(consumed)


def test_a_donated_state_is_still_an_instance_of_its_class(consumed):
    assert isinstance(consumed, Box)
    assert isinstance(consumed, ps.State)
    assert not isinstance(consumed, Opt)


def test_the_error_is_a_runtime_error_of_the_library_and_can_be_pickled(consumed):
    with pytest.raises(ConsumedStateError) as caught:
        _ = consumed.x

    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, PurestateError)
    assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value)))


def test_a_state_inside_a_donated_one_says_of_which_it_was_a_part():
    inner, listed = Opt(mu=jnp.ones(2)), Opt(mu=jnp.ones(4))
    Box(x=jnp.ones(3), opt=inner, parts=[{"k": (listed,)}]).step()

    text = r"^this Opt was donated to Box\.step\(\) as part of a Box; use the instance"
    with pytest.raises(ConsumedStateError, match=text):
        _ = inner.mu
    with pytest.raises(ConsumedStateError, match=text):
        _ = listed.mu
    assert "<Opt, donated to Box.step()>" == repr(inner)


def test_a_state_that_shares_a_donated_part_is_consumed_in_that_part_only():
    old = Box(x=jnp.ones(3), opt=Opt(mu=jnp.ones(2)))

    old.replace(x=jnp.zeros(3)).step()

    assert [1, 1, 1] == old.x.tolist()
    with pytest.raises(ConsumedStateError, match=r"^this Opt was donated to Box\.step"):
        _ = old.opt.mu


@pytest.mark.parametrize(
    "shared",
    [Mode(), Opt(mu=None), Opt(mu=np.ones(2)), [Mode()]],
    ids=["leafless", "None", "numpy", "in a list"],
)
def test_a_part_without_donated_arrays_stays_alive_in_other_states(shared):
    first = Box(x=jnp.ones(3), parts=shared)
    second = Box(x=jnp.ones(3), parts=shared)

    first.step()

    assert [2, 2, 2] == second.step().x.tolist()


def test_a_default_that_is_a_state_outlives_a_donation():
    class S(ps.State):
        x: jax.Array
        mode: Mode = Mode()

        @ps.jit(donate=True)
        def step(self):
            return self.replace(x=self.x + 1)

    S(x=jnp.ones(3)).step()

    assert "train" == S(x=jnp.ones(3)).step().mode.name


def test_a_part_that_the_function_does_not_read_stays_alive():
    opt = Opt(mu=jnp.ones(5))
    step = ps.jit(lambda box: box.x + 1, donate=True)

    with pytest.warns(LostUpdateWarning):
        step(Box(x=jnp.ones(3), opt=opt))

    assert [1] * 5 == opt.mu.tolist()


def test_donating_again_what_was_returned_works():
    box = Box(x=jnp.zeros(3))
    for _ in range(5):
        box = box.step()

    assert [5, 5, 5] == box.x.tolist()


def test_a_donated_method_is_traced_once():
    traces = []

    class S(ps.State):
        x: jax.Array

        @ps.jit(donate=True)
        def step(self):
            traces.append(1)
            return self.replace(x=self.x + 1)

    s = S(x=0)
    for _ in range(3):
        s = s.step()

    assert 1 == len(traces)


def test_a_class_whose_instances_cannot_change_class_leaves_the_error_to_jax():
    class Slotted:
        __slots__ = ("extra",)

    class S(ps.State, Slotted):
        x: jax.Array

        @ps.jit(donate=True)
        def step(self):
            return self.replace(x=self.x + 1)

    s = S(x=jnp.ones(3))
    s.step()

    assert s.x.is_deleted()
    with pytest.raises((RuntimeError, ValueError), match=r"has been deleted") as caught:
        s.step()
    assert any("S.x was donated" in note for note in caught.value.__notes__)


# --- what is donated ------------------------------------------------------------------


def add(k, box, *, other=None):
    return box.replace(x=box.x + k), other


BY_NAME = ps.jit(add, donate="box")
BY_NAMES = ps.jit(add, donate=("other", "box"))
FIRST = ps.jit(lambda box, k: box.replace(x=box.x + k), donate=True)


@pytest.mark.parametrize(
    "call",
    [
        lambda box: BY_NAME(1.0, box),
        lambda box: BY_NAME(1.0, box=box),
        lambda box: BY_NAME(box=box, k=1.0),
        lambda box: BY_NAMES(1.0, box),
        lambda box: FIRST(box, 1.0),
        lambda box: FIRST(box, k=1.0),
        lambda box: FIRST(k=1.0, box=box),
        lambda box: ps.jit(box.double, donate=True)(),
        lambda box: ps.jit(box, donate=True)(),
        lambda box: ps.jit(Box.double, donate="self")(box),
    ],
    ids=[
        "name",
        "name by keyword",
        "name by keyword first",
        "names",
        "first",
        "first, others by keyword",
        "first by keyword",
        "bound method",
        "callable State",
        "self by name",
    ],
)
def test_a_donated_parameter_is_consumed_however_it_is_passed(call):
    box = Box(x=jnp.ones(3))

    call(box)

    assert repr(box).startswith("<Box, donated to ")


def test_a_keyword_only_parameter_can_be_donated():
    box, other = Box(x=jnp.ones(3)), Box(x=jnp.ones(2))

    BY_NAMES(1.0, box, other=other)

    assert "<Box, donated to add()>" == repr(other)


def test_what_is_not_donated_stays_alive():
    box, other = Box(x=jnp.ones(3)), Box(x=jnp.ones(2))

    BY_NAME(1.0, box, other=other)

    assert [1, 1] == other.x.tolist()


def test_the_first_parameter_can_be_keyword_only():
    box = Box(x=jnp.ones(3))
    step = ps.jit(lambda *, box: box.replace(x=box.x + 1), donate=True)

    assert [2, 2, 2] == step(box=box).x.tolist()
    assert "<Box, donated to <lambda>()>" == repr(box)


def test_a_class_method_donates_its_first_argument():
    class S(ps.State):
        x: jax.Array

        @ps.jit(donate=True)
        @classmethod
        def wrap(cls, x):
            return cls(x=x + 1)

    x = jnp.ones(3)

    assert [2, 2, 2] == S.wrap(x).x.tolist()
    assert x.is_deleted()


def test_a_plain_array_can_be_donated():
    x = jnp.ones(3)

    assert [2, 2, 2] == ps.jit(lambda x: x + 1, donate=True)(x).tolist()
    assert x.is_deleted()


def test_states_in_a_donated_container_are_consumed():
    box = Box(x=jnp.ones(3))

    ps.jit(lambda d: {"a": d["a"].double()}, donate=True)({"a": box})

    assert repr(box).startswith("<Box, donated to ")


def test_donate_goes_together_with_jaxs_own_option():
    x, y = jnp.ones(3), jnp.ones(3)

    ps.jit(lambda x, y: (x + 1, y + 1), donate=True, donate_argnums=(1,))(x, y)

    assert (True, True) == (x.is_deleted(), y.is_deleted())


@pytest.mark.parametrize(
    ("donate", "text"),
    [
        (
            "bx",
            r"^ps\.jit\(add, donate='bx'\): add has no parameter of that name; did you mean 'box'\? Fields cannot be donated one by one\.$",
        ),
        (
            ("box", "weights"),
            r"^ps\.jit\(add, donate='weights'\): add has no parameter of that name; its parameters are k, box, other\. ",
        ),
    ],
)
def test_donating_an_unknown_parameter_is_refused_at_decoration(donate, text):
    with pytest.raises(JitDeclarationError, match=text):
        ps.jit(add, donate=donate)


# --- memory and threads ---------------------------------------------------------------


def test_nothing_keeps_a_donated_instance_alive():
    def use():
        z = jnp.ones(4)
        box, nets = Box(x=jnp.ones(3), opt=Opt(mu=jnp.ones(2))), Nets(z, z)
        alive = [weakref.ref(v) for v in (box, box.x, box.opt, nets, z)]
        new = box.step()
        with pytest.warns(SharedBufferWarning):
            nets.step()
        with pytest.raises(ConsumedStateError):
            _ = box.x
        with pytest.raises(ValueError, match="no"):
            new.fail()
        return [*alive, weakref.ref(new), weakref.ref(new.x)]

    alive = use()
    gc.collect()

    assert [None] * 7 == [ref() for ref in alive]


def test_a_donated_instance_has_weak_references(consumed):
    assert consumed is weakref.ref(consumed)()


def test_threads_donate_their_own_states():
    def work(size):
        box = Box(x=jnp.zeros(size), opt=Opt(mu=jnp.zeros(1)))
        for i in range(50):
            old, box = box, box.step()
            assert "<Box, donated to Box.step()>" == repr(old)
            assert i + 1 == box.x[0]

    in_threads(work, range(1, 5))
