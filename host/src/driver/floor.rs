//! How many CPUs claims must leave to containers without a claim, and whether a machine has as many.

use crate::config::{Config, MinSharedCpus};
use dracpu_cpuset::CpuSet;
use dracpu_ledger::Node;
use dracpu_topology::Topology;

/// The least that claims must leave to the shared pool. A build with debug assertions breaks the rule when
/// `DRACPU_NO_FLOOR` is set: the test that does so sees the daemon and `dracpu simulate` break it alike.
fn floor(config: &Config) -> u32 {
    if cfg!(debug_assertions) && std::env::var_os("DRACPU_NO_FLOOR").is_some() {
        return 0;
    }
    match config.min_shared_cpus {
        MinSharedCpus::Default => 1,
        MinSharedCpus::Explicit(floor) => floor,
    }
}

/// Too few CPUs are left for containers without a claim, even while nobody has one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "of the CPUs {online}, {} are left for containers without a claim, and {floor} must be: {}; change reservedCPUs \
     or minSharedCPUs",
    shared.len(),
    gone(reserved, isolated)
)]
pub struct NothingShared {
    online: CpuSet,
    reserved: CpuSet,
    isolated: CpuSet,
    shared: CpuSet,
    floor: u32,
}

fn gone(reserved: &CpuSet, isolated: &CpuSet) -> String {
    let sets = [("reserved", reserved), ("isolated by the kernel", isolated)];
    let named = sets.iter().filter(|(_, cpus)| !cpus.is_empty()).map(|(what, cpus)| format!("{cpus} {what}"));
    let named: Vec<String> = named.collect();
    if named.is_empty() { "none is reserved".to_owned() } else { named.join(" and ") }
}

/// The least that claims must leave to the shared pool, once containers without a claim have a place while nobody has
/// a claim.
pub(super) fn floor_of(topology: &Topology, config: &Config) -> Result<u32, NothingShared> {
    let Node { online, reserved, isolated } = node(topology, config);
    let shared = online.difference(&reserved).difference(&isolated);
    let floor = floor(config);
    if u32::try_from(shared.len()).is_ok_and(|shared| shared < floor) {
        return Err(NothingShared { online, reserved, isolated, shared, floor });
    }
    Ok(floor)
}

/// The machine as the ledger counts on it.
pub(super) fn node(topology: &Topology, config: &Config) -> Node {
    Node {
        online: topology.online(),
        reserved: config.reserved_cpus.on(topology),
        isolated: topology.isolated.clone(),
    }
}
