"""How long libraries take to import once jax is there.

Beside them stands `jax.extend.core`: purestate needs it from its first line on, as it
adds entries to jax's trace context, and jax 0.12 would compile again what was compiled
before. Each import happens in a process of its own, which measures itself. Bytecode is
cached, as for an installed package, in a folder that lives as long as the measurement.
"""

import functools
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from benchmarks.harness import Clock
from benchmarks.libraries import Library

SIZE = "process start"
NEEDED = "jax.extend"  # by purestate
_CHILD = """
import sys, time
start = time.perf_counter()
{before}
jax_s = time.perf_counter() - start
sys.dont_write_bytecode, sys.pycache_prefix = False, {folder!r}
start = time.perf_counter()
{imports}
print(jax_s, time.perf_counter() - start)
"""


def measure(clock: Clock, libraries: Sequence[Library], rounds: int) -> None:
    """Time `import jax`, and each library's import after it, in turns."""
    setups = {NEEDED: "import jax.extend.core", "purestate": "import purestate"}
    setups |= {x.name: x.setup for x in libraries if x.package}
    with tempfile.TemporaryDirectory() as folder:
        for name, setup in list(setups.items()):
            try:
                seconds(folder, setup)  # writes the bytecode
            except subprocess.CalledProcessError as error:
                clock.note("import", SIZE, name, error)
                del setups[name]
        rivals = {k: functools.partial(_after, folder, v) for k, v in setups.items()}
        rivals["jax"] = functools.partial(_jax, folder)
        clock.interleave(
            "import after jax", SIZE, rivals, rounds=rounds, unit="ms", scale=1e3
        )


def _after(folder: str, imports: str) -> float:
    return seconds(folder, imports)[1]


def _jax(folder: str) -> float:
    return seconds(folder, "")[0]


def seconds(
    folder: str,
    imports: str,
    before: str = "import jax",
    env: dict[str, str] | None = None,
) -> tuple[float, float]:
    """Return the seconds of `import jax`, or what is before, and of the imports."""
    source = _CHILD.format(folder=folder, before=before, imports=imports)
    command = [sys.executable, "-W", "ignore", "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    jax_s, after_s = map(float, done.stdout.split())
    return jax_s, after_s
