//! The largest machine: the most CPUs that Linux is built for. How the work grows with their number is measured
//! by `benches/machines.rs`.

use crate::support::Sysfs;
use dracpu_topology::Drawing;

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
    assert_eq!(drawing.lines().count(), 3 + 512, "a line for each cache, two of a summary, a header");
    assert_eq!(Drawing::new(&topology).svg().matches("<title>").count(), 8192);
}
