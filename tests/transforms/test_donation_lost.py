"""Donation that does not happen, or not as asked: what is kept, shared, reported."""

import functools
import warnings

import jax
import jax.numpy as jnp
import pytest

import purestate as ps
from purestate.errors import ConsumedStateError, LostUpdateWarning, SharedBufferWarning
from tests.helpers import python
from tests.transforms.donors import Box, Nets, Opt

# Box.step meets more structures in these tests than a function should in a program.
pytestmark = pytest.mark.filterwarnings("ignore::purestate.errors.RetraceWarning")


# --- donation that does not happen ----------------------------------------------------


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
    box = Box(x=jnp.ones(43))  # of a type that no other donates
    jax.jit(lambda box: box.replace(x=box.x + 1), donate_argnums=0)(box)

    with pytest.raises(RuntimeError, match="Array has been deleted") as caught:
        ps.jit(lambda box: box.x + 1)(box)

    assert any(
        note == "Box.x was donated to an earlier jitted call, which reused the memory. "
        "Use the State that this call returned, or copy with jnp.copy before donating."
        for note in caught.value.__notes__
    )


# --- buffers that two fields share ----------------------------------------------------


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


class Target(ps.State):
    w: jax.Array
    b: jax.Array

    @ps.jit(donate="target")
    def sync(self, target):
        return target.replace(w=0.5 * target.w + 0.5 * self.w)


def test_every_call_copies_what_the_first_one_does():
    for _ in range(3):
        online = Target(w=jnp.ones(4), b=jnp.ones(3))
        with pytest.warns(SharedBufferWarning, match=r"argument 0, Target\.w and argu"):
            new = online.sync(online.replace(b=jnp.zeros(3)))

        assert [1, 1, 1, 1] == new.w.tolist() == online.w.tolist()


@pytest.mark.parametrize("donate", ["a", "b", ("a", "b")])
def test_a_call_that_shares_after_others_that_did_not_is_copied_too(donate):
    both = ps.jit(lambda a, b: (a + 1, b + 2), donate=donate)
    both(jnp.ones(4), jnp.ones(4))

    x = jnp.ones(4)
    with pytest.warns(SharedBufferWarning, match="argument 0 and argument 1") as caught:
        a, b = both(x, x)

    assert [[2] * 4, [3] * 4] == [a.tolist(), b.tolist()]
    assert __file__ == caught[0].filename


def test_calls_that_share_from_the_first_on_leave_no_line_of_the_runtime():
    used = python(
        """
        import warnings, jax, jax.numpy as jnp, purestate as ps
        warnings.simplefilter("ignore")
        both = ps.jit(lambda a, b: (a + 1, b + 1), donate=True)
        for _ in range(3):
            x = jnp.ones(4)
            both(x, x)
        """
    )

    assert (0, "") == (used.returncode, used.stderr)


# --- the report -----------------------------------------------------------------------


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


# --- what once went wrong -------------------------------------------------------------


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
