"""Build what would be published, and try it as those would who install it.

The wheel goes into an environment without extras, where `smoke.py` looks at it; in the
unpacked sdist `make test` runs the tests that read files of the repository. With
`--release`, refuse while the repository's address is a placeholder. RELEASE_TAG in the
environment must be `v` and the version.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Of the sdist: what reads other files than the package's own.
TESTS = (
    "tests/test_house.py tests/test_benchmarks.py tests/test_package.py README.md docs"
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", default="dist", help="folder of the wheel and sdist")
    parser.add_argument("--release", action="store_true", help="for publishing")
    options = parser.parse_args()
    if options.release:
        require_address()
    out = pathlib.Path(options.out).resolve()
    shutil.rmtree(out, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", out, ROOT)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    version = wheel.name.split("-")[1]
    tag = os.environ.get("RELEASE_TAG", f"v{version}")
    if tag != f"v{version}":
        sys.exit(f"package.py: the tag is {tag}, and the version {version}")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    check_schemas()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        try_wheel(wheel, folder / "bare")
        try_sdist(sdist, folder / "sdist")


def require_address():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    address = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
    if "example.org" in address:
        sys.exit(
            f"package.py: {address} is a placeholder, so the links of the README would "
            "lead nowhere. Give the repository's address in pyproject.toml, in "
            "[tool.hatch.metadata.hooks.custom]."
        )


def check_schemas():
    github = ROOT / ".github"
    for schema, paths in (
        ("github-workflows", sorted((github / "workflows").glob("*.yml"))),
        ("dependabot", [github / "dependabot.yml"]),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
    ):
        module = [sys.executable, "-m", "check_jsonschema"]
        run(*module, "--builtin-schema", f"vendor.{schema}", *paths)


def try_wheel(wheel, folder):
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "-qq", "--no-input", wheel)
    run(python, "-I", ROOT / "tools" / "smoke.py", cwd=folder)


def try_sdist(sdist, folder):
    with tarfile.open(sdist) as file:
        file.extractall(folder, filter="data")
    (inside,) = folder.iterdir()
    variables = ["VENV=.venv", f"PYTHON={sys.executable}", f"TESTS={TESTS}"]
    run("make", "test", *variables, cwd=inside)


def run(*command, **options):
    print("package:", *command, flush=True)
    # make hands its own variables on to the makes below it.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    options = {"cwd": ROOT, "env": environment, **options}
    done = subprocess.run([str(word) for word in command], check=False, **options)
    if done.returncode:
        sys.exit(f"package.py: FAILED, exit status {done.returncode}")


if __name__ == "__main__":
    main()
