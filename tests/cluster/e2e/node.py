"""The node that the stories are told on, which is this machine or its guest: its processes, its components, its audit
log."""

import contextlib
import json
import os

import api
from kube import NODE as NAME, check, cpus, get, run, wait

CLUSTER = os.environ.get("CLUSTER", os.path.join(os.path.dirname(__file__), "../cluster.sh"))
DIRECTORY = os.environ.get("CLUSTER_DIR", "/tmp/dracpu-cluster")


def online():
    return cpus(inside("cat", "/sys/devices/system/cpu/online"))


def bears_pushes():
    """Whether the runtime's NRI is 0.12.1 or newer: containerd 2.4 has it, 2.1 does not."""
    version = get("node", NAME, None)["status"]["nodeInfo"]["containerRuntimeVersion"]
    return tuple(map(int, version.split("://")[1].split(".")[:2])) >= (2, 4)


def checks_adjustments():
    """Whether the runtime has a container's adjustment checked (NRI 0.12), and so refuses what nobody can check."""
    return bears_pushes()


# ---- components ------------------------------------------------------------------------------------------------


def restart(component):
    run(CLUSTER, "restart", component)


def stop(component):
    run(CLUSTER, "stop", component)


def kill(component):
    run(CLUSTER, "kill", component)


def start(component):
    run(CLUSTER, "start", component)


@contextlib.contextmanager
def kubelet_manages_cpus():
    """The kubelet's own CPU manager is on meanwhile."""
    path = os.path.join(DIRECTORY, "kubelet.yaml")
    with open(path) as file:
        usual = file.read()

    def be(configuration):
        stop("kubelet")
        with open(path, "w") as file:
            file.write(configuration)
        # Else it refuses to start with another policy.
        inside("rm", "-f", "/var/lib/kubelet/cpu_manager_state")
        start("kubelet")

    try:
        be(usual + 'cpuManagerPolicy: static\nreservedSystemCPUs: "0"\n')
        yield
    finally:
        be(usual)


def inside(*command, stdin=None):
    """Runs a command on the node, where its /run and /var are."""
    return run(CLUSTER, "guest" if NAME == "dracpu-guest" else "inside", *command, stdin=stdin)


def write(path, text):
    """Writes a file of the node in one step, as a driver does."""
    inside("sh", "-c", f"cat > {path}.part && mv {path}.part {path}", stdin=text)


# ---- processes -------------------------------------------------------------------------------------------------


def processes(container_id):
    """The processes of a container, found by its control group."""
    found = inside("sh", "-c", f"grep -l {container_id} /proc/[0-9]*/cgroup 2>/dev/null || true")
    return [int(path.split("/")[2]) for path in found.split()]


def container_id(pod, namespace):
    status = get("pod", pod, namespace)["status"]["containerStatuses"][0]
    return status["containerID"].split("://")[1]


def kill_container(pod, namespace="dracpu-e2e"):
    """Kills all processes of a pod's first container."""
    pids = processes(container_id(pod, namespace))
    check(pids, f"no process of {pod}")
    inside("sh", "-c", f"kill -9 {' '.join(map(str, pids))} 2>/dev/null || true")


def driver_process():
    import driver

    pids = processes(container_id(driver.pod(), driver.NAMESPACE))
    named = [pid for pid in pids if inside("cat", f"/proc/{pid}/comm").strip() == "dracpu"]
    check(len(named) == 1, f"processes of the driver: {named}")
    return named[0]


def send(pid, signal):
    """Sends a process of the node a signal; one that is gone needs none."""
    inside("sh", "-c", f"kill -{signal} {pid} 2>/dev/null || true")


def kill_driver():
    import driver

    before = container_id(driver.pod(), driver.NAMESPACE)
    send(driver_process(), "KILL")
    wait("another container of the driver", lambda: container_id(driver.pod(), driver.NAMESPACE) != before)


@contextlib.contextmanager
def driver_stands_still():
    """The driver's process gets no time meanwhile; its pid. Afterwards it goes on, unless it was killed."""
    pid = driver_process()
    send(pid, "STOP")
    try:
        yield pid
    finally:
        send(pid, "CONT")


def has_a_call_to_read(pid):
    """Whether the runtime has sent the driver something that is not read yet."""
    for line in inside("ss", "-xpnH").splitlines():
        _, state, unread, _, path, *_ = line.split()
        # The kubelet's sockets are the driver's own and have paths; the one to the runtime has none at this end.
        if f"pid={pid}," in line and state == "ESTAB" and path == "*" and int(unread) > 0:
            return True
    return False


def driver_status():
    """`/proc/PID/status` of the driver, by key."""
    lines = inside("cat", f"/proc/{driver_process()}/status").splitlines()
    return dict(line.strip().split(":\t", 1) for line in lines if ":\t" in line)


# ---- who asked the API server what ------------------------------------------------------------------------------

WRITES = ("create", "update", "patch", "delete", "deletecollection")


def audited(user):
    with open(os.path.join(DIRECTORY, "log/audit.log")) as file:
        for line in file:
            if f'"{user}"' not in line:
                continue
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the line that is being written
            if entry["user"]["username"] == user and "objectRef" in entry:
                yield entry


def resource(entry):
    reference = entry["objectRef"]
    return "/".join(filter(None, [reference["resource"], reference.get("subresource")]))


def audit(user):
    """(resource, verb) of all that the API server answered."""
    return {(resource(entry), entry["verb"]) for entry in audited(user)}


def audit_refusals(user):
    """What it was not allowed to do by its role; what a policy refuses is another matter."""
    forbidden = lambda entry: entry.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
    return sorted({(resource(entry), entry["verb"]) for entry in audited(user) if forbidden(entry)})


def writes(user):
    return sum(entry["verb"] in WRITES for entry in audited(user))


def bare_kubeconfig():
    """A kubeconfig that names the API server, and nobody to be."""
    config = {**api.server().config, "users": [{"name": user["name"], "user": {}} for user in api.server().config["users"]]}
    path = os.path.join(DIRECTORY, "bare.kubeconfig")
    with open(path, "w") as file:
        json.dump(config, file)
    return path
