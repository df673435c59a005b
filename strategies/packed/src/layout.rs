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
        let socket_ids = machine.sockets.iter().map(|socket| order_preserving(socket.id));
        let sockets = Level::of(socket_ids.zip(machine.sockets.iter().map(|socket| &socket.cpus)));
        // Socket positions in the level just made keep the order of the ids and leave room for another id.
        let key = |id: u32, cpus: &CpuSet| {
            let socket =
                cpus.first().and_then(|cpu| sockets.unit_of(cpu)).map_or(0, |(position, _)| position);
            (u64::from(id) << 32) + u64::try_from(socket).unwrap_or_default()
        };
        let core_id =
            |cpus: &CpuSet| cpus.first().and_then(|cpu| machine.cpu(cpu)).map_or(0, |cpu| cpu.core_id);
        let cores = Level::of(machine.cores.iter().map(|cpus| (key(core_id(cpus), cpus), cpus)));
        let caches = machine.caches.iter().filter(|cache| cache.level >= 3);
        let llcs = Level::of(caches.map(|cache| (key(cache.id, &cache.cpus), &cache.cpus)));
        let numa_nodes = Level::of(machine.numa_nodes.iter().map(|node| (u64::from(node.id), &node.cpus)));
        Self {
            cores,
            llcs,
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
    fn of<'a>(keyed: impl Iterator<Item = (u64, &'a CpuSet)>) -> Self {
        let (keys, sets): (Vec<u64>, Vec<&CpuSet>) = keyed.filter(|(_, cpus)| !cpus.is_empty()).unzip();
        let mut units = Vec::with_capacity(sets.len());
        let mut unit_of = Vec::new();
        for (position, index) in sorted(keys.into_iter().zip(0..)).into_iter().enumerate() {
            let Some(cpus) = sets.get(index) else { continue };
            units.push(Unit { cpus: CpuSet::clone(cpus), size: cpus.len() });
            for cpu in cpus.iter().filter_map(|cpu| usize::try_from(cpu).ok()) {
                if cpu >= unit_of.len() {
                    unit_of.resize(cpu + 1, None);
                }
                if let Some(unit) = unit_of.get_mut(cpu) {
                    *unit = Some(position);
                }
            }
        }
        Self { units, unit_of }
    }

    /// The unit of a CPU, and its position in key order.
    pub(crate) fn unit_of(&self, cpu: u32) -> Option<(usize, &Unit)> {
        let position = self.unit_of.get(usize::try_from(cpu).ok()?).copied().flatten()?;
        Some((position, self.units.get(position)?))
    }

    /// Units with a CPU in `cpus`, in key order.
    pub(crate) fn touched(&self, cpus: &CpuSet) -> Vec<&Unit> {
        let mut positions = sorted(cpus.iter().filter_map(|cpu| Some((0, self.unit_of(cpu)?.0))));
        positions.dedup();
        positions.into_iter().filter_map(|position| self.units.get(position)).collect()
    }

    /// Units with a free CPU: fewest free first, ties in key order.
    fn rank(&self, free: &CpuSet) -> Vec<&Unit> {
        let counted = self.counts(free).into_iter().zip(0..).filter(|(count, _)| *count > 0);
        sorted(counted).into_iter().filter_map(|position| self.units.get(position)).collect()
    }

    /// For each parent in order, the units with a free CPU in it, ranked by their free CPUs in the whole
    /// machine. A unit that several parents touch counts at the first.
    fn rank_within(&self, free: &CpuSet, parents: &[&Unit]) -> Vec<&Unit> {
        let mut counts = self.counts(free);
        let mut order = Vec::with_capacity(counts.len());
        for parent in parents {
            let mut ranked = Vec::new();
            for cpu in &free.intersection(&parent.cpus) {
                let Some((position, _)) = self.unit_of(cpu) else { continue };
                let Some(count) = counts.get_mut(position) else { continue };
                // A count that is used up marks the unit as listed.
                if *count > 0 {
                    ranked.push((std::mem::take(count), position));
                }
            }
            order.extend(
                sorted(ranked.into_iter()).into_iter().filter_map(|position| self.units.get(position)),
            );
        }
        order
    }

    /// How many of the CPUs are in each unit.
    fn counts(&self, cpus: &CpuSet) -> Vec<u64> {
        let mut counts = vec![0; self.units.len()];
        for cpu in cpus {
            if let Some(count) = self.unit_of(cpu).and_then(|(position, _)| counts.get_mut(position)) {
                *count += 1;
            }
        }
        counts
    }
}

/// Positions by ascending key, ties by position. All sorting goes through here: each further type that is
/// sorted costs the component some kilobytes.
pub(crate) fn sorted(keyed: impl Iterator<Item = (u64, usize)>) -> Vec<usize> {
    let mut keyed: Vec<(u64, usize)> = keyed.collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, position)| position).collect()
}

/// A count as a key to sort by.
pub(crate) fn wide(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// A number that sorts among its kind as the signed one does.
fn order_preserving(id: i64) -> u64 {
    id.cast_unsigned() ^ (1 << 63)
}
