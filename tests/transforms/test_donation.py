"""A donated State hands over its memory, and says so when it is used again."""

import copy
import functools
import gc
import pickle
import threading
import warnings
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

# Box.step meets more structures in this file than a function should in a program.
pytestmark = pytest.mark.filterwarnings("ignore::purestate.errors.RetraceWarning")


class Opt(ps.State):
    mu: jax.Array


class Mode(ps.State):
    name: str = ps.static(default="train")


class Box(ps.State):
    x: jax.Array
    opt: Opt | None = None
    parts: object = None

    @ps.jit(donate=True)
    def step(self, by=1.0):
        return jax.tree.map(lambda leaf: leaf + by, self)

    @ps.jit(donate=True)
    def fail(self):
        raise ValueError("no")

    def double(self):
        return jax.tree.map(lambda leaf: leaf * 2, self)

    def __call__(self):
        return self.double()

    def __getitem__(self, i):
        return self.x[i]

    def __len__(self):
        return 3

    def __iter__(self):
        return iter([self.x])

    def __add__(self, other):
        return self.x + other

    def __neg__(self):
        return -self.x

    def __lt__(self, other):
        return self.x < other


class Nets(ps.State):
    online: jax.Array
    target: jax.Array
    third: object = None

    @ps.jit(donate=True)
    def step(self):
        return self.replace(online=self.online * 0.5)


CONSUMED = (
    r"^this Box was donated to Box\.step\(\); use the instance that it returned\. To "
    r"keep the old one, copy it before the call: jax\.tree\.map\(jnp\.copy, state\)\.$"
)


@pytest.fixture
def consumed():
    box = Box(x=jnp.ones(3), opt=Opt(mu=jnp.ones(2)))
    box.step()
    return box


# --- what a donated State does ----------------------------------------------------------


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


# --- what is donated --------------------------------------------------------------------


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


# --- donation that does not happen ------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda box: Box.step.lower(box).compile(),
        lambda box: Box.step.trace(box),
        lambda box: Box.step.eval_shape(box),
        lambda box: jax.eval_shape(Box.step, box),
        lambda box: jax.make_jaxpr(Box.step)(box),
        lambda box: jax.jit(lambda: box.step())(),
    ],
    ids=["lower", "trace", "eval_shape", "jax.eval_shape", "make_jaxpr", "closed over"],
)
def test_a_call_that_computes_nothing_consumes_nothing(use):
    box = Box(x=jnp.ones(3), opt=Opt(mu=jnp.ones(2)))

    use(box)

    assert [1, 1, 1] == box.x.tolist()
    assert [2, 2] == box.step().opt.mu.tolist()


def test_without_jit_nothing_is_donated():
    box = Box(x=jnp.ones(3))

    with jax.disable_jit():
        new = box.step()

    assert [[1, 1, 1], [2, 2, 2]] == [box.x.tolist(), new.x.tolist()]


TRACERS = "tracers have a method is_deleted, which raises"


@pytest.mark.parametrize("outer", [jax.jit, ps.jit], ids=["jax.jit", "ps.jit"])
def test_inside_another_jit_nothing_is_donated(outer):
    box = Box(x=jnp.ones(3), opt=Opt(mu=jnp.ones(2)))

    @outer
    def twice(box):
        new = box.step()
        return new.step().x + box.x + box.opt.mu.sum()

    assert [6, 6, 6] == twice(box).tolist()
    assert [1, 1, 1] == box.x.tolist()


def test_inside_scan_nothing_is_donated():
    box = Box(x=jnp.ones(3))

    last, seen = jax.lax.scan(
        lambda box, _: (box.step(), box.step().x + box.x), box, None, length=3
    )

    assert [4, 4, 4] == last.x.tolist()
    assert [3, 5, 7] == seen[:, 0].tolist()
    assert [1, 1, 1] == box.x.tolist()


def test_vmap_of_a_donated_method_maps_it():
    boxes = ps.stack([Box(x=jnp.full(3, i * 1.0)) for i in range(2)])

    assert [1, 2] == jax.vmap(lambda box: box.step())(boxes).x[:, 0].tolist()


def test_grad_of_a_donated_method_differentiates_it():
    box = Box(x=jnp.ones(3))

    assert [4, 4, 4] == jax.grad(lambda b: (b.step().x ** 2).sum())(box).x.tolist()


def test_donated_methods_pass_the_leak_checker():
    with jax.checking_leaks():
        box = Box(x=jnp.ones(3)).step()
        jax.jit(lambda box: box.step())(box)


def test_a_failed_call_consumes_nothing():
    box = Box(x=jnp.ones(3))

    with pytest.raises(ValueError, match="no"):
        box.fail()

    assert [1, 1, 1] == box.x.tolist()


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_a_donation_of_which_nothing_could_be_reused_changes_nothing():
    box = Box(x=jnp.ones(3))

    with pytest.warns(LostUpdateWarning):
        total = ps.jit(lambda box: box.x.sum(), donate=True)(box)

    assert 3.0 == total
    assert [1, 1, 1] == box.x.tolist()


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_a_partly_reused_state_is_consumed():
    nets = Nets(online=jnp.ones(3), target=jnp.ones(2))
    step = ps.jit(lambda n: n.replace(online=n.online + 1, target=0.0), donate=True)

    with pytest.warns(ps.errors.StateDriftWarning):
        step(nets)

    assert "<Nets, donated to <lambda>()>" == repr(nets)


def test_a_jax_function_that_donates_leaves_the_explanation_to_the_next_ps_jit():
    box = Box(x=jnp.ones(3))
    jax.jit(lambda box: box.replace(x=box.x + 1), donate_argnums=0)(box)

    with pytest.raises(RuntimeError, match="Array has been deleted") as caught:
        ps.jit(lambda box: box.x + 1)(box)

    assert any(
        note == "Box.x was donated to an earlier jitted call, which reused the memory. "
        "Use the State that this call returned, or copy with jnp.copy before donating."
        for note in caught.value.__notes__
    )


# --- buffers that two fields share ------------------------------------------------------


def test_a_shared_buffer_is_copied_with_a_warning_that_names_both_fields():
    z = jnp.ones(4)
    text = (
        r"^Nets\.step was given one buffer twice, in Nets\.online and Nets\.target\. A "
        r"buffer can be donated once only, so the second was copied, at this call\. "
        r"Copy where the State is made, with jax\.tree\.map\(jnp\.copy, \.\.\.\)\.$"
    )

    with pytest.warns(SharedBufferWarning, match=text) as caught:
        new = Nets(online=z, target=z).step()

    assert [0.5] * 4 == new.online.tolist()
    assert [1.0] * 4 == new.target.tolist()
    assert 1 == len(caught)
    assert __file__ == caught[0].filename


def test_every_field_that_shares_a_buffer_is_named():
    z = jnp.ones(4)

    with pytest.warns(SharedBufferWarning, match=r"in Nets\.online and Nets\.target and "
                      r"Nets\.third\['k'\]\."):  # fmt: skip
        new = Nets(online=z, target=z, third={"k": z}).step()

    assert [1.0] * 4 == new.third["k"].tolist()


def test_the_old_instance_explains_itself_after_a_copy_too():
    z = jnp.ones(4)
    nets = Nets(online=z, target=z)

    with pytest.warns(SharedBufferWarning):
        nets.step()

    assert "<Nets, donated to Nets.step()>" == repr(nets)


def test_the_warning_is_given_once_per_place(recwarn):
    warnings.simplefilter("default", SharedBufferWarning)
    for _ in range(3):
        z = jnp.ones(4)
        Nets(online=z, target=z).step()

    assert 1 == len(recwarn)


def test_what_the_function_returned_shares_nothing():
    z = jnp.ones(4)
    with pytest.warns(SharedBufferWarning):
        nets = Nets(online=z, target=z).step()

    assert [0.25] * 4 == nets.step().online.tolist()


def test_one_state_in_two_fields_is_one_donation():
    opt = Opt(mu=jnp.ones(2))

    with pytest.warns(
        SharedBufferWarning, match=r"Box\.opt\.mu and Box\.parts\[0\]\.mu"
    ):
        new = Box(x=jnp.ones(3), opt=opt, parts=[opt]).step()

    assert [2, 2] == new.parts[0].mu.tolist()
    with pytest.raises(
        ConsumedStateError,
        match=r"^this Opt was donated to Box\.step\(\) as part of a Box;",
    ):
        _ = opt.mu


def test_one_state_in_two_donated_parameters_is_copied():
    opt = Opt(mu=jnp.ones(2))
    both = ps.jit(
        lambda a, b: (a.replace(mu=a.mu + 1), b.replace(mu=b.mu + 2)),
        donate=("a", "b"),
    )

    with pytest.warns(SharedBufferWarning):
        a, b = both(opt, opt)

    assert [[2, 2], [3, 3]] == [a.mu.tolist(), b.mu.tolist()]


def test_two_arguments_of_a_class_are_told_apart():
    z = jnp.ones(2)
    both = ps.jit(
        lambda a, b: (a.replace(mu=a.mu + 1), b.replace(mu=b.mu + 2)),
        donate=("a", "b"),
    )

    with pytest.warns(SharedBufferWarning) as caught:
        both(Opt(mu=z), Opt(mu=z))

    assert "in Opt.mu and Opt.mu" not in str(caught[0].message)


def test_a_buffer_that_is_donated_and_read_in_one_call_is_copied():
    box = Box(x=jnp.ones(3))

    with pytest.warns(SharedBufferWarning, match=r"Box\.x and argument 1"):
        new = box.step(box.x)

    assert [2, 2, 2] == new.x.tolist()


# --- the report -------------------------------------------------------------------------


class Report(ps.State):
    big: jax.Array
    y: jax.Array
    n: int = ps.static(default=1)


def halve(s):
    return {"big": s.big.astype(jnp.bfloat16), "state": s.replace(big=None, y=s.y + 1)}


def test_the_report_names_what_was_not_reused():
    state = Report(big=jnp.ones((8, 8)), y=jnp.ones(3))

    report = ps.donation_report(ps.jit(halve, donate=True), state)

    assert "donated, but not reused:\nReport.big: f32[8,8]" == str(report)
    assert {"Report.big": "f32[8,8]"} == report.unused
    assert (1, 256, True) == (report.reused, report.bytes_unused, bool(report))


def test_the_report_leaves_the_state_alone():
    state = Report(big=jnp.ones((8, 8)), y=jnp.ones(3))

    ps.donation_report(ps.jit(halve, donate=True), state)

    assert (64.0, 3.0) == (state.big.sum(), state.y.sum())


def test_a_report_of_a_full_donation_is_false():
    report = ps.donation_report(Box.step, Box(x=jnp.ones(3), opt=Opt(mu=jnp.ones(2))))

    assert "all 2 donated buffers were reused" == str(report)
    assert not report


def test_the_report_takes_other_arguments_and_plain_trees():
    step = ps.jit(lambda d, k: {"a": d["a"] + k, "b": 0.0}, donate=True)

    report = ps.donation_report(step, {"a": jnp.ones(2), "b": jnp.ones(3)}, k=2.0)

    assert "donated, but not reused:\n['b']: f32[3]" == str(report)


def test_the_report_works_for_plain_jax_jit():
    step = jax.jit(lambda s: s.replace(y=s.y + 1), donate_argnums=0)

    assert not ps.donation_report(step, Report(big=jnp.ones(2), y=jnp.ones(3)))


def test_a_cast_field_is_reported():
    step = ps.jit(lambda s: s.replace(big=s.big.astype(jnp.bfloat16)), donate=True)

    with pytest.warns(ps.errors.StateDriftWarning):
        report = ps.donation_report(step, Report(big=jnp.ones((8, 8)), y=jnp.ones(3)))

    assert ["Report.big"] == list(report.unused)


# --- memory and threads -----------------------------------------------------------------


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
    failures, start = [], threading.Barrier(4)

    def work(size):
        start.wait()
        try:
            box = Box(x=jnp.zeros(size), opt=Opt(mu=jnp.zeros(1)))
            for i in range(50):
                old, box = box, box.step()
                assert "<Box, donated to Box.step()>" == repr(old)
                assert i + 1 == box.x[0]
        except Exception as error:  # noqa: BLE001  # a thread's error is reported below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(1 + i,)) for i in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]

    assert [] == failures


# --- what once went wrong ------------------------------------------------------------------


class Keyed(ps.State):
    key: jax.Array
    x: jax.Array

    @ps.jit(donate=True)
    def step(self):
        return self.replace(x=self.x + 1)


def test_a_state_that_begins_with_a_key_is_donated():
    keyed = Keyed(key=jax.random.key(0), x=jnp.ones(3))

    assert [2, 2, 2] == keyed.step().x.tolist()
    assert "<Keyed, donated to Keyed.step()>" == repr(keyed)


def test_arrays_that_are_not_donated_may_be_shared():
    x, box = jnp.ones(3), Box(x=jnp.ones(3))
    step = ps.jit(lambda b, u, v: b.replace(x=b.x + u["a"] + v), donate=True)

    assert [3, 3, 3] == step(box, {"a": x}, x).x.tolist()
    assert not x.is_deleted()


def test_a_donated_array_that_is_read_elsewhere_too_is_copied_and_lives_on():
    x = jnp.ones(3)
    step = ps.jit(lambda b, u: b.replace(x=b.x + u), donate=True)

    with pytest.warns(SharedBufferWarning, match=r"in Box\.x and argument 1\."):
        new = step(Box(x=x), x)

    assert [2, 2, 2] == new.x.tolist()
    assert [1, 1, 1] == x.tolist()


@pytest.mark.parametrize(
    ("options", "call"),
    [
        ({"donate": "a", "donate_argnums": 1}, lambda f, x, y: f(x, y)),
        ({"donate": True, "donate_argnames": "b"}, lambda f, x, y: f(x, y)),
        ({"donate": True, "donate_argnames": "b"}, lambda f, x, y: f(a=x, b=y)),
        ({"donate": ("a", "b")}, lambda f, x, y: f(x, b=y)),
    ],
)
def test_what_is_donated_does_not_depend_on_how_it_is_passed(options, call):
    x, y = jnp.ones(3), jnp.ones(3)

    call(ps.jit(lambda a, b: (a + 1, b + 1), **options), x, y)

    assert (True, True) == (x.is_deleted(), y.is_deleted())


def test_a_result_is_not_lost_when_marking_fails():
    class Loop(ps.State):
        x: jax.Array

        @functools.cached_property
        def ring(self):
            ring = []
            ring.append(ring)
            return ring

        @ps.jit(donate=True)
        def step(self):
            return self.replace(x=self.x + 1)

    loop = Loop(x=jnp.ones(3))
    assert loop.ring is loop.ring[0]

    assert [2, 2, 2] == loop.step().x.tolist()


@pytest.mark.parametrize("donate", [None, False, 0])
def test_donating_nothing_has_several_spellings(donate):
    x = jnp.ones(3)

    ps.jit(lambda x: x + 1, donate=donate)(x)

    assert not x.is_deleted()
