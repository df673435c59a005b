"""The stories of a node with eight CPUs: two sockets, each a NUMA node with a last-level cache, of two cores with two
threads. They are told on the guest, the cluster's second node; what is asked of the machine is read in its own sysfs. Told
again are those of stories.py that say more where there are more CPUs.
"""

import json

import documentation
import driver
import node
import stories
from kube import (
    apply, cgroup_mask, check, claim, claim_of, container, cpus, delete, get, kubectl, mask, pod, ready, request, stays, wait,
    wait_event, wait_ready, NAMESPACE,
)
from stories import all_are_free, end, online, pool_is, start_plain, story, story_with_values, with_values


def list_of(path):
    return cpus(node.inside("cat", path))


def numa(number):
    """The CPUs of a NUMA node, as the kernel says."""
    return list_of(f"/sys/devices/system/node/node{number}/cpulist")


def core_of(cpu):
    return list_of(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")


def offered(device):
    return int(driver.devices()[device]["capacity"]["dra.cpu/cpu"]["value"])


def start_claiming(name, count, **more):
    """A pod with a claim of its own for so many CPUs; these, as its container sees them. Each look into a container takes
    seconds here, so that it is one."""
    apply(claim(f"{name}-cpu", count), pod(name, claims=[f"{name}-cpu"], **more))
    wait_ready(name)
    own = mask(name)
    check(len(own) == count, f"{name} runs on {own}, not on {count} CPUs")
    return own


@story
def a_device_is_a_numa_node():
    found = driver.devices()
    check(len(found) == 2, f"{list(found)}")
    for device in found.values():
        number = device["attributes"]["resource.kubernetes.io/numaNode"]["int"]
        check(device["attributes"]["dra.cpu/numCPUs"]["int"] == len(numa(number)) == offered(device["name"]), f"{device}")
        check(device["attributes"]["dra.cpu/smtEnabled"]["bool"] is True, f"{device}")
    check(numa(0) | numa(1) == online() and len(online()) == 8, f"{online()}")


@story
def four_cpus_are_a_whole_numa_node_and_the_neighbour_has_the_rest():
    both = [container("main", ["whole-cpu"]), container("aside")]
    apply(claim("whole-cpu", 4), pod("whole", both, ["whole-cpu"]))
    wait_ready("whole")
    own = driver.pinned("whole", "whole-cpu")
    check(own in (numa(0), numa(1)), f"{own} is no NUMA node")
    main, aside = mask("whole", "main"), mask("whole", "aside")
    check(main == own == cgroup_mask("whole", "main"), f"{main}, not {own}")
    check(aside == online() - own, f"the neighbour: {aside}")
    end("whole")


@story
def two_cpus_are_the_two_threads_of_a_core():
    own = start_claiming("core", 2)
    check(own == core_of(min(own)), f"{own} is no core")
    other = start_claiming("other", 2)
    check(other == core_of(min(other)), f"{other} is no core")
    end("core", "other")


@story
def claims_of_many_sizes_never_share_and_the_pool_shrinks_and_grows():
    start_plain()
    taken = {}
    for name, count in (("three", 3), ("two", 2), ("one", 1)):
        taken[name] = start_claiming(name, count)
        check(sum(map(len, taken.values())) == len(set.union(*taken.values())), f"{taken}")
        pool_is("plain", online() - set.union(*taken.values()))
    apply(claim("late-cpu", 3), pod("late", claims=["late-cpu"]))
    wait_event("late", "FailedScheduling")
    for name in ("three", "two", "one"):
        end(name)
        del taken[name]
        if name == "three":
            wait_ready("late", limit=120)
            taken["late"] = mask("late")
            check(len(taken["late"]) == 3, f"{taken}")
        pool_is("plain", online() - set().union(*taken.values()))
    end("late")
    pool_is("plain", online())
    end("plain")
    all_are_free()


@story
def a_pod_has_two_claims_for_two_containers():
    both = [container("large", ["large-cpu"]), container("small", ["small-cpu"]), container("aside")]
    apply(claim("large-cpu", 3), claim("small-cpu", 2), pod("double", both, ["large-cpu", "small-cpu"]))
    wait_ready("double")
    large, small, rest = (mask("double", name) for name in ("large", "small", "aside"))
    check((len(large), len(small), len(rest)) == (3, 2, 3), f"{large}, {small}, {rest}")
    check(large | small | rest == online(), f"{large}, {small}, {rest}")
    end("double", claims=False)
    delete("resourceclaim", "large-cpu", "small-cpu")


@story
def a_container_has_two_claims_and_runs_on_both():
    apply(claim("left-cpu", 4), claim("right-cpu", 2), pod("wide", claims=["left-cpu", "right-cpu"]))
    wait_ready("wide")
    left, right = driver.pinned("wide", "left-cpu"), driver.pinned("wide", "right-cpu")
    check((len(left), len(right)) == (4, 2) and mask("wide") == left | right, f"{left}, {right}, {mask('wide')}")
    end("wide", claims=False)
    delete("resourceclaim", "left-cpu", "right-cpu")


@story
def a_selector_chooses_the_numa_node():
    for number in (1, 0):
        cel = f'device.attributes["resource.kubernetes.io"].numaNode == {number}'
        spec = {"devices": {"requests": [request(3, selectors=[{"cel": {"expression": cel}}])]}}
        apply({**claim("local-cpu"), "spec": spec}, pod("local", claims=["local-cpu"]))
        wait_ready("local")
        own = mask("local")
        check(len(own) == 3 and own < numa(number), f"{own}, not of {numa(number)}")
        end("local")


@story
def claims_outlive_the_drivers_death():
    start_plain()
    before = {name: start_claiming(name, count) for name, count in (("whole", 4), ("half", 2))}
    node.kill_driver()
    wait("the driver is ready", lambda: ready(driver.pod(), driver.NAMESPACE))
    wait("the claims are recorded", lambda: driver.metric("dra_cpu_allocated_cpus") == 6)
    for name, own in before.items():
        check(mask(name) == own, f"{name}: {mask(name)}, not {own}")
    last = start_claiming("last", 1)
    pool_is("plain", online() - before["whole"] - before["half"] - last)
    end("whole", "half", "last", "plain")
    all_are_free()


@story
def an_offline_cpu_makes_the_claims_of_its_device_unhealthy_until_it_is_back():
    selectors = [{"cel": {"expression": 'device.attributes["resource.kubernetes.io"].numaNode == 1'}}]
    spec = {"devices": {"requests": [request(2, selectors=selectors)]}}
    apply(*({**claim(f"{name}-cpu"), "spec": spec} for name in ("hit", "near")))
    apply(*(pod(name, claims=[f"{name}-cpu"]) for name in ("hit", "near")))
    wait_ready("hit", "near")
    lost = max(mask("hit"))

    def health(name):
        statuses = get("pod", name)["status"]["containerStatuses"][0].get("allocatedResourcesStatus", [])
        return [(one["health"], one.get("message", "")) for each in statuses for one in each["resources"]]

    def are(state, *words):
        return lambda: all(
            [found == state and all(word in message for word in words) for found, message in health(name)] == [True]
            for name in ("hit", "near")
        )

    def be(online):
        node.inside("sh", "-c", f"echo {online} > /sys/devices/system/cpu/cpu{lost}/online")

    wait("both claims are healthy", are("Healthy"))
    be(0)
    try:
        wait("both are told which claim lacks which CPU", are("Unhealthy", f"CPU {lost} of claim dracpu-e2e/hit-cpu"), limit=120)
        said = driver.dracpu("claims")
        check("hit" in said and "near" in said, said)
    finally:
        be(1)
    wait("both claims are healthy again", are("Healthy"), limit=120)
    wait("its container has the CPU back", lambda: lost in mask("hit"), limit=120)
    end("hit", "near")
    all_are_free()


@story
def grouped_by_socket_or_machine_a_claim_reaches_further():
    def look_at_the_machine():
        check([offered(name) for name in driver.devices()] == [8], f"{driver.devices()}")
        own = start_claiming("machine", 6)
        check(numa(0) < own or numa(1) < own, f"{own}: no whole NUMA node")
        check(all(core_of(cpu) <= own for cpu in own), f"{own}: half a core")
        end("machine")

    driver.install({"driverConfig": {"groupBy": "socket"}})
    check([offered(name) for name in driver.devices()] == [4, 4], f"{driver.devices()}")
    own = start_claiming("socket", 4)
    check(own in (numa(0), numa(1)), f"{own} is no socket")
    end("socket")
    with_values({"driverConfig": {"groupBy": "machine", "allocator": "packed"}}, look_at_the_machine)


@story
def claimed_cpus_are_taken_off_what_the_scheduler_gives_others():
    def asking(name, amount):
        return pod(name, [container(resources={"requests": {"cpu": amount}})])

    def look():
        apply(claim("heavy-cpu", 4), claim("more-cpu", 2), pod("heavy", claims=["heavy-cpu", "more-cpu"]))
        wait_ready("heavy")
        apply(asking("greedy", "3"), asking("modest", "1"))
        wait_ready("modest")
        wait_event("greedy", "FailedScheduling", "Insufficient cpu")
        end("heavy", claims=False)
        delete("resourceclaim", "heavy-cpu", "more-cpu")
        wait_ready("greedy", limit=120)
        end("greedy", "modest", claims=False)

    with_values({"driverConfig": {"publishNodeAllocatableResourceMapping": True}}, look)


@story
def reserved_cpus_of_both_numa_nodes_are_nobodys():
    reserved = {min(numa(0)), min(numa(1))}

    def look():
        check([offered(name) for name in driver.devices()] == [3, 3], f"{driver.devices()}")
        start_plain()
        own = start_claiming("unreserved", 3)
        check(not own & reserved, f"{own}")
        pool_is("plain", online() - reserved - own)
        end("unreserved", "plain")

    with_values({"driverConfig": {"reservedCPUs": ",".join(map(str, sorted(reserved)))}}, look)


@story
def a_cpu_goes_offline_and_comes_back_and_the_driver_lives():
    start_plain()
    own = start_claiming("steady", 4)
    gone = max(online() - own)
    before = node.container_id(driver.pod(), driver.NAMESPACE)
    switch = f"/sys/devices/system/cpu/cpu{gone}/online"
    node.inside("sh", "-c", f"echo 0 > {switch}")
    try:
        check(gone not in online(), f"CPU {gone} is still online")
        wait("the slices have one CPU less", lambda: sum(map(offered, driver.devices())) == len(online()))
        pool_is("plain", online() - own)
        check(mask("steady") == own, f"{mask('steady')}, not {own}")
        start_plain("meanwhile")
        check(gone not in mask("meanwhile"), f"{mask('meanwhile')}")
        stays("the driver is ready", lambda: ready(driver.pod(), driver.NAMESPACE))
    finally:
        node.inside("sh", "-c", f"echo 1 > {switch}")
    wait("the slices have it again", lambda: sum(map(offered, driver.devices())) == len(online()))
    pool_is("plain", online() - own)
    check(mask("steady") == own, f"{mask('steady')}, not {own}")
    check(node.container_id(driver.pod(), driver.NAMESPACE) == before, "the driver was restarted")
    end("steady", "plain", "meanwhile")
    all_are_free()


@story
def the_scheduler_finds_the_node_that_has_enough_cpus():
    def look():
        names = {one["spec"]["nodeName"] for one in driver.slices()}
        check(len(names) == 2 and node.NAME in names, f"slices of {names}")
        check(names == {one["spec"]["pool"]["name"] for one in driver.slices()}, "each node has its own pool")
        apply(claim("roaming-cpu", 4), pod("roaming", claims=["roaming-cpu"], nodeSelector=None))
        wait_ready("roaming")
        check(get("pod", "roaming")["spec"]["nodeName"] == node.NAME, "it is on the larger node")
        check(mask("roaming") in (numa(0), numa(1)), f"{mask('roaming')}")
        end("roaming")

    with_values({"nodeSelector": {}}, look)


PCIE_ROOT = "resource.kubernetes.io/pcieRoot"


def stand_in(name, roots):
    """A driver of other devices, each on a PCIe root, as far as the scheduler needs one: its class and its slice. It has nothing to
    do on the node, and says so, so that the kubelet does not wait for it."""
    devices = [{"name": device, "attributes": {PCIE_ROOT: {"string": root}}} for device, root in roots.items()]
    pool = {"name": node.NAME, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": name, "nodeName": node.NAME, "pool": pool, "devices": devices, "skipNodeOperations": ["*"]}
    selector = {"cel": {"expression": f'device.driver == "{name}"'}}
    meta = {"apiVersion": "resource.k8s.io/v1", "metadata": {"name": name}}
    return {**meta, "kind": "DeviceClass", "spec": {"selectors": [selector]}}, {**meta, "kind": "ResourceSlice", "spec": spec}


@story_with_values
def cpus_a_gpu_and_a_network_card_come_from_one_pcie_root():
    """The guest has one PCIe root; an overlay shows one for each NUMA node."""
    path = "/sys/devices/pci{0}/pci_bus/{0}/cpulistaffinity"
    lists = {path.format(root): ",".join(map(str, sorted(numa(number)))) for number, root in enumerate(("0000:00", "0000:80"))}
    data = {"overlay.yaml": json.dumps(lists)}
    apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "roots"}, "data": data}, namespace=driver.NAMESPACE)
    values = {
        "args": {"exposePCIeRoots": True},
        "driverConfig": {"sysfsOverlay": "/overlay/overlay.yaml"},
        "extraVolumes": [{"name": "overlay", "configMap": {"name": "roots"}}],
        "extraVolumeMounts": [{"name": "overlay", "mountPath": "/overlay", "readOnly": True}],
    }
    others = [
        *stand_in("gpu.example.com", {"gpu-0": "pci0000:00", "gpu-1": "pci0000:80"}),
        *stand_in("nic.example.com", {"nic-0": "pci0000:80"}),
    ]
    manifest = documentation.examples("claims")["gpu-nic-one-pcie-root.yaml"]

    def look():
        def roots():
            return {name: device["attributes"].get(PCIE_ROOT, {}).get("strings") for name, device in driver.devices().items()}

        # A driver is ready before the API server has its new slices.
        expected = {"cpudevnuma000": ["pci0000:00"], "cpudevnuma001": ["pci0000:80"]}
        wait(f"the devices are local to {expected}", lambda: roots() == expected)
        apply(*others, namespace=None)
        for name in ("gpu.example.com", "nic.example.com"):
            stored = get("resourceslice", name, namespace=None)["spec"]
            # Else the kubelet would wait for drivers that are not there, and the pod could not even end.
            check(stored.get("skipNodeOperations") == ["*"], f"{stored}")
        kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=manifest)
        pod_name = "on-one-pcie-root"
        results = wait("the claim is allocated", lambda: claim_of(pod_name, "devices")["status"]["allocation"]["devices"]["results"])
        chosen = {one["driver"]: one["device"] for one in results}
        check(chosen == {"dra.cpu": "cpudevnuma001", "gpu.example.com": "gpu-1", "nic.example.com": "nic-0"}, f"{chosen}")
        wait_ready(pod_name)
        own = mask(pod_name)
        check(len(own) == 2 and own < numa(1), f"{own}, not of {numa(1)}")
        documentation.take_away(manifest)
        all_are_free()

    try:
        with_values(values, look)
    finally:
        for kind in ("resourceslice", "deviceclass"):
            delete(kind, "gpu.example.com", "nic.example.com", namespace=None)
        delete("configmap", "roots", namespace=driver.NAMESPACE)


RETOLD = [
    stories.slices_are_stored_as_they_were_sent,
    stories.a_claimed_cpu_is_the_containers_alone,
    stories.the_examples_are_accepted_and_those_that_fit_run,
    stories.individual_mode_publishes_each_cpu,
]
STORIES = RETOLD + [one for one in stories.STORIES if one.__module__ == __name__]
