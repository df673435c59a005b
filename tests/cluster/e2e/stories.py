"""The stories: what the README claims, on a real kubelet, scheduler, API server and container runtime. Each is a
function whose name says what must hold; they run in the order of this file. They leave no claims, and nothing but the
release and a plain pod.

The node has two CPUs or more. What a story says of "the other CPUs" is true on any machine.
"""

import base64
import hashlib
import json
import os
import re
import time

import api
import documentation
import driver
import go_driver
import node
from kube import (
    CLASS, NAMESPACE, TOOLS, Failure, apply, cgroup_mask, check, claim, claim_of, container, cpus, delete, execute, exists, get,
    is_ready, kubectl, mask, patch, pod, ready, start_deleting, stays, template, try_again, wait, wait_event, wait_gone, wait_ready,
)

STORIES = []


def story(function):
    """A story on the release with the chart's defaults."""
    function.values = {}
    return story_with_values(function)


def story_with_values(function):
    """One that brings the release's values itself."""
    STORIES.append(function)
    return function


def online():
    return node.online()


def pool_is(pod_name, expected, limit=30.0):
    wait(f"{pod_name} runs on {sorted(expected)}", lambda: mask(pod_name) == expected, limit)


def start_plain(name="plain"):
    """A pod without a claim. The one with the usual name stays for the next story."""
    apply(pod(name, [container()]))
    wait_ready(name)


def start_pinned(name, claim_name=None, **more):
    """A pod with a claim of its own for one CPU; that CPU."""
    claim_name = claim_name or f"{name}-cpu"
    apply(claim(claim_name), pod(name, claims=[claim_name], **more))
    wait_ready(name)
    return driver.pinned(name, claim_name)


def end(*names, claims=True):
    """Deletes pods with their claims."""
    claims = [f"{name}-cpu" for name in names] if claims else []
    start_deleting("pod", *names)
    start_deleting("resourceclaim", *claims)
    wait_gone("pod", *names)
    wait_gone("resourceclaim", *claims)


def all_are_free():
    wait("no CPU is claimed", lambda: driver.metric("dra_cpu_allocated_cpus") == 0)


# ---- what is published -----------------------------------------------------------------------------------------


@story
def slices_are_stored_as_they_were_sent():
    said = json.loads(driver.dracpu("slices", "--config=/etc/dracpu/config.yaml", "-o", "json"))["items"]
    stored = driver.slices()
    check(len(said) == len(stored), f"{len(stored)} slices, not {len(said)}")
    for mine, theirs in zip(sorted(said, key=lambda one: one["metadata"]["generateName"]), stored):
        check(mine["spec"]["devices"] == theirs["spec"]["devices"], f"sent {mine['spec']}, stored {theirs['spec']}")
        check(theirs["metadata"]["ownerReferences"][0]["kind"] == "Node", "a slice without its node as the owner")


@story
def the_pod_is_ready_within_two_seconds_of_its_start():
    """The best of three: a start says little on a machine that is busy with something else."""
    took = []
    while True:
        found = driver.pods()[0]["status"]
        seconds = lambda text: time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))
        since = next(one["lastTransitionTime"] for one in found["conditions"] if one["type"] == "Ready")
        took.append(seconds(since) - seconds(found["containerStatuses"][0]["state"]["running"]["startedAt"]))
        # Both times are whole seconds.
        if took[-1] <= 3:
            return
        check(len(took) < 3, f"seconds from start to ready: {took}")
        delete("pod", driver.pod(), namespace=driver.NAMESPACE, grace=30)
        driver.wait_rolled_out()


@story
def the_driver_runs_without_capabilities_and_with_the_default_filter():
    status = node.driver_status()
    for key, value in [("CapEff", 0), ("CapBnd", 0), ("NoNewPrivs", 1), ("Seccomp", 2)]:
        check(int(status[key], 16) == value, f"{key} is {status[key]}")
    try:
        said = driver.dracpu("gatherinfo", "--output-dir=/")
    except Failure as failure:
        said = str(failure)
    check("ead-only file system" in said, f"the root can be written to: {said}")


# ---- pods and claims -------------------------------------------------------------------------------------------


@story
def a_claimed_cpu_is_the_containers_alone():
    start_plain()
    own = start_pinned("pinned")
    check(len(own) == 1, f"{own}")
    check(mask("pinned") == own == cgroup_mask("pinned"), f"runs on {mask('pinned')}, group {cgroup_mask('pinned')}")
    pool_is("plain", online() - own)
    check(cgroup_mask("plain") == online() - own, f"group {cgroup_mask('plain')}")
    check(cpus(node.driver_status()["Cpus_allowed_list"]) == online() - own, "the driver's own container is confined as everybody else")
    start_plain("later")
    check(mask("later") == online() - own, f"{mask('later')}")
    # The answer to the end of any other container may let the pool grow.
    end("later")
    end("pinned")
    grows_back("plain")


def grows_back(name):
    """Where the runtime bears it the pool grows at once, else with the next container."""
    if node.bears_pushes():
        pool_is(name, online(), limit=10)
    else:
        wait("the metric counts who waits", lambda: driver.metric("dra_cpu_shared_pool_pending") >= 1)
        stays("the old mask", lambda: mask(name) != online(), duration=1)
        start_plain("next")
        pool_is(name, online(), limit=10)
        end("next")
    wait("nobody waits", lambda: driver.metric("dra_cpu_shared_pool_pending") == 0)


@story
def the_doctor_finds_nothing_failed_in_the_pod_and_on_the_node():
    def results(answer):
        return {one["id"]: one for one in json.loads(answer)["checks"]}

    start_plain()
    start_pinned("pinned")
    in_the_pod = results(driver.dracpu("doctor", "-o", "json"))
    # Ends with 1 where a check fails; which one, is told below.
    asked = f"/proc/{node.driver_process()}/exe doctor -o json || true"
    on_the_node = results(node.inside("sh", "-c", asked))
    for found in (in_the_pod, on_the_node):
        failed = [one for one in found.values() if one["result"] == "failed"]
        check(not failed, f"{failed}")
        check(found["kubelet-cpu-manager"]["result"] == "ok", f"{found['kubelet-cpu-manager']}")
        check(found["lock"]["result"] == "ok", f"{found['lock']}")
    for name in ("masks", "cfs-quota", "reserved-match"):
        check(in_the_pod[name]["result"] == "unknown", f"{in_the_pod[name]}")
    check(on_the_node["masks"]["result"] == "ok", f"{on_the_node['masks']}")
    end("pinned")
    grows_back("plain")


@story
def a_claim_shows_its_cpus_to_who_asks_for_it_and_to_its_container():
    own = start_pinned("told")

    def shown():
        devices = get("resourceclaim", "told-cpu").get("status", {}).get("devices", [])
        ready = [one["conditions"][0]["status"] for one in devices if one["conditions"][0]["type"] == "Ready"]
        return ready == ["True"] and cpus(devices[0]["data"]["cpus"]) == own

    wait(f"the claim's status has {sorted(own)}", shown)
    file = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/told-cpu/cpus/dra.cpu-metadata.json"
    document = json.loads(execute("told", "cat", file))
    check(document["kind"] == "DeviceMetadata" and document["metadata"]["name"] == "told-cpu", f"{document}")
    attributes = document["requests"][0]["devices"][0]["attributes"]
    check(attributes["dra.cpu/allocatedNumCPUs"] == {"int": 1}, f"{attributes}")

    def healthy():
        statuses = get("pod", "told")["status"]["containerStatuses"][0].get("allocatedResourcesStatus", [])
        return [one["health"] for each in statuses for one in each["resources"]] == ["Healthy"]

    wait("the pod's status says that its CPU is healthy", healthy)
    end("told")
    grows_back("plain")


@story
def a_claim_from_a_template_lives_as_long_as_its_pod():
    apply(template("one"), pod("templated", templates=["one"]))
    wait_ready("templated")
    own, name = driver.pinned("templated", "one"), claim_of("templated", "one")["metadata"]["name"]
    check(mask("templated") == own, f"{mask('templated')}")
    end("templated", claims=False)
    wait("the claim is gone", lambda: not exists("resourceclaim", name))
    all_are_free()
    delete("resourceclaimtemplate", "one")


@story
def a_claim_can_wait_for_its_pod_and_be_given_back():
    apply(claim("kept"))
    for round in range(2):
        apply(pod("keeper", claims=["kept"]))
        wait_ready("keeper")
        own = driver.pinned("keeper", "kept")
        check(mask("keeper") == own, f"round {round}: {mask('keeper')}")
        delete("pod", "keeper")
        wait("unprepared", lambda: driver.metric("dra_cpu_resource_claims_active") == 0)
    delete("resourceclaim", "kept")


@story
def an_init_container_hands_its_claim_on():
    script = "grep Cpus_allowed_list /proc/self/status > /shared/init"
    shared = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    init = container("init", ["heir-cpu"], ["sh", "-c", script], **shared)
    app = container("main", ["heir-cpu"], **shared)
    apply(claim("heir-cpu"), pod("heir", [app], ["heir-cpu"], initContainers=[init], volumes=[{"name": "shared", "emptyDir": {}}]))
    wait_ready("heir")
    own = driver.pinned("heir", "heir-cpu")
    check(cpus(execute("heir", "cat", "/shared/init").split(":")[1]) == own == mask("heir"), "init and app differ")
    end("heir")


@story
def a_container_that_crashes_gets_the_same_cpu_again():
    own = start_pinned("crasher")
    for restarts in (1, 2):
        node.kill_container("crasher")
        wait("a restart", lambda: get("pod", "crasher")["status"]["containerStatuses"][0]["restartCount"] >= restarts, limit=90)
        wait_ready("crasher", limit=90)
        check(mask("crasher") == own, f"restart {restarts}: {mask('crasher')}, not {own}")
    end("crasher")


@story
def a_second_container_on_a_claim_is_refused_and_told_the_owner():
    both = [container("first", ["pair-cpu"]), container("second", ["pair-cpu"])]
    apply(claim("pair-cpu"), pod("pair", both, ["pair-cpu"]))
    text = wait_event("pair", "belongs to container", "pair")
    owner = re.search(r"belongs to container (\w+)", text).group(1)
    check(mask("pair", owner) == driver_pinned_in("pair", "pair-cpu", owner), "the owner runs on its claim")
    end("pair")


def driver_pinned_in(pod_name, claim_name, name):
    uid = claim_of(pod_name, claim_name)["metadata"]["uid"]
    environment = execute(pod_name, "cat", "/proc/1/environ", container=name).split("\0")
    return cpus(next(entry.partition("=")[2] for entry in environment if entry.startswith(f"DRA_CPUSET_{uid}=")))


@story
def a_claim_for_every_cpu_is_refused_with_the_reason():
    count = len(online())
    apply(claim("greedy-cpu", count), pod("greedy", claims=["greedy-cpu"]))
    reason = ["claim dracpu-e2e/greedy-cpu", f"asks for {count} CPUs of device", f"{count} of {count} are free", "this would leave 0 CPUs"]
    wait_event("greedy", "FailedPrepareDynamicResources", *reason, "lower minSharedCPUs")
    text = wait_event("greedy-cpu", "CPUsNotPrepared", *reason, "lower minSharedCPUs")
    check(driver.metric("dra_cpu_allocated_cpus") == 0, "nothing is booked")
    uid = get("resourceclaim", "greedy-cpu")["metadata"]["uid"]
    told = lambda: [one for one in refusals("greedy-cpu") if one["involvedObject"]["uid"] == uid]
    wait("the event is about this claim", told)
    check(told()[0]["type"] == "Warning", f"{told()}")
    # The kubelet tries again and again, which is the same event.
    tried = lambda: driver.metric("dra_cpu_prepare_claims_total")
    before = tried()
    try_again("greedy")
    wait("the kubelet tries again", lambda: tried() > before, limit=120)
    check(len(told()) == 1, f"{text}: {told()}")
    end("greedy")


def refusals(claim_name):
    """The events of a claim that was not prepared."""
    return [one for one in get("events", fields=f"involvedObject.name={claim_name}") if one.get("reason") == "CPUsNotPrepared"]


@story
def a_claim_larger_than_the_node_stays_with_the_scheduler():
    apply(claim("huge-cpu", 4096), pod("huge", claims=["huge-cpu"]))
    wait_event("huge", "FailedScheduling")
    end("huge")


@story
def a_forged_variable_gives_nobody_a_cpu():
    own = start_pinned("honest")
    uid = claim_of("honest", "honest-cpu")["metadata"]["uid"]
    value = next(iter(own))
    apply(pod("forger", [container(env=[{"name": f"DRA_CPUSET_{uid}", "value": str(value)}])]))
    wait_event("forger", "Failed", uid)
    wait_event("forger", "ClaimNotBelieved", "container main is not created", uid)
    check(not ready("forger"), "the forger runs")
    check(mask("honest") == own, "the honest one keeps its CPU")
    end("honest", "forger")


@story
def two_claims_never_share_a_cpu():
    names = [f"many-{number}" for number in range(len(online()))]
    for name in names:
        apply(claim(f"{name}-cpu"), pod(name, claims=[f"{name}-cpu"]))
    wait("all but one run", lambda: sum(ready(one) for one in names) == len(names) - 1)
    running = [name for name in names if ready(name)]
    held = [driver.pinned(name, f"{name}-cpu") for name in running]
    check(len(set.union(*held)) == sum(map(len, held)), f"{held}")
    late = next(name for name in names if name not in running)
    placed_at_last(late)
    wait_event(late, "FailedPrepareDynamicResources")
    end(running[0])
    try_again(late)
    wait_ready(late)
    end(*names)


def placed_at_last(name, tries=3):
    """A scheduler that looked just before it heard that an earlier claim was given back may not look again for minutes: a
    pod that comes anew is looked at."""
    for left in reversed(range(tries)):
        try:
            return wait(f"{name} is placed", lambda: get("pod", name)["spec"].get("nodeName"), limit=15)
        except Failure:
            if left == 0:
                raise
            end(name)
            apply(claim(f"{name}-cpu"), pod(name, claims=[f"{name}-cpu"]))


@story
def a_resize_by_the_kubelet_leaves_the_mask():
    more = {"resources": {"claims": [{"name": "resized-cpu"}], "requests": {"cpu": "100m"}, "limits": {"cpu": "500m"}}}
    apply(claim("resized-cpu"), pod("resized", [container(**more)], ["resized-cpu"]))
    wait_ready("resized")
    own = driver.pinned("resized", "resized-cpu")
    wait_event("resized", "CPUsThrottled", "container main can be throttled", "its CPU limit is 0.5")
    resources = {"requests": {"cpu": "200m"}, "limits": {"cpu": "700m"}}
    change = json.dumps({"spec": {"containers": [{"name": "main", "resources": resources}]}})
    kubectl("patch", "pod", "resized", "-n", NAMESPACE, "--subresource=resize", "-p", change)
    shown = lambda: get("pod", "resized")["status"]["containerStatuses"][0].get("resources", {}).get("limits", {}).get("cpu")
    wait("the resize has happened", lambda: shown() == "700m")
    check(mask("resized") == own, f"{mask('resized')}, not {own}")
    end("resized")


# ---- the documentation -----------------------------------------------------------------------------------------


@story
def the_examples_are_accepted_and_those_that_fit_run():
    examples = documentation.examples("claims")
    for name, manifest in examples.items():
        objects = documentation.dry_run(manifest)
        if name in documentation.OF_OTHER_NODES:
            continue
        if documentation.fits(name, driver.devices().values()):
            documentation.run(manifest, objects)
        else:
            documentation.is_not_placed(manifest, objects)
    all_are_free()


@story_with_values
def the_examples_for_other_configurations_run():
    for name, values in documentation.OF_OTHER_NODES.items():
        if values is None:
            continue
        manifest = documentation.examples("claims")[name]
        with_values(values, lambda: documentation.run(manifest, documentation.dry_run(manifest)))
    all_are_free()


@story
def every_class_and_every_manifest_of_the_pages_is_accepted_by_the_api_server():
    manifests = [*documentation.examples("classes").values(), *documentation.manifests_of_pages()]
    check(len(manifests) > 4, f"{len(manifests)} manifests")
    for manifest in manifests:
        documentation.dry_run(manifest)


@story
def the_commands_of_the_pages_print_what_the_pages_say():
    check(documentation.tell_commands() > 5, "the pages have commands for a cluster")
    all_are_free()


@story
def a_refusal_that_goes_on_is_one_event_with_a_count():
    """That of the claim for every CPU, which was tried again; the event's first rest is a minute, in which the driver must
    not be replaced."""
    a_claim_for_every_cpu_is_refused_with_the_reason()
    counts = lambda: [(one.get("series") or {}).get("count", 1) for one in refusals("greedy-cpu")]
    wait("the event says how often", lambda: max(counts()) > 1, limit=90)


# ---- what goes away and comes back ------------------------------------------------------------------------------


def survives(disturb):
    """A claim is what it was, a plain pod too, and a new claim is served."""
    start_plain()
    own = start_pinned("steady")
    disturb()
    driver.wait_rolled_out()
    wait("the driver is ready", lambda: ready(driver.pod(), driver.NAMESPACE))
    check(mask("steady") == own, f"{mask('steady')}, not {own}")
    pool_is("plain", online() - own)
    check(driver.metric("dra_cpu_allocated_cpus") == 1, "the claim is recorded")
    end("steady")
    other = start_pinned("after")
    check(mask("after") == other, f"{mask('after')}")
    end("after")


@story
def the_drivers_pod_is_deleted():
    survives(lambda: delete("pod", driver.pod(), namespace=driver.NAMESPACE, grace=30))


@story
def the_driver_is_killed():
    survives(lambda: node.kill_driver())


@story
def the_kubelet_restarts():
    def disturb():
        before = {one["metadata"]["uid"] for one in driver.slices()}
        node.restart("kubelet")
        wait("the kubelet has deleted the slices, the driver has made them again",
             lambda: driver.slices() and not before & {one["metadata"]["uid"] for one in driver.slices()})
    survives(disturb)


@story
def the_kubelets_own_cpu_manager_is_noticed_and_so_is_its_end():
    def detail():
        try:
            return driver.http("/readyz")
        except Failure as failure:
            return str(failure)

    own = start_pinned("before")
    with node.kubelet_manages_cpus():
        wait("the driver says what to change", lambda: "set cpuManagerPolicy: none" in detail())
        wait("the driver is not ready", lambda: not is_ready(driver.pods()[0]))
        check(mask("before") == own, "pods of before keep their CPUs")
    wait("the driver is ready again", lambda: is_ready(driver.pods()[0]))
    wait("its slices are back", driver.slices)
    end("before")
    all_are_free()


@story
def the_runtime_restarts_and_does_not_end_the_driver():
    def disturb():
        before = driver.pods()[0]["status"]["containerStatuses"][0]
        node.restart("containerd")
        wait("connected again", lambda: driver.metric("dra_cpu_nri_connected") == 1)
        after = driver.pods()[0]["status"]["containerStatuses"][0]
        check(before["containerID"] == after["containerID"], "the driver was restarted")
    survives(disturb)


@story
def the_runtime_is_killed():
    def disturb():
        node.kill("containerd")
        node.start("containerd")
        wait("connected again", lambda: driver.metric("dra_cpu_nri_connected") == 1)
    survives(disturb)


@story
def the_api_server_goes_away_and_comes_back():
    def disturb():
        node.stop("kube-apiserver")
        time.sleep(2)
        node.start("kube-apiserver")
    survives(disturb)


@story
def a_crash_looping_pod_keeps_its_claim_over_a_restart_of_the_driver():
    looping = container(claims=["looper-cpu"], command=["tail", "-f", "/flag/go"],
                        volumeMounts=[{"name": "flag", "mountPath": "/flag"}])
    apply(claim("looper-cpu"), pod("looper", [looping], ["looper-cpu"], volumes=[{"name": "flag", "hostPath": {"path": "/var/lib/dracpu-e2e", "type": "DirectoryOrCreate"}}]))
    wait("it crashes", lambda: get("pod", "looper")["status"]["containerStatuses"][0]["restartCount"] >= 1)
    delete("pod", driver.pod(), namespace=driver.NAMESPACE, grace=30)
    driver.wait_rolled_out()
    check(driver.metric("dra_cpu_allocated_cpus") == 1, "its claim is still recorded")
    node.inside("touch", "/var/lib/dracpu-e2e/go")
    own = wait("it runs, on its claim", lambda: driver.pinned("looper", "looper-cpu"), limit=120)
    check(mask("looper") == own, f"{mask('looper')}")
    node.inside("rm", "-rf", "/var/lib/dracpu-e2e")
    end("looper")


# ---- a driver that does not answer in a hook -----------------------------------------------------------------------

# A pod that would rather wait than run without the driver. Runtimes before NRI 0.12 do not read it.
NEEDS_THE_DRIVER = {"required-plugins.noderesource.dev": '["dra.cpu"]'}


def held_up(name, annotations):
    """A pod that is about to have a second container, with a claim for one CPU, once `go` is called; and where its
    processes started, so far."""
    start_plain()
    shared = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    # The kubelet waits for the first container's hook before it asks for the second; the claim is prepared by then.
    until_told = {"postStart": {"exec": {"command": ["sh", "-c", "until [ -e /shared/go ]; do sleep 0.1; done"]}}}
    script = "grep Cpus_allowed_list /proc/self/status >> /shared/starts; sleep infinity & wait"
    containers = [container("first", lifecycle=until_told, **shared), container("main", [f"{name}-cpu"], ["sh", "-c", script], **shared)]
    made = pod(name, containers, [f"{name}-cpu"], volumes=[{"name": "shared", "emptyDir": {}}])
    made["metadata"]["annotations"] = annotations
    apply(claim(f"{name}-cpu"), made)
    wait("the first container runs", lambda: execute(name, "true", container="first") == "")

    def go():
        execute(name, "touch", "/shared/go", container="first")

    def starts():
        lines = execute(name, "sh", "-c", "cat /shared/starts || true", container="first").splitlines()
        return [cpus(line.split(":")[1]) for line in lines]

    return go, starts


def is_refused(name):
    wait_event(name, "Failed", "validator plugin", "dra.cpu", limit=20)


def is_alone_on_its_cpu(name):
    """The second container is on its claim, and everybody else is not."""
    own = driver_pinned_in(name, f"{name}-cpu", "main")
    check(len(own) == 1, f"{own}")
    wait(f"it runs on {sorted(own)}", lambda: mask(name, "main") == own, limit=10)
    pool_is("plain", online() - own, limit=10)
    check(mask(name, "first") == online() - own, f"its neighbour in the pod runs on {mask(name, 'first')}")
    check(driver.metric("dra_cpu_allocated_cpus") == 1, "the claim is recorded")
    return own


def waits_for_the_driver(name, disturb):
    """A pod that needs the driver gets no container while the driver does not answer: `disturb` is called with the
    driver's pid while the runtime waits in the hook. Where the runtime does not read what the pod needs, it makes
    the container, and the driver puts it right."""
    go, starts = held_up(name, NEEDS_THE_DRIVER)
    with node.driver_stands_still() as pid:
        go()
        wait("the runtime waits for the driver", lambda: node.has_a_call_to_read(pid), limit=20)
        disturb(pid)
        if node.checks_adjustments():
            is_refused(name)
            check(not starts(), f"it ran, on {starts()}")
        else:
            wait("it runs without the driver", starts, limit=20)
    wait("the driver is back", lambda: driver.metric("dra_cpu_nri_connected") == 1)
    if node.checks_adjustments():
        try_again(name)
    wait_ready(name)
    own = is_alone_on_its_cpu(name)
    check(starts() == [own if node.checks_adjustments() else online()], f"it started on {starts()}")
    end(name)
    all_are_free()


@story
def a_container_is_refused_when_the_drivers_hook_takes_too_long():
    waits_for_the_driver("overdue", lambda pid: None)


@story
def a_container_is_refused_when_the_driver_dies_in_its_hook():
    waits_for_the_driver("bereaved", lambda pid: node.send(pid, "KILL"))


@story
def a_container_that_was_made_without_the_driver_is_put_on_its_claim_as_it_runs():
    """A pod that does not say that it needs the driver: the runtime refuses at most the one container whose hook has
    failed, and makes what the kubelet asks for while no driver is connected."""
    go, starts = held_up("hasty", {})
    with node.driver_stands_still():
        go()
        if node.checks_adjustments():
            is_refused("hasty")
            check(not starts(), f"it ran, on {starts()}")
            try_again("hasty")
        wait("it runs without the driver", starts, limit=30)
        check(starts() == [online()], f"{starts()}")
    is_alone_on_its_cpu("hasty")
    check(len(starts()) == 1, f"it was started again: {starts()}")
    end("hasty")
    all_are_free()


# ---- the policy -------------------------------------------------------------------------------------------------


def with_values(values, look):
    """The release with other values; the next story that wants the usual ones installs them."""
    driver.install(values)
    look()


@story
def the_strategy_is_swapped_by_helm_upgrade_while_pods_run():
    own = start_pinned("before")

    def look():
        check("llc-first" in driver.dracpu("strategy", "list"), "it is listed")
        check(driver.metric("dra_cpu_strategy_info") == 1 and 'name="llc-first"' in driver.http("/metrics"), "it is active")
        check(mask("before") == own, "pods of before keep their CPUs")
        end("before")
        during = start_pinned("during")
        check(mask("during") == during, "new ones are pinned")

    with_values({"driverConfig": {"allocator": "llc-first"}}, look)
    driver.install()
    check(mask("during") == driver.pinned("during", "during-cpu"), "and keep them over the way back")
    end("during")


def highest_first():
    with open(os.environ["STRATEGY"], "rb") as file:
        return file.read()


def highest_is_chosen():
    check('name="highest-first"' in driver.http("/metrics"), "it is active")
    own = start_pinned("high")
    check(own == {max(online())} == mask("high"), f"{own}")
    end("high")


def config_map_with(component):
    data = {"highest-first.wasm": base64.b64encode(component).decode()}
    apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "strategies"}, "binaryData": data}, namespace=driver.NAMESPACE)


@story_with_values
def a_strategy_comes_from_a_config_map_and_is_followed_there():
    def look():
        highest_is_chosen()
        name = driver.pod()
        restarts = get("pod", name, namespace=driver.NAMESPACE)["status"]["containerStatuses"][0]["restartCount"]
        # An empty section more: the same strategy under another digest.
        changed = highest_first() + b"\x00\x08\x07padding"
        config_map_with(changed)
        # The kubelet looks after the pod's volumes when the pod changes, else once a minute.
        patch("pod", name, {"metadata": {"annotations": {"e2e": "look"}}}, namespace=driver.NAMESPACE)
        digest = hashlib.sha256(changed).hexdigest()
        wait("the changed strategy", lambda: f'digest="sha256:{digest}"' in driver.http("/metrics"), 90)
        check(driver.http("/readyz") == "ready\n", driver.http("/readyz"))
        highest_is_chosen()
        now = get("pod", name, namespace=driver.NAMESPACE)["status"]["containerStatuses"][0]["restartCount"]
        check(driver.pod() == name and now == restarts, "the driver was not restarted")

    config_map_with(highest_first())
    source = {"name": "highest-first", "configMap": {"name": "strategies", "key": "highest-first.wasm"}}
    with_values({"driverConfig": {"allocator": "highest-first"}, "strategies": [source]}, look)
    delete("configmap", "strategies", namespace=driver.NAMESPACE)


@story_with_values
def a_strategy_comes_from_an_image_volume():
    image = {"reference": os.environ["STRATEGY_IMAGE"], "path": "highest-first.wasm", "pullPolicy": "Never"}
    source = {"name": "highest-first", "image": image}
    with_values({"driverConfig": {"allocator": "highest-first"}, "strategies": [source]}, highest_is_chosen)


@story_with_values
def an_outside_scheduler_chooses_and_the_driver_checks():
    def look():
        device = next(name for name, one in driver.devices().items() if "dra.cpu/cpuIDs" in one["attributes"])
        offered = cpus(driver.devices()[device]["attributes"]["dra.cpu/cpuIDs"]["string"])
        chosen = max(offered)
        allocate("outside", device, {chosen}, 1)
        wait_ready("outside")
        check(mask("outside") == {chosen} == driver.pinned("outside", "outside-cpu"), f"{mask('outside')}")
        allocate("rival", device, {chosen}, 1)
        wait_event("rival", "already held by another claim")
        allocate("mistaken", device, {chosen, min(offered)}, 1)
        wait_event("mistaken", "the request consumes 1")
        end("outside", "rival", "mistaken")

    with_values({"driverConfig": {"allocator": "external"}}, look)


def allocate(name, device, chosen, count):
    """A tiny scheduler: it writes the claim's allocation with the CPUs that it has chosen, and binds the pod."""
    apply(claim(f"{name}-cpu", count), pod(name, claims=[f"{name}-cpu"], schedulerName="tiny"))
    listed = ",".join(map(str, sorted(chosen)))
    uid = get("pod", name)["metadata"]["uid"]
    result = {
        "request": "cpus", "driver": "dra.cpu", "pool": node.NAME, "device": device,
        "consumedCapacity": {"dra.cpu/cpu": str(count)}, "shareID": get("resourceclaim", f"{name}-cpu")["metadata"]["uid"],
    }
    parameters = {"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": listed}}
    config = {"source": "FromClaim", "requests": ["cpus"], "opaque": {"driver": "dra.cpu", "parameters": parameters}}
    selector = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node.NAME]}]}]}
    status = {
        "allocation": {"devices": {"results": [result], "config": [config]}, "nodeSelector": selector},
        "reservedFor": [{"resource": "pods", "name": name, "uid": uid}],
    }
    patch("resourceclaim", f"{name}-cpu", {"status": status}, under="status")
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"apiVersion": "v1", "kind": "Node", "name": node.NAME}}
    api.ask("POST", api.path("pod", name, NAMESPACE, "binding"), binding)


# ---- configuration ----------------------------------------------------------------------------------------------


@story_with_values
def reserved_cpus_are_nobodys():
    def look():
        rest = online() - {0}
        check(sum(int(one["capacity"]["dra.cpu/cpu"]["value"]) for one in driver.devices().values()) == len(rest), "capacity")
        start_plain()
        pool_is("plain", rest)

    with_values({"driverConfig": {"reservedCPUs": "0"}}, look)


@story_with_values
def an_overlay_shows_a_larger_machine():
    count = 200
    files = {path: f"0-{count - 1}" for path in ("/sys/devices/system/node/node0/cpulist", "/sys/devices/system/cpu/online")}
    for number in range(count):
        root = f"/sys/devices/system/cpu/cpu{number}"
        files.update({
            f"{root}/topology/physical_package_id": "0", f"{root}/topology/core_id": str(number // 2),
            f"{root}/topology/thread_siblings_list": f"{number // 2 * 2}-{number // 2 * 2 + 1}",
        })
    apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "overlay"}, "data": {"overlay.yaml": json.dumps(files)}}, namespace=driver.NAMESPACE)
    values = {
        "driverConfig": {"sysfsOverlay": "/overlay/overlay.yaml", "groupBy": "machine", "allocator": "packed"},
        "extraVolumes": [{"name": "overlay", "configMap": {"name": "overlay"}}],
        "extraVolumeMounts": [{"name": "overlay", "mountPath": "/overlay", "readOnly": True}],
    }

    def look():
        wait("one slice again", lambda: len(driver.slices()) == 1)
        device = driver.devices()["cpudevmachine"]
        check(device["capacity"]["dra.cpu/cpu"]["value"] == str(count), f"{device}")
        check(device["attributes"]["dra.cpu/smtEnabled"]["bool"] is True, f"{device}")

    def look_at_each():
        wait("a device for each CPU, over two slices", lambda: len(driver.devices()) == count and len(driver.slices()) == 2)

    with_values({**values, "driverConfig": {"sysfsOverlay": "/overlay/overlay.yaml", "cpuDeviceMode": "individual"}}, look_at_each)
    with_values(values, look)
    delete("configmap", "overlay", namespace=driver.NAMESPACE)


@story_with_values
def individual_mode_publishes_each_cpu():
    def look():
        check(len(driver.devices()) == len(online()), f"{list(driver.devices())}")
        spec = {"devices": {"requests": [{"name": "cpus", "exactly": {"deviceClassName": CLASS, "count": 1}}]}}
        apply({**claim("single-cpu"), "spec": spec}, pod("single", claims=["single-cpu"]))
        wait_ready("single")
        device = get("resourceclaim", "single-cpu")["status"]["allocation"]["devices"]["results"][0]["device"]
        expected = {driver.devices()[device]["attributes"]["dra.cpu/cpuID"]["int"]}
        check(mask("single") == expected, f"{mask('single')}, not {expected}")
        end("single")

    with_values({"driverConfig": {"cpuDeviceMode": "individual"}}, look)


@story_with_values
def claimed_cpus_count_against_the_nodes_cpu():
    def look():
        own = start_pinned("counted")
        shown = lambda: get("pod", "counted")["status"].get("nodeAllocatableResourceClaimStatuses")
        wait("the pod's status counts its claim", shown)
        check(mask("counted") == own, f"{mask('counted')}")
        end("counted")

    with_values({"driverConfig": {"publishNodeAllocatableResourceMapping": True}}, look)


# ---- installing, taking over, uninstalling ----------------------------------------------------------------------


@story
def every_object_of_the_chart_is_accepted_by_the_api_server():
    for values in ({}, {"podMonitor": {"enabled": False}, "driverConfig": {"groupBy": "socket"}}):
        rendered = driver.template(values)
        said = kubectl("apply", "--dry-run=server", "-n", driver.NAMESPACE, "-f", "-", stdin=rendered)
        check(said.count("server dry run") == rendered.count("\nkind: "), said)


@story
def a_pod_of_the_driver_writes_slices_of_its_own_node_only():
    token = kubectl("create", "token", "dracpu", "-n", driver.NAMESPACE, f"--bound-object-kind=Pod", f"--bound-object-name={driver.pod()}").strip()
    slice = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "foreign"},
             "spec": {"driver": "dra.cpu", "nodeName": "another-node", "pool": {"name": "x", "generation": 1, "resourceSliceCount": 1}, "devices": []}}
    said = kubectl(f"--token={token}", "--kubeconfig", node.bare_kubeconfig(), "create", "-f", "-", stdin=json.dumps(slice), fails=True)
    check("another-node" in said or "own node" in said, said)


@story
def an_uninstall_leaves_pods_as_they_are_and_a_new_install_takes_them_over():
    start_plain()
    own = start_pinned("survivor")
    driver.uninstall()
    check(mask("survivor") == own and mask("plain") == online() - own, "masks stay")
    driver.install()
    check(mask("survivor") == own, f"{mask('survivor')}")
    pool_is("plain", online() - own)
    check(driver.metric("dra_cpu_allocated_cpus") == 1, "the claim is recorded")
    end("survivor")
    all_are_free()


@story
def a_release_of_the_go_driver_is_upgraded_in_place_with_its_claims_and_values():
    start_plain()
    own = start_pinned("adopted")
    uid, container_id = claim_of("adopted", "adopted-cpu")["metadata"]["uid"], node.container_id("adopted", NAMESPACE)
    slices = driver.slices()
    driver.uninstall()
    go_driver.prepared(uid, own)
    go_driver.published(slices)
    go_driver.install({"fullnameOverride": "dracpu", "args": {"logLevel": 5}, "podLabels": {"team": "nodes"}})
    before = get("daemonset", "dracpu", driver.NAMESPACE)["metadata"]["uid"]

    said = driver.take_over("--reuse-values", fails=True)
    check("--reset-then-reuse-values" in said, f"the way that works is not named: {said}")
    driver.take_over()
    driver.wait_rolled_out()
    daemon_set = get("daemonset", "dracpu", driver.NAMESPACE)
    check(daemon_set["metadata"]["uid"] == before, "the same DaemonSet")
    template = daemon_set["spec"]["template"]
    check("--v=5" in template["spec"]["containers"][0]["args"] and template["metadata"]["labels"].get("team") == "nodes", f"its values: {template}")
    check(driver.metric("dra_cpu_allocated_cpus") == 1, "the claim is recorded")
    check(node.container_id("adopted", NAMESPACE) == container_id and mask("adopted") == own, f"not as it was: {mask('adopted')}")
    pool_is("plain", online() - own)
    wait("the slices are those of one driver", lambda: len(driver.slices()) == len(slices))
    # As many CPUs as there are beside the claim's.
    apply(claim("rival-cpu", len(online()) - 1), pod("rival", claims=["rival-cpu"]))
    wait_event("rival", "this would leave 0 CPUs")
    end("rival")

    node.kill_container("adopted")
    wait("a restart", lambda: get("pod", "adopted")["status"]["containerStatuses"][0]["restartCount"] >= 1, limit=90)
    wait_ready("adopted", limit=90)
    check(mask("adopted") == own, f"{mask('adopted')}")
    end("adopted")
    all_are_free()
    driver.install()


@story
def records_that_somebody_deleted_are_written_again_once_the_api_server_confirms_them():
    start_plain()
    own = start_pinned("bereft")
    uid = claim_of("bereft", "bereft-cpu")["metadata"]["uid"]
    path = f"/var/run/cdi/dra.k8s.io-cpu_claim-{uid}.json"
    node.inside("rm", path)
    delete("pod", driver.pod(), namespace=driver.NAMESPACE, grace=30)
    driver.wait_rolled_out()
    wait("the record is back", lambda: uid in node.inside("sh", "-c", f"cat {path} || true"))
    check(driver.metric("dra_cpu_allocated_cpus") == 1, "the claim is recorded")
    check(mask("bereft") == own, f"{mask('bereft')}")
    if not node.bears_pushes():
        start_plain("next")
    pool_is("plain", online() - own)
    end("bereft", "next")
    all_are_free()


@story
def every_granted_right_is_used():
    used = node.audit(f"system:serviceaccount:{driver.NAMESPACE}:dracpu")
    granted = set()
    for rule in get("clusterrole", "dracpu", None)["rules"]:
        granted |= {(resource, verb) for resource in rule["resources"] for verb in rule["verbs"]}
    # Not asked for by a request of its own: the API server asks it of who patches the status of a claim.
    granted.discard(("resourceclaims/driver", "associated-node:patch"))
    check(granted <= used, f"granted and never used: {sorted(granted - used)}")
    # While a release is taken away its role goes before its pods: what is granted again by now does not count.
    refused = set(node.audit_refusals(f"system:serviceaccount:{driver.NAMESPACE}:dracpu")) - granted
    check(not refused, f"asked for and not granted: {sorted(refused)}")


@story
def nothing_happens_when_nothing_changes():
    """For SOAK seconds, with the chart's log level: 30 in `make e2e`, for each runtime; 300 in `make soak`."""
    start_plain()
    own = start_pinned("quiet")
    apply(pod("both", [container("one"), container("two")]))
    wait_ready("both")
    user = f"system:serviceaccount:{driver.NAMESPACE}:dracpu"
    seconds = int(os.environ.get("SOAK", "30"))

    def seen():
        # Not removals: the kubelet removes the containers of earlier stories in its own time.
        hooks = driver.sums("dra_cpu_nri_(create|stop|synchronize)", "_count")
        return {"API writes": node.writes(user), "log lines": driver.logs().splitlines(), "calls of the runtime": hooks}

    time.sleep(2)
    before = seen()
    time.sleep(seconds)
    for what, after in seen().items():
        check(after == before[what], f"{what} in {seconds} s: {before[what]}, then {after}")
    # Masks that are set outside of hooks have log lines.
    check(mask("quiet") == own and mask("plain") == mask("both", "two") == online() - own, "masks are as they were")
    end("quiet")
    delete("pod", "both")
