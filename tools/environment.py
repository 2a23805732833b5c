"""Make the virtual environment of a make target, or find it ready.

`python3 tools/environment.py test` leaves `.venv` with all that `make test` needs. A
stamp per target, made from pyproject.toml, says that nothing has to be done. An
interrupted run leaves a mark, and the next run starts afresh.

Only the standard library, and nothing newer than Python 3.6 in the syntax: an old
Python must get as far as the message that says what to do.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

OLDEST = (3, 11)
NEWEST = (3, 14)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Per target: extras of pyproject.toml, further packages, minutes on a fast line.
TARGETS = {
    "demo": (["examples", "mujoco"], [], 1),
    "test": (
        ["examples", "interop", "mujoco", "numba", "optax", "testing"],
        ["pytest", "pytest-xdist", "sybil"],
        1,
    ),
    "check": (
        ["dev", "examples", "interop", "mujoco", "numba", "optax", "testing"],
        [],
        2,
    ),
    "bench": (["bench", "examples", "mujoco", "numba"], [], 1),
    "docs": (["docs", "testing"], ["pytest", "sybil"], 1),
    "package": ([], ["build", "check-jsonschema", "twine"], 1),
}


class SetupError(Exception):
    """Set-up cannot go on; the text says what to do."""


def main():
    options = parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with one_at_a_time():
            prepare(options)
    except SetupError as error:
        print(f"purestate: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("purestate: set-up interrupted; run make again", file=sys.stderr)
        return 130
    return 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--venv", default=".venv", help="folder of the environment")
    parser.add_argument("--without", default="", help="an extra to leave out")
    parser.add_argument("--constraint", help="file with versions to hold to")
    parser.add_argument("--python-name", help="the Python that the user asked for")
    parser.add_argument("--goal", default="", help="what the user gave to make")
    options = parser.parse_args()
    options.name = options.venv
    options.venv = os.path.join(ROOT, options.venv)
    return options


def prepare(options):
    reason = reason_to_create(options)
    if reason:
        require_new_enough_python(options)
        create(options, reason)
    install(options)


# --- the environment -----------------------------------------------------------------


def reason_to_create(options):
    """Say why the environment must be made, or return None if it is there."""
    if not os.path.isdir(options.venv) or not os.listdir(options.venv):
        return "making"
    if os.path.exists(incomplete(options)):
        return "an earlier set-up was interrupted: making"
    try:
        with open(record(options)) as file:
            made = json.load(file)
    except (OSError, ValueError):
        # Somebody's own environment: neither deleted nor filled.
        raise SetupError(
            f"{options.name} exists, but make did not create it.\n"
            "Move it away, or choose another folder:\n\n"
            f"    make VENV=.venv-purestate {goal(options)}\n"
        ) from None
    if made["root"] != ROOT:
        return "this folder was moved or copied: making"
    version = inner_version(options)
    if version is None:
        return "its Python is gone: making"
    if options.python_name and version != sys.version_info[:2]:
        return "another Python is asked for: making"
    return None


def create(options, reason):
    say(f"{reason} {options.name} with Python {this_version()} (a few seconds)")
    start_afresh(options)
    quiet = run([sys.executable, "-m", "venv", options.venv])
    if quiet.returncode:
        # Some systems package Python without ensurepip; the pip outside can fill the
        # environment as well.
        start_afresh(options)
        bare = run([sys.executable, "-m", "venv", "--without-pip", options.venv])
        if bare.returncode:
            raise SetupError(f"could not make {options.name}:\n{bare.stdout.strip()}")
    if inner_version(options) is None:
        # A `python3` that is a script can end up as the Python inside, and would then
        # install into the system.
        raise SetupError(
            f"{sys.executable} makes environments that do not work.\n"
            "Name the Python itself:\n\n"
            f"    make PYTHON=/path/to/python3 {goal(options)}\n"
        )
    with open(record(options), "w") as file:
        json.dump({"root": ROOT}, file)


def start_afresh(options):
    # The mark goes last: as long as anything else is left to delete, it says so.
    if os.path.isdir(options.venv):
        for name in os.listdir(options.venv):
            path = os.path.join(options.venv, name)
            if path == incomplete(options):
                continue
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.remove(path)
    os.makedirs(options.venv, exist_ok=True)
    mark_incomplete(options)


def require_new_enough_python(options):
    if sys.version_info[:2] >= OLDEST:
        return
    newer = newer_python()
    advice = (
        "This machine has one; name it"
        if newer
        else "Install one, then name it, for example"
    )
    raise SetupError(
        f"Python {OLDEST[0]}.{OLDEST[1]} or newer is needed, and "
        f"`{options.python_name or 'python3'}` is Python {this_version()}.\n"
        f"{advice}:\n\n"
        f"    make PYTHON={newer or 'python3.13'} {goal(options)}\n"
    )


def newer_python():
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        name = f"python3.{minor}"
        # The name alone is not enough: it may be a shim that only prints an error.
        if version_of(name) == (3, minor):
            return name
    return None


# --- the packages --------------------------------------------------------------------


def install(options):
    extras, packages, minutes = TARGETS[options.target]
    extras = [extra for extra in extras if extra != options.without]
    # What builds the package must not stand on an installed one.
    own = ["--editable", f"{ROOT}[{','.join(extras)}]"] if extras else []
    wanted = [*own, *packages]
    if options.constraint:
        wanted += ["--constraint", os.path.abspath(options.constraint)]
    stamp = os.path.join(options.venv, f"purestate-{options.target}.stamp")
    content = fingerprint(options, wanted)
    if read(stamp) == content:
        return

    say(
        f"installing {options.target} dependencies into {options.name} "
        f"(about {minutes} minute{'s' if minutes > 1 else ''}, once)"
    )
    started = time.time()
    mark_incomplete(options)
    with contextlib.suppress(FileNotFoundError):
        os.remove(stamp)
    done = subprocess.call(
        [*pip(options), "install", "-qq", "--no-input", *wanted], cwd=ROOT, env=clean()
    )
    if done == 0:
        with open(stamp + ".new", "w") as file:
            file.write(content)
        os.replace(stamp + ".new", stamp)
    # A refusal of pip's own (no network, no such version) leaves the environment as it
    # was; only a killed one leaves it in pieces.
    if done >= 0:
        os.remove(incomplete(options))
    if done:
        raise SetupError(
            f"pip could not install the {options.target} dependencies; "
            "its message is above"
        )
    say(f"ready in {time.time() - started:.0f} s")


def pip(options):
    inside = [python(options), "-m", "pip"]
    if run([*inside, "--version"]).returncode == 0:
        return inside
    outside = [sys.executable, "-m", "pip", "--python", python(options)]
    found = run([*outside, "--version"])
    if found.returncode == 0:
        return outside
    raise SetupError(
        f"neither {options.name} nor {sys.executable} has a pip that can be used:\n"
        f"{found.stdout.strip()}\n"
        f"Install pip 22.3 or newer for {sys.executable}, or its venv package (on "
        "Debian and Ubuntu: apt install python3-venv), then run make again."
    )


def fingerprint(options, wanted):
    digest = hashlib.sha256(" ".join(wanted).encode())
    for path in filter(None, ["pyproject.toml", options.constraint]):
        with open(os.path.join(ROOT, path), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


# --- small things --------------------------------------------------------------------


@contextlib.contextmanager
def one_at_a_time():
    """Let a second make wait for the first; the lock ends with the process."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def run(command):
    """Run quietly; the output is kept for the case that it must be shown."""
    try:
        return subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,  # noqa: UP021, `text` came with Python 3.7
            env=clean(),
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, str(error))


def clean():
    """Return the environment without what would lead pip and venv elsewhere."""
    away = {"PYTHONHOME", "PYTHONPATH", "PIP_USER", "PIP_TARGET", "PIP_PREFIX"}
    kept = {name: value for name, value in os.environ.items() if name not in away}
    kept["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    return kept


def inner_version(options):
    """Return the version of the Python inside, or None if there is none that works."""
    command = python(options)
    prefix = run([command, "-c", "import sys; print(sys.prefix)"]).stdout.strip()
    if os.path.realpath(prefix) != os.path.realpath(options.venv):
        return None
    return version_of(command)


def version_of(command):
    answer = run([command, "-c", "import sys; print(*sys.version_info[:2])"])
    try:
        major, minor = answer.stdout.split()
        return (int(major), int(minor)) if answer.returncode == 0 else None
    except ValueError:
        return None


def say(text):
    print(f"purestate: {text}", flush=True)


def this_version():
    return ".".join(map(str, sys.version_info[:3]))


def goal(options):
    return options.goal or options.target


def python(options):
    return os.path.join(options.venv, "bin", "python")


def record(options):
    return os.path.join(options.venv, "purestate.json")


def incomplete(options):
    return os.path.join(options.venv, "purestate-incomplete")


def mark_incomplete(options):
    open(incomplete(options), "w").close()


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(main())
