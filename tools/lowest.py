"""Print the lowest versions of what purestate imports, as pip constraints.

`python tools/lowest.py > lowest.txt` writes them; with `--check`, the versions that are
installed for this Python are compared with them instead.
"""

import importlib.metadata
import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def lowest_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest = {}
    extras = project["optional-dependencies"]
    imported = [*project["dependencies"], *extras["mujoco"], *extras["optax"]]
    for requirement in imported:
        match = re.fullmatch(r"([\w.-]+)>=([\w.]+)", requirement.replace(" ", ""))
        if match is None:
            sys.exit(f"lowest.py: {requirement!r} is not of the form name>=version")
        lowest[match[1]] = match[2]
    # jax takes any newer jaxlib of its series; its oldest partner is the same version.
    lowest["jaxlib"] = lowest["jax"]
    return lowest


def release(version):
    """Return the numbers of a version: 2.0 and 2.0.0 are the same."""
    return tuple(int(part) for part in re.sub(r"(\.0)+$", "", version).split("."))


def check(lowest):
    for name, version in lowest.items():
        installed = importlib.metadata.version(name)
        if release(installed) != release(version):
            sys.exit(f"lowest.py: {name} {installed} is installed, not {version}")
    print("lowest.py: installed are", ", ".join(f"{n} {v}" for n, v in lowest.items()))


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        check(lowest_versions())
    else:
        for name, version in lowest_versions().items():
            print(f"{name}=={version}")
