"""Train a small transformer that writes the documentation of Python, byte by byte.

The text is on every machine: the docstrings of some modules of the standard library.
Whole modules are held out. `Train.steps` takes the model, its optimizer and the random
key, makes many training steps in one compiled call, and returns all of them updated.
At the end the bits per byte of the held-out text stand next to those of counted bytes,
of counted pairs of bytes and of zlib, and the model writes a text of its own.
Checkpoints are in `out/charlm`: Ctrl-C lets a call end, `--resume` goes on from there.
"""

import argparse
import ast
import pathlib
import sys
import sysconfig
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import rich.console

import purestate as ps
from purestate.optax import Optimizer
from showing import forget, progress

# --- the text ------------------------------------------------------------------------

READ = """asyncio bdb collections configparser contextlib difflib doctest email
encodings enum fractions ftplib html http imaplib importlib inspect ipaddress json
logging mailbox multiprocessing optparse pdb pickletools platform pydoc re sched
selectors smtplib socket socketserver ssl statistics string subprocess tarfile threading
traceback turtle typing unittest urllib wsgiref xml xmlrpc zipfile"""
HELD_OUT = "argparse heapq random shutil tempfile textwrap uuid"
VOCABULARY = 128


def docstrings(modules):
    """Return the docstrings of modules of the standard library, as ASCII bytes."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    patterns = [name + end for name in modules.split() for end in (".py", "/*.py")]
    paths = [path for pattern in patterns for path in sorted(library.glob(pattern))]
    trees = (ast.parse(path.read_bytes()) for path in paths)
    nodes = (node for tree in trees for node in ast.walk(tree))
    texts = [ast.get_docstring(node) for node in nodes if isinstance(node, kinds)]
    joined = "\n\n".join(filter(None, texts)).encode("ascii", "replace")
    return np.frombuffer(joined, np.uint8)


# --- the model -----------------------------------------------------------------------


def normal(key, *shape):
    return 0.02 * jax.random.normal(key, shape)


class Norm(ps.State):
    """A layer norm without a shift."""

    scale: jax.Array

    def __init__(self, width):
        self.scale = jnp.ones(width)

    def __call__(self, x):
        return self.scale * jax.nn.standardize(x)


class Block(ps.State):
    """Causal attention, then two dense layers, each added to what it was given."""

    before_attention: Norm
    before_mlp: Norm
    queries_keys_values: jax.Array
    mix: jax.Array
    up: jax.Array
    down: jax.Array
    heads: int = ps.static()

    def __init__(self, key, width, heads):
        keys = jax.random.split(key, 4)
        self.before_attention, self.before_mlp = Norm(width), Norm(width)
        self.queries_keys_values = normal(keys[0], width, 3 * width)
        self.mix = normal(keys[1], width, width)
        self.up = normal(keys[2], width, 4 * width)
        self.down = normal(keys[3], 4 * width, width)
        self.heads = heads

    def __call__(self, x):
        x = x + self.attention(self.before_attention(x))
        return x + jax.nn.gelu(self.before_mlp(x) @ self.up) @ self.down

    def attention(self, x):
        heads = (x @ self.queries_keys_values).reshape(*x.shape[:2], self.heads, -1)
        q, k, v = jnp.split(heads, 3, axis=-1)
        out = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return out.reshape(x.shape) @ self.mix


class Transformer(ps.State):
    """Logits of the next byte at each place, for a batch of texts.

    The blocks are one `Block` whose arrays have an axis more: `scan` goes through them,
    so that one block is compiled, not each.
    """

    embedding: jax.Array
    positions: jax.Array
    blocks: Block
    norm: Norm

    def __init__(self, key, width=96, depth=2, heads=4, context=64):
        keys = jax.random.split(key, depth + 2)
        self.embedding = normal(keys[0], VOCABULARY, width)
        self.positions = normal(keys[1], context, width)
        self.blocks = ps.stack([Block(key, width, heads) for key in keys[2:]])
        self.norm = Norm(width)

    @property
    def context(self):
        return len(self.positions)

    def __call__(self, text):
        x = self.embedding[text] + self.positions[: text.shape[1]]
        x, _ = jax.lax.scan(lambda x, block: (block(x), None), x, self.blocks)
        return self.norm(x) @ self.embedding.T

    def bits(self, text):
        """Return how many bits each byte but the first needs, given those before it."""
        logits = self(text[:, :-1])
        nats = optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:])
        return nats / jnp.log(2)


# --- training ------------------------------------------------------------------------

DECAYED = ~ps.leaves("**.scale", "embedding", "positions")


def make(peak, total):
    """Return AdamW whose rate warms up, then falls; weights of layers decay.

    A function of this module: the optimizer keeps it by its name, with its arguments,
    so that it is equal for every `Train` with equal settings.
    """
    rate = optax.warmup_cosine_decay_schedule(0, peak, total // 10, total)
    adamw = optax.adamw(rate, b2=0.99, weight_decay=0.1, mask=DECAYED)
    return optax.chain(optax.clip_by_global_norm(1), adamw)


class Train(ps.State):
    """All that changes while training, and the settings, which are static."""

    model: Transformer
    opt: Optimizer
    key: jax.Array
    batch: int = ps.static()

    def __init__(self, key, total, batch=24, peak=5e-3):
        model_key, self.key = jax.random.split(key)
        self.model = Transformer(model_key)
        self.opt = Optimizer(self.model, make, peak, total)
        self.batch = batch

    @ps.jit(donate=True, static_argnames="count")
    def steps(self, text, count):
        """Return the state after some training steps, and their mean bits per byte."""
        train, bits = jax.lax.scan(lambda t, _: t.step(text), self, length=count)
        return train, bits.mean()

    def step(self, text):
        """Return the state after one step on random windows, and its bits per byte."""
        key, draw = jax.random.split(self.key)
        length = self.model.context + 1
        starts = jax.random.randint(draw, (self.batch, 1), 0, len(text) - length)
        windows = text[starts + jnp.arange(length)]
        bits, grads = jax.value_and_grad(lambda m: m.bits(windows).mean())(self.model)
        opt, model = self.opt.update(self.model, grads=grads)
        return self.replace(model=model, opt=opt, key=key), bits


# --- what came of it -----------------------------------------------------------------


@ps.jit
def held_out_bits(model, text):
    """Return the bits per byte of a text, each byte with half a context before it."""
    half = model.context // 2
    starts = jnp.arange(0, len(text) - 2 * half, half)
    windows = text[starts[:, None] + jnp.arange(2 * half + 1)]
    bits = jax.lax.map(lambda w: model.bits(w[None])[0, half:], windows, batch_size=16)
    return bits.mean()


def baselines(read, held_out):
    """Return the bits per byte of the held-out text, predicted in other ways."""
    pairs = np.ones((VOCABULARY, VOCABULARY))  # one of each, so that none is impossible
    np.add.at(pairs, (read[:-1], read[1:]), 1)
    singles = pairs.sum(axis=0) / pairs.sum()
    following = pairs / pairs.sum(axis=1, keepdims=True)
    zipped = 8 * len(zlib.compress(held_out.tobytes(), 9)) / len(held_out)
    given = following[held_out[:-1], held_out[1:]]
    return {
        "bytes, counted": -np.log2(singles[held_out]).mean(),
        "pairs of bytes, counted": -np.log2(given).mean(),
        "zlib, which sees the held-out text": zipped,
    }


@ps.jit(static_argnames="count")
def write(model, key, prompt, count):
    """Return the bytes that the model writes after a prompt as long as its context."""

    def one(text, key):
        logits = model(text[None])[0, -1]
        byte = jax.random.categorical(key, logits / 0.7).astype(text.dtype)
        return jnp.append(text[1:], byte), byte

    return jax.lax.scan(one, prompt, jax.random.split(key, count))[1]


# --- the run -------------------------------------------------------------------------


def main(total=1300, seed=0, per_call=20, written=400, out="out/charlm", resume=False):
    """Train, print what came of it, and return bits per byte and state."""
    console = rich.console.Console()
    read, held_out = docstrings(READ), docstrings(HELD_OUT)
    print(f"{len(read):,} bytes to learn from, {len(held_out):,} held out")

    train = Train(jax.random.key(seed), total)
    text, unseen = jnp.asarray(read), jnp.asarray(held_out)
    with ps.Checkpoints(out, every="1 min") as saves:
        if not resume:
            forget(saves)
        train, start = saves.resume(train)
        unit, done = f"{per_call} steps", start // per_call
        with progress(console, total // per_call, unit, done) as show:
            for step in range(start + per_call, total + 1, per_call):
                train, bits = train.steps(text, count=per_call)
                show(f"bits per byte {float(bits):.3f}")
                saves.offer(step, train)
        saves.save(total, train)

    found = baselines(read, held_out)
    found["this model"] = float(held_out_bits(train.model, unseen))
    print("\nbits per byte of the held-out text")
    for name, bits in found.items():
        print(f"{bits:8.3f}  {name}")
    prompt = unseen[: train.model.context]
    sample = write(train.model, jax.random.key(seed), prompt, written)
    print(f"\n...{bytes(np.asarray(prompt[-40:])).decode()}", end="")
    print(f"|{bytes(np.asarray(sample)).decode()}")
    return found, train


def parse():
    parser = argparse.ArgumentParser(description="Train a small transformer.")
    parser.add_argument("--steps", dest="total", type=int, default=1300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="out/charlm", help="folder of the checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from a checkpoint")
    options = parser.parse_args()
    if options.total < 20 or options.total % 20:
        parser.error("--steps must be a multiple of 20")
    return vars(options)


if __name__ == "__main__":
    try:
        main(**parse())
    except KeyboardInterrupt as stop:
        sys.exit(f"{str(stop) or 'interrupted'}: go on with --resume")
