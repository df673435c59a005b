use crate::bindings::dracpu::strategy::types as records;
use crate::testkit::Draw;
use crate::{CpuSet, Machine};
use std::collections::{BTreeMap, BTreeSet};

/// A machine in the making. Without [`group`](Self::group) it has one group of all unreserved CPUs.
#[derive(Debug, Clone, Default)]
pub struct MachineSpec {
    rows: Vec<CpuRow>,
    offline: CpuSet,
    reserved: CpuSet,
    isolated: CpuSet,
    empty_numa_nodes: Vec<u32>,
    pcie_roots: Vec<(String, CpuSet)>,
    kinds: Vec<(String, u32, CpuSet)>,
    groups: Vec<(String, CpuSet)>,
    without_memory: Vec<u32>,
}

/// A CPU by the kernel's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuRow {
    /// Its id.
    pub cpu: u32,
    /// `core_id`; CPUs of one socket with the same one are a core.
    pub core_id: u32,
    /// `physical_package_id`.
    pub socket: i64,
    /// NUMA node id.
    pub numa: u32,
    /// Id of the level 3 cache; CPUs of one socket with the same one share it.
    pub l3: Option<u32>,
}

/// As files of machines have it, in the order of the fields; an `l3` below 0 is none.
impl From<(u32, u32, i64, u32, i64)> for CpuRow {
    fn from((cpu, core_id, socket, numa, l3): (u32, u32, i64, u32, i64)) -> Self {
        Self { cpu, core_id, socket, numa, l3: u32::try_from(l3).ok() }
    }
}

impl MachineSpec {
    /// A machine of these CPUs.
    #[must_use]
    pub fn of_rows(rows: impl IntoIterator<Item = CpuRow>) -> Self {
        let mut rows: Vec<CpuRow> = rows.into_iter().collect();
        rows.sort_by_key(|row| row.cpu);
        rows.dedup_by_key(|row| row.cpu);
        Self { rows, ..Self::default() }
    }

    /// Equal sockets, each of `numa` nodes with one level 3 cache of `cores` cores. Numbered as servers
    /// are: first threads of all cores, then second threads; core ids repeat on every socket.
    #[must_use]
    pub fn even(sockets: u32, numa: u32, cores: u32, threads: u32) -> Self {
        let all = sockets * numa * cores;
        let row = |cpu: u32| {
            let core = cpu % all;
            let node = core / cores;
            CpuRow {
                cpu,
                core_id: core % (numa * cores),
                socket: i64::from(node / numa),
                numa: node,
                l3: Some(node),
            }
        };
        Self::of_rows((0..all * threads).map(row))
    }

    /// A small machine drawn from a seed: uneven cores, sockets, NUMA nodes and caches, holes in the
    /// numbers, reserved and isolated CPUs, kinds of cores, groups that overlap. The same seed, the same machine.
    #[must_use]
    pub fn drawn(seed: u64) -> Self {
        let mut draw = Draw(seed);
        let (sockets, nodes, caches) = (1 + draw.below(3), 1 + draw.below(5), draw.below(7));
        let (wide, shuffled) = (1 + draw.below(4), draw.below(2) == 0);
        let mut rows = Vec::new();
        for core in 0..1 + draw.below(24) {
            let (socket, numa, cache) = if shuffled {
                (draw.below(sockets), draw.below(nodes), draw.below(caches + 1))
            } else {
                (core % sockets, core % nodes, core % (caches + 1))
            };
            for thread in 0..1 + draw.below(wide) {
                let cpu = core + thread * 29 + 40 * draw.below(2) * u32::from(shuffled);
                let l3 = (cache > 0).then_some(cache);
                rows.push(CpuRow {
                    cpu,
                    core_id: core / 2 * 3 + core % 2,
                    socket: i64::from(socket) - 1,
                    numa,
                    l3,
                });
            }
        }
        let mut spec = Self::of_rows(rows);
        let cpus: Vec<u32> = spec.rows.iter().map(|row| row.cpu).collect();
        let mut some = |of: u32| -> CpuSet { cpus.iter().copied().filter(|_| draw.below(of) == 0).collect() };
        spec.reserved = some(8);
        spec.isolated = some(6);
        for name in ["a", "b"] {
            let cpus = some(2).difference(&spec.reserved);
            spec.groups.push((name.to_owned(), cpus));
        }
        spec.pcie_roots.push(("pci0000:00".to_owned(), some(2)));
        spec.empty_numa_nodes.push(90);
        if draw.below(2) == 0 {
            let efficient = spec.rows.iter().filter(|row| row.core_id % 3 == 1).map(|row| row.cpu).collect();
            spec.kinds.push(("e-core".to_owned(), 512, efficient));
        }
        spec
    }

    /// As servers are: cores that all have as many threads, numbered side by side or apart, and CPUs isolated thread by
    /// thread, core by core, or anywhere. One group; the same seed, the same machine.
    #[must_use]
    pub fn drawn_even(seed: u64) -> Self {
        let mut draw = Draw(seed);
        let (nodes, cores, threads) = (1 + draw.below(3), 1 + draw.below(6), 1 << draw.below(4));
        let (per_cache, apart) = (1 + draw.below(4), draw.below(2) == 0);
        let total = nodes * cores;
        let row = |core: u32, thread: u32| CpuRow {
            cpu: if apart { core + thread * total } else { core * threads + thread },
            core_id: core % cores,
            socket: (core / cores).into(),
            numa: core / cores,
            l3: Some(core / cores * cores + core % cores / per_cache),
        };
        let rows = (0..total).flat_map(|core| (0..threads).map(move |thread| (core, thread)));
        let mut isolated = CpuSet::new();
        let how = draw.below(3);
        for (core, thread) in rows.clone() {
            let chosen = match how {
                0 => thread + 1 == threads,
                1 => core % 3 == 1,
                _ => draw.below(4) == 0,
            };
            if chosen {
                isolated.insert(row(core, thread).cpu);
            }
        }
        Self::of_rows(rows.map(|(core, thread)| row(core, thread))).isolated(isolated).ungrouped()
    }

    /// Takes CPUs offline.
    #[must_use]
    pub fn offline(mut self, cpus: &CpuSet) -> Self {
        let taken = self.rows.extract_if(.., |row| cpus.contains(row.cpu));
        self.offline.extend(taken.map(|row| row.cpu));
        self
    }

    /// Reserves CPUs.
    #[must_use]
    pub fn reserved(self, cpus: CpuSet) -> Self {
        Self { reserved: cpus, ..self }
    }

    /// Isolates CPUs.
    #[must_use]
    pub fn isolated(self, cpus: CpuSet) -> Self {
        Self { isolated: cpus, ..self }
    }

    /// Adds a NUMA node without CPUs.
    #[must_use]
    pub fn empty_numa_node(mut self, id: u32) -> Self {
        self.empty_numa_nodes.push(id);
        self
    }

    /// Adds a PCIe root.
    #[must_use]
    pub fn pcie_root(mut self, name: &str, cpus: CpuSet) -> Self {
        self.pcie_roots.push((name.to_owned(), cpus));
        self
    }

    /// Gives CPUs a kind of core; the others are `standard` with capacity 1024.
    #[must_use]
    pub fn kind(mut self, name: &str, capacity: u32, cpus: CpuSet) -> Self {
        self.kinds.push((name.to_owned(), capacity, cpus));
        self
    }

    /// Adds a group. Its CPUs must be online and not reserved.
    #[must_use]
    pub fn group(mut self, device: &str, cpus: CpuSet) -> Self {
        self.groups.push((device.to_owned(), cpus));
        self
    }

    /// Takes the groups back: one of all unreserved CPUs.
    #[must_use]
    pub fn ungrouped(mut self) -> Self {
        self.groups.clear();
        self
    }

    /// Takes the memory of a NUMA node away; others have 16 GiB.
    #[must_use]
    pub fn without_memory(mut self, numa: u32) -> Self {
        self.without_memory.push(numa);
        self
    }

    /// The machine as a strategy gets it. Empty when the spec breaks the contract (a CPU above the limit).
    #[must_use]
    pub fn build(&self) -> Machine {
        Machine::try_from(self.topology()).unwrap_or_default()
    }

    /// The machine as the interface carries it.
    #[must_use]
    pub fn topology(&self) -> records::Topology {
        let cores = Numbering::of(&self.rows, |row| Some((row.core_id, row.socket)));
        let caches = Numbering::of(&self.rows, |row| row.l3.map(|l3| (l3, row.socket)));
        let sockets = Numbering::of(&self.rows, |row| Some(row.socket));
        let occupied = self.rows.iter().map(|row| row.numa);
        let nodes: BTreeSet<u32> = occupied.chain(self.empty_numa_nodes.iter().copied()).collect();
        let nodes: Vec<u32> = nodes.into_iter().collect();
        let online: CpuSet = self.rows.iter().map(|row| row.cpu).collect();

        let mut threads: BTreeMap<u32, u32> = BTreeMap::new();
        let mut cpu = |row: &CpuRow| {
            let core = cores.position(row).unwrap_or_default();
            let thread = threads.entry(core).or_default();
            *thread += 1;
            let socket = sockets.position(row).unwrap_or_default();
            let kind =
                self.kinds.iter().position(|(_, _, cpus)| cpus.contains(row.cpu)).map_or(0, |at| at + 1);
            records::Cpu {
                id: row.cpu,
                core,
                core_id: row.core_id,
                thread: *thread - 1,
                cluster: None,
                die: socket,
                socket,
                numa_node: index(nodes.binary_search(&row.numa).unwrap_or_default()),
                llc: caches.position(row),
                kind: index(kind),
            }
        };
        let cpus: Vec<records::Cpu> = self.rows.iter().map(&mut cpu).collect();
        let cache = |(at, (id, _)): (u32, &(u32, i64))| records::Cache {
            level: 3,
            id: *id,
            size_bytes: 32 << 20,
            cpus: cpus
                .iter()
                .filter(|cpu| cpu.llc == Some(at))
                .map(|cpu| cpu.id)
                .collect::<CpuSet>()
                .into_words(),
        };
        let node = |id: &u32| {
            let memory_bytes = if self.without_memory.contains(id) { 0 } else { 16 << 30 };
            records::NumaNode { id: *id, memory_bytes, distances: Vec::new() }
        };
        let standard = records::CpuKind { name: "standard".to_owned(), capacity: 1024 };
        let kind = |(name, capacity, _): &(String, u32, CpuSet)| records::CpuKind {
            name: name.clone(),
            capacity: *capacity,
        };
        let whole = [("cpudevmachine".to_owned(), online.difference(&self.reserved))];
        let groups = if self.groups.is_empty() { &whole[..] } else { &self.groups[..] };
        records::Topology {
            sockets: sockets.keys.clone(),
            numa_nodes: nodes.iter().map(node).collect(),
            caches: (0..).zip(&caches.keys).map(cache).collect(),
            kinds: std::iter::once(standard).chain(self.kinds.iter().map(kind)).collect(),
            pcie_roots: self.pcie_roots.iter().map(|(name, cpus)| pcie_root(name, cpus)).collect(),
            reserved: self.reserved.words().to_vec(),
            isolated: self.isolated.words().to_vec(),
            groups: groups.iter().map(|(device, cpus)| group(device, cpus)).collect(),
            extra: vec![("offline".to_owned(), self.offline.to_string())],
            cpus,
        }
    }
}

fn pcie_root(name: &str, cpus: &CpuSet) -> records::PcieRoot {
    records::PcieRoot { name: name.to_owned(), cpus: cpus.words().to_vec() }
}

fn group(device: &str, cpus: &CpuSet) -> records::Group {
    records::Group { device: device.to_owned(), kind: "machine".to_owned(), cpus: cpus.words().to_vec() }
}

fn index(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// Dense numbers for keys, by the first row that has each.
struct Numbering<K, F> {
    keys: Vec<K>,
    key_of: F,
}

impl<K: PartialEq, F: Fn(&CpuRow) -> Option<K>> Numbering<K, F> {
    fn of(rows: &[CpuRow], key_of: F) -> Self {
        let mut keys = Vec::new();
        for key in rows.iter().filter_map(&key_of) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        Self { keys, key_of }
    }

    fn position(&self, row: &CpuRow) -> Option<u32> {
        let key = (self.key_of)(row)?;
        self.keys.iter().position(|known| *known == key).map(index)
    }
}
