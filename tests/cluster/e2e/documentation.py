"""What the documentation shows, on the cluster: examples, manifests and commands."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import driver
from api import PATIENCE
from kube import NAMESPACE, TOOLS, check, kubectl, mask, wait_event, wait_ready

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "tools" / "docs"))

import blocks

# Examples that need a node of another kind: the release's values, or none where another story tells them.
OF_OTHER_NODES = {
    "external.yaml": {"driverConfig": {"groupBy": "machine", "allocator": "external"}},
    "single-devices.yaml": {"driverConfig": {"cpuDeviceMode": "individual"}},
    "gpu-nic-one-pcie-root.yaml": None,
}

SOCKET, NUMA = "dra.cpu/socketID", "resource.kubernetes.io/numaNode"
# The CPUs that an example asks of a device with an attribute; one of any device where nothing is said.
ASKS = {
    "numa-node.yaml": [(8, NUMA, 0)],
    "socket-0.yaml": [(3, SOCKET, 0)],
    "two-claims-one-socket.yaml": [(4, SOCKET, 1)],
    "one-per-numa-node.yaml": [(2, NUMA, 0), (2, NUMA, 1)],
}


def usable(manifest):
    """With an image that the cluster has."""
    return manifest.replace("image: busybox", f"image: {TOOLS}")


def examples(kind):
    """The manifests of a directory of examples, by file."""
    return {path.name: usable(path.read_text()) for path in sorted((ROOT / "examples" / kind).glob("*.yaml"))}


def manifests_of_pages():
    """Whole manifests that stand in the pages."""
    every = [block for page in blocks.pages() for block in blocks.read(page) if block.language == "yaml" and not block.excerpt_of]
    return [usable(block.text) for block in every if re.search(r"(?m)^kind: ", block.text)]


def dry_run(manifest):
    """The objects of a manifest, as the API server would store them."""
    said = json.loads(kubectl("apply", "--dry-run=server", "-o", "json", "-n", NAMESPACE, "-f", "-", stdin=manifest))
    return said["items"] if said["kind"] == "List" else [said]


def fits(name, devices):
    """Whether the node has what an example asks for, and a CPU beside it."""
    def room(count, attribute=None, value=None):
        of = [one for one in devices if attribute is None or one["attributes"].get(attribute, {}).get("int") == value]
        return any(int(one["capacity"]["dra.cpu/cpu"]["value"]) >= count for one in of)

    asked = ASKS.get(name, [(1,)])
    all_cpus = sum(int(one["capacity"]["dra.cpu/cpu"]["value"]) for one in devices)
    return sum(one[0] for one in asked) < all_cpus and all(room(*one) for one in asked)


def pods(objects):
    return [one for one in objects if one["kind"] == "Pod"]


def counts(objects):
    """How many CPUs a claim, or one of a template, asks for, by the object's name."""
    def count(spec):
        exact = [request["exactly"] for request in spec["devices"]["requests"]]
        return sum(int(one.get("capacity", {}).get("requests", {}).get("dra.cpu/cpu", one.get("count", 1))) for one in exact)

    named = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"].startswith("ResourceClaim")}
    return {name: count(spec.get("spec", spec)) for name, spec in named.items()}


def run(manifest, objects):
    """Applies a manifest; each container of its pods runs on as many CPUs as its claims ask for."""
    kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=manifest)
    of, held = counts(objects), []
    for pod in pods(objects):
        name, spec = pod["metadata"]["name"], pod["spec"]
        wait_ready(name)
        claims = {one["name"]: one.get("resourceClaimName") or one["resourceClaimTemplateName"] for one in spec["resourceClaims"]}
        for container in spec["containers"]:
            own = mask(name, container["name"])
            wanted = sum(of[claims[one["name"]]] for one in container["resources"]["claims"])
            check(len(own) == wanted, f"{name}, {container['name']}: runs on {own}, not on {wanted} CPUs")
            held.append(own)
    check(len(set().union(*held)) == sum(map(len, held)), f"containers share CPUs: {held}")
    take_away(manifest)


def is_not_placed(manifest, objects):
    """Applies a manifest that asks for more than the node has: its pods wait, and the scheduler says so."""
    kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=manifest)
    for pod in pods(objects):
        wait_event(pod["metadata"]["name"], "FailedScheduling")
    take_away(manifest)


def take_away(manifest):
    kubectl("delete", "-n", NAMESPACE, "--timeout=60s", "-f", "-", stdin=manifest)


def tell_commands():
    """Runs the commands of the pages that need a cluster, in the order of the pages; how many there were."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="dracpu-pages-"))
    ran = 0
    try:
        for path in (ROOT / "examples").rglob("*.yaml"):
            here = directory / path.relative_to(ROOT)
            here.parent.mkdir(parents=True, exist_ok=True)
            here.write_text(usable(path.read_text()))
        programs = [os.path.dirname(os.path.abspath(os.environ[name])) for name in ("KUBECTL", "HELM") if "/" in os.environ.get(name, "")]
        env = {**os.environ, "PATH": ":".join([*programs, os.environ["PATH"]])}
        for page in blocks.pages():
            for block in blocks.read(page):
                if block.note != "cluster":
                    continue
                for command in blocks.commands(block):
                    # The stories' release is in a namespace of its own.
                    script = command.script.replace("kube-system", driver.NAMESPACE)
                    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=directory, env=env, text=True,
                                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120 * PATIENCE)
                    check(done.returncode == 0, f"{page}:{command.line}: `{script}` ended with {done.returncode}: {done.stdout}")
                    differs = blocks.difference(command.output, done.stdout)
                    check(not differs, f"{page}:{command.line}: `{script}` prints something else\n{differs}")
                    ran += 1
    finally:
        shutil.rmtree(directory)
    return ran
