use crate::assemble::{Draft, DraftNode};
use crate::error::ReadError;
use crate::read::CPU;
use crate::tree::Tree;
use dracpu_cpuset::CpuSet;
use std::collections::BTreeMap;

/// Where the kernel describes NUMA nodes (Linux `Documentation/ABI/stable/sysfs-devices-node`).
const NODE: &str = "devices/system/node";

/// Reads the NUMA nodes and gives each CPU its node. A kernel without NUMA has no node directory, and its
/// CPUs no node.
pub(crate) fn read(tree: &Tree<'_>, online: &CpuSet, draft: &mut Draft) -> Result<(), ReadError> {
    let ids = tree.numbered(NODE, "node")?;
    if ids.is_empty() {
        return Ok(());
    }
    let mut node_of: BTreeMap<u32, u32> = BTreeMap::new();
    let mut known = CpuSet::new();
    for id in &ids {
        let dir = format!("{NODE}/node{id}");
        let cpus = match tree.first_cpu_set(&dir, &["cpulist"], &["cpumap"])? {
            Some(cpus) => cpus,
            None => {
                draft.warnings.note("no-cpulist", *id);
                tree.cpu_entries(&dir)?
            }
        };
        draft.warnings.note_all("node-of-offline-cpu", &cpus.difference(online));
        draft.warnings.note_all("cpu-in-several-nodes", &cpus.intersection(&known));
        node_of.extend(cpus.difference(&known).iter().map(|cpu| (cpu, *id)));
        known.extend_from(&cpus);
        let node = node(tree, &dir, *id)?;
        if node.memory_bytes.is_none() {
            draft.warnings.note("no-memory-size", *id);
        }
        if node.distances.is_empty() {
            draft.warnings.note("no-distances", *id);
        }
        draft.nodes.push(node);
    }
    for cpu in &mut draft.cpus {
        cpu.numa_node = node_of.get(&cpu.id).copied();
        if cpu.numa_node.is_none() {
            // The node's side does not know the CPU; the CPU's side may name the node.
            let named = tree.numbered(&format!("{CPU}/cpu{}", cpu.id), "node")?;
            cpu.numa_node = named.first().copied().filter(|id| ids.contains(id));
        }
    }
    Ok(())
}

fn node(tree: &Tree<'_>, dir: &str, id: u32) -> Result<DraftNode, ReadError> {
    let distance_path = format!("{dir}/distance");
    let distances = match tree.text(&distance_path)? {
        None => Vec::new(),
        Some(text) => {
            distances(&text).ok_or_else(|| tree.malformed(&distance_path, &text, "not a row of distances"))?
        }
    };
    let memory_bytes = tree.text(&format!("{dir}/meminfo"))?.as_deref().and_then(mem_total);
    Ok(DraftNode { id, memory_bytes, distances })
}

fn distances(text: &str) -> Option<Vec<u32>> {
    text.split_whitespace().map(|distance| distance.parse().ok()).collect()
}

/// `MemTotal` of a node's `meminfo`: `Node 0 MemTotal:  1048576 kB`.
fn mem_total(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("MemTotal:"))?;
    let (_, value) = line.split_once("MemTotal:")?;
    value.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_memory_is_the_total_in_bytes() {
        assert_eq!(mem_total("Node 0 MemTotal:       1048576 kB\nNode 0 MemFree:  1 kB"), Some(1 << 30));
        assert_eq!(mem_total("Node 0 MemFree:  1 kB"), None);
        assert_eq!(mem_total("Node 0 MemTotal: 99999999999999999999 kB"), None);
    }

    #[test]
    fn distances_are_numbers() {
        assert_eq!(distances("10 21"), Some(vec![10, 21]));
        assert_eq!(distances(""), Some(Vec::new()));
        assert_eq!(distances("10 x"), None);
    }
}
