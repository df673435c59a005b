#!/usr/bin/env python3
"""Find promtool, which checks and tries Prometheus' rules, and print where it is.

    get_promtool.py       the one on the PATH; else ~/.cache/dracpu/tools/promtool, filled at the first call

It comes out of Debian's package `prometheus`, which apt verifies and nobody installs. Where there is no apt there may
be no promtool: then this says so and ends with 1.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

CACHE = pathlib.Path(os.environ.get("DRACPU_CACHE") or pathlib.Path.home() / ".cache" / "dracpu")


def find():
    """The tool's path, or why there is none."""
    installed = shutil.which("promtool")
    if installed:
        return pathlib.Path(installed), None
    place = CACHE / "tools" / "promtool"
    if not place.is_file():
        why = fetch(place)
        if why:
            return None, why
    return place, None


def fetch(place):
    """Fills the cache; why not, if it cannot."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return "promtool is not on the PATH, and there is no apt to fetch it with"
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        print("fetching promtool", file=sys.stderr)
        download = ["apt-get", "download", "-qq", "prometheus"]
        got = subprocess.run(download, cwd=scratch, capture_output=True, text=True)
        if got.returncode != 0:  # a new machine has no list of packages yet
            subprocess.run(["apt-get", "update", "-qq"], capture_output=True)
            got = subprocess.run(download, cwd=scratch, capture_output=True, text=True)
        packages = list(pathlib.Path(scratch).glob("*.deb"))
        if got.returncode != 0 or not packages:
            return f"promtool cannot be fetched: {got.stderr.strip().splitlines()[-1:]}"
        subprocess.run(["dpkg-deb", "-x", packages[0], "x"], cwd=scratch, check=True)
        (pathlib.Path(scratch) / "x" / "usr" / "bin" / "promtool").rename(place)
    return None


if __name__ == "__main__":
    path, why = find()
    sys.exit(why) if why else print(path)
