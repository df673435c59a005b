use dracpu_cpuset::CpuSet;

/// A machine's online CPUs and what they share. Every index (`Cpu::core` and so on) is a dense position
/// in the list of that name; kernel ids may repeat, have holes, or be missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    /// Online logical CPUs, ascending by id.
    pub cpus: Vec<Cpu>,
    /// Cores: online thread siblings of any number, by lowest CPU.
    pub cores: Vec<CpuSet>,
    /// Clusters (CPUs sharing an L2 or a tag, as the kernel names them), by lowest CPU.
    pub clusters: Vec<CpuSet>,
    /// Dies, by lowest CPU; one per socket where the kernel names none.
    pub dies: Vec<CpuSet>,
    /// Sockets, by lowest CPU.
    pub sockets: Vec<Socket>,
    /// NUMA nodes, ascending by id, with those that have no CPUs. Empty where the kernel shows none.
    pub numa_nodes: Vec<NumaNode>,
    /// Last-level caches, by lowest CPU. CPUs may have none, sizes may differ.
    pub caches: Vec<Cache>,
    /// Kinds of cores; at least one (`standard`).
    pub kinds: Vec<CpuKind>,
    /// PCIe roots with the CPUs local to them, by name.
    pub pcie_roots: Vec<PcieRoot>,
    /// Present but offline CPUs.
    pub offline: CpuSet,
    /// CPUs that the kernel keeps the scheduler off (`isolcpus`), online or not.
    pub isolated: CpuSet,
    /// CPUs on which the kernel stops its tick while a single task runs (`nohz_full`), online or not.
    pub nohz_full: CpuSet,
    /// Where facts were missing or contradicted each other, and what was assumed.
    pub warnings: Vec<Warning>,
}

/// An online logical CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cpu {
    /// The kernel's number.
    pub id: u32,
    /// Position in [`Topology::cores`].
    pub core: usize,
    /// The kernel's `core_id`: repeats across sockets, has holes. None when unknown.
    pub core_id: Option<u32>,
    /// Rank within the core, by CPU id.
    pub thread: u32,
    /// Position in [`Topology::clusters`]; none when the kernel says none (65535, -1, no file).
    pub cluster: Option<usize>,
    /// Position in [`Topology::dies`].
    pub die: usize,
    /// Position in [`Topology::sockets`].
    pub socket: usize,
    /// Position in [`Topology::numa_nodes`]; none where the kernel shows no NUMA.
    pub numa_node: Option<usize>,
    /// Position in [`Topology::caches`]; none where the kernel shows no cache.
    pub llc: Option<usize>,
    /// Position in [`Topology::kinds`].
    pub kind: usize,
}

/// A physical package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    /// `physical_package_id` as the kernel prints it: may be -1 or huge. -1 when unknown.
    pub id: i64,
    /// Its online CPUs.
    pub cpus: CpuSet,
}

/// A NUMA node. It may have no CPUs or no memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaNode {
    /// The kernel's number; numbers have holes.
    pub id: u32,
    /// Its online CPUs.
    pub cpus: CpuSet,
    /// `MemTotal` of the node's `meminfo`.
    pub memory_bytes: u64,
    /// SLIT distances, one for each of [`Topology::numa_nodes`] in order; empty when unknown.
    pub distances: Vec<u32>,
}

/// A last-level cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// The level: 3 where there is an L3, else the highest that exists.
    pub level: u32,
    /// The kernel's id; none on machines without the `id` file. May repeat.
    pub id: Option<u32>,
    /// Size; 0 when unknown.
    pub size_bytes: u64,
    /// The online CPUs that share it.
    pub cpus: CpuSet,
}

/// A kind of core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuKind {
    /// As in the attribute `dra.cpu/coreType`: `standard`, `p-core`, `e-core`.
    pub name: String,
    /// Relative speed, fastest = 1024.
    pub capacity: u32,
}

impl Default for CpuKind {
    /// The one kind of a machine whose cores are all alike.
    fn default() -> Self {
        Self { name: "standard".to_owned(), capacity: Self::FASTEST }
    }
}

impl CpuKind {
    /// The capacity of a machine's fastest kind.
    pub const FASTEST: u32 = 1024;
}

/// A PCIe root complex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PcieRoot {
    /// As in `resource.kubernetes.io/pcieRoot`: `pci0000:00`.
    pub name: String,
    /// The CPUs local to it (`cpulistaffinity`).
    pub cpus: CpuSet,
}

/// A fact that was missing or contradictory, and what was assumed instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Stable identifier, e.g. `no-package-id`.
    pub code: &'static str,
    /// One sentence with the values.
    pub message: String,
}

impl Topology {
    /// All online CPUs.
    #[must_use]
    pub fn online(&self) -> CpuSet {
        self.cpus.iter().map(|cpu| cpu.id).collect()
    }

    /// The online CPU with this id.
    #[must_use]
    pub fn cpu(&self, id: u32) -> Option<&Cpu> {
        self.cpus.binary_search_by_key(&id, |cpu| cpu.id).ok().and_then(|at| self.cpus.get(at))
    }

    /// Threads of the widest core; 1 on a machine without simultaneous multithreading.
    #[must_use]
    pub fn threads_per_core(&self) -> usize {
        self.cores.iter().map(CpuSet::len).max().unwrap_or(1)
    }
}
