use super::attributes::socket_number;
use dracpu_cpuset::CpuSet;
use dracpu_topology::{Cpu, Topology};

/// How many CPUs of a device a claim has: an attribute in what its containers are told, never in a slice.
pub const ALLOCATED_NUM_CPUS: &str = "dra.cpu/allocatedNumCPUs";

/// Where these CPUs are, for who must lay out threads or a virtual machine on them: attributes whose values
/// are lists, one item for each CPU in ascending order.
///
/// Of cores and last-level caches the item is the lowest CPU that shares it, since the kernel's numbers
/// repeat; sockets and NUMA nodes are numbered as in the published attributes. A list in which a CPU would
/// be missing (offline, or no such fact on this machine) is left out.
#[must_use]
pub fn allocated(topology: &Topology, cpus: &CpuSet) -> Vec<(&'static str, Vec<i64>)> {
    let list = |fact: &dyn Fn(&Cpu) -> Option<i64>| -> Option<Vec<i64>> {
        cpus.iter().map(|id| topology.cpu(id).and_then(fact)).collect()
    };
    let core = |cpu: &Cpu| topology.cores.get(cpu.core)?.first().map(i64::from);
    let cache = |cpu: &Cpu| topology.caches.get(cpu.llc?)?.cpus.first().map(i64::from);
    let numa_node = |cpu: &Cpu| topology.numa_nodes.get(cpu.numa_node?).map(|node| node.id.into());
    let socket = |cpu: &Cpu| topology.sockets.get(cpu.socket).map(|socket| socket_number(socket.id));
    let lists = [
        ("dra.cpu/allocatedCPUs", Some(cpus.iter().map(i64::from).collect())),
        ("dra.cpu/allocatedCores", list(&core)),
        ("dra.cpu/allocatedCaches", list(&cache)),
        ("dra.cpu/allocatedNUMANodes", list(&numa_node)),
        ("dra.cpu/allocatedSockets", list(&socket)),
    ];
    lists.into_iter().filter_map(|(name, list)| Some((name, list?))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::*;

    #[test]
    fn each_cpu_has_an_item_in_each_list_and_siblings_have_the_same_core() {
        let topology = fixtures::machine(&fixtures::rows(2, 4, 2));
        let cpus: CpuSet = topology.cores[1].union(&topology.cores[5]);
        let lists = allocated(&topology, &cpus);
        let of = |name: &str| lists.iter().find(|(found, _)| *found == name).map(|(_, list)| list.clone());
        let ids: Vec<i64> = cpus.iter().map(i64::from).collect();
        assert_eq!(of("dra.cpu/allocatedCPUs"), Some(ids.clone()));
        let core = |id: &i64| {
            let core = topology.cores.iter().find(|core| core.iter().any(|cpu| i64::from(cpu) == *id));
            i64::from(core.unwrap().first().unwrap())
        };
        assert_eq!(of("dra.cpu/allocatedCores"), Some(ids.iter().map(core).collect()));
        assert!(lists.iter().all(|(_, list)| list.len() == 4), "{lists:?}");
    }

    #[test]
    fn a_list_in_which_a_cpu_would_be_missing_is_left_out() {
        let topology = fixtures::machine(&fixtures::rows(1, 4, 1));
        let lists = allocated(&topology, &[0, 99].into());
        assert_eq!(lists, [("dra.cpu/allocatedCPUs", vec![0, 99])]);
    }
}
