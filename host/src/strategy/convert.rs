//! The host's types as the interface's, and what is answered as plain types.

use crate::device::Group;
use crate::strategy::bindings::dracpu::strategy::types as wit;
use crate::strategy::{ExplicitCpuset, Holding, Reason};
use dracpu_codec::strategy::answer;
use dracpu_codec::strategy::verify::{MemoryNode, Rules};
use dracpu_cpuset::CpuSet;
use dracpu_topology::Topology;

/// A list's position as the interface carries it.
pub(crate) fn index(at: usize) -> u32 {
    u32::try_from(at).expect("lists of a machine's parts and of a claim's requests are short")
}

fn words(cpus: &CpuSet) -> Vec<u64> {
    cpus.words().to_vec()
}

/// The machine as a strategy sees it, and the rules its answers are held against.
pub(crate) fn machine(topology: &Topology, reserved: &CpuSet, groups: &[Group]) -> (wit::Topology, Rules) {
    // Every CPU is on a NUMA node there. Those of which the kernel names none share one more node:
    // node 0 on a machine without NUMA (as in the kernel itself), else one that the kernel lacks.
    let extra_node = if topology.numa_nodes.is_empty() {
        Some((0, MemoryNode::Id(0)))
    } else if topology.cpus.iter().any(|cpu| cpu.numa_node.is_none()) {
        Some((u32::MAX, MemoryNode::Unknown))
    } else {
        None
    };
    let mut numa_nodes: Vec<wit::NumaNode> = topology
        .numa_nodes
        .iter()
        .map(|node| wit::NumaNode {
            id: node.id,
            memory_bytes: node.memory_bytes,
            // One distance per row: none of them is known for the extra node.
            distances: if extra_node.is_some() { Vec::new() } else { node.distances.clone() },
        })
        .collect();
    // A machine may be described without the sizes of its memory. A node whose size alone cannot be read has none.
    let told = topology.numa_nodes.iter().any(|node| node.memory_bytes > 0);
    let memory = |node: &dracpu_topology::NumaNode| match node.memory_bytes {
        0 if told => MemoryNode::Empty,
        _ => MemoryNode::Id(node.id),
    };
    let mut nodes: Vec<MemoryNode> = topology.numa_nodes.iter().map(memory).collect();
    if let Some((id, memory)) = extra_node {
        numa_nodes.push(wit::NumaNode { id, memory_bytes: 0, distances: Vec::new() });
        nodes.push(memory);
    }
    let last_node = nodes.len().saturating_sub(1);
    let cpus = topology.cpus.iter().map(|cpu| wit::Cpu {
        id: cpu.id,
        core: index(cpu.core),
        core_id: cpu
            .core_id
            .or_else(|| topology.cores.get(cpu.core).and_then(CpuSet::first))
            .unwrap_or(cpu.id),
        thread: cpu.thread,
        cluster: cpu.cluster.map(index),
        die: index(cpu.die),
        socket: index(cpu.socket),
        numa_node: index(cpu.numa_node.unwrap_or(last_node)),
        llc: cpu.llc.map(index),
        kind: index(cpu.kind),
    });
    let machine = wit::Topology {
        cpus: cpus.collect(),
        sockets: topology.sockets.iter().map(|socket| socket.id).collect(),
        numa_nodes,
        caches: topology
            .caches
            .iter()
            .map(|cache| wit::Cache {
                level: cache.level,
                id: cache.id.or_else(|| cache.cpus.first()).unwrap_or_default(),
                size_bytes: cache.size_bytes,
                cpus: words(&cache.cpus),
            })
            .collect(),
        kinds: topology
            .kinds
            .iter()
            .map(|kind| wit::CpuKind { name: kind.name.clone(), capacity: kind.capacity })
            .collect(),
        pcie_roots: topology
            .pcie_roots
            .iter()
            .map(|root| wit::PcieRoot { name: root.name.clone(), cpus: words(&root.cpus) })
            .collect(),
        reserved: words(reserved),
        isolated: words(&topology.isolated),
        groups: groups
            .iter()
            .map(|group| wit::Group {
                device: group.device.clone(),
                kind: group.kind.to_owned(),
                cpus: words(&group.cpus),
            })
            .collect(),
        extra: offline(topology),
    };
    let rules = Rules {
        online: topology.online(),
        reserved: reserved.clone(),
        groups: groups.iter().map(|group| (group.device.clone(), group.cpus.clone())).collect(),
        nodes,
    };
    (machine, rules)
}

/// The CPUs that the machine has but that are offline, as a CPU list: so that a strategy can tell them from
/// such as do not exist. The key is in `wit/README.md`.
fn offline(topology: &Topology) -> Vec<(String, String)> {
    let offline = Some(&topology.offline).filter(|offline| !offline.is_empty());
    offline.map(|offline| ("offline".to_owned(), offline.to_string())).into_iter().collect()
}

/// What is given out; of other claims only what the strategy asked to know.
pub(crate) fn state(free: &CpuSet, others: &[Holding]) -> wit::State {
    let mut others: Vec<&Holding> = others.iter().collect();
    others.sort_by_key(|holding| holding.cpus.first());
    let others = others
        .into_iter()
        .map(|holding| wit::Holding { cpus: words(&holding.cpus), blocked: words(&holding.blocked) })
        .collect();
    wit::State { free: words(free), others, extra: Vec::new() }
}

/// A decision as it was answered.
pub(crate) fn decision(decision: wit::Decision) -> answer::Decision {
    let wit::Decision { grants, join_shared_pool, why, extra: _ } = decision;
    let grant = |wit::Grant { cpus, blocked, mems }| answer::Grant { cpus, blocked, mems };
    answer::Decision { grants: grants.into_iter().map(grant).collect(), join_shared_pool, why }
}

/// Offers as they were answered.
pub(crate) fn offers(offers: Vec<wit::Offer>) -> Vec<answer::Offer> {
    let attribute = |value| match value {
        wit::Attribute::Int(int) => answer::Attribute::Int(int),
        wit::Attribute::Truth(truth) => answer::Attribute::Truth(truth),
        wit::Attribute::Text(text) => answer::Attribute::Text(text),
        wit::Attribute::Version(version) => answer::Attribute::Version(version),
    };
    let offer = |wit::Offer { capacity, step, attributes }| answer::Offer {
        capacity,
        step,
        attributes: attributes.into_iter().map(|(name, value)| (name, attribute(value))).collect(),
    };
    offers.into_iter().map(offer).collect()
}

/// A refusal as it was answered.
pub(crate) fn denial(denial: wit::Denial) -> answer::Denial {
    let wit::Denial { reason, request, message } = denial;
    let reason = match reason {
        wit::Reason::Invalid => Reason::Invalid,
        wit::Reason::NotEnough => Reason::NotEnough,
        wit::Reason::NoFit => Reason::NoFit,
    };
    answer::Denial { reason, request, message }
}

/// What a strategy says of itself, as it was answered.
pub(crate) fn description(described: wit::Description) -> answer::Description {
    let wit::Description {
        name,
        version,
        summary,
        options_schema,
        explicit_cpuset,
        publishes,
        needs,
        extra: _,
    } = described;
    let explicit_cpuset = match explicit_cpuset {
        wit::ExplicitCpuset::Refused => ExplicitCpuset::Refused,
        wit::ExplicitCpuset::Accepted => ExplicitCpuset::Accepted,
        wit::ExplicitCpuset::Required => ExplicitCpuset::Required,
    };
    answer::Description { name, version, summary, options_schema, explicit_cpuset, publishes, needs }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dracpu_topology::machine;

    fn example(name: &str) -> Topology {
        machine::load(name).unwrap().topology
    }

    #[test]
    fn a_machine_without_numa_is_one_node() {
        let mut topology = example("small");
        topology.numa_nodes.clear();
        topology.cpus.iter_mut().for_each(|cpu| cpu.numa_node = None);
        let (machine, rules) = machine_of(&topology);
        assert_eq!(machine.numa_nodes.len(), 1);
        assert!(machine.cpus.iter().all(|cpu| cpu.numa_node == 0));
        assert_eq!(rules.nodes, [MemoryNode::Id(0)]);
    }

    #[test]
    fn cpus_of_no_known_node_share_one_that_the_kernel_lacks() {
        let mut topology = example("smt4");
        topology.cpus[5].numa_node = None;
        let (machine, rules) = machine_of(&topology);
        assert_eq!(rules.nodes, [MemoryNode::Id(0), MemoryNode::Id(8), MemoryNode::Unknown]);
        assert_eq!(machine.cpus[5].numa_node, 2);
        assert!(machine.numa_nodes.iter().all(|node| node.distances.is_empty()));
    }

    #[test]
    fn a_node_without_memory_is_none_for_memory() {
        let mut topology = example("smt4");
        topology.numa_nodes[0].memory_bytes = 0;
        assert_eq!(machine_of(&topology).1.nodes, [MemoryNode::Empty, MemoryNode::Id(8)]);
        topology.numa_nodes[1].memory_bytes = 0;
        assert_eq!(
            machine_of(&topology).1.nodes,
            [MemoryNode::Id(0), MemoryNode::Id(8)],
            "sizes are unknown"
        );
    }

    #[test]
    fn an_unknown_core_id_is_the_lowest_cpu_of_the_core() {
        let mut topology = example("desktop-smt");
        topology.cpus[3].core_id = None;
        let lowest = topology.cores[topology.cpus[3].core].first().unwrap();
        assert_eq!(machine_of(&topology).0.cpus[3].core_id, lowest);
    }

    #[test]
    fn every_index_points_into_its_list() {
        for example in dracpu_topology::examples() {
            let (machine, rules) = machine_of(&self::example(example.name));
            for cpu in &machine.cpus {
                assert!((cpu.numa_node as usize) < machine.numa_nodes.len(), "{}", example.name);
                assert!((cpu.socket as usize) < machine.sockets.len(), "{}", example.name);
                assert!((cpu.kind as usize) < machine.kinds.len(), "{}", example.name);
                assert!(cpu.llc.is_none_or(|llc| (llc as usize) < machine.caches.len()), "{}", example.name);
            }
            assert_eq!(rules.nodes.len(), machine.numa_nodes.len());
        }
    }

    fn machine_of(topology: &Topology) -> (wit::Topology, Rules) {
        super::machine(topology, &CpuSet::new(), &[])
    }
}
