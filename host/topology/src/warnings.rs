use crate::facts::Warning;
use dracpu_cpuset::{CpuSet, MAX_CPU_ID};
use std::collections::{BTreeMap, BTreeSet};

/// Each code, what its numbers count, and the fact and its consequence. Codes are stable: scripts and
/// documentation name them.
const CODES: [(&str, &str, &str); 23] = [
    ("no-online-file", "CPUs", "devices/system/cpu/online is missing or empty; these were found otherwise"),
    (
        "online-disagrees",
        "CPUs",
        "in devices/system/cpu/online, which counts, though their own online file says 0",
    ),
    (
        "not-present",
        "CPUs",
        "in devices/system/cpu/online, which counts, but not in devices/system/cpu/present",
    ),
    ("no-topology", "CPUs", "online without a topology directory; each is taken for a core of its own"),
    (
        "no-siblings",
        "CPUs",
        "no list of thread siblings; cores follow from package, die, cluster and core id",
    ),
    ("siblings-disagree", "CPUs", "thread siblings contradict each other; the lowest CPU's list counts"),
    ("no-package-id", "CPUs", "no package id; they count as one socket with id -1"),
    ("core-spans-sockets", "CPUs", "threads of one core name different sockets; each CPU keeps its own"),
    ("core-id-out-of-range", "CPUs", "the core id is not a number from 0 to 4294967295; it is left out"),
    ("no-cache", "CPUs", "no cache is shown; they have no last-level cache"),
    ("caches-disagree", "CPUs", "lists of shared caches contradict each other; the lowest CPU's list counts"),
    ("no-numa", "CPUs", "no NUMA node is shown"),
    ("cpu-without-node", "CPUs", "in no NUMA node"),
    ("cpu-in-several-nodes", "CPUs", "in several NUMA nodes; the one with the lowest id counts"),
    ("nodes-disagree", "CPUs", "the CPUs of their NUMA node and its id contradict each other; the id counts"),
    (
        "node-of-offline-cpu",
        "CPUs",
        "not online, though a NUMA node lists them; the node's share is left out",
    ),
    (
        "node-twice",
        "NUMA nodes",
        "described twice; their lists of CPUs are joined, for the rest the first counts",
    ),
    ("no-cpulist", "NUMA nodes", "no list of CPUs; the links between nodes and CPUs count"),
    ("no-memory-size", "NUMA nodes", "no readable MemTotal; the memory counts as 0"),
    ("no-distances", "NUMA nodes", "not one distance for each node; they are left out"),
    ("pcie-root-twice", "CPUs", "local to a PCIe root that is described twice; its lists are joined"),
    ("kinds-disagree", "CPUs", "named by several kinds of cores; the first of p-core and e-core counts"),
    ("described", "CPUs", "the description came with a warning of its own"),
];

/// What was odd while reading, gathered so that each oddity is one warning and not one for each CPU.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    /// Numbers of NUMA nodes may be larger than those of CPUs.
    found: BTreeMap<&'static str, BTreeSet<u32>>,
}

impl Warnings {
    /// Notes an oddity of one CPU or NUMA node.
    pub(crate) fn note(&mut self, code: &'static str, number: u32) {
        self.found.entry(code).or_default().insert(number);
    }

    /// Notes an oddity of several; of none is no oddity.
    pub(crate) fn note_all(&mut self, code: &'static str, numbers: &CpuSet) {
        if !numbers.is_empty() {
            self.found.entry(code).or_default().extend(numbers);
        }
    }

    /// The warnings in the order of [`CODES`].
    pub(crate) fn into_list(mut self) -> Vec<Warning> {
        let message = |subject, numbers: &BTreeSet<u32>, fact| match numbers.len() {
            1 => format!("{} {}: {fact}", str::trim_end_matches(subject, 's'), list(numbers)),
            _ => format!("{subject} {}: {fact}", list(numbers)),
        };
        CODES
            .into_iter()
            .filter_map(|(code, subject, fact)| {
                let numbers = self.found.remove(code)?;
                Some(Warning { code, message: message(subject, &numbers, fact) })
            })
            .collect()
    }
}

/// As the kernel lists CPUs; what no CPU can have as its number comes after the rest.
fn list(numbers: &BTreeSet<u32>) -> String {
    let (small, large): (BTreeSet<u32>, BTreeSet<u32>) = numbers.iter().partition(|n| **n <= MAX_CPU_ID);
    let small = (!small.is_empty()).then(|| small.into_iter().collect::<CpuSet>().to_string());
    small.into_iter().chain(large.iter().map(u32::to_string)).collect::<Vec<_>>().join(",")
}

/// The code as the constant it is here; `described` for one that this version does not know.
pub(crate) fn known_code(code: &str) -> &'static str {
    CODES.into_iter().map(|(known, ..)| known).find(|known| *known == code).unwrap_or("described")
}

/// The place of a code in the order of warnings.
pub(crate) fn position(code: &str) -> usize {
    CODES.into_iter().position(|(known, ..)| known == code).unwrap_or(CODES.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_told_however_large() {
        let mut warnings = Warnings::default();
        warnings.note("no-memory-size", 99_999);
        for node in [0, 1, 99_999] {
            warnings.note("no-distances", node);
        }
        let messages: Vec<String> = warnings.into_list().into_iter().map(|warning| warning.message).collect();
        assert!(messages[0].starts_with("NUMA node 99999: no readable MemTotal"), "{messages:?}");
        assert!(messages[1].starts_with("NUMA nodes 0-1,99999: not one distance"), "{messages:?}");
    }
}
