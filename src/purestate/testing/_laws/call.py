"""Laws of methods and functions: a transform changes how they run, not what they do."""

from typing import Any

import jax
import numpy as np

from purestate._compat import LEAKED
from purestate._inspect.diff import diff
from purestate.errors._text import error_text
from purestate.testing._cases.call import Call
from purestate.testing._cases.donated import quietly, shared_array
from purestate.testing._cases.fresh import fresh
from purestate.testing._cases.outside import tracers_of
from purestate.testing._laws.law import Broken, Skip, law, same_as
from purestate.testing._trees.leaves import differ_in_type, flattened, row, stacked


@law("method", "host", promise="a call leaves its arguments alone")
def arguments(case: Call) -> None:
    """Compare the arguments before and after."""
    given = fresh(case.operands)
    before = fresh(case.operands)
    case.run(given)
    for name in before:
        text = f"{name} before and after the call"
        same_as(before[name], given[name], text, root=name, exact=True)


@law("method", "host", promise="the same arguments give the same result")
def repeats(case: Call) -> None:
    """Call twice."""
    same_as(case.eager, case.again(), "the first and the second call", exact=True)


@law("method", "host", promise="jit gives what the plain call gives", compiles=True)
def jit(case: Call) -> None:
    """Compare the plain call with the jitted one, as it is written if it is jitted."""
    if case.callee.is_jitted:
        values = {**fresh(case.operands), **case.statics}
        out = case.callee.call(case.callee.written, values)
    else:
        out = case.jitted(case.operands)
    same_as(case.eager, out, "eager and jitted")


@law(
    "method",
    "host",
    promise="jit traces once for arguments of one structure, and for the result",
    compiles=True,
)
def one_trace(case: Call) -> None:
    """Count traces; a state that comes out must go in again without another one."""
    jitted, traces = case.counted
    seen = case.seen
    is_new = all(differ_in_type(case.operands, old) for old in seen)
    before = len(traces)
    out = jitted(case.operands)
    if is_new:
        seen.append(case.operands)
        before = len(traces)
        jitted(fresh(case.operands))
    if len(traces) > before:
        raise Broken("", "jit traced again although nothing but values differs.")
    state = case.state_of(out)
    old = case.operands[case.carry] if case.carry else None
    if state is None or not differ_in_type(old, state):
        return
    changes = _type_changes(old, state)
    if changes is not None:
        path, text = changes
        raise Broken(path, f"the second step compiles again: {text}.")


def _type_changes(old: Any, new: Any) -> tuple[str, str] | None:
    # A change of shape or static value is meant; of dtype or weak type, a slip.
    found = [c for c in diff(old, new) if c.kind in ("dtype", "weak type")]
    others = [c for c in diff(old, new) if c.kind not in ("dtype", "weak type")]
    if others or not found:
        return None
    return found[0].path, f"{found[0].kind} {found[0].before} -> {found[0].after}"


@law("method", "host", promise="tracing it leaves no tracer behind", compiles=True)
def leaks(case: Call) -> None:
    """Trace, look where tracers could hide, and trace under `jax.checking_leaks`."""
    jax.eval_shape(lambda operands: case.run(operands), case.operands)
    for place in tracers_of(
        [*case.callee.outside(), ("self", case.operands.get("self"))]
    ):
        raise Broken(place, "a tracer was left there.")
    case.once("leaks", lambda: _trace(case))  # it takes long


def _trace(case: Call) -> bool:
    try:
        with jax.checking_leaks():
            jax.eval_shape(lambda operands: case.run(operands), case.operands)
    except Exception as error:
        if LEAKED not in str(error):
            raise
        raise Broken("", str(error).partition("\n")[0]) from error
    return True


@law("method", "host", promise="vmap gives the stack of single calls", compiles=True)
def vmap(case: Call) -> None:
    """Map over some of the leaves, along their first or last axis."""
    one, two = case.operands, case.other()
    if differ_in_type(one, two):
        raise Skip("two draws of the arguments differ in structure")
    leaves, structure = flattened(one)
    others = jax.tree.leaves(two)
    axes = [_axis(case, leaf) for leaf in leaves]
    mappable = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    if not mappable:
        raise Skip("it takes no array")
    if all(axis is None for axis in axes):
        axes[mappable[0]] = 0
    pairs = list(zip(leaves, others, axes, strict=True))
    batch = structure.unflatten(
        a if axis is None else stacked([a, b], axis) for a, b, axis in pairs
    )
    second = structure.unflatten(a if axis is None else b for a, b, axis in pairs)
    in_axes = structure.unflatten(axes)
    key = ("vmap", *axes)
    mapped = case.once(key, lambda: jax.jit(jax.vmap(case.run, in_axes=(in_axes,))))
    out = mapped(batch)
    for index, operands in enumerate((one, second)):
        single = case.run(fresh(operands))
        text = f"a single call and row {index} of a batch along axes {axes}"
        same_as(single, row(out, index), text)


def _axis(case: Call, leaf: Any) -> int | None:
    if not isinstance(leaf, jax.Array):
        return None
    return case.scope.choose((0, leaf.ndim, None))


@law("method", promise="scan gives what the loop gives", compiles=True)
def scan(case: Call) -> None:
    """Step three times, in a scan and in a Python loop."""
    name, state = _new_state(case)
    if differ_in_type(case.operands[name], state):
        raise Skip("the new state has another structure or type")
    rest = {k: v for k, v in case.operands.items() if k != name}

    def step(state: Any, rest: Any) -> Any:
        return case.state_of(case.run({name: state, **rest}))

    def loop(state: Any, rest: Any) -> Any:
        return jax.lax.scan(lambda s, _: (step(s, rest), None), state, length=3)[0]

    scanned = case.once("scan", lambda: jax.jit(loop))(case.operands[name], rest)
    state = case.operands[name]
    for _ in range(3):
        state = case.state_of(case.jitted({name: state, **rest}))
    same_as(state, scanned, "a loop of three steps and a scan", slack=10)


def _new_state(case: Call) -> tuple[str, Any]:
    """Return the name of the state among the operands, and the one that comes out.

    Only for the first structure: sizes of axes make no difference to laws about steps,
    and programs take time to compile.

    Raises:
        Skip: another structure, or no state that comes out.
    """
    state = case.state_of(case.eager)
    if case.carry is None or state is None:
        raise Skip("it returns no new state")
    if case.memo.setdefault("first", case.structure) != case.structure:
        raise Skip("only the first structure is looked at")
    return case.carry, state


@law("method", promise="the state can be donated, step after step", compiles=True)
def donation(case: Call) -> None:
    """Donate the state to a step, and its result to the next one."""
    name, state = _new_state(case)
    shared = shared_array(state, type(state).__name__)
    if shared is not None:
        raise Broken(
            shared[1],
            f"the result holds the same array as {shared[0]}: jax refuses to donate "
            f"one buffer twice.",
        )

    def step(state: Any, rest: Any) -> Any:
        return case.run({name: state, **rest})

    def make() -> Any:
        return jax.jit(step, donate_argnums=0)

    rest = {k: fresh(v) for k, v in case.operands.items() if k != name}
    donating = case.once("donate", make)
    with quietly():
        out = donating(fresh(case.operands[name]), rest)
    same_as(case.eager, out, "without donation and with it")
    after = case.state_of(out)
    if not differ_in_type(case.operands[name], after):
        try:
            donating(after, rest)
            donating(fresh(case.operands[name]), rest)
        except (ValueError, RuntimeError) as error:
            text = error_text(error)
            raise Broken("", f"the next donated step raised {text}") from error


@law("method", "host", promise="all backends agree", compiles=True)
def backends_agree(case: Call) -> None:
    """Compare the jitted call with the same on every other backend."""
    others = [device for device in case.devices.values() if device != case.device]
    if not others:
        raise Skip("one backend")
    here = case.jitted(case.operands)
    for device in others:
        with jax.default_device(device):
            there = case.jitted(jax.device_put(case.operands, device))
        text = f"on {case.device.platform} and {device.platform}"
        same_as(here, there, text, slack=10)


@law(
    "method", promise="a batch over several devices is the batch on one", compiles=True
)
def sharded(case: Call) -> None:
    """Lay a batch of the same call out over all devices, where there are several."""
    devices = jax.devices(case.device.platform)
    if len(devices) < 2:
        raise Skip("one device")
    leaves, structure = flattened(case.operands)
    if not leaves or not all(isinstance(leaf, jax.Array) for leaf in leaves):
        raise Skip("not all arguments are arrays")
    batch = structure.unflatten(stacked([leaf] * len(devices)) for leaf in leaves)
    mesh = jax.sharding.Mesh(np.array(devices), ("devices",))
    spec: Any = jax.sharding.PartitionSpec
    layout = jax.sharding.NamedSharding(mesh, spec("devices"))
    mapped = case.once("sharded", lambda: jax.jit(jax.vmap(case.run)))
    out = mapped(jax.device_put(batch, layout))
    last = len(devices) - 1
    same_as(case.eager, row(out, last), "a single call and a row on the last device")
