#!/usr/bin/env python3
"""Writes a one-layer OCI image archive (a tar that `ctr images import` takes) without daemon or registry.

usage: mkimage.py OUT.tar REFERENCE [--entry A,B] [--cmd A,B] [--env K=V] PATH=FILE|PATH->TARGET|PATH/ ...
  PATH=FILE      a regular file, mode taken from FILE
  PATH->TARGET   a symbolic link
  PATH/          an empty directory
The same input gives the same digest.
"""
import io
import os
import platform
import sys
import tarfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../host/image"))

from oci_archive import add, image, write

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def parse(words):
    config = {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "WorkingDir": "/"}
    files, links, directories = {}, {}, set()
    rest = iter(words)
    for word in rest:
        if word == "--entry":
            config["Entrypoint"] = next(rest).split(",")
        elif word == "--cmd":
            config["Cmd"] = next(rest).split(",")
        elif word == "--env":
            config["Env"].append(next(rest))
        elif "->" in word:
            path, target = word.split("->", 1)
            links[path.lstrip("/")] = target
        elif word.endswith("/"):
            directories.add(word.strip("/"))
        elif "=" in word:
            path, source = word.split("=", 1)
            files[path.lstrip("/")] = source
        else:
            sys.exit(__doc__)
    for path in [*files, *links]:
        while path := os.path.dirname(path):
            directories.add(path)
    return config, files, links, directories


def layer_of(files, links, directories):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as layer:
        for path in sorted(directories):
            add(layer, path, type=tarfile.DIRTYPE, mode=0o1777 if path == "tmp" else 0o755)
        for path, source in files.items():
            with open(source, "rb") as stream:
                add(layer, path, stream.read(), mode=os.stat(source).st_mode & 0o755)
        for path, target in links.items():
            add(layer, path, type=tarfile.SYMTYPE, linkname=target)
    return buffer.getvalue()


def main(out, reference, *words):
    config, *content = parse(words)
    write(out, image(reference, ARCH, layer_of(*content), config, {}))


if len(sys.argv) < 3:
    sys.exit(__doc__)
main(*sys.argv[1:])
