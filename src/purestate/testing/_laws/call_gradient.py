"""Laws of derivatives: forward and reverse mode agree with finite differences.

Only where there is a derivative: at a kink or a jump one-sided differences disagree, or
a smaller step gives something else, and such elements are left out.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from purestate._compat import NO_DERIVATIVE
from purestate._inspect.key_paths import path_text
from purestate.errors import HostGradError
from purestate.testing._cases.call import Call
from purestate.testing._laws.law import Broken, Skip, law
from purestate.testing._trees.leaves import flattened, is_real

# Relative steps: the error of differences is the sum of a curvature and a rounding
# error. With float64, JAX computes both to many more digits.
_STEP = {"float32": 2.0**-5, "float64": 2.0**-12}
_TOLERANCE = {"float32": 2e-2, "float64": 1e-5}


@dataclasses.dataclass
class _Problem:
    """A call as a function of its floating-point arguments.

    Attributes:
        of: the floating-point results as a function of the arguments.
        at: the arguments.
        along: a direction.
        paths: the places of the results.
        dtype: the coarsest dtype among the arguments.
    """

    of: Callable[..., Any]
    rest: Any
    at: list[Any]
    along: list[Any]
    paths: list[str]
    dtype: str

    def moved(self, step: float) -> list[Any]:
        """Return the arguments at a distance along the direction."""
        pairs = zip(self.at, self.along, strict=True)
        return [(np.asarray(x) + step * d).astype(x.dtype) for x, d in pairs]

    def values(self, step: float) -> list[Any]:
        """Return the results there, in double precision."""
        found = self.of(self.moved(step), self.rest)
        return [np.asarray(value, np.float64) for value in found]


@law(
    "method",
    "host",
    promise="forward-mode derivatives are the limit of differences",
    compiles=True,
)
def jvp(case: Call) -> None:
    """Compare `jax.jvp` with central differences, element by element."""
    problem = _problem(case)

    def derivative(at: Any, rest: Any, along: Any) -> Any:
        return jax.jvp(lambda x: problem.of(x, rest), (at,), (along,))[1]

    jitted = case.once("jvp", lambda: jax.jit(derivative))
    slopes = _offered(lambda: jitted(problem.at, problem.rest, problem.along))
    for path, slope, (expected, allowed, smooth) in zip(
        problem.paths, slopes, _differences(problem), strict=True
    ):
        found = np.asarray(slope, np.float64)
        wrong = smooth & ~(np.abs(found - expected) <= allowed)
        if wrong.any():
            index = tuple(int(i) for i in np.argwhere(wrong)[0])
            place = f"{path}[{', '.join(map(str, index))}]" if index else path
            raise Broken(
                place,
                f"by differences the derivative is {expected[index]:.6g}, by jax.jvp "
                f"{found[index]:.6g}.",
            )


@law(
    "method",
    "host",
    promise="reverse-mode derivatives are the limit of differences",
    compiles=True,
)
def grad(case: Call) -> None:
    """Compare `jax.vjp` with central differences along one direction."""
    problem = _problem(case)

    def derivative(at: Any, rest: Any, weights: Any) -> Any:
        return jax.vjp(lambda x: problem.of(x, rest), at)[1](weights)[0]

    differences = _differences(problem)
    values = problem.of(problem.at, problem.rest)
    random = np.random.default_rng(1)
    weights = [
        (random.uniform(0.5, 1.0, np.shape(v)) * smooth).astype(v.dtype)
        for v, (_, _, smooth) in zip(values, differences, strict=True)
    ]
    jitted = case.once("grad", lambda: jax.jit(derivative))
    slopes = _offered(lambda: jitted(problem.at, problem.rest, weights))
    expected, allowed = 0.0, 0.0
    for weight, (difference, error, smooth) in zip(weights, differences, strict=True):
        expected += float(np.sum(weight * np.where(smooth, difference, 0.0)))
        allowed += float(np.sum(np.where(smooth, error, 0.0)))
    found = sum(
        float(np.sum(np.asarray(slope, np.float64) * along))
        for slope, along in zip(slopes, problem.along, strict=True)
    )
    if not abs(found - expected) <= allowed + 1e-30:
        places = ", ".join(problem.paths)
        raise Broken(
            problem.paths[0] if len(problem.paths) == 1 else "",
            f"by differences the derivative of {places} is {expected:.6g}, by jax.vjp "
            f"{found:.6g}.",
        )


def _offered(derivative: Callable[[], Any]) -> Any:
    """Return a derivative, if there is one."""
    try:
        return derivative()
    except HostGradError as error:
        raise Skip("it has no derivative") from error
    except (TypeError, ValueError, NotImplementedError) as error:
        if any(part in str(error) for part in NO_DERIVATIVE):
            raise Skip(f"jax offers none: {str(error)[:80]}") from error
        raise


def _problem(case: Call) -> _Problem:
    leaves, structure = flattened(case.operands)
    where = [
        i
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, jax.Array)
        and str(leaf.dtype) in _STEP
        and np.all(np.isfinite(leaf))
        and leaf.size
    ]
    results = jax.tree_util.tree_leaves_with_path(case.eager)
    outs = [i for i, (_, v) in enumerate(results) if is_real(v) and hasattr(v, "dtype")]
    if not where or not outs:
        raise Skip("no floating-point arguments or results")
    # Arrays that are not moved are arguments too: nothing depends on the example.
    rest = [None if i in where else leaf for i, leaf in enumerate(leaves)]

    def of(at: Any, rest: Any) -> Any:
        values = list(rest)
        for i, value in zip(where, at, strict=True):
            values[i] = value
        found = jax.tree.leaves(case.jitted(structure.unflatten(values)))
        return [found[i] for i in outs]

    random = np.random.default_rng(0)
    at = [leaves[i] for i in where]
    along = [
        (random.uniform(0.5, 1.0, x.shape) * random.choice([-1, 1], x.shape)).astype(
            x.dtype
        )
        for x in at
    ]
    root = type(case.eager).__name__ if hasattr(case.eager, "replace") else "result"
    paths = [path_text(results[i][0], root) for i in outs]
    dtype = "float32" if any(x.dtype == np.float32 for x in at) else "float64"
    return _Problem(of, rest, at, along, paths, dtype)


def _differences(problem: _Problem) -> list[tuple[Any, Any, Any]]:
    """Return per result the derivative, how wrong it may be, and where it exists."""
    step, tolerance = _STEP[problem.dtype], _TOLERANCE[problem.dtype]
    middle = problem.values(0.0)
    steps = (step, -step, step / 2, -step / 2)
    ahead, behind, near, close = (problem.values(h) for h in steps)
    found = []
    for m, a, b, c, d in zip(middle, ahead, behind, near, close, strict=True):
        with np.errstate(all="ignore"):
            wide, narrow = (a - b) / (2 * step), (c - d) / step
            expected = (4 * narrow - wide) / 3
            spread = np.abs(expected - narrow)
            # What is left of the bend at a step of zero: nothing, but for a kink.
            bend = (4 * (c - 2 * m + d) - (a - 2 * m + b)) / step
            scale = np.maximum(1.0, np.maximum(np.abs(expected), np.abs(m)))
            smooth = (spread <= tolerance * scale) & (np.abs(bend) <= tolerance * scale)
            smooth &= np.isfinite(expected)
        found.append((expected, 4 * spread + tolerance * scale, smooth))
    if not any(smooth.any() for _, _, smooth in found):
        raise Skip("no derivative exists at the examples")
    return found
