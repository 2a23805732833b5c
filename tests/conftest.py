"""Settings that every test shares; they must be made before JAX is first imported.

Each can be overruled from outside: `JAX_PLATFORMS=cuda make test` runs on a GPU,
`HYPOTHESIS_PROFILE=deep make test` looks much longer for a counterexample.
"""

import os
import pathlib
import signal
import sys
import tempfile

import pytest

CACHE_SETTINGS = {
    # Test programs are small and quick to compile, and there are many of them.
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def set_jax_environment():
    settings = {"JAX_PLATFORMS": "cpu"}
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ and (folder := cache_folder()):
        settings |= {"JAX_COMPILATION_CACHE_DIR": folder, **CACHE_SETTINGS}
    for name, value in settings.items():
        if name in os.environ:
            continue
        os.environ[name] = value
        # A pytest plug-in may have imported JAX already, and JAX reads its environment
        # only once.
        if "jax" in sys.modules:
            sys.modules["jax"].config.update(name.lower(), number_or_text(value))


def hear_ctrl_c():
    """Have SIGINT raise, also where a shell started the tests in the background.

    It has its background jobs ignore the signal, and whatever they start.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def number_or_text(value):
    try:
        return int(value)
    except ValueError:
        return value


def cache_folder():
    """Return the user's cache folder for compiled programs, or None if it is closed."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        folder = pathlib.Path(home, "purestate", "jax")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except (OSError, RuntimeError):
        return None


def register_hypothesis_profiles():
    try:
        from hypothesis import HealthCheck, settings
    except ImportError:
        return
    # One example may compile a program: neither a deadline nor the check for slow
    # generation says anything about it.
    common = {
        "deadline": None,
        "print_blob": True,
        "suppress_health_check": [HealthCheck.too_slow],
    }
    settings.register_profile("fast", max_examples=50, **common)
    settings.register_profile("ci", max_examples=100, derandomize=True, **common)
    settings.register_profile("deep", max_examples=2000, **common)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


@pytest.fixture(params=["buffer", "pure"])
def lowering(request, monkeypatch):
    """Run a test of host functions once for each way into a compiled program."""
    monkeypatch.setenv("PURESTATE_HOST_LOWERING", request.param)
    return request.param


set_jax_environment()
register_hypothesis_profiles()
hear_ctrl_c()
