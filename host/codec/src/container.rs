//! A container as the runtime tells of it, and what it is told of containers.

use dracpu_cpuset::CpuSet;
use dracpu_ledger::Who;

/// The pod of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// The pod object's UID.
    pub uid: String,
    /// The pod object's namespace.
    pub namespace: String,
    /// The pod object's name.
    pub name: String,
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
