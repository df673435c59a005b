"""The driver as its users install it: through the chart, and asked through kubectl."""

import json
import os
import tempfile

from kube import NODE, PATIENCE, Failure, check, claim_of, cpus, execute, get, kubectl, run, wait

RELEASE = "dracpu"
NAMESPACE = "dracpu-system"
LABELS = f"app.kubernetes.io/instance={RELEASE}"
CHART = os.path.join(os.path.dirname(__file__), "../../../charts/dra-driver-cpu")


def helm(*arguments, values=None):
    """Runs helm with these values on top of the chart's defaults."""
    repository, _, tag = os.environ["IMAGE"].rpartition(":")
    base = {
        "image": {"repository": repository, "tag": tag, "pullPolicy": os.environ.get("PULL_POLICY", "Never")},
        "fullnameOverride": "dracpu",
        "nodeSelector": {"kubernetes.io/hostname": NODE},
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({**base, **(values or {})}, file)
        file.flush()
        return run(os.environ.get("HELM", "helm"), *arguments, RELEASE, CHART, "-f", file.name, "--namespace", NAMESPACE)


def install(values=None):
    """Installs the release, or upgrades it to these values; returns when all its pods are ready."""
    helm("upgrade", "--install", "--create-namespace", values=values)
    wait_rolled_out()


def template(values):
    """The manifests of these values."""
    return helm("template", values=values)


def wait_rolled_out():
    kubectl("rollout", "status", "daemonset/dracpu", "-n", NAMESPACE, f"--timeout={90 * PATIENCE:.0f}s", timeout=100 * PATIENCE)
    wait("no old pod of the driver", lambda: len(pods()) == desired())
    wait("the slices are those of the new driver", slices)


def desired():
    return get("daemonset", "dracpu", NAMESPACE)["status"]["desiredNumberScheduled"]


def uninstall():
    run(os.environ.get("HELM", "helm"), "uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout=60s")
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
    return kubectl("exec", "-n", NAMESPACE, pod(), "--", "/dracpu", *arguments)


def logs(**more):
    return kubectl("logs", "-n", NAMESPACE, pod(), *[f"--{key.replace('_', '-')}={value}" for key, value in more.items()])


def slices():
    found = [one for one in get("resourceslices", namespace=None) if one["spec"]["driver"] == "dra.cpu"]
    return sorted(found, key=lambda one: one["metadata"].get("generateName", ""))


def devices():
    return {device["name"]: device for one in slices() for device in one["spec"]["devices"]}


def http(path):
    """An answer of the driver's HTTP port: it listens on the node's own addresses."""
    found = next(one for one in pods() if not one["metadata"].get("deletionTimestamp"))
    port = found["spec"]["containers"][0]["ports"][0]["containerPort"]
    return kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{found['metadata']['name']}:{port}/proxy{path}")


def metric(name):
    """The sum over the series of a metric."""
    lines = [line for line in http("/metrics").splitlines() if line.split("{")[0].split(" ")[0] == name]
    if not lines:
        raise Failure(f"no metric {name}")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def pinned(pod_name, claim_name):
    """The CPUs that the claim of a pod was given, by the variable in its container."""
    uid = claim_of(pod_name, claim_name)["metadata"]["uid"]
    environment = execute(pod_name, "cat", "/proc/1/environ").split("\0")
    values = [entry.partition("=")[2] for entry in environment if entry.startswith(f"DRA_CPUSET_{uid}=")]
    check(len(values) == 1, f"variables of claim {uid} in {pod_name}: {values}")
    return cpus(values[0])
