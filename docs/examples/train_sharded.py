"""Train the transformer of charlm.py over many devices, in one process or in several.

Which axis of which array is split over which devices is said once, in `SPLIT`; the
optimizer follows. The state is made where it belongs, each step is given the old one,
and each process makes its own rows of a batch. With `--folder` all processes write
checkpoints together, and a later run goes on from the newest, over any number of
processes:

    python docs/examples/train_sharded.py                   8 devices, one process
    python docs/examples/train_sharded.py --processes 2     4 devices in each
    python docs/examples/train_sharded.py --cluster         on each host of a cluster

Without a cluster the devices are virtual: they share this machine's processor.
"""

import argparse
import pathlib
import socket
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import purestate as ps
from charlm import HELD_OUT, Transformer, docstrings
from purestate.optax import Optimizer

# --- what is split, and how ----------------------------------------------------------

SPLIT = {  # what is not named is the same on every device
    ".embedding": P("vocabulary", "width"),
    ".blocks.queries_keys_values": P(None, "width", "heads"),
    ".blocks.mix": P(None, "heads", "width"),
    ".blocks.up": P(None, "width", "hidden"),
    ".blocks.down": P(None, "hidden", "width"),
}
RULES = {"width": "data", "heads": "model", "hidden": "model", "vocabulary": "model"}
# While a step computes, a device has the whole width, which was split for memory only.
IN_USE = RULES | {"width": None}


def split(path, leaf):
    return SPLIT.get(path)


class Train(ps.State):
    """All that changes while training."""

    model: Transformer = ps.field(spec=split)
    opt: Optimizer  # mirrors the model, which it trains
    count: ps.Array = 0

    def step(self, windows):
        """Return the state after one step on some windows, and their bits per byte."""

        def loss(model):
            model = ps.shard(self.replace(model=model), rules=IN_USE).model
            return model.bits(windows).mean()

        bits, grads = jax.value_and_grad(loss)(self.model)
        opt, model = self.opt.update(self.model, grads=grads)
        return self.replace(model=model, opt=opt, count=self.count + 1), bits


def start():
    model = Transformer(jax.random.key(0))
    return Train(model=model, opt=Optimizer(model, optax.adam, 3e-3))


def windows(text, step, size, length, place):
    """Return some windows of the text, of which each process makes its own rows."""
    starts = np.random.default_rng(step).integers(0, len(text) - length, size)

    def rows(index):
        return text[starts[index[0], None] + np.arange(length)]

    return jax.make_array_from_callback((size, length), place, rows)


# --- checkpoints ---------------------------------------------------------------------


def save(folder, step, train):
    """Write a state; every process calls it, and writes what lies on its devices."""
    from orbax.checkpoint.experimental import v1 as ocp

    arrays, manifest = ps.to_dict(train)
    ocp.save(folder / str(step), arrays, custom_metadata={"purestate": manifest})
    say(f"saved step {step}")


def resume(folder, abstract, places):
    """Return the newest state of a folder, None if there is none.

    Each process reads what belongs on its devices: `places` are those of this run, and
    need not be those of the run that wrote.
    """
    from orbax.checkpoint.experimental import v1 as ocp

    # What is being written has another name until it is whole.
    steps = [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
    if not steps:
        return None
    path = folder / str(max(steps))
    metadata: Any = ocp.metadata(path).custom_metadata
    say(f"going on from step {max(steps)}")
    return ps.from_dict(
        metadata["purestate"],
        abstract,
        lambda wanted: ocp.load(path, wanted),
        sharding=places,
    )


# --- the run -------------------------------------------------------------------------


def say(text):
    if jax.process_index() == 0:
        print(text, flush=True)


def train(steps, model_axis, batch, folder=None, every=10):
    """Train over all devices of all processes; return the state and the bits."""
    shape = jax.device_count() // model_axis, model_axis
    mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        return train_over(mesh, steps, batch, folder, every)


def train_over(mesh, steps, batch, folder, every):
    say(f"{jax.process_count()} processes, mesh {dict(mesh.shape)}")
    abstract = jax.eval_shape(start)
    places = ps.shardings(abstract, mesh, rules=RULES)
    state = resume(folder, abstract, places) if folder else None
    if state is None:
        state = ps.jit(start, out_shardings=places)()
    step = ps.jit(Train.step, donate=True, out_shardings=(places, None))

    text = docstrings(HELD_OUT)
    rows = NamedSharding(mesh, P("data"))
    bits = []
    for i in range(int(state.count), steps):
        given = windows(text, i, batch, state.model.context + 1, rows)
        state, found = step(state, given)
        bits.append(float(found))
        say(f"step {i + 1} bits per byte {bits[-1]:.5f}")
        # Asked by all processes at the same step, so that all of them stop there.
        stopping = jax.process_count() > 1 and (
            multihost_utils.reached_preemption_sync_point(i)
        )
        if folder and (stopping or (i + 1) % every == 0):
            save(folder, i + 1, state)
        if stopping:
            say("stopped: a machine is wanted for something else")
            break
    return state, bits


# --- the processes -------------------------------------------------------------------


def launch(processes):
    """Run this script in several processes, and return whether all went well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, *sys.argv, "--port", port, "--rank"]
    running = [subprocess.Popen([*command, str(rank)]) for rank in range(processes)]
    try:
        # One that fails leaves the others waiting for it.
        while None in (codes := [process.poll() for process in running]):
            if any(codes):
                break
            time.sleep(0.1)
        return not any(codes)
    finally:
        for process in running:
            process.kill()


def connect(options):
    """Tell JAX of the other processes, and how many devices there are."""
    if options.cluster:
        jax.distributed.initialize()  # finds the others through Slurm, Kubernetes, ...
        return
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", options.devices // options.processes)
    if options.processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        where = f"127.0.0.1:{options.port}"
        jax.distributed.initialize(where, options.processes, options.rank)


def parse():
    parser = argparse.ArgumentParser(description="Train over many devices.")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--model", type=int, default=2, help="size of this axis")
    parser.add_argument("--folder", type=pathlib.Path, help="of the checkpoints")
    parser.add_argument("--every", type=int, default=10, help="steps between those")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--port", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    options = parse()
    if options.processes > 1 and options.rank is None:
        sys.exit(not launch(options.processes))
    connect(options)
    folder = options.folder and options.folder.resolve()
    train(options.steps, options.model, options.batch, folder, options.every)


if __name__ == "__main__":
    main()
