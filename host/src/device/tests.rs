use super::fixtures::{Row, machine, rows};
use super::*;
use crate::config::GroupBy;
use dracpu_topology::{NumaNode, PcieRoot};

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

fn grouped(by: GroupBy) -> Settings {
    let mode = DeviceMode::Grouped(by);
    Settings { mode, min_shared_cpus: MinSharedCpus::Default, expose_pcie_roots: false }
}

const INDIVIDUAL: Settings = Settings {
    mode: DeviceMode::Individual,
    min_shared_cpus: MinSharedCpus::Default,
    expose_pcie_roots: false,
};
const NUMA: GroupBy = GroupBy::NumaNode;

/// As published for a strategy that offers everything.
fn all(topology: &Topology, reserved: &str, settings: Settings, publishes: &[&str]) -> Published {
    let groups = groups(topology, settings.mode, &set(reserved));
    let offers: Vec<Offer> =
        groups.iter().map(|group| offer(group.cpus.len().try_into().unwrap(), 1)).collect();
    let publishes: Vec<String> = publishes.iter().map(|name| (*name).to_owned()).collect();
    publish(topology, &set(reserved), settings, &groups, &publishes, &offers)
}

fn offer(capacity: u32, step: u32) -> Offer {
    Offer { capacity, step, attributes: Vec::new() }
}

fn names(published: &Published) -> Vec<&str> {
    published.devices.iter().map(|device| device.name.as_str()).collect()
}

fn codes(published: &Published) -> Vec<&str> {
    published.warnings.iter().map(|warning| warning.code).collect()
}

fn capacities(published: &Published) -> Vec<u32> {
    published.devices.iter().map(|device| device.capacity.unwrap().cpus).collect()
}

/// `name=value` for each attribute but those that are the same on every device of a test.
fn attributes(device: &Device) -> Vec<String> {
    let attributes = device.attributes.iter().map(|(name, value)| match value {
        Attribute::Int(value) => format!("{name}={value}"),
        Attribute::Bool(value) => format!("{name}={value}"),
        Attribute::Text(value) | Attribute::Version(value) => format!("{name}={value}"),
        Attribute::Texts(values) => format!("{name}=[{}]", values.join(" ")),
    });
    attributes.collect()
}

#[test]
fn a_numa_node_carries_its_attributes_under_all_names_and_what_is_not_reserved() {
    let published = all(&machine(&rows(2, 4, 2)), "0,8", grouped(NUMA), &[]);
    assert_eq!(names(&published), ["cpudevnuma000", "cpudevnuma001"]);
    assert_eq!(
        attributes(&published.devices[0]),
        [
            "dra.cpu/numCPUs=6",
            "dra.cpu/numaNodeID=0",
            "dra.cpu/smtEnabled=true",
            "dra.cpu/socketID=0",
            "dra.net/numaNode=0",
            "resource.kubernetes.io/numaNode=0"
        ]
    );
    assert_eq!(published.devices[0].capacity, Some(Capacity { cpus: 6, step: 1, kept: 0 }));
    assert_eq!(published.devices[1].cpus, set("4-7,12-15"));
    assert!(published.warnings.is_empty());
}

#[test]
fn sockets_and_the_machine_carry_only_what_is_theirs() {
    let two = machine(&rows(2, 2, 1));
    let published = all(&two, "", grouped(GroupBy::Socket), &[]);
    assert_eq!(names(&published), ["cpudevsocket000", "cpudevsocket001"]);
    assert_eq!(
        attributes(&published.devices[1]),
        ["dra.cpu/numCPUs=2", "dra.cpu/smtEnabled=false", "dra.cpu/socketID=1"]
    );
    let published = all(&two, "", grouped(GroupBy::Machine), &[]);
    assert_eq!(names(&published), ["cpudevmachine"]);
    assert_eq!(attributes(&published.devices[0]), ["dra.cpu/numCPUs=4", "dra.cpu/smtEnabled=false"]);
}

#[test]
fn caches_are_groups_by_running_number_with_the_facts_that_their_cpus_share() {
    let two = machine(&rows(2, 2, 2));
    let published = all(&two, "", grouped(GroupBy::Llc), &[]);
    assert_eq!(names(&published), ["cpudevllc000", "cpudevllc001"]);
    assert_eq!(published.devices[1].cpus, set("2-3,6-7"));
    assert_eq!(
        attributes(&published.devices[1]),
        [
            "dra.cpu/cacheL3ID=1",
            "dra.cpu/numCPUs=4",
            "dra.cpu/numaNodeID=1",
            "dra.cpu/smtEnabled=true",
            "dra.cpu/socketID=1",
            "dra.net/numaNode=1",
            "resource.kubernetes.io/numaNode=1"
        ]
    );
    // The number is the cache's, also where a cache before it is reserved as a whole.
    assert_eq!(names(&all(&two, "0-1,4-5", grouped(GroupBy::Llc), &[])), ["cpudevllc001"]);
}

#[test]
fn without_caches_all_cpus_are_one_group_and_cpus_without_one_are_named() {
    let none: Vec<Row> = rows(2, 2, 1).into_iter().map(|row| Row { l3: None, ..row }).collect();
    let published = all(&machine(&none), "", grouped(GroupBy::Llc), &[]);
    assert_eq!((names(&published), codes(&published)), (vec!["cpudevllc000"], vec!["no-caches"]));
    assert_eq!(published.devices[0].cpus, set("0-3"));
    let mut some = rows(2, 2, 1);
    some[3].l3 = None;
    let published = all(&machine(&some), "", grouped(GroupBy::Llc), &[]);
    assert_eq!((capacities(&published), codes(&published)), (vec![2, 1], vec!["cpus-without-cache"]));
}

#[test]
fn groups_are_in_the_order_of_kernel_ids_and_empty_or_fully_reserved_ones_are_left_out() {
    let swapped: Vec<Row> = rows(3, 2, 1)
        .into_iter()
        .map(|row| Row { numa: row.numa.map(|id| 16 - 8 * id), package: 300 - row.package, ..row })
        .collect();
    let mut topology = machine(&swapped);
    topology.numa_nodes.push(NumaNode { id: 99, cpus: set(""), memory_bytes: 1, distances: vec![] });
    assert_eq!(
        names(&all(&topology, "", grouped(NUMA), &[])),
        ["cpudevnuma000", "cpudevnuma008", "cpudevnuma016"]
    );
    assert_eq!(names(&all(&topology, "2-3", grouped(NUMA), &[])), ["cpudevnuma000", "cpudevnuma016"]);
    let sockets = all(&topology, "", grouped(GroupBy::Socket), &[]);
    assert_eq!(names(&sockets), ["cpudevsocket298", "cpudevsocket299", "cpudevsocket300"]);
    assert_eq!(sockets.devices[0].cpus, set("4-5"));
}

#[test]
fn without_numa_nodes_all_cpus_are_node_0_without_its_attributes() {
    let none: Vec<Row> = rows(2, 2, 1).into_iter().map(|row| Row { numa: None, ..row }).collect();
    let published = all(&machine(&none), "0", grouped(NUMA), &[]);
    assert_eq!(names(&published), ["cpudevnuma000"]);
    assert_eq!(published.devices[0].cpus, set("1-3"));
    assert_eq!(attributes(&published.devices[0]), ["dra.cpu/numCPUs=3", "dra.cpu/smtEnabled=false"]);
    assert_eq!(codes(&published), ["no-numa-nodes"]);
    assert!(all(&machine(&none), "0", grouped(GroupBy::Socket), &[]).warnings.is_empty());
}

#[test]
fn cpus_without_a_node_on_a_machine_with_nodes_are_named() {
    let mut some = rows(2, 2, 1);
    some[3].numa = None;
    let published = all(&machine(&some), "", grouped(NUMA), &[]);
    assert_eq!(capacities(&published), [2, 1]);
    assert_eq!(codes(&published), ["cpus-without-numa-node"]);
    assert!(published.warnings[0].message.starts_with("CPUs 3 "));
}

#[test]
fn a_package_of_minus_one_is_socket_0() {
    let none: Vec<Row> = rows(1, 4, 1).into_iter().map(|row| Row { package: -1, ..row }).collect();
    let published = all(&machine(&none), "", grouped(GroupBy::Socket), &[]);
    assert_eq!(names(&published), ["cpudevsocket000"]);
    assert_eq!(published.devices[0].attributes["dra.cpu/socketID"], Attribute::Int(0));
    let mut mixed = rows(1, 4, 1);
    mixed[0].package = -1;
    assert_eq!(capacities(&all(&machine(&mixed), "", grouped(GroupBy::Socket), &[])), [4]);
}

#[test]
fn a_node_over_two_sockets_has_no_socket() {
    let spanning: Vec<Row> = rows(2, 2, 1).into_iter().map(|row| Row { numa: Some(0), ..row }).collect();
    let published = all(&machine(&spanning), "", grouped(NUMA), &[]);
    assert!(!published.devices[0].attributes.contains_key("dra.cpu/socketID"));
    assert_eq!(published.devices[0].attributes["resource.kubernetes.io/numaNode"], Attribute::Int(0));
}

#[test]
fn single_cpus_are_numbered_core_by_core_over_those_that_are_not_reserved() {
    let published = all(&machine(&rows(1, 4, 2)), "0,5", INDIVIDUAL, &[]);
    assert_eq!(
        names(&published),
        ["cpudev000", "cpudev001", "cpudev002", "cpudev003", "cpudev004", "cpudev005"]
    );
    let cpus: Vec<_> = published.devices.iter().filter_map(|device| device.cpus.first()).collect();
    assert_eq!(cpus, [1, 2, 6, 3, 7, 4]);
    assert!(published.devices.iter().all(|device| device.capacity.is_none()));
    assert_eq!(
        attributes(&published.devices[1]),
        [
            "dra.cpu/cacheL3ID=0",
            "dra.cpu/coreID=2",
            "dra.cpu/coreType=standard",
            "dra.cpu/cpuID=2",
            "dra.cpu/numaNodeID=0",
            "dra.cpu/smtEnabled=true",
            "dra.cpu/socketID=0",
            "dra.net/numaNode=0",
            "resource.kubernetes.io/numaNode=0"
        ]
    );
}

#[test]
fn isolated_cpus_are_no_devices_of_their_own_and_keep_their_numbers() {
    let mut topology = machine(&rows(1, 4, 1));
    topology.isolated = set("1-2");
    assert_eq!(names(&all(&topology, "", INDIVIDUAL, &[])), ["cpudev000", "cpudev003"]);
    assert_eq!(groups(&topology, DeviceMode::Grouped(NUMA), &set("0"))[0].cpus, set("1-3"));
}

#[test]
fn facts_that_a_cpu_does_not_have_are_left_out() {
    let bare: Vec<Row> = rows(1, 1, 1).into_iter().map(|row| Row { numa: None, l3: None, ..row }).collect();
    let mut topology = machine(&bare);
    topology.cpus[0].core_id = None;
    let published = all(&topology, "", INDIVIDUAL, &[]);
    assert_eq!(
        attributes(&published.devices[0]),
        ["dra.cpu/coreType=standard", "dra.cpu/cpuID=0", "dra.cpu/smtEnabled=false", "dra.cpu/socketID=0"]
    );
}

#[test]
fn an_l3_without_id_is_named_by_its_lowest_cpu_and_an_l2_is_none() {
    let mut topology = machine(&rows(2, 2, 1));
    topology.caches[1].id = None;
    let l3 = |topology: &Topology| {
        let published = all(topology, "", INDIVIDUAL, &[]);
        published.devices[3].attributes.get("dra.cpu/cacheL3ID").cloned()
    };
    assert_eq!(l3(&topology), Some(Attribute::Int(2)));
    topology.caches[1].level = 2;
    assert_eq!(l3(&topology), None);
}

#[test]
fn the_map_of_cpus_and_siblings_is_there_when_the_strategy_asks() {
    let asked = ["dra.cpu/cpuIDs", "dra.cpu/smtLayout"];
    let published = all(&machine(&rows(1, 4, 2)), "0-1", grouped(NUMA), &asked);
    let text = |name: &str| match &published.devices[0].attributes[name] {
        Attribute::Text(text) => text.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(text("dra.cpu/cpuIDs"), "2-7");
    assert_eq!(text("dra.cpu/cpuIDsV2"), "2-7");
    assert_eq!(text("dra.cpu/smtLayout"), "0-7>4", "the whole machine, reserved CPUs too");
    assert_eq!(text("dra.cpu/smtLayoutV2"), "0-7>4");
}

#[test]
fn a_map_too_long_for_the_api_is_left_out_and_its_v2_form_stays() {
    let interleaved: Vec<Row> =
        rows(1, 48, 1).into_iter().map(|row| Row { numa: Some(row.cpu % 2), ..row }).collect();
    let published = all(&machine(&interleaved), "", grouped(NUMA), &["dra.cpu/cpuIDs"]);
    let device = &published.devices[1];
    assert!(!device.attributes.contains_key("dra.cpu/cpuIDs"));
    assert_eq!(device.attributes["dra.cpu/cpuIDsV2"], Attribute::Text("1-47:1/2".to_owned()));
    assert_eq!(codes(&published), ["attribute-too-long"]);
}

#[test]
fn cores_of_four_threads_have_a_v2_layout_only() {
    let published = all(&machine(&rows(1, 2, 4)), "", grouped(NUMA), &["dra.cpu/smtLayout"]);
    let attributes = &published.devices[0].attributes;
    assert!(!attributes.contains_key("dra.cpu/smtLayout"));
    assert_eq!(attributes["dra.cpu/smtLayoutV2"], Attribute::Text("0-7>2x3".to_owned()));
    assert_eq!(attributes["dra.cpu/smtEnabled"], Attribute::Bool(true));
    assert!(published.warnings.is_empty());
}

#[test]
fn pcie_roots_are_a_list_of_those_local_to_the_device_and_only_on_demand() {
    let mut topology = machine(&rows(2, 2, 1));
    let root = |name: &str, cpus: &str| PcieRoot { name: name.to_owned(), cpus: set(cpus) };
    topology.pcie_roots = vec![root("pci0000:00", "0-3"), root("pci0000:40", "1"), root("pci0000:80", "")];
    let roots = |settings: Settings| {
        let published = all(&topology, "", settings, &[]);
        let roots =
            published.devices.iter().map(|d| d.attributes.get("resource.kubernetes.io/pcieRoot").cloned());
        roots.collect::<Vec<_>>()
    };
    let list = |names: &[&str]| Some(Attribute::Texts(names.iter().map(|name| (*name).to_owned()).collect()));
    assert_eq!(roots(grouped(NUMA)), [None, None]);
    let exposed = Settings { expose_pcie_roots: true, ..grouped(NUMA) };
    assert_eq!(roots(exposed), [list(&["pci0000:00", "pci0000:40"]), list(&["pci0000:00"])]);
    let exposed = Settings { expose_pcie_roots: true, ..INDIVIDUAL };
    assert_eq!(
        roots(exposed)[1..],
        [list(&["pci0000:00", "pci0000:40"]), list(&["pci0000:00"]), list(&["pci0000:00"])]
    );
}

#[test]
fn an_explicit_floor_is_taken_off_the_largest_device_first() {
    let uneven: Vec<Row> = rows(1, 12, 1)
        .into_iter()
        .map(|row| Row { numa: Some([0, 1, 1, 2][(row.cpu / 3) as usize]), ..row })
        .collect();
    let topology = machine(&uneven);
    let floor =
        |min_shared_cpus| capacities(&all(&topology, "", Settings { min_shared_cpus, ..grouped(NUMA) }, &[]));
    assert_eq!(floor(MinSharedCpus::Default), [3, 6, 3]);
    assert_eq!(floor(MinSharedCpus::Explicit(1)), [3, 5, 3]);
    assert_eq!(
        floor(MinSharedCpus::Explicit(8)),
        [1, 3],
        "nothing is left of the largest, it is not published"
    );
    assert_eq!(floor(MinSharedCpus::Explicit(99)), [0; 0]);
    // Where it lies is what others can have.
    let isolated = Topology { isolated: set("3-7"), ..topology.clone() };
    let min_shared_cpus = MinSharedCpus::Explicit(2);
    let settings = Settings { min_shared_cpus, ..grouped(NUMA) };
    assert_eq!(capacities(&all(&isolated, "", settings, &[])), [2, 5, 3]);
}

#[test]
fn the_offer_decides_capacity_and_step_and_adds_attributes_of_its_own_domain() {
    let topology = machine(&rows(3, 2, 1));
    let settings = grouped(NUMA);
    let groups = groups(&topology, settings.mode, &set(""));
    let own = ("s.example/speed".to_owned(), Attribute::Int(7));
    let offers = [Offer { attributes: vec![own.clone()], ..offer(2, 2) }, offer(0, 1), offer(1, 2)];
    let published = publish(&topology, &set(""), settings, &groups, &[], &offers);
    assert_eq!(names(&published), ["cpudevnuma000"]);
    assert_eq!(published.devices[0].capacity, Some(Capacity { cpus: 2, step: 2, kept: 0 }));
    assert_eq!(published.devices[0].attributes[&own.0], own.1);
    assert_eq!(codes(&published), ["no-capacity", "no-capacity"]);
}
