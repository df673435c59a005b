//! A container as the runtime tells of it, and what it is told of containers.

use dracpu_cpuset::CpuSet;
use dracpu_ledger::Who;
use std::fmt;
use std::time::SystemTime;

/// The pod of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// The pod object's UID.
    pub uid: String,
    /// The pod object's namespace.
    pub namespace: String,
    /// The pod object's name.
    pub name: String,
    /// CPU time that all its containers have together; none = as much as there is, or not told.
    pub quota: Option<Quota>,
}

/// CPU time that may be used (CFS quota): so many microseconds in each period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Microseconds of a period; more than 0.
    pub micros: u64,
    /// The period, in microseconds; more than 0.
    pub period: u64,
}

impl Quota {
    /// Whether who runs on so many CPUs of its own can use the quota up, and is then stopped for the rest of the
    /// period. A quota of just as much as the CPUs give does it too: the kernel gives it out in slices.
    #[must_use]
    pub fn throttles(self, cpus: usize) -> bool {
        let most = u64::try_from(cpus).ok().and_then(|cpus| self.period.checked_mul(cpus));
        most.is_none_or(|most| self.micros <= most)
    }
}

/// In CPUs.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let thousandths = u128::from(self.micros) * 1000 / u128::from(self.period.max(1));
        match (thousandths / 1000, thousandths % 1000) {
            (whole, 0) => write!(f, "{whole}"),
            (whole, rest) => write!(f, "{whole}.{}", format!("{rest:03}").trim_end_matches('0')),
        }
    }
}

/// A container as the runtime describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Container {
    /// The runtime's id; a restarted container has a new one.
    pub id: String,
    /// The name in the pod spec.
    pub name: String,
    /// Its pod.
    pub pod: Pod,
    /// Environment as `KEY=VALUE`; a key may stand there more than once.
    pub env: Vec<String>,
    /// CDI device names, where the runtime tells them (NRI 0.12).
    pub cdi_devices: Vec<String>,
    /// The mask that the runtime shows; none = not set, or not understood.
    pub cpus: Option<CpuSet>,
    /// CPU time that it has; none = as much as there is, or not told.
    pub quota: Option<Quota>,
    /// Since when its process runs, where the runtime tells it (NRI 0.10).
    pub started: Option<SystemTime>,
}

/// A mask for an existing container; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The runtime's id.
    pub container_id: String,
    /// Its CPUs.
    pub cpus: CpuSet,
}

/// The answer to the creation of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// Its CPUs; never empty.
    pub cpus: CpuSet,
    /// Kernel ids of NUMA nodes for `cpuset.mems`; empty = leave memory alone.
    pub mems: Vec<u32>,
    /// Whether the container runs on claimed CPUs.
    pub exclusive: bool,
    /// Take the CFS quota off.
    pub remove_cfs_quota: bool,
    /// Masks of other containers.
    pub updates: Vec<Update>,
}

/// The answer to an update of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Updated {
    /// The mask to put in place of what was asked; none = as asked.
    pub cpus: Option<CpuSet>,
    /// Masks of other containers.
    pub updates: Vec<Update>,
}

impl Container {
    /// Who it is, for the ledger.
    #[must_use]
    pub fn who(&self) -> Who {
        Who {
            id: self.id.as_str().into(),
            name: self.name.clone(),
            pod_uid: self.pod.uid.clone(),
            pod_namespace: self.pod.namespace.clone(),
            pod_name: self.pod.name.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_throttles_unless_it_is_more_than_the_cpus_can_use() {
        let quota = |micros| Quota { micros, period: 100_000 };
        assert!(quota(150_000).throttles(2) && quota(200_000).throttles(2));
        assert!(!quota(200_001).throttles(2));
        assert!(quota(1).throttles(usize::MAX), "no overflow");
    }

    #[test]
    fn a_quota_is_shown_in_cpus() {
        for (micros, shown) in [(200_000, "2"), (150_000, "1.5"), (1_000, "0.01"), (12_345, "0.123")] {
            assert_eq!(Quota { micros, period: 100_000 }.to_string(), shown);
        }
    }
}
