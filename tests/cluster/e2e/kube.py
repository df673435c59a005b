"""What a story needs of a cluster: its objects, waiting for the event itself, and what a container sees of its CPUs."""

import json
import os
import subprocess
import time

import api
from api import PATIENCE, Failure

NAMESPACE = "dracpu-e2e"
TOOLS = os.environ.get("TOOLS_IMAGE", "localhost/dracpu-test/tools:1")
CLASS = "dra.cpu"
# The node that the stories are told on.
NODE = os.environ.get("NODE", "dracpu-node")


def check(true, words):
    if not true:
        raise Failure(words)


def run(*command, stdin=None, fails=False, timeout=120):
    """Runs a command; its output. `fails`: it must end with an error, whose words are the answer."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout * PATIENCE)
    shown = " ".join(command[:6])
    if fails:
        check(done.returncode != 0, f"`{shown}` should have failed: {done.stdout}")
        return done.stdout + done.stderr
    check(done.returncode == 0, f"`{shown}` ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def kubectl(*arguments, **more):
    return run(os.environ.get("KUBECTL", "kubectl"), *arguments, **more)


def get(kind, name=None, namespace=NAMESPACE, labels=None, fields=None):
    """An object, or the list of them."""
    selectors = {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}
    answer = api.ask("GET", api.path(kind, name, namespace), **selectors)
    return answer if name else [{**one, "apiVersion": answer["apiVersion"]} for one in answer["items"]]


def exists(kind, name, namespace=NAMESPACE):
    try:
        return bool(get(kind, name, namespace))
    except api.Absent:
        return False


def apply(*objects, namespace=NAMESPACE):
    """Applies objects, written as they stand in a manifest."""
    for one in objects:
        where = api.path(one["kind"], one["metadata"]["name"], namespace)
        api.ask("PATCH", where, one, kind="application/apply-patch+yaml", fieldManager="stories", force="true")


def patch(kind, name, change, namespace=NAMESPACE, under=""):
    """Merges a change into an object, or into what is under it (`status`, `resize`)."""
    api.ask("PATCH", api.path(kind, name, namespace, under), change, kind="application/merge-patch+json")


def delete(kind, *names, namespace=NAMESPACE, grace=1):
    """Deletes objects, where they exist; returns when they are gone."""
    start_deleting(kind, *names, namespace=namespace, grace=grace)
    wait_gone(kind, *names, namespace=namespace)


def start_deleting(kind, *names, namespace=NAMESPACE, grace=1):
    for name in names:
        try:
            api.ask("DELETE", api.path(kind, name, namespace), {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace})
        except api.Absent:
            continue


def wait_gone(kind, *names, namespace=NAMESPACE):
    for name in names:
        wait(f"{kind} {name} is gone", lambda: not exists(kind, name, namespace))


def wait(what, look, limit=60.0, every=0.1):
    """Looks until there is something true to see; that."""
    limit *= PATIENCE
    end, last = time.monotonic() + limit, None
    while True:
        try:
            seen = look()
            if seen:
                return seen
            last = seen
        except (Failure, KeyError, IndexError) as failure:
            last = failure
        if time.monotonic() > end:
            raise Failure(f"not within {limit:.0f} s: {what} (last: {last})")
        time.sleep(every * PATIENCE)


def stays(what, look, duration=2.0, every=0.2):
    """Looks again and again, and it is so each time."""
    end = time.monotonic() + duration
    while time.monotonic() < end:
        check(look(), f"did not stay so: {what}")
        time.sleep(every)


def cpus(text):
    """A CPU list in the kernel's format, as a set."""
    numbers = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


# ---- objects -------------------------------------------------------------------------------------------------


def request(count, name="cpus", **more):
    exactly = {"deviceClassName": CLASS, "capacity": {"requests": {"dra.cpu/cpu": str(count)}}, **more}
    return {"name": name, "exactly": exactly}


def claim(name, count=1, config=None):
    spec = {"devices": {"requests": [request(count)]}}
    if config:
        spec["devices"]["config"] = config
    meta = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    return {**meta, "spec": spec}


def template(name, count=1):
    meta = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name}}
    return {**meta, "spec": {"spec": {"devices": {"requests": [request(count)]}}}}


# Ends when it is told to: as the first process of a container `sleep` would not.
IDLE = ("sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait")


def container(name="main", claims=(), command=IDLE, **more):
    return {
        "name": name,
        "image": TOOLS,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "resources": {"claims": [{"name": claim} for claim in claims]},
        **more,
    }


def pod(name, containers=None, claims=(), templates=(), **spec):
    """`claims` and `templates` are names; in the pod each is called by its own name."""
    named = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    named += [{"name": template, "resourceClaimTemplateName": template} for template in templates]
    containers = containers or [container(claims=[*claims, *templates])]
    here = {"kubernetes.io/hostname": NODE}
    short = {"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False, "nodeSelector": here}
    spec = {**short, "containers": containers, "resourceClaims": named, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"story": name}}, "spec": spec}


# ---- what is so ----------------------------------------------------------------------------------------------


def ready(name, namespace=NAMESPACE):
    return is_ready(get("pod", name, namespace))


def is_ready(pod):
    """Whether a pod is ready, and not about to go."""
    conditions = pod["status"].get("conditions", [])
    found = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return found and not pod["metadata"].get("deletionTimestamp")


def wait_ready(*names, limit=60.0):
    for name in names:
        try:
            if not within(5, lambda: ready(name)) and any(LATE in text for text in events(name)):
                try_again(name)
            wait(f"pod {name} is ready", lambda: ready(name), limit)
        except Failure as failure:
            raise Failure(f"{failure}; events: {events(name)}") from None


# On a busy machine the API server's node authorizer hears of a pod later than the kubelet does.
LATE = "no relationship found between node"


def within(seconds, look):
    """Whether it is so before the time is over."""
    try:
        return bool(wait("it is so", look, seconds))
    except Failure:
        return False


def try_again(name):
    """The kubelet tries again what has failed, in its own time, which can be a minute and a half; a change of the pod is a
    reason to do so at once."""
    patch("pod", name, {"metadata": {"labels": {"again": str(time.monotonic())}}})


def execute(pod, *command, container=None, namespace=NAMESPACE):
    """What a command in a container prints; in the first one, if none is named."""
    container = container or get("pod", pod, namespace)["spec"]["containers"][0]["name"]
    return api.execute(pod, namespace, container, command)


def mask(pod, container=None, namespace=NAMESPACE):
    """The CPUs that a container's process may run on, as its kernel says."""
    status = execute(pod, "grep", "Cpus_allowed_list", "/proc/1/status", container=container, namespace=namespace)
    return cpus(status.split(":")[1])


def cgroup_mask(pod, container=None):
    """The CPUs of a container's control group."""
    paths = "/sys/fs/cgroup/cpuset.cpus.effective /sys/fs/cgroup/cpuset/cpuset.effective_cpus"
    script = f"for f in {paths}; do [ ! -e $f ] || cat $f; done"
    return cpus(execute(pod, "sh", "-c", script, container=container))


def events(name, namespace=NAMESPACE):
    """What the events of a pod say, newest last."""
    found = get("events", namespace=namespace, fields=f"involvedObject.name={name}")
    found.sort(key=lambda one: one.get("lastTimestamp") or one.get("eventTime") or "")
    return [f"{one['reason']}: {one['message']}" for one in found]


def wait_event(name, *parts, limit=60.0):
    """Waits for an event of a pod that has all the parts; its text."""

    def look():
        return next((text for text in events(name) if all(part in text for part in parts)), None)

    try:
        return wait(f"an event of {name} with {parts}", look, limit, every=0.3)
    except Failure as failure:
        raise Failure(f"{failure}; events: {events(name)}") from None


def claim_of(pod, name):
    """The claim object behind a name in a pod: of a template, the generated one."""
    statuses = get("pod", pod)["status"].get("resourceClaimStatuses", [])
    generated = {one["name"]: one.get("resourceClaimName") for one in statuses}
    return get("resourceclaim", generated.get(name) or name)
