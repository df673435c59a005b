use crate::{CpuSet, Denial, deny};

/// The machine that a strategy was opened on: online CPUs, what they share, and the published groups.
///
/// Positions (`Cpu::core` and so on) point into the lists of the machine and are always valid. The sets
/// are exact: nothing is an average, cores may differ in threads, caches in size, NUMA nodes may be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// Online CPUs, ascending by id; ids have holes.
    pub cpus: Vec<Cpu>,
    /// Cores, by lowest CPU: sets of thread siblings of any size.
    pub cores: Vec<CpuSet>,
    /// Clusters; CPUs may be in none.
    pub clusters: Vec<CpuSet>,
    /// Dies.
    pub dies: Vec<CpuSet>,
    /// Sockets.
    pub sockets: Vec<Socket>,
    /// NUMA nodes, with those that have no CPUs.
    pub numa_nodes: Vec<NumaNode>,
    /// Last-level caches, by lowest CPU; CPUs may have none.
    pub caches: Vec<Cache>,
    /// Kinds of cores.
    pub kinds: Vec<CpuKind>,
    /// PCIe roots; empty unless they are discovered.
    pub pcie_roots: Vec<PcieRoot>,
    /// CPUs that the machine has but that are offline.
    pub offline: CpuSet,
    /// Never given out.
    pub reserved: CpuSet,
    /// `isolcpus`: never shared.
    pub isolated: CpuSet,
    /// The published devices.
    pub groups: Vec<Group>,
}

/// An online logical CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cpu {
    /// The kernel's number.
    pub id: u32,
    /// Position in [`Machine::cores`].
    pub core: usize,
    /// The kernel's `core_id`: repeats across sockets, has holes. Only for ordering.
    pub core_id: u32,
    /// Rank in the core by CPU id.
    pub thread: u32,
    /// Position in [`Machine::clusters`]; none when the kernel says none.
    pub cluster: Option<usize>,
    /// Position in [`Machine::dies`].
    pub die: usize,
    /// Position in [`Machine::sockets`].
    pub socket: usize,
    /// Position in [`Machine::numa_nodes`].
    pub numa_node: usize,
    /// Position in [`Machine::caches`]; none when the kernel shows none.
    pub llc: Option<usize>,
    /// Position in [`Machine::kinds`].
    pub kind: usize,
}

/// A physical package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    /// `physical_package_id` as the kernel prints it; may be -1 or huge.
    pub id: i64,
    /// Its CPUs.
    pub cpus: CpuSet,
}

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaNode {
    /// The kernel's number; numbers have holes.
    pub id: u32,
    /// Its memory.
    pub memory_bytes: u64,
    /// SLIT distances, one for each of [`Machine::numa_nodes`]; empty when unknown.
    pub distances: Vec<u32>,
    /// Its CPUs; may be none.
    pub cpus: CpuSet,
}

/// A last-level cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// 3 where there is an L3, else the highest level that exists.
    pub level: u32,
    /// The kernel's id; may repeat. Only for ordering.
    pub id: u32,
    /// Its size; 0 when unknown.
    pub size_bytes: u64,
    /// The online CPUs that share it.
    pub cpus: CpuSet,
}

/// A kind of core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuKind {
    /// As in the attribute `dra.cpu/coreType`.
    pub name: String,
    /// Relative speed, fastest = 1024.
    pub capacity: u32,
    /// The CPUs of this kind.
    pub cpus: CpuSet,
}

/// A PCIe root complex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PcieRoot {
    /// As in `resource.kubernetes.io/pcieRoot`.
    pub name: String,
    /// The CPUs local to it.
    pub cpus: CpuSet,
}

/// A published device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The device's name.
    pub device: String,
    /// `numanode`, `socket`, `llc`, `machine`; others may come. Only the set matters.
    pub kind: String,
    /// Its CPUs: online and not reserved, isolated ones included.
    pub cpus: CpuSet,
}

/// A last-level cache, or what stands for one where the kernel shows none: by position in the lists of the
/// machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    /// A last-level cache.
    Cache(usize),
    /// A cluster.
    Cluster(usize),
    /// A die that is only part of its socket.
    Die(usize),
    /// A NUMA node.
    NumaNode(usize),
}

impl Domain {
    /// The level of caches, for [`Machine::domain_of`].
    pub const CACHES: u8 = 0;
    /// The level of NUMA nodes.
    pub const NUMA_NODES: u8 = 3;
}

impl Machine {
    /// What the CPU shares its last-level cache in. Caches are looked at from [level](Domain::CACHES) 0 on,
    /// clusters up to level 1, dies up to 2, then NUMA nodes. CPUs with different answers share none.
    #[must_use]
    pub fn domain_of(&self, cpu: &Cpu, level: u8) -> Domain {
        let cache = cpu.llc.filter(|_| level == Domain::CACHES).map(Domain::Cache);
        let cluster = || cpu.cluster.filter(|_| level <= 1).map(Domain::Cluster);
        let is_part = || {
            let (die, socket) = (self.dies.get(cpu.die), self.sockets.get(cpu.socket));
            level <= 2 && die.map(CpuSet::len) < socket.map(|socket| socket.cpus.len())
        };
        let die = || is_part().then_some(Domain::Die(cpu.die));
        cache.or_else(cluster).or_else(die).unwrap_or(Domain::NumaNode(cpu.numa_node))
    }

    /// One dense number for every domain of the machine, whatever it is.
    #[must_use]
    pub fn number_of(&self, domain: Domain) -> usize {
        let clusters_at = self.caches.len();
        let dies_at = clusters_at + self.clusters.len();
        let nodes_at = dies_at + self.dies.len();
        match domain {
            Domain::Cache(at) => at,
            Domain::Cluster(at) => clusters_at + at,
            Domain::Die(at) => dies_at + at,
            Domain::NumaNode(at) => nodes_at + at,
        }
    }

    /// All CPUs of a domain.
    #[must_use]
    pub fn cpus_of(&self, domain: Domain) -> Option<&CpuSet> {
        match domain {
            Domain::Cache(at) => self.caches.get(at).map(|cache| &cache.cpus),
            Domain::Cluster(at) => self.clusters.get(at),
            Domain::Die(at) => self.dies.get(at),
            Domain::NumaNode(at) => self.numa_nodes.get(at).map(|node| &node.cpus),
        }
    }

    /// The machine as if only these CPUs were online. Positions stay what they are; cores, caches and so on
    /// may have become empty.
    #[must_use]
    pub fn only(&self, cpus: &CpuSet) -> Self {
        let mut only = self.clone();
        only.cpus.retain(|cpu| cpus.contains(cpu.id));
        let mut keep = |set: &mut CpuSet| *set = set.intersection(cpus);
        only.cores.iter_mut().for_each(&mut keep);
        only.clusters.iter_mut().for_each(&mut keep);
        only.dies.iter_mut().for_each(&mut keep);
        only.sockets.iter_mut().for_each(|socket| keep(&mut socket.cpus));
        only.numa_nodes.iter_mut().for_each(|node| keep(&mut node.cpus));
        only.caches.iter_mut().for_each(|cache| keep(&mut cache.cpus));
        only.kinds.iter_mut().for_each(|kind| keep(&mut kind.cpus));
        only.pcie_roots.iter_mut().for_each(|root| keep(&mut root.cpus));
        only.groups.iter_mut().for_each(|group| keep(&mut group.cpus));
        only
    }

    /// The CPU with this id, when it is online.
    #[must_use]
    pub fn cpu(&self, id: u32) -> Option<&Cpu> {
        self.cpus.binary_search_by_key(&id, |cpu| cpu.id).ok().and_then(|at| self.cpus.get(at))
    }

    /// All online CPUs.
    #[must_use]
    pub fn online(&self) -> CpuSet {
        self.cpus.iter().map(|cpu| cpu.id).collect()
    }

    /// The core of a CPU: itself and its thread siblings that are online.
    #[must_use]
    pub fn core_of(&self, cpu: u32) -> Option<&CpuSet> {
        self.cpu(cpu).and_then(|cpu| self.cores.get(cpu.core))
    }

    /// The last-level cache of a CPU.
    #[must_use]
    pub fn llc_of(&self, cpu: u32) -> Option<&Cache> {
        self.cpu(cpu).and_then(|cpu| cpu.llc).and_then(|llc| self.caches.get(llc))
    }

    /// The NUMA node of a CPU.
    #[must_use]
    pub fn numa_node_of(&self, cpu: u32) -> Option<&NumaNode> {
        self.cpu(cpu).and_then(|cpu| self.numa_nodes.get(cpu.numa_node))
    }

    /// The CPUs of every core that lies in `cpus` with all its threads.
    #[must_use]
    pub fn whole_cores(&self, cpus: &CpuSet) -> CpuSet {
        let mut whole = vec![true; self.cores.len()];
        for cpu in self.cpus.iter().filter(|cpu| !cpus.contains(cpu.id)) {
            if let Some(whole) = whole.get_mut(cpu.core) {
                *whole = false;
            }
        }
        let is_whole = |cpu: &&Cpu| whole.get(cpu.core).copied().unwrap_or(false);
        self.cpus.iter().filter(is_whole).map(|cpu| cpu.id).collect()
    }

    /// How many online threads each core with a CPU in `cpus` has, when it is the same for all of them.
    #[must_use]
    pub fn threads_per_core(&self, cpus: &CpuSet) -> Option<u32> {
        let mut threads = vec![0; self.cores.len()];
        for cpu in &self.cpus {
            if let Some(threads) = threads.get_mut(cpu.core) {
                *threads += 1;
            }
        }
        let touched = self.cpus.iter().filter(|cpu| cpus.contains(cpu.id));
        let mut sizes = touched.filter_map(|cpu| threads.get(cpu.core).copied());
        let first = sizes.next()?;
        sizes.all(|size| size == first).then_some(first)
    }

    /// The CPUs local to any of these PCIe roots.
    #[must_use]
    pub fn local_to(&self, roots: &[usize]) -> CpuSet {
        let mut local = CpuSet::new();
        for root in roots.iter().filter_map(|root| self.pcie_roots.get(*root)) {
            local.extend_from(&root.cpus);
        }
        local
    }

    /// The group at a position.
    ///
    /// # Errors
    /// Invalid, when there is none: the host never asks for one.
    pub fn group(&self, position: usize) -> Result<&Group, Denial> {
        self.groups
            .get(position)
            .ok_or_else(|| deny!(Invalid, "the request names group {position} of {}", self.groups.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::MachineSpec;

    #[test]
    fn queries_answer_by_exact_sets() {
        let spec = MachineSpec::even(2, 1, 2, 2).offline(&[7].into()).pcie_root("pci0000:00", [0, 1].into());
        let machine = spec.empty_numa_node(9).build();
        assert_eq!(machine.online(), (0..7).collect());
        assert_eq!(machine.core_of(5), Some(&[1, 5].into()));
        assert_eq!(machine.core_of(3), Some(&[3].into()));
        assert_eq!(machine.core_of(7), None);
        assert_eq!(machine.llc_of(2).map(|cache| &cache.cpus), Some(&[2, 3, 6].into()));
        assert_eq!(machine.numa_node_of(6).map(|node| node.id), Some(1));
        assert_eq!(machine.whole_cores(&[0, 1, 3, 4].into()), [0, 3, 4].into());
        assert_eq!(machine.threads_per_core(&[0, 1].into()), Some(2));
        assert_eq!(machine.threads_per_core(&[2, 3].into()), None);
        assert_eq!(machine.threads_per_core(&CpuSet::new()), None);
        assert_eq!(machine.local_to(&[0, 5]), [0, 1].into());
        assert_eq!(machine.numa_nodes.len(), 3);
        assert!(machine.group(1).is_err());
    }
}
