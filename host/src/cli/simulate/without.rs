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
        die: of(&left.dies)?,
        socket: left.sockets.iter().position(|socket| socket.cpus.contains(cpu.id))?,
        llc: left.caches.iter().position(|cache| cache.cpus.contains(cpu.id)),
        ..cpu.clone()
    })
}
