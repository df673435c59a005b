"""What a node looks like that runs the Go driver: its release, and what it leaves for a claim that it has prepared. The
release is only as much as an upgrade meets: the names, labels, values and objects of that driver's chart, around a
container that does nothing."""

import json
import os
import tempfile

import driver
import node
from kube import TOOLS, apply, run, wait

CHART = """\
apiVersion: v2
name: dra-driver-cpu
version: 0.1.0
appVersion: 0.1.0
"""

# All values that such a release knows, with their defaults: an upgrade that reuses values has these and no others.
VALUES = {
    "nameOverride": "", "fullnameOverride": "", "image": {"repository": "", "tag": "", "pullPolicy": "IfNotPresent"},
    "imagePullSecrets": [], "rbac": {"create": True}, "serviceAccount": {"annotations": {}}, "podAnnotations": {}, "podLabels": {},
    "extraVolumes": [], "extraVolumeMounts": [], "resources": {"requests": {"cpu": "100m", "memory": "50Mi"}, "limits": {}},
    "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}], "nodeSelector": {}, "affinity": {},
    "args": {"logLevel": 4, "cpuDeviceMode": "", "groupBy": "", "reservedCPUs": "", "hostnameOverride": "", "exposePCIeRoots": False},
    "healthzPath": "/healthz", "healthzPort": 8080, "kubeletRootDir": "/var/lib/kubelet", "driverConfig": {},
}


def objects(release, name):
    """The manifests of the release."""
    labels = {
        "app.kubernetes.io/name": "dra-driver-cpu", "app.kubernetes.io/instance": release, "app.kubernetes.io/version": "0.1.0",
        "app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "dra-driver-cpu-0.1.0",
    }
    more = {**labels, "tier": "node", "k8s-app": "dra-driver-cpu"}
    paths = {
        "device-plugin": "/var/lib/kubelet/plugins", "plugin-registry": "/var/lib/kubelet/plugins_registry",
        "nri-plugin": "/var/run/nri", "cdi-dir": "/var/run/cdi",
    }
    mounts = [{"name": volume, "mountPath": path} for volume, path in paths.items()]
    volumes = [{"name": volume, "hostPath": {"path": path}} for volume, path in paths.items()]
    container = {
        "name": "dracpu", "image": TOOLS, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait"],
        "ports": [{"name": "healthz", "containerPort": 8080}], "resources": {"requests": {"cpu": "100m", "memory": "50Mi"}},
        "volumeMounts": [*mounts, {"name": "driver-config", "mountPath": "/etc/dracpu", "readOnly": True}],
    }
    spec = {
        "hostNetwork": True, "priorityClassName": "system-node-critical", "serviceAccountName": name, "containers": [container],
        "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
        "volumes": [*volumes, {"name": "driver-config", "configMap": {"name": f"{name}-config"}}],
    }
    selector = {key: labels[key] for key in ("app.kubernetes.io/name", "app.kubernetes.io/instance")}
    daemon_set = {"selector": {"matchLabels": selector}, "template": {"metadata": {"labels": more}, "spec": spec}}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    of = lambda api, kind, name, **rest: {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": labels}, **rest}
    rbac = "rbac.authorization.k8s.io/v1"
    return [
        of("v1", "ServiceAccount", name),
        of("v1", "ConfigMap", f"{name}-config", data={"config.yaml": "groupBy: numanode\n"}),
        of(rbac, "ClusterRole", name, rules=[{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]),
        of(rbac, "ClusterRoleBinding", name, roleRef=role, subjects=[{"kind": "ServiceAccount", "name": name, "namespace": driver.NAMESPACE}]),
        of("resource.k8s.io/v1", "DeviceClass", "dra.cpu", spec={"selectors": [{"cel": {"expression": 'device.driver == "dra.cpu"'}}]}),
        of("apps/v1", "DaemonSet", name, spec=daemon_set),
    ]


def install(values):
    """The release, with the values that its user has given."""
    with tempfile.TemporaryDirectory() as chart:
        os.mkdir(os.path.join(chart, "templates"))
        files = {"Chart.yaml": CHART, "values.yaml": json.dumps(VALUES)}
        for number, one in enumerate(objects(driver.RELEASE, values["fullnameOverride"])):
            files[f"templates/{number}.yaml"] = json.dumps(one)
        for name, text in {**files, "given.json": json.dumps(values)}.items():
            with open(os.path.join(chart, name), "w") as file:
                file.write(text)
        # As older releases of helm do it.
        how = ["--create-namespace", "--server-side=false", "-f", os.path.join(chart, "given.json")]
        run(driver.HELM, "install", driver.RELEASE, chart, *how, "--namespace", driver.NAMESPACE)
    wait("the Go driver's pod runs", lambda: [one["status"].get("phase") for one in driver.pods()] == ["Running"])


def prepared(uid, cpus):
    """Leaves a claim as the Go driver does: CDI 0.8.0, no record, the variable in the device's edits."""
    value = ",".join(map(str, sorted(cpus)))
    device = {"name": f"claim-{uid}", "containerEdits": {"env": [f"DRA_CPUSET_{uid}={value}"]}}
    spec = {"cdiVersion": "0.8.0", "kind": "dra.k8s.io/cpu", "devices": [device], "containerEdits": {}}
    node.write(f"/var/run/cdi/dra.k8s.io-cpu_claim-{uid}.json", json.dumps(spec))


def published(slices):
    """Publishes what these slices say, under names that are not ours."""
    for one in slices:
        meta = {"name": f"{node.NAME}-dra.cpu-left{one['metadata']['name'][-5:]}", "ownerReferences": one["metadata"]["ownerReferences"]}
        apply({"apiVersion": one["apiVersion"], "kind": "ResourceSlice", "metadata": meta, "spec": one["spec"]}, namespace=None)
