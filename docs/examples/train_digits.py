"""Train a classifier of handwritten digits, with all of its state in States.

The data are the 1,797 images of 8 x 8 pixels that come with scikit-learn; a quarter of
them is held out. `TrainState.epoch` takes the model, a moving average of it, the
optimizer and the random key, and returns all of them updated; the old buffers are
donated, so that the new values can be written in their place. The average is what is
evaluated. The curves and some misread digits end up in `out/digits.png`, checkpoints in
`out/digits.run`: Ctrl-C lets an epoch end, and `--resume` goes on from there.
"""

import argparse
import pathlib
import sys

import jax
import jax.numpy as jnp
import matplotlib.figure
import numpy as np
import optax
import rich.console
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import purestate as ps
from purestate.optax import Optimizer
from showing import BLUE, INK, ORANGE, RED, forget, plain, progress, save

# --- the model -----------------------------------------------------------------------


class Dense(ps.State):
    """An affine map from vectors to vectors."""

    kernel: jax.Array
    bias: jax.Array

    def __init__(self, key, n_in, n_out):
        self.kernel = jax.nn.initializers.he_normal()(key, (n_in, n_out))
        self.bias = jnp.zeros(n_out)

    def __call__(self, x):
        return x @ self.kernel + self.bias


class MLP(ps.State):
    """Dense layers with ReLU in between, and dropout where a key is given."""

    layers: tuple[Dense, ...]
    dropout: float = ps.static()

    def __init__(self, key, sizes, dropout=0.2):
        keys = jax.random.split(key, len(sizes) - 1)
        triples = zip(keys, sizes[:-1], sizes[1:], strict=True)
        self.layers = tuple(Dense(*triple) for triple in triples)
        self.dropout = dropout

    def __call__(self, x, key=None):
        *hidden, last = self.layers
        for i, layer in enumerate(hidden):
            x = jax.nn.relu(layer(x))
            if key is not None:
                keep = 1 - self.dropout
                mask = jax.random.bernoulli(jax.random.fold_in(key, i), keep, x.shape)
                x = jnp.where(mask, x / keep, 0)
        return last(x)


# --- training ------------------------------------------------------------------------


class Metrics(ps.State):
    """Mean loss and the share of images read correctly."""

    loss: jax.Array
    accuracy: jax.Array


def make(rate, steps):
    """Return AdamW with a rate that falls; a function of this module, kept by name."""
    return optax.adamw(optax.cosine_decay_schedule(rate, steps))


class TrainState(ps.State):
    """All that changes while training, and the settings, which are static."""

    model: MLP
    ema: MLP
    opt: Optimizer
    key: jax.Array
    batch: int = ps.static()
    step: ps.Array = 0

    def __init__(self, key, steps, batch=32, rate=4e-3):
        model_key, self.key = jax.random.split(key)
        self.model = MLP(model_key, sizes=(64, 128, 128, 10))
        self.ema = jax.tree.map(jnp.copy, self.model)  # donated, each needs its own
        self.opt = Optimizer(self.model, make, rate, steps)
        self.batch = batch

    @ps.jit(donate=True)
    def epoch(self, images, labels):
        """Return the state after one pass over shuffled batches, and their metrics."""
        key, order_key = jax.random.split(self.key)
        order = jax.random.permutation(order_key, len(labels))
        order = order[: len(order) // self.batch * self.batch].reshape(-1, self.batch)

        def body(state, rows):
            return state.update(images[rows], labels[rows])

        return jax.lax.scan(body, self.replace(key=key), order)

    def update(self, images, labels):
        """Return the state after one batch, and its metrics."""
        key, dropout_key = jax.random.split(self.key)
        grad = jax.grad(measure, has_aux=True)
        grads, metrics = grad(self.model, images, labels, dropout_key)
        opt, model = self.opt.update(self.model, grads=grads)
        ema = self.ema.at(ps.floats).apply(lambda e, p: e + 0.02 * (p - e), model)
        step = self.step + 1
        return self.replace(model=model, ema=ema, opt=opt, key=key, step=step), metrics


def measure(model, images, labels, key=None):
    """Return the loss, and the metrics that go with it."""
    logits = model(images, key)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    accuracy = jnp.mean(logits.argmax(axis=-1) == labels)
    return loss, Metrics(loss=loss, accuracy=accuracy)


@jax.jit
def evaluate(model, images, labels):
    return measure(model, images, labels)[1]


# --- the run -------------------------------------------------------------------------


def main(epochs=60, out="out/digits.png", seed=0, batch=32, resume=False):
    """Train, write the picture to `out`, and return held-out accuracy and state."""
    console = rich.console.Console()
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(
        np.asarray(images, np.float32) / 16,
        np.asarray(labels, np.int32),
        test_size=0.25,
        stratify=labels,
        random_state=seed,
    )
    train_images, test_images, train_labels, test_labels = map(jnp.asarray, split)

    steps = len(train_labels) // batch * epochs
    state = TrainState(jax.random.key(seed), steps, batch)
    picture = pathlib.Path(out)
    with ps.Checkpoints(picture.with_suffix(".run"), every=10) as saves:
        if not resume:
            forget(saves)
        state, start = saves.resume(state)
        history = saves.extra or []  # what stands beside the state in its checkpoint
        with progress(console, epochs, done=start) as show:
            for epoch in range(start + 1, epochs + 1):
                state, metrics = state.epoch(train_images, train_labels)
                seen = numbers(jax.tree.map(jnp.mean, metrics))
                held_out = numbers(evaluate(state.ema, test_images, test_labels))
                history.append([seen, held_out])
                show(words(seen, held_out))
                saves.offer(epoch, state, extra=history)
        saves.save(epochs, state, extra=history)

    accuracy = history[-1][1]["accuracy"]
    console.print(ps.summary(state))
    predicted = np.asarray(state.ema(test_images).argmax(axis=-1))
    figure = draw(history, np.asarray(test_images), np.asarray(test_labels), predicted)
    save(figure, picture)
    wrong = int(np.sum(predicted != test_labels))
    print(f"held-out accuracy {accuracy:.4f}: {wrong} of {len(predicted)} are misread")
    print(f"the picture is in {out}")
    return accuracy, state


def numbers(metrics):
    return {"loss": float(metrics.loss), "accuracy": float(metrics.accuracy)}


def words(seen, held_out):
    text = "loss {:.4f}  held out: loss {:.4f}  accuracy {:.4f}"
    return text.format(seen["loss"], held_out["loss"], held_out["accuracy"])


# --- the picture ---------------------------------------------------------------------


def draw(history, images, labels, predicted):
    """Return a figure of 1800 x 630 pixels: curves, and digits that were misread."""
    figure = matplotlib.figure.Figure(figsize=(12, 4.2), dpi=150)
    curves, digits = figure.subfigures(1, 2, squeeze=False, width_ratios=(7, 5))[0]
    draw_curves(curves, history)
    wrong = np.flatnonzero(predicted != labels)
    grid = {"left": 0.02, "right": 0.96, "bottom": 0.03, "top": 0.8, "hspace": 0.35}
    places = digits.subplots(2, 4, gridspec_kw=grid).flat
    for axes, index in zip(places, wrong, strict=False):
        axes.imshow(images[index].reshape(8, 8), cmap="gray_r")
        axes.set_title(f"{labels[index]} as {predicted[index]}", color=RED, fontsize=11)
    for axes in digits.axes:
        axes.set_axis_off()
    title = f"{len(wrong)} of {len(labels)} held-out digits are misread"
    digits.text(0.03, 0.915, title, color=INK, fontsize=12)
    return figure


def draw_curves(figure, history):
    place = {"left": 0.08, "right": 0.95, "bottom": 0.14, "top": 0.88, "wspace": 0.25}
    left, right = figure.subplots(1, 2, gridspec_kw=place)
    last = len(history)
    for axes, name in ((left, "loss"), (right, "accuracy")):
        for side, color, label in ((0, BLUE, "training"), (1, ORANGE, "held out")):
            values = [metrics[side][name] for metrics in history]
            style = {"color": color, "label": label, "marker": "o", "markersize": 5}
            axes.plot(range(1, last + 1), values, markevery=[-1], **style)
        axes.set_title(name, color=INK, loc="left", fontsize=12)
        axes.set_xlabel("epoch", color=INK)
        plain(axes)
        axes.set_xlim(0, 1.04 * last)
    left.set_yscale("log")
    left.yaxis.set_minor_formatter("")
    left.legend(frameon=False, labelcolor=INK)
    lowest = min(held_out["accuracy"] for _, held_out in history)
    right.set_ylim(max(lowest - 0.02, 0), 1.004)
    right.text(
        0.97,
        0.4,
        f"{history[-1][1]['accuracy']:.1%}",
        color=ORANGE,
        fontsize=26,
        ha="right",
        transform=right.transAxes,
    )


def parse():
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--out", default="out/digits.png", help="the picture")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="go on from a checkpoint")
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error("--epochs must be at least 1")
    return vars(options)


if __name__ == "__main__":
    try:
        main(**parse())
    except KeyboardInterrupt as stop:
        sys.exit(f"{str(stop) or 'interrupted'}: go on with --resume")
