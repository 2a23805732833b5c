"""Which donated buffers jax could not reuse, by field."""

import dataclasses
import warnings
from typing import Any

import jax
import jax.numpy as jnp

from purestate._compat import UNUSED_DONATION, untyped_jax
from purestate._inspect.donations import explaining_deleted
from purestate._inspect.key_paths import path_text
from purestate._inspect.repr import pformat
from purestate._schema.text import root_name
from purestate._transforms.consumed import was_deleted


@dataclasses.dataclass(frozen=True)
class DonationReport:
    """What became of the buffers of a donated State.

    Attributes:
        unused: leaves whose buffer was not reused, by path, with dtype and shape.
        reused: how many leaves were.
        bytes_unused: the size of the former.
    """

    unused: dict[str, str]
    reused: int
    bytes_unused: int

    def __bool__(self) -> bool:
        return bool(self.unused)

    def __str__(self) -> str:
        if not self.unused:
            return f"all {self.reused} donated buffers were reused"
        lines = [f"{path}: {what}" for path, what in self.unused.items()]
        return "\n".join(["donated, but not reused:", *lines])


@explaining_deleted()
def donation_report(fn: Any, state: Any, *args: Any, **kwargs: Any) -> DonationReport:
    """Return which donated leaves of a State were not reused in a call.

    A buffer can be reused for a result of the same shape and dtype. The call is made,
    with a copy of the State: the one that is given stays as it is.

    Args:
        fn: a jitted function that donates its first argument.
        state: its first argument.
        *args: its other arguments.
        **kwargs: likewise.

    >>> import jax, jax.numpy as jnp, purestate as ps
    >>> class S(ps.State):
    ...     big: jax.Array
    ...     y: jax.Array
    >>> @ps.jit(donate=True)
    ... def step(s):
    ...     return {"big": s.big.sum(), "state": s.replace(big=None, y=s.y + 1)}
    >>> print(ps.donation_report(step, S(big=jnp.ones((8, 8)), y=jnp.ones(3))))
    donated, but not reused:
    S.big: f32[8,8]
    """
    leaves, structure = jax.tree.flatten_with_path(state)
    copies = [
        jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf for _, leaf in leaves
    ]
    with warnings.catch_warnings():  # jax's own says the same, without names
        warnings.filterwarnings("ignore", UNUSED_DONATION)
        out = fn(jax.tree.unflatten(structure, copies), *args, **kwargs)
        untyped_jax.block_until_ready(out)
    root = root_name(state)
    unused, size, reused = {}, 0, 0
    for (path, _), leaf in zip(leaves, copies, strict=True):
        if was_deleted(leaf):
            reused += 1
        elif isinstance(leaf, jax.Array):
            unused[path_text(path, root)] = pformat(leaf)
            size += leaf.nbytes
    return DonationReport(unused, reused, size)
