//! Sysfs trees.

use crate::{Target, is_short, text};
use dracpu_codec::config::ReservedCpus;
use dracpu_cpuset::CpuSet;
use dracpu_topology::{Drawing, Mark, Overlay, Topology, online, read};
use std::collections::BTreeMap;
use std::path::Path;

pub(crate) const TREES: Target = Target {
    name: "sysfs_trees",
    check,
    // The longest list, in a few bytes, is a machine of 8192 CPUs.
    fixed_kib: 256 << 10,
    per_byte: 64 << 10,
    words: &[
        "cpu/online=0-3\n",
        "cpu/present=0-7\n",
        "cpu/isolated=",
        "cpu/cpu0/topology/",
        "thread_siblings_list=",
        "core_cpus=",
        "physical_package_id=",
        "die_id=",
        "cluster_id=",
        "core_id=",
        "65535",
        "-1",
        "cpu/cpu1/cache/index3/",
        "shared_cpu_list=",
        "shared_cpu_map=",
        "level=3",
        "type=Unified",
        "size=32768K",
        "id=",
        "node/node0/",
        "cpulist=",
        "cpumap=",
        "distance=10 20",
        "meminfo=Node 0 MemTotal: 16 kB",
        "/devices/cpu_core/cpus=",
        "/devices/cpu_atom/cpus=",
        "cpu_capacity=",
        "/devices/pci0000:00/pci_bus/0000:00/cpulistaffinity=",
        "ffffffff,00000000",
        "0-8191",
        "9999999999999999999",
    ],
};

/// A file a line, `path=content`: below `devices/system`, or below `/sys` with a slash before it.
fn check(input: &[u8]) {
    let mut files = BTreeMap::new();
    for line in text(input).lines() {
        let Some((path, content)) = line.split_once('=') else { continue };
        let path = match path.strip_prefix('/') {
            Some(path) => format!("/sys/{path}"),
            None => format!("/sys/devices/system/{path}"),
        };
        files.insert(path, content.replace("\\n", "\n"));
    }
    let overlay = match Overlay::from_files(files) {
        Ok(overlay) => overlay,
        Err(error) => return is_short(&error),
    };
    let nowhere = Path::new("/nonexistent-sysfs");
    match read(nowhere, &overlay) {
        Ok(machine) => {
            consistent(&machine);
            assert_eq!(online(nowhere, &overlay).expect("it was readable"), machine.online());
            assert_eq!(read(nowhere, &overlay).expect("it was readable"), machine);
        }
        Err(error) => {
            is_short(&error);
            assert!(error.to_string().contains("sys"), "names no file: {error}");
        }
    }
}

/// Every position points somewhere, and every group is a partition.
fn consistent(machine: &Topology) {
    let online = machine.online();
    let partition = |sets: &[&CpuSet]| {
        let all = sets.iter().fold(CpuSet::new(), |all, set| all.union(set));
        assert!(all == online && sets.iter().map(|set| set.len()).sum::<usize>() == online.len());
    };
    assert!(!machine.cpus.is_empty() && !machine.kinds.is_empty());
    partition(&machine.cores.iter().collect::<Vec<_>>());
    partition(&machine.dies.iter().collect::<Vec<_>>());
    partition(&machine.sockets.iter().map(|socket| &socket.cpus).collect::<Vec<_>>());
    for cpu in &machine.cpus {
        assert!(machine.cores[cpu.core].contains(cpu.id));
        assert!(machine.dies[cpu.die].contains(cpu.id));
        assert!(machine.sockets[cpu.socket].cpus.contains(cpu.id));
        assert!(cpu.llc.is_none_or(|at| machine.caches[at].cpus.contains(cpu.id)));
        assert!(cpu.numa_node.is_none_or(|at| machine.numa_nodes[at].cpus.contains(cpu.id)));
        assert!(cpu.cluster.is_none_or(|at| machine.clusters[at].contains(cpu.id)));
        assert!(cpu.kind < machine.kinds.len());
    }
    assert!(machine.offline.is_disjoint(&online));
    for node in &machine.numa_nodes {
        assert!(node.distances.is_empty() || node.distances.len() == machine.numa_nodes.len());
        assert!(node.cpus.is_subset(&online));
    }
    for warning in &machine.warnings {
        is_short(&warning.message);
    }
    let reserved = ReservedCpus::Count(3).on(machine);
    assert!(reserved.len() <= 3 && reserved.is_subset(&online) && reserved.is_disjoint(&machine.isolated));
    if machine.cpus.len() <= 64 {
        assert!(!Drawing::new(machine).mark(&online, Mark::Shared).to_string().is_empty());
    }
}
