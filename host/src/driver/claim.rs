pub use dracpu_codec::claim::{AllocationResult, ConfigSource, OpaqueConfig};
use dracpu_cpuset::CpuSet;

/// A claim as the kubelet names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimRef {
    /// Opaque, not always a UUID.
    pub uid: String,
    /// The claim object's namespace.
    pub namespace: String,
    /// The claim object's name.
    pub name: String,
}

/// The parts of an allocated ResourceClaim that this driver reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// `metadata.uid`, `.namespace`, `.name`.
    pub id: ClaimRef,
    /// The annotation `resource.kubernetes.io/pod-claim-name`: what the pod calls a claim that was made from a
    /// template.
    pub pod_claim_name: Option<String>,
    /// `status.allocation.devices.results`, those of other drivers too. None = not allocated.
    pub results: Option<Vec<AllocationResult>>,
    /// Opaque parameters for this driver, in the order of `status.allocation.devices.config`.
    pub config: Vec<OpaqueConfig>,
    /// `spec.devices.constraints` with the `matchAttribute` `resource.kubernetes.io/pcieRoot`: the requests of each;
    /// no requests = all.
    pub pcie_root_matches: Vec<Vec<String>>,
    /// `status.reservedFor`: the pods that may use it; other kinds of consumers are left out.
    pub reserved_for: Vec<PodRef>,
}

/// A pod of the claim's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRef {
    /// Its UID.
    pub uid: String,
    /// Its name.
    pub name: String,
}

/// The answer to a prepare call for one claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// One per result of this driver.
    pub devices: Vec<PreparedDevice>,
}

/// One prepared device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedDevice {
    /// The request without subrequest.
    pub request: String,
    /// As in the allocation result.
    pub pool: String,
    /// As in the allocation result.
    pub device: String,
    /// As in the allocation result.
    pub share_id: Option<String>,
    /// Fully qualified CDI device names, the claim's own first.
    pub cdi_device_ids: Vec<String>,
    /// The CPUs of this result.
    pub cpus: CpuSet,
}
