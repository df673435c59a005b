use crate::layout::{Layout, Level, Nesting, Unit, wide};
use dracpu_strategy_sdk::{CpuSet, ascending};

/// Free CPUs, counted by unit, and the orders in which the algorithm looks at units. An order holds the units with
/// a free CPU and is that of the moment at which it is asked for.
pub(crate) struct Free<'a> {
    layout: &'a Layout,
    pub(crate) cpus: CpuSet,
    counts: Vec<u16>,
}

impl<'a> Free<'a> {
    /// Those of the CPUs that are online.
    pub(crate) fn of(layout: &'a Layout, cpus: &CpuSet) -> Self {
        let cpus = cpus.intersection(&layout.online);
        let mut counts = vec![0; layout.unit_count()];
        for cpu in &cpus {
            for unit in layout.units_of(cpu) {
                if let Some(count) = counts.get_mut(unit) {
                    *count += 1;
                }
            }
        }
        Self { layout, cpus, counts }
    }

    pub(crate) fn take(&mut self, cpu: u32) {
        if !self.cpus.remove(cpu) {
            return;
        }
        for unit in self.layout.units_of(cpu) {
            if let Some(count) = self.counts.get_mut(unit) {
                *count -= 1;
            }
        }
    }

    /// How many CPUs of a unit are free.
    pub(crate) fn count(&self, unit: Unit) -> usize {
        self.counts.get(unit).copied().map_or(0, usize::from)
    }

    /// Whether all installed CPUs of a unit are free.
    pub(crate) fn is_whole(&self, unit: Unit) -> bool {
        self.count(unit) == self.layout.size(unit)
    }

    /// The free CPUs of a unit, ascending.
    pub(crate) fn of_unit(&self, unit: Unit) -> impl Iterator<Item = u32> + '_ {
        self.layout.members(unit).filter(|cpu| self.cpus.contains(*cpu))
    }

    /// The level's units by their free CPUs, the fewest first; ties by key.
    fn rank(&self, units: impl Iterator<Item = Unit>) -> Vec<Unit> {
        let counted = units.map(|unit| (wide(self.count(unit)), unit));
        ascending(counted.filter(|(count, _)| *count > 0).collect())
    }

    /// Those of an inner level that have a free CPU in an outer unit, ranked by their free CPUs in the whole machine.
    pub(crate) fn rank_in(&self, nesting: &Nesting, outer: Unit) -> Vec<Unit> {
        self.rank(nesting.within(outer).filter(|unit| self.is_free_in(*unit, nesting, outer)))
    }

    /// Whether a unit has a free CPU in an outer one that it has CPUs in.
    pub(crate) fn is_free_in(&self, unit: Unit, nesting: &Nesting, outer: Unit) -> bool {
        let is_in = |cpu| nesting.level.and_then(|level| self.layout.unit_of(cpu, level)) == Some(outer);
        self.count(unit) > 0 && (!nesting.spans(unit) || self.of_unit(unit).any(is_in))
    }

    /// For each outer unit in order the inner ones. One that several outer ones touch counts at the first.
    fn rank_within(&self, nesting: &Nesting, outer: &[Unit]) -> Vec<Unit> {
        let mut order: Vec<Unit> = Vec::new();
        for outer in outer {
            let ranked = self.rank_in(nesting, *outer);
            let known = order.len();
            for unit in ranked {
                let again =
                    nesting.spans(unit) && order.get(..known).is_some_and(|known| known.contains(&unit));
                if !again {
                    order.push(unit);
                }
            }
        }
        order
    }

    /// NUMA nodes or sockets, whichever are the larger units.
    pub(crate) fn first_order(&self) -> Vec<Unit> {
        self.rank(self.layout.units(self.layout.first()))
    }

    /// The other of the two.
    pub(crate) fn second_order(&self) -> Vec<Unit> {
        self.rank_within(&self.layout.second_in_first, &self.first_order())
    }

    pub(crate) fn numa_order(&self) -> Vec<Unit> {
        self.order_of(Level::NumaNode)
    }

    pub(crate) fn socket_order(&self) -> Vec<Unit> {
        self.order_of(Level::Socket)
    }

    fn order_of(&self, level: Level) -> Vec<Unit> {
        if self.layout.first() == level { self.first_order() } else { self.second_order() }
    }

    pub(crate) fn core_order(&self) -> Vec<Unit> {
        self.rank_within(&self.layout.cores_in_second, &self.second_order())
    }

    pub(crate) fn cache_order(&self) -> Vec<Unit> {
        self.rank_within(&self.layout.caches_in_nodes, &self.numa_order())
    }
}
