//! Small machines for the tests of this room.

use dracpu_cpuset::CpuSet;
use dracpu_topology::{Cache, Cpu, CpuKind, NumaNode, Socket, Topology};

/// A logical CPU as a test states it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) cpu: u32,
    pub(crate) core: u32,
    pub(crate) package: i64,
    pub(crate) numa: Option<u32>,
    pub(crate) l3: Option<u32>,
    pub(crate) kind: &'static str,
}

/// `cores` cores of `threads` threads in each of `sockets` sockets, siblings far apart; a node and an L3 each.
pub(crate) fn rows(sockets: u32, cores: u32, threads: u32) -> Vec<Row> {
    let all = sockets * cores;
    let row = |cpu: u32| {
        let core = cpu % all;
        let socket = core / cores;
        Row { cpu, core, package: socket.into(), numa: Some(socket), l3: Some(socket), kind: "standard" }
    };
    (0..all * threads).map(row).collect()
}

/// The machine of these CPUs. `core_id` is the core's number within the package, so it repeats.
pub(crate) fn machine(rows: &[Row]) -> Topology {
    fn parts<K: PartialEq + Copy>(rows: &[Row], key: impl Fn(&Row) -> Option<K>) -> Vec<(K, CpuSet)> {
        let mut parts: Vec<(K, CpuSet)> = Vec::new();
        for row in rows {
            let Some(of) = key(row) else { continue };
            match parts.iter_mut().find(|(key, _)| *key == of) {
                Some((_, cpus)) => cpus.extend([row.cpu]),
                None => parts.push((of, [row.cpu].into())),
            }
        }
        parts
    }
    let mut rows = rows.to_vec();
    rows.sort_by_key(|row| row.cpu);
    let cores = parts(&rows, |row| Some(row.core));
    let packages = parts(&rows, |row| Some(row.package));
    let mut nodes = parts(&rows, |row| row.numa);
    nodes.sort_by_key(|(id, _)| *id);
    let caches = parts(&rows, |row| row.l3);
    let mut kinds: Vec<&str> = rows.iter().map(|row| row.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let holds = |cpu: u32| move |(_, cpus): &(_, CpuSet)| cpus.contains(cpu);
    let cpus = rows.iter().map(|row| {
        let core = cores.iter().position(|(key, _)| *key == row.core).unwrap();
        let (_, siblings) = &cores[core];
        Cpu {
            id: row.cpu,
            core,
            core_id: Some(row.core % 100),
            thread: siblings.iter().position(|cpu| cpu == row.cpu).unwrap().try_into().unwrap(),
            cluster: None,
            die: 0,
            socket: packages.iter().position(|(key, _)| *key == row.package).unwrap(),
            numa_node: nodes.iter().position(|(_, cpus)| cpus.contains(row.cpu)),
            llc: caches.iter().position(holds(row.cpu)),
            kind: kinds.iter().position(|kind| *kind == row.kind).unwrap(),
        }
    });
    Topology {
        cpus: cpus.collect(),
        sockets: packages.into_iter().map(|(id, cpus)| Socket { id, cpus }).collect(),
        numa_nodes: nodes
            .into_iter()
            .map(|(id, cpus)| NumaNode { id, cpus, memory_bytes: 0, distances: Vec::new() })
            .collect(),
        caches: caches
            .into_iter()
            .map(|(id, cpus)| Cache { level: 3, id: Some(id), size_bytes: 0, cpus })
            .collect(),
        kinds: kinds.into_iter().map(|name| CpuKind { name: name.to_owned(), capacity: 1024 }).collect(),
        cores: cores.into_iter().map(|(_, cpus)| cpus).collect(),
        ..Topology::default()
    }
}
