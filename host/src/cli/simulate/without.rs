//! A machine with some of its CPUs offline, as the kernel would show it.

use dracpu_cpuset::CpuSet;
use dracpu_topology::{Cache, Cpu, NumaNode, Socket, Topology};

/// The machine without these CPUs: what nobody else shares is gone with them.
pub(super) fn without(topology: &Topology, offline: &CpuSet) -> Topology {
    let sets = |sets: &[CpuSet]| {
        let mut left: Vec<CpuSet> = sets.iter().map(|set| set.difference(offline)).collect();
        left.retain(|set| !set.is_empty());
        left.sort_by_key(CpuSet::first);
        left
    };
    let mut sockets: Vec<Socket> = topology
        .sockets
        .iter()
        .map(|socket| Socket { cpus: socket.cpus.difference(offline), ..socket.clone() })
        .filter(|socket| !socket.cpus.is_empty())
        .collect();
    sockets.sort_by_key(|socket| socket.cpus.first());
    let mut caches: Vec<Cache> = topology
        .caches
        .iter()
        .map(|cache| Cache { cpus: cache.cpus.difference(offline), ..cache.clone() })
        .filter(|cache| !cache.cpus.is_empty())
        .collect();
    caches.sort_by_key(|cache| cache.cpus.first());
    let numa_nodes = topology.numa_nodes.iter();
    let mut left = Topology {
        cores: sets(&topology.cores),
        clusters: sets(&topology.clusters),
        dies: sets(&topology.dies),
        sockets,
        numa_nodes: numa_nodes
            .map(|node| NumaNode { cpus: node.cpus.difference(offline), ..node.clone() })
            .collect(),
        caches,
        offline: topology.offline.union(offline),
        cpus: Vec::new(),
        ..topology.clone()
    };
    let running = topology.cpus.iter().filter(|cpu| !offline.contains(cpu.id));
    left.cpus = running.filter_map(|cpu| moved(cpu, &left)).collect();
    left
}

/// The CPU with the positions that it has in the machine that is left.
fn moved(cpu: &Cpu, left: &Topology) -> Option<Cpu> {
    let of = |sets: &[CpuSet]| sets.iter().position(|set| set.contains(cpu.id));
    let core = of(&left.cores)?;
    let thread = left.cores.get(core)?.iter().position(|sibling| sibling == cpu.id)?;
    Some(Cpu {
        core,
        thread: u32::try_from(thread).ok()?,
        cluster: of(&left.clusters),
        die: of(&left.dies).unwrap_or_default(),
        socket: left.sockets.iter().position(|socket| socket.cpus.contains(cpu.id))?,
        llc: left.caches.iter().position(|cache| cache.cpus.contains(cpu.id)),
        ..cpu.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::fixtures::{machine, rows};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_left_is_the_machine_that_never_had_them(
            shape in (1..3u32, 1..5u32, 1..4u32),
            gone in proptest::collection::btree_set(0..24u32, 0..8),
        ) {
            let all = rows(shape.0, shape.1, shape.2);
            let left: Vec<_> = all.iter().filter(|row| !gone.contains(&row.cpu)).copied().collect();
            prop_assume!(!left.is_empty());
            let offline: CpuSet = all.iter().map(|row| row.cpu).filter(|cpu| gone.contains(cpu)).collect();
            let found = without(&machine(&all), &offline);
            let expected = machine(&left);
            // The kernel's number stays what it was, and a node without CPUs stays a node.
            prop_assert_eq!(&found.cores, &expected.cores);
            prop_assert_eq!(found.online(), expected.online());
            prop_assert_eq!(&found.offline, &offline);
            for (found_cpu, cpu) in found.cpus.iter().zip(&expected.cpus) {
                prop_assert_eq!((found_cpu.id, found_cpu.core, found_cpu.thread), (cpu.id, cpu.core, cpu.thread));
                let socket = |topology: &Topology, cpu: &Cpu| topology.sockets[cpu.socket].clone();
                prop_assert_eq!(socket(&found, found_cpu), socket(&expected, cpu));
                let cache = |topology: &Topology, cpu: &Cpu| cpu.llc.map(|at| topology.caches[at].cpus.clone());
                prop_assert_eq!(cache(&found, found_cpu), cache(&expected, cpu));
            }
        }
    }
}
