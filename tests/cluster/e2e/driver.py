"""The driver as its users install it: through the chart, and asked through the API server."""

import json
import os
import re
import tempfile

import api
from kube import NODE, Failure, check, claim_of, cpus, execute, get, is_ready, run, wait

RELEASE = "dracpu"
NAMESPACE = "dracpu-system"
LABELS = f"app.kubernetes.io/instance={RELEASE}"
HELM = os.environ.get("HELM", "helm")
CHART = os.path.join(os.path.dirname(__file__), "../../../charts/dra-driver-cpu")


def helm(*arguments, values=None):
    """Runs helm with these values on top of the chart's defaults."""
    base = {"image": image(), "fullnameOverride": "dracpu", "nodeSelector": {"kubernetes.io/hostname": NODE}}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({**base, **(values or {})}, file)
        file.flush()
        return run(HELM, *arguments, RELEASE, CHART, "-f", file.name, "--namespace", NAMESPACE)


def image():
    repository, _, tag = os.environ["IMAGE"].rpartition(":")
    return {"repository": repository, "tag": tag, "pullPolicy": os.environ.get("PULL_POLICY", "Never")}


def take_over(reuse="--reset-then-reuse-values", **more):
    """Upgrades the release to this chart and its image, and changes nothing else that its user has set."""
    global installed
    installed = None
    values = [f"image.{key}={value}" for key, value in image().items()]
    return run(HELM, "upgrade", RELEASE, CHART, reuse, "--set-string", ",".join(values), "--namespace", NAMESPACE, **more)


# The values of the release as it is, where they are known.
installed = None


def install(values=None):
    """Installs the release, or upgrades it to these values, unless it has them; returns when all its pods are ready."""
    global installed
    if installed == (values or {}):
        return
    installed = None
    helm("upgrade", "--install", "--create-namespace", values=values)
    wait_rolled_out()
    installed = values or {}


def template(values):
    """The manifests of these values."""
    return helm("template", values=values)


def wait_rolled_out():
    """Returns when every pod of the driver is one of the newest template, and ready."""
    wait("the driver's pods are rolled out", rolled_out, limit=90)
    wait("the slices are published", slices)


def rolled_out():
    daemon_set, there = get("daemonset", "dracpu", NAMESPACE), pods()
    status = daemon_set["status"]
    wanted = status["desiredNumberScheduled"]
    of_now = status.get("observedGeneration") == daemon_set["metadata"]["generation"] and wanted == status.get("updatedNumberScheduled")
    return of_now and len(there) == wanted and all(is_ready(one) for one in there)


def uninstall():
    global installed
    installed = None
    run(HELM, "uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout=60s")
    wait("the driver's pods are gone", lambda: not pods())


def pods():
    return get("pods", namespace=NAMESPACE, labels=LABELS)


def pod():
    """The driver's only pod on this one node; its name."""
    found = [one for one in pods() if not one["metadata"].get("deletionTimestamp")]
    check(len(found) == 1, f"{len(found)} pods of the driver")
    return found[0]["metadata"]["name"]


def dracpu(*arguments):
    """What a verb of the driver prints, run in its pod."""
    return execute(pod(), "/dracpu", *arguments, namespace=NAMESPACE)


def logs(**more):
    """The log of the driver's pod; `tailLines`: how many of the last lines."""
    return api.send("GET", api.path("pod", pod(), NAMESPACE, "log"), **more)


def slices():
    found = [one for one in get("resourceslices", namespace=None) if one["spec"]["driver"] == "dra.cpu"]
    return sorted(found, key=lambda one: one["metadata"].get("generateName", ""))


def devices():
    return {device["name"]: device for one in slices() for device in one["spec"]["devices"]}


def http(path):
    """An answer of the driver's HTTP port: it listens on the node's own addresses."""
    found = next(one for one in pods() if not one["metadata"].get("deletionTimestamp"))
    port = found["spec"]["containers"][0]["ports"][0]["containerPort"]
    return api.send("GET", api.path("pod", f"{found['metadata']['name']}:{port}", NAMESPACE, "proxy") + path)


def metric(name):
    """The sum over the series of a metric."""
    lines = [line for line in http("/metrics").splitlines() if line.split("{")[0].split(" ")[0] == name]
    if not lines:
        raise Failure(f"no metric {name}")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def sums(prefix, suffix):
    """The series of all metrics with such names, as they stand there."""
    return sorted(line for line in http("/metrics").splitlines() if re.match(rf"{prefix}\w+{suffix}\b", line))


def pinned(pod_name, claim_name):
    """The CPUs that the claim of a pod was given, by the variable in its container."""
    uid = claim_of(pod_name, claim_name)["metadata"]["uid"]
    environment = execute(pod_name, "cat", "/proc/1/environ").split("\0")
    values = [entry.partition("=")[2] for entry in environment if entry.startswith(f"DRA_CPUSET_{uid}=")]
    check(len(values) == 1, f"variables of claim {uid} in {pod_name}: {values}")
    return cpus(values[0])
