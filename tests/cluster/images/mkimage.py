#!/usr/bin/env python3
"""Writes a one-layer OCI image archive (a tar that `ctr images import` takes) without daemon or registry.

usage: mkimage.py OUT.tar REFERENCE [--entry A,B] [--cmd A,B] [--env K=V] PATH=FILE|PATH->TARGET|PATH/ ...
  PATH=FILE      a regular file, mode taken from FILE
  PATH->TARGET   a symbolic link
  PATH/          an empty directory
The same input gives the same digest.
"""
import hashlib
import io
import json
import os
import platform
import sys
import tarfile

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def digest(blob):
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def add(archive, name, data=None, **fields):
    entry = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(entry, key, value)
    if data is not None:
        entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data) if data is not None else None)


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
    layer = layer_of(*content)
    image = json.dumps({
        "architecture": ARCH, "os": "linux", "config": config,
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
    }).encode()
    oci = "application/vnd.oci.image."
    manifest = json.dumps({
        "schemaVersion": 2, "mediaType": oci + "manifest.v1+json",
        "config": {"mediaType": oci + "config.v1+json", "digest": digest(image), "size": len(image)},
        "layers": [{"mediaType": oci + "layer.v1.tar", "digest": digest(layer), "size": len(layer)}],
    }).encode()
    index = json.dumps({
        "schemaVersion": 2, "mediaType": oci + "index.v1+json",
        "manifests": [{
            "mediaType": oci + "manifest.v1+json", "digest": digest(manifest), "size": len(manifest),
            "platform": {"architecture": ARCH, "os": "linux"},
            "annotations": {"io.containerd.image.name": reference,
                            "org.opencontainers.image.ref.name": reference.rsplit(":", 1)[-1]},
        }],
    }).encode()
    with tarfile.open(out, "w", format=tarfile.USTAR_FORMAT) as archive:
        add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        add(archive, "index.json", index)
        for blob in (image, manifest, layer):
            add(archive, "blobs/sha256/" + digest(blob).removeprefix("sha256:"), blob)


if len(sys.argv) < 3:
    sys.exit(__doc__)
main(*sys.argv[1:])
