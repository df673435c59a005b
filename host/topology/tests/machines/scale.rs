//! Large machines: the most CPUs that Linux is built for, and work that grows with their number only.

use crate::support::Sysfs;
use dracpu_cpuset::CpuSet;
use dracpu_topology::{Drawing, Topology};
use std::time::Instant;

/// A machine with this many CPUs, two threads a core, 8 cores a cache, 64 a NUMA node and socket.
fn machine(cpus: u32) -> Sysfs {
    let mut sysfs = Sysfs::default();
    let half = cpus / 2;
    for name in ["online", "present"] {
        sysfs.cpu(name, format!("0-{}", cpus - 1));
    }
    let share = |core: u32, of: u32| {
        let first = core / of * of;
        let last = first + of - 1;
        format!("{first}-{last},{}-{}", first + half, last + half)
    };
    for cpu in 0..cpus {
        let core = cpu % half;
        for (name, text) in [
            ("physical_package_id", (core / 64).to_string()),
            ("core_id", (core % 64).to_string()),
            ("thread_siblings_list", format!("{core},{}", core + half)),
        ] {
            sysfs.cpu(&format!("cpu{cpu}/topology/{name}"), text);
        }
        sysfs.cache(cpu, 3, &[("level", "3"), ("shared_cpu_list", &share(core, 8))]);
    }
    let nodes = half / 64;
    for node in 0..nodes {
        let dir = format!("devices/system/node/node{node}");
        sysfs.set(&format!("{dir}/cpulist"), share(node * 64, 64));
        sysfs.set(&format!("{dir}/meminfo"), "MemTotal: 1 kB");
        let distances: Vec<_> = (0..nodes).map(|other| if other == node { "10" } else { "20" }).collect();
        sysfs.set(&format!("{dir}/distance"), distances.join(" "));
    }
    sysfs
}

#[test]
fn the_largest_machine_is_read_and_drawn() {
    let topology = machine(8192).read().unwrap();
    assert_eq!((topology.cores.len(), topology.caches.len(), topology.sockets.len()), (4096, 512, 64));
    assert_eq!(topology.warnings, []);
    let drawing = Drawing::new(&topology).to_string();
    assert_eq!(drawing.lines().count(), 2 + 512);
}

/// The best of several runs, so that a busy machine does not count.
fn nanoseconds(sysfs: &Sysfs) -> u128 {
    let run = |_| {
        let start = Instant::now();
        let topology: Topology = sysfs.read().unwrap();
        assert_eq!(topology.offline, CpuSet::new());
        start.elapsed().as_nanos()
    };
    (0..3).map(run).min().unwrap_or(0)
}

#[test]
fn four_times_the_cpus_take_at_most_five_times_as_long() {
    let (small, large) = (machine(512), machine(2048));
    // Measured again before it counts: other work on the machine can hit all runs of one size.
    let grows = |_| nanoseconds(&large) > 5 * nanoseconds(&small);
    assert!(!(0..5).all(grows), "reading grows faster than the number of CPUs");
}
