use dracpu_strategy_sdk::{CpuSet, Machine};

/// The machine as the algorithm sees it: levels of units, each unit a set of installed CPUs.
#[derive(Debug)]
pub struct Layout {
    pub(crate) cores: Level,
    /// Level 3 caches. CPUs without one are in no unit; a last-level cache below level 3 is none: the
    /// kubelet's uncore cache is the L3.
    pub(crate) llcs: Level,
    pub(crate) numa_nodes: Level,
    pub(crate) sockets: Level,
    /// At least as many sockets as NUMA nodes with CPUs: NUMA nodes are then the larger unit, or equal.
    pub(crate) numa_first: bool,
    pub(crate) online: CpuSet,
}

/// Units of one kind: disjoint sets of CPUs, in the order of their keys.
#[derive(Debug)]
pub(crate) struct Level {
    units: Vec<Unit>,
    /// By CPU id: the position of its unit.
    unit_of: Vec<Option<usize>>,
}

/// A core, a cache, a NUMA node or a socket.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) cpus: CpuSet,
    pub(crate) size: usize,
}

impl Layout {
    /// Orders the units of a machine by the keys that break ties in the kubelet's algorithm: core =
    /// (kernel core id, socket id), cache = (kernel cache id, socket id), NUMA node and socket = kernel id.
    #[must_use]
    pub fn of(machine: &Machine) -> Self {
        let socket_id = |cpus: &CpuSet| {
            let socket = cpus.first().and_then(|cpu| machine.cpu(cpu)).map(|cpu| cpu.socket);
            socket.and_then(|socket| machine.sockets.get(socket)).map_or(0, |socket| socket.id)
        };
        let core_id =
            |cpus: &CpuSet| cpus.first().and_then(|cpu| machine.cpu(cpu)).map_or(0, |cpu| cpu.core_id);
        let cores = machine.cores.iter().map(|cpus| ((i64::from(core_id(cpus)), socket_id(cpus)), cpus));
        let caches = machine.caches.iter().filter(|cache| cache.level >= 3);
        let caches = caches.map(|cache| ((i64::from(cache.id), socket_id(&cache.cpus)), &cache.cpus));
        let numa_nodes = machine.numa_nodes.iter().map(|node| ((i64::from(node.id), 0), &node.cpus));
        let sockets = machine.sockets.iter().map(|socket| ((socket.id, 0), &socket.cpus));
        let (numa_nodes, sockets) = (Level::of(numa_nodes), Level::of(sockets));
        Self {
            cores: Level::of(cores),
            llcs: Level::of(caches),
            numa_first: sockets.units.len() >= numa_nodes.units.len(),
            numa_nodes,
            sockets,
            online: machine.online(),
        }
    }

    /// The largest units: NUMA nodes or sockets.
    pub(crate) fn first_order(&self, free: &CpuSet) -> Vec<&Unit> {
        if self.numa_first { self.numa_order(free) } else { self.socket_order(free) }
    }

    /// The other of the two.
    pub(crate) fn second_order(&self, free: &CpuSet) -> Vec<&Unit> {
        if self.numa_first { self.socket_order(free) } else { self.numa_order(free) }
    }

    /// NUMA nodes with a free CPU, in the order in which the algorithm fills them.
    pub(crate) fn numa_order(&self, free: &CpuSet) -> Vec<&Unit> {
        if self.numa_first {
            self.numa_nodes.rank(free)
        } else {
            self.numa_nodes.rank_within(free, &self.socket_order(free))
        }
    }

    pub(crate) fn socket_order(&self, free: &CpuSet) -> Vec<&Unit> {
        if self.numa_first {
            self.sockets.rank_within(free, &self.numa_order(free))
        } else {
            self.sockets.rank(free)
        }
    }

    pub(crate) fn core_order(&self, free: &CpuSet) -> Vec<&Unit> {
        self.cores.rank_within(free, &self.second_order(free))
    }

    pub(crate) fn llc_order(&self, free: &CpuSet) -> Vec<&Unit> {
        self.llcs.rank_within(free, &self.numa_order(free))
    }
}

impl Level {
    fn of<'a>(keyed: impl Iterator<Item = ((i64, i64), &'a CpuSet)>) -> Self {
        let mut keyed: Vec<_> = keyed.filter(|(_, cpus)| !cpus.is_empty()).collect();
        keyed.sort_by_key(|(key, _)| *key);
        let mut unit_of = Vec::new();
        for (position, (_, cpus)) in keyed.iter().enumerate() {
            for cpu in cpus.iter().filter_map(|cpu| usize::try_from(cpu).ok()) {
                if cpu >= unit_of.len() {
                    unit_of.resize(cpu + 1, None);
                }
                if let Some(unit) = unit_of.get_mut(cpu) {
                    *unit = Some(position);
                }
            }
        }
        let unit = |(_, cpus): ((i64, i64), &CpuSet)| Unit { cpus: cpus.clone(), size: cpus.len() };
        Self { units: keyed.into_iter().map(unit).collect(), unit_of }
    }

    /// The unit of a CPU, and its position in key order.
    pub(crate) fn unit_of(&self, cpu: u32) -> Option<(usize, &Unit)> {
        let position = self.unit_of.get(usize::try_from(cpu).ok()?).copied().flatten()?;
        Some((position, self.units.get(position)?))
    }

    /// Units with a CPU in `cpus`, in key order.
    pub(crate) fn touched(&self, cpus: &CpuSet) -> Vec<&Unit> {
        let mut counts = vec![0; self.units.len()];
        self.count(cpus, &mut counts);
        self.units.iter().zip(counts).filter(|(_, count)| *count > 0).map(|(unit, _)| unit).collect()
    }

    /// Units with a free CPU: fewest free first, ties in key order.
    fn rank(&self, free: &CpuSet) -> Vec<&Unit> {
        let mut counts = vec![0; self.units.len()];
        self.count(free, &mut counts);
        let mut ranked: Vec<(u32, &Unit)> =
            counts.into_iter().zip(&self.units).filter(|(count, _)| *count > 0).collect();
        ranked.sort_by_key(|(count, _)| *count); // stable: equal counts stay in key order
        ranked.into_iter().map(|(_, unit)| unit).collect()
    }

    /// For each parent in order, the units with a free CPU in it, ranked by their free CPUs in the whole
    /// machine. A unit that several parents touch counts at the first.
    fn rank_within(&self, free: &CpuSet, parents: &[&Unit]) -> Vec<&Unit> {
        let mut counts = vec![0; self.units.len()];
        self.count(free, &mut counts);
        let mut order = Vec::with_capacity(counts.len());
        for parent in parents {
            let mut ranked: Vec<(u32, usize, &Unit)> = Vec::new();
            for cpu in &free.intersection(&parent.cpus) {
                let Some((position, unit)) = self.unit_of(cpu) else { continue };
                let Some(count) = counts.get_mut(position) else { continue };
                // A count that is used up marks the unit as listed.
                if *count > 0 {
                    ranked.push((std::mem::take(count), position, unit));
                }
            }
            ranked.sort_unstable_by_key(|(count, position, _)| (*count, *position));
            order.extend(ranked.into_iter().map(|(_, _, unit)| unit));
        }
        order
    }

    fn count(&self, cpus: &CpuSet, counts: &mut [u32]) {
        for cpu in cpus {
            if let Some(count) = self.unit_of(cpu).and_then(|(position, _)| counts.get_mut(position)) {
                *count += 1;
            }
        }
    }
}
