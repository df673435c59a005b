use crate::error::ReadError;
use crate::facts::{Cache, Cpu, CpuKind, NumaNode, PcieRoot, Socket, Topology};
use crate::warnings::Warnings;
use dracpu_cpuset::CpuSet;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// What a source says about a machine, before it is made consistent. All readers end here, so that
/// the same facts give the same [`Topology`] whatever they were read from.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    /// Online CPUs, ascending by id, each once.
    pub(crate) cpus: Vec<DraftCpu>,
    /// NUMA nodes in any order; those that only CPUs name need not be here.
    pub(crate) nodes: Vec<DraftNode>,
    pub(crate) pcie_roots: Vec<PcieRoot>,
    pub(crate) offline: CpuSet,
    pub(crate) isolated: CpuSet,
    pub(crate) nohz_full: CpuSet,
    pub(crate) warnings: Warnings,
}

/// One online CPU as described.
#[derive(Debug, Clone, Default)]
pub(crate) struct DraftCpu {
    pub(crate) id: u32,
    pub(crate) socket: Option<i64>,
    pub(crate) die: Option<i64>,
    pub(crate) cluster: Option<i64>,
    pub(crate) core_id: Option<u32>,
    /// None: the CPUs of the same socket, die, cluster and core id; without a core id the CPU alone.
    pub(crate) siblings: Option<CpuSet>,
    pub(crate) numa_node: Option<u32>,
    pub(crate) llc: Option<Cache>,
    pub(crate) kind: CpuKind,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct DraftNode {
    pub(crate) id: u32,
    pub(crate) memory_bytes: Option<u64>,
    /// To every node, ascending by id; empty when unknown.
    pub(crate) distances: Vec<u32>,
}

impl Draft {
    /// Makes the facts consistent: every CPU in one core, socket, die and at most one node and cache.
    ///
    /// # Errors
    /// [`ReadError::NoCpus`] when there is no CPU; `source` names where they should have been.
    pub(crate) fn assemble(mut self, source: &str) -> Result<Topology, ReadError> {
        if self.cpus.is_empty() {
            return Err(ReadError::NoCpus { root: source.to_owned() });
        }
        let online: CpuSet = self.cpus.iter().map(|cpu| cpu.id).collect();
        let sockets = self.group(|cpu| cpu.socket.unwrap_or(-1));
        let dies = self.group(|cpu| (cpu.socket, cpu.die));
        let clusters = self.group_some(|cpu| Some((cpu.socket, cpu.die, cpu.cluster?)));
        let cores = self.cores(&online);
        let (caches, cache_of) = self.caches();
        let (numa_nodes, node_of) = self.numa_nodes();
        let kinds = kinds(&self.cpus);
        for core in &cores.sets {
            let mut of_threads = core.iter().filter_map(|cpu| sockets.of.get(&cpu));
            let first = of_threads.next();
            if of_threads.any(|socket| Some(socket) != first) {
                self.warnings.note_all("core-spans-sockets", core);
            }
        }
        let mut threads = vec![0; cores.sets.len()];
        let cpus = self.cpus.iter().map(|cpu| {
            let core = cores.position(cpu.id);
            let thread = threads.get_mut(core).map_or(0, |next| std::mem::replace(next, *next + 1));
            Cpu {
                id: cpu.id,
                core,
                core_id: cpu.core_id,
                thread,
                cluster: clusters.of.get(&cpu.id).copied(),
                die: dies.position(cpu.id),
                socket: sockets.position(cpu.id),
                numa_node: node_of.get(&cpu.id).copied(),
                llc: cache_of.get(&cpu.id).copied(),
                kind: kinds.get(&kind_key(&cpu.kind)).copied().unwrap_or(0),
            }
        });
        let mut pcie_roots = self.pcie_roots;
        for root in &mut pcie_roots {
            root.cpus = root.cpus.intersection(&online);
        }
        pcie_roots.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Topology {
            cpus: cpus.collect(),
            cores: cores.sets,
            clusters: clusters.sets,
            dies: dies.sets,
            sockets: sockets
                .keys
                .into_iter()
                .zip(sockets.sets)
                .map(|(id, cpus)| Socket { id, cpus })
                .collect(),
            numa_nodes,
            caches,
            kinds: kinds
                .keys()
                .map(|(capacity, name)| CpuKind { name: name.0.to_owned(), capacity: capacity.0 })
                .collect(),
            pcie_roots,
            offline: self.offline.difference(&online),
            isolated: self.isolated,
            nohz_full: self.nohz_full,
            warnings: self.warnings.into_list(),
        })
    }

    fn group<K: Ord + Clone>(&self, key: impl Fn(&DraftCpu) -> K) -> Groups<K> {
        self.group_some(|cpu| Some(key(cpu)))
    }

    /// CPUs of the same key are a group; groups in the order of their lowest CPUs.
    fn group_some<K: Ord + Clone>(&self, key: impl Fn(&DraftCpu) -> Option<K>) -> Groups<K> {
        let mut groups = Groups { keys: Vec::new(), sets: Vec::new(), of: BTreeMap::new() };
        let mut known: BTreeMap<K, usize> = BTreeMap::new();
        for cpu in &self.cpus {
            let Some(key) = key(cpu) else { continue };
            let at = *known.entry(key.clone()).or_insert_with(|| {
                groups.keys.push(key);
                groups.sets.push(CpuSet::new());
                groups.sets.len() - 1
            });
            if let Some(set) = groups.sets.get_mut(at) {
                set.insert(cpu.id);
            }
            groups.of.insert(cpu.id, at);
        }
        groups
    }

    /// Cores from the siblings that CPUs name, and from ids for CPUs that name none.
    fn cores(&mut self, online: &CpuSet) -> Groups<u32> {
        let unnamed: CpuSet =
            self.cpus.iter().filter(|cpu| cpu.siblings.is_none()).map(|cpu| cpu.id).collect();
        let by_ids = self.group_some(|cpu| {
            let alone = cpu.core_id.is_none().then_some(cpu.id);
            cpu.siblings.is_none().then_some((cpu.socket, cpu.die, cpu.cluster, cpu.core_id, alone))
        });
        let named = online.difference(&unnamed);
        let wanted = self.cpus.iter().map(|cpu| match (&cpu.siblings, by_ids.of.get(&cpu.id)) {
            (None, Some(at)) => (cpu.id, by_ids.sets.get(*at).cloned().unwrap_or_default()),
            (siblings, _) => {
                (cpu.id, siblings.as_ref().map(|set| set.intersection(&named)).unwrap_or_default())
            }
        });
        let (cores, contested) = partition(wanted.collect());
        self.warnings.note_all("siblings-disagree", &contested);
        cores
    }

    /// Last-level caches: per level, because a cache of one level never holds CPUs whose last level is
    /// another. Id and size are those that the lowest CPU names.
    fn caches(&mut self) -> (Vec<Cache>, BTreeMap<u32, usize>) {
        let mut members: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for cpu in &self.cpus {
            if let Some(cache) = &cpu.llc {
                members.entry(cache.level).or_default().insert(cpu.id);
            }
        }
        let mut caches = Vec::new();
        for (level, members) in &members {
            let named = self.cpus.iter().filter_map(|cpu| {
                let cache = cpu.llc.as_ref().filter(|cache| cache.level == *level)?;
                Some((cpu.id, cache.cpus.intersection(members)))
            });
            let (groups, contested) = partition(named.collect());
            self.warnings.note_all("caches-disagree", &contested);
            for (lowest, cpus) in groups.keys.into_iter().zip(groups.sets) {
                let at = self.cpus.binary_search_by_key(&lowest, |cpu| cpu.id).ok();
                let named = at.and_then(|at| self.cpus.get(at)?.llc.as_ref());
                let (id, size_bytes) = named.map_or((None, 0), |cache| (cache.id, cache.size_bytes));
                caches.push(Cache { level: *level, id, size_bytes, cpus });
            }
        }
        caches.sort_by_key(|cache| cache.cpus.first());
        let of = caches.iter().zip(0..).flat_map(|(cache, at)| cache.cpus.iter().map(move |cpu| (cpu, at)));
        let of = of.collect();
        (caches, of)
    }

    fn numa_nodes(&mut self) -> (Vec<NumaNode>, BTreeMap<u32, usize>) {
        let mut nodes: BTreeMap<u32, NumaNode> = BTreeMap::new();
        let empty = |id| NumaNode { id, cpus: CpuSet::new(), memory_bytes: 0, distances: Vec::new() };
        for node in std::mem::take(&mut self.nodes) {
            let DraftNode { id, memory_bytes, distances } = node;
            nodes.insert(id, NumaNode { memory_bytes: memory_bytes.unwrap_or(0), distances, ..empty(id) });
        }
        for cpu in &self.cpus {
            if let Some(id) = cpu.numa_node {
                nodes.entry(id).or_insert_with(|| empty(id)).cpus.insert(cpu.id);
            }
        }
        let count = nodes.len();
        let mut nodes: Vec<NumaNode> = nodes.into_values().collect();
        for node in &mut nodes {
            if !node.distances.is_empty() && node.distances.len() != count {
                node.distances.clear();
                self.warnings.note("no-distances", node.id);
            }
        }
        let of = nodes.iter().zip(0..).flat_map(|(node, at)| node.cpus.iter().map(move |cpu| (cpu, at)));
        let of: BTreeMap<u32, usize> = of.collect();
        for cpu in &self.cpus {
            if !of.contains_key(&cpu.id) {
                self.warnings.note(if nodes.is_empty() { "no-numa" } else { "cpu-without-node" }, cpu.id);
            }
        }
        (nodes, of)
    }
}

/// The kinds that occur, fastest first, and the position of each.
fn kinds(cpus: &[DraftCpu]) -> BTreeMap<KindKey<'_>, usize> {
    let kinds: BTreeSet<KindKey<'_>> = cpus.iter().map(|cpu| kind_key(&cpu.kind)).collect();
    kinds.into_iter().zip(0..).collect()
}

type KindKey<'a> = (Reverse<u32>, Reverse<&'a str>);

fn kind_key(kind: &CpuKind) -> KindKey<'_> {
    (Reverse(kind.capacity), Reverse(&kind.name))
}

/// Groups of CPUs, in the order of their lowest CPUs.
struct Groups<K> {
    keys: Vec<K>,
    sets: Vec<CpuSet>,
    of: BTreeMap<u32, usize>,
}

impl<K> Groups<K> {
    /// The group of a CPU that is in one.
    fn position(&self, cpu: u32) -> usize {
        self.of.get(&cpu).copied().unwrap_or(0)
    }
}

/// Disjoint groups from what each CPU says its group is, ascending by CPU: the lowest CPU without a group
/// takes all that it names and that have none yet. Also the CPUs that see it otherwise.
fn partition(wanted: Vec<(u32, CpuSet)>) -> (Groups<u32>, CpuSet) {
    let mut groups = Groups { keys: Vec::new(), sets: Vec::new(), of: BTreeMap::new() };
    let mut taken = CpuSet::new();
    let mut contested = CpuSet::new();
    for (cpu, wanted) in wanted {
        let at = match groups.of.get(&cpu) {
            Some(at) => *at,
            None => {
                let mut set = wanted.difference(&taken);
                set.insert(cpu);
                taken.extend_from(&set);
                let at = groups.sets.len();
                groups.of.extend(set.iter().map(|member| (member, at)));
                groups.keys.push(cpu);
                groups.sets.push(set);
                at
            }
        };
        if groups.sets.get(at) != Some(&wanted) {
            contested.insert(cpu);
        }
    }
    (groups, contested)
}
