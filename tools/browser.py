"""Find a Chromium for the tests of the site, and install one where there is none.

It prints the path. Where none can be had it says so, and the tests of the built site
that need a browser are skipped for that reason.
"""

import os
import pathlib
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find():
    """Return the path of a browser, or None."""
    given = os.environ.get("CHROMIUM")
    if given:
        return given
    for name in NAMES:
        if path := shutil.which(name):
            return path
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if pathlib.Path(path).exists() else None


def install():
    """Try the system's own, then the build that Playwright downloads."""
    if shutil.which("apt-get") and os.geteuid() == 0:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        quiet = {"env": environment, "stdout": subprocess.DEVNULL}
        print("browser: installing chromium with apt-get", flush=True)
        if subprocess.call(["apt-get", "update", "-qq"], **quiet) == 0:
            packages = ["--no-install-recommends", "chromium"]
            subprocess.call(["apt-get", "install", "-y", "-qq", *packages], **quiet)
    if find() is None:
        print("browser: asking Playwright for a chromium", flush=True)
        command = [sys.executable, "-m", "playwright", "install", "chromium"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"browser: {done.stderr.strip().splitlines()[0]}")


if __name__ == "__main__":
    if find() is None:
        install()
    found = find()
    if found:
        print(f"browser: {found}")
    else:
        print("browser: NONE found, and none could be installed: the site is built,")
        print(
            "browser: and its pages are NOT looked at. Set CHROMIUM to the path of one."
        )
