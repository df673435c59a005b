#!/usr/bin/env python3
"""Writes the driver's image as an OCI archive (image-spec 1.1): a tar that `ctr images import`, `skopeo copy
oci-archive:…` and `docker load` take. Needs no container engine.

The image is one static binary under its two names, and the list of what it is built from. The same binary
gives the same bytes: no time, no user, no order of a directory gets in.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile

ARCHITECTURES = {"amd64": "x86_64-unknown-linux-musl", "arm64": "aarch64-unknown-linux-musl"}
MACHINES = {"amd64": 62, "arm64": 183}  # e_machine of ELF
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    arguments.add_argument("--binary", required=True, help="the static dracpu")
    arguments.add_argument("--arch", choices=sorted(ARCHITECTURES), default="amd64")
    arguments.add_argument("--name", required=True, help="the image's name, with its tag")
    arguments.add_argument("--version", required=True)
    arguments.add_argument("--revision", default="", help="the commit it is built from")
    arguments.add_argument("--output", required=True, help="the archive to write")
    arguments = arguments.parse_args()
    with open(arguments.binary, "rb") as file:
        binary = file.read()
    refuse_unfit(binary, arguments.arch)
    packages = bill_of_materials(ARCHITECTURES[arguments.arch], arguments.version)
    layer = layer_of(binary, packages)
    labels = {
        "org.opencontainers.image.title": "dracpu",
        "org.opencontainers.image.description": "DRA driver for CPUs",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": arguments.version,
    }
    if arguments.revision:
        labels["org.opencontainers.image.revision"] = arguments.revision
    config = {"Cmd": ["/dracpu"], "WorkingDir": "/", "Labels": labels}
    write(arguments.output, image(arguments.name, arguments.arch, layer, config, labels))
    digest = manifest_digest(arguments.output)
    print(f"{arguments.output}: {arguments.name} {arguments.arch} {digest}, {len(layer) / 1e6:.1f} MB unpacked")


def refuse_unfit(binary, arch):
    """The image has no C library and no other machine's emulator."""
    if binary[:4] != b"\x7fELF" or int.from_bytes(binary[18:20], "little") != MACHINES[arch]:
        sys.exit(f"image: the binary is not one for {arch}; build it with `make build ARCH={arch}`")
    offset, size = int.from_bytes(binary[32:40], "little"), int.from_bytes(binary[54:56], "little")
    for at in range(offset, offset + size * int.from_bytes(binary[56:58], "little"), size):
        if int.from_bytes(binary[at : at + 4], "little") == 3:  # PT_INTERP
            sys.exit("image: the binary is linked dynamically, and the image holds no libraries; use `make build`")


def bill_of_materials(target, version):
    """What is in the binary, as SPDX 2.3: the locked dependencies for this target, without those that only compile."""
    command = [os.environ.get("CARGO", "cargo"), "metadata", "--locked", "--format-version=1", f"--filter-platform={target}"]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = next(id for id, package in packages.items() if package["name"] == "dracpu")
    seen, left = set(), [root]
    while left:
        id = left.pop()
        if id not in seen and not any("proc-macro" in target["kind"] for target in packages[id]["targets"]):
            seen.add(id)
            for dependency in nodes[id]["deps"]:
                if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                    left.append(dependency["pkg"])
    rows = sorted((packages[id] for id in seen), key=lambda package: (package["name"], package["version"]))
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"dracpu-{version}",
        "documentNamespace": f"urn:dracpu:{version}:{target}",
        "creationInfo": {"created": "1970-01-01T00:00:00Z", "creators": ["Tool: dracpu-oci-archive"]},
        "packages": [
            {
                "SPDXID": f"SPDXRef-{row['name']}-{row['version']}".replace("_", "-").replace("+", "-"),
                "name": row["name"],
                "versionInfo": row["version"],
                "licenseDeclared": (row["license"] or "NOASSERTION").replace("/", " OR "),
                "downloadLocation": "NOASSERTION",
                "externalRefs": [
                    {
                        "referenceCategory": "PACKAGE-MANAGER",
                        "referenceType": "purl",
                        "referenceLocator": f"pkg:cargo/{row['name']}@{row['version']}",
                    }
                ],
            }
            for row in rows
        ],
    }


def layer_of(binary, packages):
    """The only layer, as a tar. Nothing in it can be written to; the second name is a link to the first."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        add(tar, "dracpu", binary, mode=0o555)
        add(tar, "dracpu-gatherinfo", type=tarfile.LNKTYPE, linkname="dracpu", mode=0o555)
        add(tar, "sbom.spdx.json", dump(packages), mode=0o444)
    return out.getvalue()


def add(tar, name, data=b"", **fields):
    """An entry without time and user; `fields` are those of `tarfile.TarInfo`."""
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    for field, value in fields.items():
        setattr(entry, field, value)
    tar.addfile(entry, io.BytesIO(data))


def image(name, arch, layer, config, labels):
    """The archive's files by name, of an image with one layer."""
    blobs = {}

    def blob(data, media_type):
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    described = {
        "architecture": arch,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blob(dump(described), CONFIG),
        "layers": [blob(gzip.compress(layer, mtime=0), LAYER)],
        "annotations": labels,
    }
    entry = blob(dump(manifest), MANIFEST)
    entry["platform"] = {"architecture": arch, "os": "linux"}
    entry["annotations"] = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}
    return {"oci-layout": dump({"imageLayoutVersion": "1.0.0"}), "index.json": dump(index), **blobs}


def dump(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def write(path, files):
    """Writes the whole archive, or nothing."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    part = f"{path}.part"
    with tarfile.open(part, "w", format=tarfile.USTAR_FORMAT) as tar:
        for file in sorted(files):
            add(tar, file, files[file], mode=0o644)
    os.replace(part, path)


def manifest_digest(path):
    with tarfile.open(path) as tar:
        return json.load(tar.extractfile("index.json"))["manifests"][0]["digest"]


if __name__ == "__main__":
    main()
