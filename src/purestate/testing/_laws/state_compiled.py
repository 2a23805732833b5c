"""Laws of States inside of jit, vmap, grad and scan: the class comes out again."""

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purestate._compat import untyped_jax
from purestate._host.function import host_function
from purestate._inspect.key_paths import path_text
from purestate._transforms.grad import grad
from purestate._transforms.jit import jit as donated
from purestate.errors import ConsumedStateError
from purestate.errors._text import error_text
from purestate.testing._cases.donated import arrays_of, quietly, shared_array
from purestate.testing._cases.fresh import fresh
from purestate.testing._cases.outside import of_class, tracers_of
from purestate.testing._cases.state import REFUSED, StateCase
from purestate.testing._laws.law import Broken, law, same_as
from purestate.testing._strategies.construct import ABSENT, parameters
from purestate.testing._trees.leaves import (
    differ_in_type,
    flattened,
    is_numeric,
    is_real,
    stacked,
)


class _Counted:
    """The identity, and how often it was traced."""

    def __init__(self) -> None:
        self.traces = 0
        self.seen: list[Any] = []
        self.jitted: Any = jax.jit(self.run)

    def run(self, state: Any) -> Any:
        self.traces += 1
        return state


@law("state", promise="jit returns what it was given", compiles=True)
def jit(case: StateCase) -> None:
    """Send an instance through jit."""
    if is_numeric(case.state):
        out = case.once("identity", _Counted).jitted(case.state)
        same_as(case.state, out, "before and after jit")


@law("state", promise="jit traces once for instances of one structure", compiles=True)
def one_trace(case: StateCase) -> None:
    """Count traces, for copies and instances that differ in values only."""
    if not is_numeric(case.state):
        return
    identity = case.once("identity", _Counted)
    leaves, structure = flattened(case.state)
    twin = case.made.again()
    for instance in (case.state, structure.unflatten(leaves), twin):
        is_new = all(differ_in_type(instance, old) for old in identity.seen)
        before = identity.traces
        identity.jitted(instance)
        if identity.traces > before and not is_new:
            raise Broken("", "jit traced again although nothing but values differs.")
        if is_new:
            identity.seen.append(instance)


@law("state", promise="vmap over a batch returns the batch", compiles=True)
def vmap(case: StateCase) -> None:
    """Map the identity over two copies."""
    if not is_numeric(case.state) or not jax.tree.leaves(case.state):
        return
    batch = jax.tree.map(lambda leaf: stacked([leaf] * 2), case.state)
    run = case.once("vmap", lambda: jax.jit(jax.vmap(lambda s: s)))
    same_as(batch, run(batch), "before and after vmap")


@law("state", promise="scan carries an instance unchanged", compiles=True)
def scan(case: StateCase) -> None:
    """Carry an instance through two empty steps."""
    if not is_numeric(case.state):
        return

    def run(state: Any) -> Any:
        return jax.lax.scan(lambda s, _: (s, None), state, length=2)[0]

    out = case.once("scan", lambda: jax.jit(run))(case.state)
    same_as(case.state, out, "before and after scan")


@law(
    "state",
    promise="the gradient of a sum of leaves is one, in the class",
    compiles=True,
)
def gradient(case: StateCase) -> None:
    """Differentiate the sum of all floating-point leaves."""
    if not case.is_state or not is_numeric(case.state):
        return

    def total(state: Any) -> Any:
        leaves = [x for x in jax.tree.leaves(state) if is_real(x)]
        return sum(jnp.sum(x.astype(jnp.float32)) for x in map(jnp.asarray, leaves))

    if not any(map(is_real, jax.tree.leaves(case.state))):
        return
    found = case.once("grad", lambda: jax.jit(grad(total)))(case.state)
    if type(found) is not case.cls:
        raise Broken("", f"the gradient is a {type(found).__name__}.")
    for path, slope in jax.tree_util.tree_leaves_with_path(found):
        if is_real(slope) and not np.all(np.asarray(slope, np.float64) == 1):
            raise Broken(path_text(path, case.root), f"the gradient is {slope}, not 1.")


@law("state", promise="a donated instance takes no other one with it", compiles=True)
def donation(case: StateCase) -> None:
    """Donate one of two instances with the same arguments and the same defaults."""
    if not is_numeric(case.state):
        return
    fields = case.drawing.fields or {}
    known = parameters(case.cls)
    given = {
        name: value
        for name, value in case.made.given.items()
        if known[name].default is ABSENT or name in fields
    }
    one, other = (
        case.tried(lambda: case.cls(**fresh(given))),
        case.tried(lambda: case.cls(**fresh(given))),
    )
    if one is REFUSED or other is REFUSED:
        return
    shared = shared_array(one, case.root)
    if shared is not None:
        raise Broken(
            shared[1],
            f"it is the same array as {shared[0]}: jax refuses to donate one buffer "
            f"twice.",
        )
    held = {id(leaf) for _, leaf in arrays_of(one, case.root)}
    for place, leaf in arrays_of(other, case.root):
        if id(leaf) in held:
            raise Broken(
                place,
                "two instances hold the same array: donating one deletes it in the "
                "other. Copy it when an instance is made.",
            )
    run = case.once("donate", lambda: jax.jit(_again, donate_argnums=0))
    expected = fresh(one)
    with quietly():
        out = run(one)
    for place, leaf in arrays_of(other, case.root):
        if leaf.is_deleted():
            raise Broken(place, "donating one instance deleted it in another one.")
    same_as(expected, out, "before and after a donated call")


@law(
    "state",
    promise="an instance that was donated to a call that failed is whole, or says so",
    compiles=True,
)
def failed_donation(case: StateCase) -> None:
    """Donate to a call that raises while it is traced, and to one that raises later."""
    if not case.is_state or not is_numeric(case.state):
        return
    if not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(case.state)):
        return
    if differ_in_type(case.once("first", lambda: case.state), case.state):
        return  # programs take time to compile
    for step in (_raises_in_the_trace, _raises_in_the_program):
        state = fresh(case.state)
        donating: Any = case.once(step, functools.partial(donated, step, donate=True))
        with quietly(), contextlib.suppress(_Failed):
            untyped_jax.block_until_ready(donating(state))
        try:
            same_as(case.state, state, "before and after a failure", exact=True)
        except ConsumedStateError:
            continue
        except RuntimeError as error:
            raise Broken(
                "",
                f"it was donated to a call that failed, and says of it no more than "
                f"{error_text(error)}",
            ) from error


class _Failed(Exception):
    """What a donated call raises on purpose."""


def _raises_in_the_trace(state: Any) -> Any:
    raise _Failed


def _raises_in_the_program(state: Any) -> Any:
    return _again(state), _fail(jnp.zeros(()))


def _fail_on_the_host(x: Any) -> Any:
    raise _Failed


_fail = host_function(_fail_on_the_host, out=lambda x: x)


def _again(state: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf, state)


@law(
    "state",
    promise="constructing inside of jit gives the same, and leaks nothing",
    compiles=True,
)
def constructs_in_jit(case: StateCase) -> None:
    """Construct from traced arguments."""
    leaves, structure = flattened(dict(case.made.given))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    if not is_numeric(case.state) or not where:
        return

    def make(arrays: Any) -> Any:
        values = list(leaves)
        for i, array in zip(where, arrays, strict=True):
            values[i] = array
        return case.cls(**structure.unflatten(values))

    arrays = [leaves[i] for i in where]

    def checked() -> bool:
        with jax.checking_leaks():
            jax.eval_shape(lambda arrays: make(arrays), arrays)
        return True

    try:
        out: Any = jax.eval_shape(make, arrays)
        for place in tracers_of(of_class(case.cls)):
            raise Broken(place, "a tracer was left there.")
        case.once("leaks", checked)  # it takes long
    except Broken:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {str(error)[:500]}"
        raise Broken("", f"{case.root}(...) under jax raised {text}") from error
    if differ_in_type(case.state, out):
        raise Broken("", f"outside it is {case.state!r}, inside of jit {out!r}.")


@law("state", promise="a batch over several devices is the batch on one", compiles=True)
def sharded(case: StateCase) -> None:
    """Lay a batch out over all devices of the backend, where there are several."""
    devices = jax.devices(case.device.platform)
    arrays = all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(case.state))
    if len(devices) < 2 or not arrays or not jax.tree.leaves(case.state):
        return
    mesh = jax.sharding.Mesh(np.array(devices), ("devices",))
    spec: Any = jax.sharding.PartitionSpec
    layout = jax.sharding.NamedSharding(mesh, spec("devices"))
    count = len(devices)
    batch: Any = jax.tree.map(lambda leaf: stacked([leaf] * count), case.state)
    laid_out = jax.device_put(batch, layout)
    run = case.once("vmap", lambda: jax.jit(jax.vmap(lambda s: s)))
    out = run(laid_out)
    same_as(batch, out, "on one device and on several")
    for path, leaf in jax.tree_util.tree_leaves_with_path(out):
        if len(leaf.sharding.device_set) != count:
            raise Broken(
                path_text(path, case.root), f"it came back on {leaf.sharding}."
            )
