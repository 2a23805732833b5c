"""Short text for a State: names, dtypes and shapes, never the numbers.

How it is laid out is told in `printer`, which is only imported when something is
printed: the library behind it costs a sixth of the import of purestate.
"""

from typing import Any

_WIDTH = 88


def pformat(state: Any, values: bool = False, *, width: int = _WIDTH) -> str:
    """Return short text for a State, or for a tree of States, arrays and containers.

    Args:
        state: what to show.
        values: whether to show the numbers of arrays instead of dtype and shape.
        width: the line length to aim for.

    >>> import jax.numpy as jnp, purestate as ps
    >>> ps.pformat({"w": jnp.ones((2, 3)), "b": jnp.zeros(3, jnp.bfloat16)})
    "{'w': f32[2,3], 'b': bf16[3]}"
    """
    from purestate._inspect.printer import printed

    try:
        return printed(state, values, width)
    except Exception as error:  # noqa: BLE001  # whatever a foreign object raises
        return f"<{type(state).__name__}: its repr raised {type(error).__name__}>"
