//! The machines: servers whose sockets have several last-level caches, and one whose caches span NUMA nodes.

use dracpu_strategy_sdk::testkit::{CpuRow, MachineSpec};
use dracpu_strategy_sdk::{CpuSet, Machine};

/// What devices stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupBy {
    NumaNode,
    Socket,
    Machine,
}

/// Which mean a machine counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// One NUMA node a socket, devices are sockets.
    Nps1,
    /// Four NUMA nodes a socket.
    Nps4,
    /// Every second cache lacks a core.
    Reserved,
    /// One cache a socket, which spans its NUMA nodes: little to choose.
    Snc,
}

/// A machine, and what is measured of it.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) family: Family,
    pub(crate) group_by: GroupBy,
    pub(crate) machine: Machine,
    /// One for each group.
    pub(crate) groups: Vec<Sizes>,
    /// By CPU id.
    pub(crate) places: Vec<Place>,
    /// The usable CPUs of each cache.
    pub(crate) caches: Vec<CpuSet>,
}

/// Usable CPUs of a group, and of its parts in the machine's caches and NUMA nodes.
#[derive(Debug)]
pub(crate) struct Sizes {
    pub(crate) cpus: CpuSet,
    pub(crate) caches: Vec<usize>,
    pub(crate) nodes: Vec<usize>,
}

/// Positions in the lists of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Place {
    pub(crate) core: usize,
    pub(crate) cache: usize,
    pub(crate) node: usize,
}

/// Equal parts from the outside to the inside; cores of two threads, the second ones numbered after all first.
#[derive(Debug, Clone, Copy)]
struct Shape {
    name: &'static str,
    sockets: u32,
    nodes: u32,
    /// Of a node; 0 where a socket's only cache spans its nodes.
    caches: u32,
    /// Of a cache, or of a node where a cache spans nodes.
    cores: u32,
}

const ROME: Shape = Shape { name: "Rome NPS1", sockets: 2, nodes: 1, caches: 16, cores: 4 };
const MILAN: Shape = Shape { name: "Milan NPS1", sockets: 2, nodes: 1, caches: 8, cores: 8 };
const GENOA: Shape = Shape { name: "Genoa NPS1", sockets: 2, nodes: 1, caches: 12, cores: 8 };
const TURIN: Shape = Shape { name: "Turin-dense NPS1", sockets: 2, nodes: 1, caches: 12, cores: 16 };
const ROME_NPS4: Shape = Shape { name: "Rome NPS4", sockets: 2, nodes: 4, caches: 4, cores: 4 };
const GENOA_NPS4: Shape = Shape { name: "Genoa NPS4", sockets: 2, nodes: 4, caches: 3, cores: 8 };
const SNC: Shape = Shape { name: "Xeon SNC2", sockets: 2, nodes: 2, caches: 0, cores: 28 };

/// The whole suite.
#[must_use]
pub(crate) fn suite() -> Vec<Server> {
    use GroupBy::{Machine, NumaNode, Socket};
    let mut servers: Vec<Server> =
        [ROME, MILAN, GENOA, TURIN].iter().map(|shape| shape.server(Family::Nps1, Socket)).collect();
    for shape in [ROME_NPS4, GENOA_NPS4] {
        servers.extend([NumaNode, Socket, Machine].map(|group_by| shape.server(Family::Nps4, group_by)));
    }
    servers.push(ROME.server(Family::Reserved, Socket));
    servers.extend([Socket, Machine].map(|group_by| SNC.server(Family::Snc, group_by)));
    servers
}

/// One socket of caches that have single CPUs instead of cores.
#[must_use]
pub(crate) fn plain(caches: u32, cpus: u32) -> Server {
    let row = |cpu| CpuRow { cpu, core_id: cpu, socket: 0, numa: 0, l3: Some(cpu / cpus) };
    Server::of("plain", Family::Nps1, GroupBy::Machine, &MachineSpec::of_rows((0..caches * cpus).map(row)))
}

impl Shape {
    fn server(self, family: Family, group_by: GroupBy) -> Server {
        let in_node = self.caches.max(1) * self.cores;
        let all = self.sockets * self.nodes * in_node;
        let row = |cpu: u32| {
            let core = cpu % all;
            let node = core / in_node;
            let socket = node / self.nodes;
            let cache = if self.caches == 0 { socket } else { core / self.cores };
            CpuRow { cpu, core_id: core, socket: i64::from(socket), numa: node, l3: Some(cache) }
        };
        let spec = MachineSpec::of_rows((0..2 * all).map(row));
        let is_short = |cpu: &u32| cpu % all % (2 * self.cores) == self.cores;
        let reserved = match family {
            Family::Reserved => (0..2 * all).filter(is_short).collect(),
            _ => CpuSet::new(),
        };
        Server::of(self.name, family, group_by, &spec.reserved(reserved))
    }
}

impl Server {
    fn of(name: &'static str, family: Family, group_by: GroupBy, spec: &MachineSpec) -> Self {
        let facts = spec.build();
        let usable = facts.online().difference(&facts.reserved);
        let nodes = || facts.numa_nodes.iter().map(|node| &node.cpus);
        let groups: Vec<CpuSet> = match group_by {
            GroupBy::NumaNode => nodes().map(|cpus| cpus.intersection(&usable)).collect(),
            GroupBy::Socket => facts.sockets.iter().map(|socket| socket.cpus.intersection(&usable)).collect(),
            GroupBy::Machine => vec![usable.clone()],
        };
        let devices = (0..).zip(&groups).map(|(at, cpus): (u32, _)| (format!("cpudev{at}"), cpus.clone()));
        let machine = devices.fold(spec.clone(), |spec, (name, cpus)| spec.group(&name, cpus)).build();
        let mut places =
            vec![Place::default(); facts.cpus.iter().map(|cpu| cpu.id as usize + 1).max().unwrap()];
        for cpu in &facts.cpus {
            places[cpu.id as usize] = Place { core: cpu.core, cache: cpu.llc.unwrap(), node: cpu.numa_node };
        }
        let parts = |sets: &[CpuSet], of: &CpuSet| sets.iter().map(|set| set.intersection_len(of)).collect();
        let caches: Vec<CpuSet> = facts.caches.iter().map(|cache| cache.cpus.intersection(&usable)).collect();
        let nodes: Vec<CpuSet> = nodes().cloned().collect();
        let sizes = |cpus: CpuSet| Sizes { caches: parts(&caches, &cpus), nodes: parts(&nodes, &cpus), cpus };
        let groups = groups.into_iter().map(sizes).collect();
        Self { name, family, group_by, machine, groups, places, caches }
    }
}
