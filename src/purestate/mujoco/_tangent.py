"""Positions and their tangent space: quaternions have four numbers and three degrees.

MuJoCo differentiates in tangent space, where a change of orientation is a rotation
vector in the body's own frame [1]; jax differentiates with respect to the numbers in
`qpos`. A step first normalizes a quaternion, so its length has no influence.

[1] Sola, Deray, Atchuthan, "A micro Lie theory for state estimation in robotics",
    arXiv:1812.01537, section IV.
"""

from typing import Any

import numpy as np

from purestate.mujoco._package import mujoco

Array = np.ndarray[Any, Any]


class Tangent:
    """The tangent space of a model's positions."""

    def __init__(self, model: Any) -> None:
        self._nq, self._nv = int(model.nq), int(model.nv)
        # Compared as ints: `np.int32(0) == mjJNT_FREE` holds, the reverse does not, so
        # that with `in` no quaternion would be found, and its gradient be zero.
        free, ball = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)
        self._quaternions: list[tuple[int, int]] = []
        flat_q: list[int] = []
        flat_v: list[int] = []
        for kind, q, v in zip(
            model.jnt_type.tolist(),
            model.jnt_qposadr.tolist(),
            model.jnt_dofadr.tolist(),
            strict=True,
        ):
            if kind == free:
                flat_q += range(q, q + 3)
                flat_v += range(v, v + 3)
                self._quaternions.append((q + 3, v + 3))
            elif kind == ball:
                self._quaternions.append((q, v))
            else:
                flat_q.append(q)
                flat_v.append(v)
        self._flat = flat_q, flat_v

    def to_velocities(self, qpos: Array) -> Array:
        """Return the map from a change of `qpos` to the tangent space, `(nv, nq)`."""
        found = np.zeros((self._nv, self._nq))
        found[self._flat[1], self._flat[0]] = 1.0
        for q, v in self._quaternions:
            quaternion = qpos[q : q + 4]
            square = quaternion @ quaternion
            if square > 0:  # MuJoCo takes a zero quaternion as no rotation
                block = 2 * _columns(quaternion).T / square
                found[v : v + 3, q : q + 4] = block
        return found

    def to_positions(self, qpos: Array) -> Array:
        """Return the map from the tangent space to a change of `qpos`, `(nq, nv)`."""
        found = np.zeros((self._nq, self._nv))
        found[self._flat[0], self._flat[1]] = 1.0
        for q, v in self._quaternions:
            found[q : q + 4, v : v + 3] = _columns(qpos[q : q + 4]) / 2
        return found


def _columns(quaternion: Array) -> Array:
    """Return the products of a quaternion with i, j and k, `(4, 3)`."""
    w, x, y, z = quaternion
    return np.array([[-x, -y, -z], [w, -z, y], [z, w, -x], [-y, x, w]])
