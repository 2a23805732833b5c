"""Poses of Gymnasium's humanoid, which stumbles, falls and lies at random controls.

A pose is the height of the torso, its orientation and the 17 joints. Place and heading
are left out, as they mean nothing on a flat floor.
"""

import importlib.resources

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from purestate.mujoco import MujocoSim

ASSETS = importlib.resources.files("gymnasium") / "envs" / "mujoco" / "assets"
# How exact a pose should be: height in m, the root's quaternion, 17 joints in radians.
SIGMA = np.array([0.02] + 4 * [0.05] + 17 * [0.1], np.float32)


def humanoid(integrator, timestep):
    """Return Gymnasium's humanoid with another integrator."""
    model = mujoco.MjModel.from_xml_path(str(ASSETS / "humanoid.xml"))
    model.opt.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{integrator}")
    model.opt.timestep = timestep
    return model


def collect(key, count, steps=100):
    """Simulate so many bodies for 1.5 s; return poses, shape `(count, 50, 22)`."""
    # As in Gymnasium: RK4, which nobody differentiates here.
    sim = MujocoSim(humanoid("RK4", 0.003), substeps=5)
    start = sim.init()

    def body(carry, key):
        states, ctrl = carry
        noise = jax.random.normal(key, ctrl.shape)
        ctrl = jnp.clip(0.8 * ctrl + 0.24 * noise, -0.4, 0.4)
        states = jax.vmap(sim.step)(states, ctrl)
        return (states, ctrl), states.qpos

    @jax.jit
    def run(key):
        first, key = jax.random.split(key)
        noise = 0.1 * jax.random.normal(first, (count, len(start.qpos)))
        states = sim.init(qpos=start.qpos + noise.at[:, :7].set(0))
        ctrl = jnp.zeros((count, len(start.ctrl)))
        _, found = jax.lax.scan(body, (states, ctrl), jax.random.split(key, steps))
        return to_pose(found[::2].swapaxes(0, 1))

    return run(key)


def to_pose(qpos):
    """Return poses, shape `(..., 22)`, of positions, shape `(..., 24)`."""
    w, x, y, z = jnp.moveaxis(qpos[..., 3:7], -1, 0)
    length = jnp.sqrt(w**2 + z**2) + 1e-6
    c, s = w / length, z / length
    turned = jnp.stack([length, c * x + s * y, c * y - s * x, 0 * z], axis=-1)
    return jnp.concatenate([qpos[..., 2:3], turned, qpos[..., 7:]], axis=-1)


def to_qpos(pose):
    """Return positions at the origin, shape `(..., 24)`."""
    return jnp.concatenate([jnp.zeros((*pose.shape[:-1], 2)), pose], axis=-1)
