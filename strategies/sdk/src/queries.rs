use crate::{Cpu, CpuSet, Machine};

/// Parts of a set, for algorithms that go from core to core, cache to cache or node to node. Each list is in the
/// machine's order and may be sorted by whatever counts, such as `parts.sort_by_key(CpuSet::len)`.
impl Machine {
    /// The CPUs of a set that share a core, core by core; without cores that have none of them.
    #[must_use]
    pub fn by_core(&self, cpus: &CpuSet) -> Vec<CpuSet> {
        self.parts(cpus, self.cores.len(), |cpu| Some(cpu.core))
    }

    /// The CPUs of a set that share a last-level cache; CPUs without one are in no part.
    #[must_use]
    pub fn by_cache(&self, cpus: &CpuSet) -> Vec<CpuSet> {
        self.parts(cpus, self.caches.len(), |cpu| cpu.llc)
    }

    /// The CPUs of a set that are of one NUMA node.
    #[must_use]
    pub fn by_numa_node(&self, cpus: &CpuSet) -> Vec<CpuSet> {
        self.parts(cpus, self.numa_nodes.len(), |cpu| Some(cpu.numa_node))
    }

    /// The CPUs of a set that are of one kind, fastest kind first.
    #[must_use]
    pub fn by_kind(&self, cpus: &CpuSet) -> Vec<CpuSet> {
        let mut kinds: Vec<_> = self.kinds.iter().collect();
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.capacity));
        let parts = kinds.iter().map(|kind| kind.cpus.intersection(cpus));
        parts.filter(|part| !part.is_empty()).collect()
    }

    fn parts(&self, cpus: &CpuSet, count: usize, part: impl Fn(&Cpu) -> Option<usize>) -> Vec<CpuSet> {
        let mut parts = vec![CpuSet::new(); count];
        for cpu in self.cpus.iter().filter(|cpu| cpus.contains(cpu.id)) {
            if let Some(part) = part(cpu).and_then(|at| parts.get_mut(at)) {
                part.insert(cpu.id);
            }
        }
        parts.retain(|part| !part.is_empty());
        parts
    }

    /// The other online threads of a CPU's core.
    #[must_use]
    pub fn siblings_of(&self, cpu: u32) -> CpuSet {
        let mut siblings = self.core_of(cpu).cloned().unwrap_or_default();
        siblings.remove(cpu);
        siblings
    }

    /// Positions of all NUMA nodes, the nearest to this one first: itself, then by distance, then by position.
    /// Where distances are unknown, all others are equally far.
    #[must_use]
    pub fn nodes_by_distance(&self, from: usize) -> Vec<usize> {
        let distances = self.numa_nodes.get(from).map_or(&[][..], |node| &node.distances);
        let mut nodes: Vec<usize> = (0..self.numa_nodes.len()).collect();
        nodes.sort_by_key(|node| (*node != from, distances.get(*node).copied().unwrap_or_default()));
        nodes
    }

    /// The CPUs of a set that are not isolated: what a strategy may give to a claim that does not ask for others.
    #[must_use]
    pub fn without_isolated(&self, cpus: &CpuSet) -> CpuSet {
        cpus.difference(&self.isolated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::MachineSpec;

    #[test]
    fn parts_are_in_the_machines_order_and_never_empty() {
        let machine = MachineSpec::even(2, 1, 2, 2).kind("e-core", 600, [0, 1, 4, 5].into()).build();
        let some: CpuSet = [0, 3, 4, 6].into();
        assert_eq!(machine.by_core(&some), [[0, 4].into(), [6].into(), [3].into()]);
        assert_eq!(machine.by_cache(&some), [[0, 4].into(), [3, 6].into()]);
        assert_eq!(machine.by_numa_node(&[2, 7].into()), [[2, 7].into()]);
        assert_eq!(machine.by_kind(&some), [[3, 6].into(), [0, 4].into()]);
        assert!(machine.by_core(&CpuSet::new()).is_empty());
    }

    #[test]
    fn siblings_are_the_others_of_the_core() {
        let machine = MachineSpec::even(1, 1, 2, 3).build();
        assert_eq!(machine.siblings_of(2), [0, 4].into());
        assert_eq!(machine.siblings_of(99), CpuSet::new());
    }

    #[test]
    fn nodes_are_near_or_far() {
        let mut machine = MachineSpec::even(1, 3, 1, 1).build();
        assert_eq!(machine.nodes_by_distance(1), [1, 0, 2]);
        machine.numa_nodes[2].distances = vec![30, 20, 10];
        assert_eq!(machine.nodes_by_distance(2), [2, 1, 0]);
    }

    #[test]
    fn isolated_cpus_are_left_out() {
        let machine = MachineSpec::even(1, 1, 4, 1).isolated([1, 2].into()).build();
        assert_eq!(machine.without_isolated(&machine.online()), [0, 3].into());
    }
}
