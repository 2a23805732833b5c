"""Train a VAE of humanoid poses, with MuJoCo inside the training step.

    python docs/examples/vae_humanoid.py

The poses are those of Gymnasium's humanoid under random controls. A VAE that compares
numbers alone decodes poses that look right, but some hold a hand in the floor or an
elbow against its limit: let go in the simulator, the body is thrown about. So the last
part of the training sets each decoded pose into MuJoCo, steps it for 20 ms and asks for
the velocities that the original pose would have, all in one jitted and differentiated
function. A second run trains as long without the simulator, for comparison. The curves,
and the poses as drawn bodies, end up in `out/humanoid.png`.
"""

import argparse
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import rich.console
import rich.table

import purestate as ps
from poses import SIGMA, collect, humanoid, to_qpos
from purestate.mujoco import MujocoSim
from showing import progress, save
from skeletons import THROWN, draw

# --- the model -----------------------------------------------------------------------


class MLP(ps.State):
    """Dense layers with SiLU in between."""

    kernels: tuple[jax.Array, ...]
    biases: tuple[jax.Array, ...]

    def __init__(self, key, sizes):
        make = jax.nn.initializers.he_normal()
        keys = jax.random.split(key, len(sizes) - 1)
        shapes = zip(keys, sizes[:-1], sizes[1:], strict=True)
        self.kernels = tuple(make(key, shape) for key, *shape in shapes)
        self.biases = tuple(jnp.zeros(size) for size in sizes[1:])

    def __call__(self, x):
        *hidden, last = zip(self.kernels, self.biases, strict=True)
        for kernel, bias in hidden:
            x = jax.nn.silu(x @ kernel + bias)
        return x @ last[0] + last[1]


class VAE(ps.State):
    """An autoencoder of poses with a normal distribution in the middle.

    Attributes:
        limits: the lower and upper limits of the joints, in radians.
    """

    encoder: MLP
    decoder: MLP
    limits: tuple[tuple[float, ...], tuple[float, ...]] = ps.static(repr=False)

    def __init__(self, key, limits, latent=16, width=256):
        keys = jax.random.split(key)
        size = len(SIGMA)
        self.encoder = MLP(keys[0], (size, width, width, 2 * latent))
        self.decoder = MLP(keys[1], (latent, width, width, size))
        self.limits = limits

    def encode(self, pose):
        """Return mean and logarithmic standard deviation."""
        return jnp.split(self.encoder(pose), 2, axis=-1)

    def decode(self, z):
        """Return poses that MuJoCo can step, whatever `z` is.

        Heights are positive, quaternions of unit length, and joints within limits.
        """
        height, root, joints = jnp.split(self.decoder(z), (1, 5), axis=-1)
        root = root + jnp.array([1.0, 0.0, 0.0, 0.0])
        root = root / jnp.linalg.norm(root, axis=-1, keepdims=True)
        low, high = map(jnp.array, self.limits)
        joints = (low + high) / 2 + (high - low) / 2 * jnp.tanh(joints)
        return jnp.concatenate([jax.nn.softplus(height), root, joints], axis=-1)

    def __call__(self, pose):
        return self.decode(self.encode(pose)[0])


# --- training ------------------------------------------------------------------------


class Metrics(ps.State):
    """Means over a batch.

    Attributes:
        vae: reconstruction and Kullback-Leibler divergence, the loss of a plain VAE.
        physics: 0 where decoded poses move as the original ones do.
    """

    vae: jax.Array
    physics: jax.Array


def fall(sim, pose):
    """Return the velocities of bodies that were let go in these poses."""
    # Here is the `data.qpos[:] = x` that cannot be written in a jitted function.
    return jax.vmap(sim.step)(sim.init(qpos=to_qpos(pose))).qvel


def measure(model, sim, pose, key, weight):
    """Return the loss, and the metrics that go with it."""
    mean, log_std = model.encode(pose)
    z = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
    decoded = model.decode(z)
    error = 0.5 * jnp.sum(((decoded - pose) / SIGMA) ** 2, axis=-1)
    divergence = jnp.sum(0.5 * (mean**2 + jnp.exp(2 * log_std) - 1) - log_std, axis=-1)
    vae = jnp.mean(error + divergence)
    # A static weight: at zero the simulator is not even in the program.
    physics = physics_loss(sim, decoded, pose) if weight else jnp.zeros(())
    return vae + weight * physics, Metrics(vae=vae, physics=physics)


def physics_loss(sim, decoded, pose):
    """Return how much faster, or otherwise, a decoded pose moves than the original."""
    change = fall(sim, decoded) - jax.lax.stop_gradient(fall(sim, pose))
    # Linear where it is large: a foot in the floor gives thousands of m/s^2.
    return jnp.mean(jnp.sqrt(1 + jnp.sum(change**2, axis=-1)) - 1)


class TrainState(ps.State):
    """All that changes while training, and the settings, which are static."""

    model: VAE
    opt: optax.OptState
    key: jax.Array
    sim: MujocoSim = ps.static()
    weight: float = ps.static()
    rate: float = ps.static()
    batch: int = ps.static()
    epochs: int = ps.static()
    steps: int = ps.static()

    def __init__(self, key, model, sim, weight, rate, batch, epochs, steps):
        self.key, self.model, self.sim = key, model, sim
        self.weight, self.rate, self.batch = weight, rate, batch
        self.epochs, self.steps = epochs, steps
        self.opt = self.optimizer.init(model)

    @property
    def optimizer(self):
        schedule = optax.cosine_decay_schedule(self.rate, self.epochs * self.steps)
        # Contacts are stiff: a few gradients are a hundred times larger than the rest.
        return optax.chain(optax.clip_by_global_norm(100.0), optax.adam(schedule))

    @ps.jit
    def epoch(self, poses):
        """Return the state after some random batches, and their mean metrics."""
        body = lambda state, _: state.update(poses)  # noqa: E731
        state, metrics = jax.lax.scan(body, self, None, length=self.steps)
        return state, jax.tree.map(jnp.mean, metrics)

    def update(self, poses):
        """Return the state after one batch, and its metrics."""
        key, batch_key, noise_key = jax.random.split(self.key, 3)
        pose = jax.random.choice(batch_key, poses, (self.batch,))
        grad = jax.grad(measure, has_aux=True)
        grads, metrics = grad(self.model, self.sim, pose, noise_key, self.weight)
        updates, opt = self.optimizer.update(grads, self.opt, self.model)
        model = optax.apply_updates(self.model, updates)
        return self.replace(model=model, opt=opt, key=key), metrics


# --- the run -------------------------------------------------------------------------


class Score(ps.State):
    """What decoded poses are like, each compared with its original.

    Attributes:
        degrees: mean error of the joints.
        physics: the physics loss.
    """

    degrees: jax.Array
    physics: jax.Array


@ps.jit(static_argnames="sim")
def evaluate(model, sim, poses):
    decoded = model(poses)
    degrees = jnp.mean(jnp.rad2deg(jnp.abs(decoded - poses)[:, 5:]))
    return Score(degrees=degrees, physics=physics_loss(sim, decoded, poses))


@ps.jit(static_argnames=("sim", "frames"))
def film(sim, poses, frames=6):
    """Return what is observed of bodies let go, and how far they rise, in metres."""

    def body(states, _):
        seen = jax.vmap(sim.observe)(states)
        return jax.vmap(sim.step)(states), (seen, states.qpos[:, 2])

    start = sim.init(qpos=to_qpos(poses))
    _, (seen, height) = jax.lax.scan(body, start, None, length=frames)
    return seen, jnp.max(height, axis=0) - height[0]


def train(state, poses, held_out, show):
    """Return the state after its epochs, and the metrics and scores of each."""
    history = []
    for _ in range(state.epochs):
        state, metrics = state.epoch(poses)
        score = evaluate(state.model, state.sim, held_out)
        history.append((metrics, score))
        numbers = (metrics.vae, score.degrees, score.physics)
        text = "VAE loss {:6.1f}  held out: {:5.2f} degrees, physics {:5.2f}"
        show(text.format(*map(float, numbers)))
    return state, history


def main(short=False, out="out/humanoid.png", seed=0):
    """Train, write the picture to `out`, and return the history of the three runs."""
    console = rich.console.Console()
    keys = jax.random.split(jax.random.key(seed), 4)
    bodies, unseen = (64, 4) if short else (640, 16)
    first, more = (5, 80), (3, 4)  # epochs, and steps in each
    if not short:
        first, more = (20, 400), (20, 16)

    poses = collect(keys[0], bodies)
    # Whole simulations are held out: poses of the same one resemble each other.
    parts = poses[:unseen], poses[unseen:]
    held_out, poses = (part.reshape(-1, len(SIGMA)) for part in parts)
    print(f"{bodies} bodies were simulated: {len(poses)} poses to learn from")

    # Implicit in the velocities, since RK4 has no derivatives in MuJoCo, and so stable
    # that it can take steps of 5 ms: a gradient costs as much as a hundred steps.
    physics = humanoid("IMPLICITFAST", 0.005)
    sim = MujocoSim(physics, substeps=4)
    limits = tuple(map(tuple, physics.jnt_range[1:].T.tolist()))
    model = VAE(keys[1], limits)
    state = TrainState(keys[2], model, sim, 0.0, 2e-3, 128, *first)
    history, decoded = {}, {}
    with progress(console, first[0] + 2 * more[0]) as show:
        state, history["before"] = train(state, poses, held_out, show)
        for name, weight in (("without", 0.0), ("with", 20.0)):
            branch = TrainState(keys[3], state.model, sim, weight, 5e-4, 32, *more)
            branch, history[name] = train(branch, poses, held_out, show)
            decoded[name] = branch.model(held_out)

    camera = MujocoSim(physics, substeps=10, observe=("geom_xpos", "geom_xmat"))
    shown = {"held out": held_out, **decoded}
    films = {name: film(camera, pose) for name, pose in shown.items()}
    console.print(table(history, films))
    save(draw(physics, history, films), pathlib.Path(out))
    print(f"the picture is in {out}")
    return history


def table(history, films):
    """Return a table of what the simulator in the loss has changed."""
    found = rich.table.Table(title="held-out poses", title_justify="left")
    found.add_column("")
    for name in ("originals", "without physics", "with physics"):
        found.add_column(name, justify="right")
    last = [history[name][-1][1] for name in ("without", "with")]
    risen = [np.mean(rise > THROWN) for _, rise in films.values()]
    found.add_row("error of joints", "", *(f"{score.degrees:.2f}°" for score in last))
    found.add_row("physics loss", "0", *(f"{score.physics:.2f}" for score in last))
    found.add_row("thrown up by 5 cm", *(f"{share:.1%}" for share in risen))
    return found


def failures(history):
    """Return which losses did not go down."""
    first, last = history["before"][0][0], history["before"][-1][0]
    start = history["before"][-1][1].physics
    end = history["with"][-1][1].physics
    found = {"VAE loss": last.vae < first.vae, "physics loss": end < start}
    return [name for name, is_lower in found.items() if not is_lower]


def parse():
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="seconds, not minutes")
    parser.add_argument("--out", default="out/humanoid.png", help="the picture")
    parser.add_argument("--seed", type=int, default=0)
    return vars(parser.parse_args())


if __name__ == "__main__":
    try:
        if wrong := failures(main(**parse())):
            sys.exit(f"did not go down: {', '.join(wrong)}")
    except KeyboardInterrupt:
        sys.exit("interrupted: no picture was written")
