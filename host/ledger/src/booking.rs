use dracpu_cpuset::CpuSet;
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(id: &str) -> Self {
                Self(id.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(id: String) -> Self {
                Self(id)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id! {
    /// UID of a ResourceClaim. Opaque: not always a UUID.
    ClaimUid
}
id! {
    /// The runtime's id of a container; a restarted container has a new one.
    ContainerId
}

/// The CPUs of the node as far as ownership is concerned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// CPUs that run.
    pub online: CpuSet,
    /// Never given out, never shared.
    pub reserved: CpuSet,
    /// Kept off by the kernel's scheduler: never shared; a claim may have them.
    pub isolated: CpuSet,
}

/// What one claim holds on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Booking {
    /// The claim object's namespace; empty when only its CPUs are known.
    pub namespace: String,
    /// The claim object's name; empty when only its CPUs are known.
    pub name: String,
    /// What its pod calls the claim, where it was made from a template.
    pub pod_claim_name: Option<String>,
    /// Who decided; none where the scheduler chose the CPUs, or nobody knows.
    pub strategy: Option<StrategyId>,
    /// The claim's container also runs on the shared pool.
    pub joins_shared_pool: bool,
    /// One for each allocation result; a single one without a device when only the CPUs are known.
    pub parts: Vec<Part>,
}

/// A strategy and the digest of its component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StrategyId {
    /// As in the configuration's `allocator`.
    pub name: String,
    /// `sha256:…`.
    pub digest: String,
}

/// What one allocation result of a claim holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    /// The request, with subrequest.
    pub request: String,
    /// The pool of the device.
    pub pool: String,
    /// The device; empty when unknown.
    pub device: String,
    /// The share of a device that allows several allocations.
    pub share_id: Option<String>,
    /// The CPUs of the claim's container.
    pub cpus: CpuSet,
    /// CPUs that nobody may use while the claim lives.
    pub blocked: CpuSet,
    /// Kernel ids of NUMA nodes for `cpuset.mems`; empty = leave memory alone.
    pub mems: Vec<u32>,
}

impl Booking {
    /// A claim of which only the CPUs are known.
    #[must_use]
    pub fn plain(cpus: CpuSet) -> Self {
        Self { parts: vec![Part { cpus, ..Part::default() }], ..Self::default() }
    }

    /// Whether only the CPUs are known, not which results they belong to.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.parts.iter().any(|part| part.device.is_empty())
    }

    /// The CPUs of the claim's container.
    #[must_use]
    pub fn cpus(&self) -> CpuSet {
        union(self.parts.iter().map(|part| &part.cpus))
    }

    /// CPUs that nobody may use while the claim lives.
    #[must_use]
    pub fn blocked(&self) -> CpuSet {
        union(self.parts.iter().map(|part| &part.blocked))
    }

    /// NUMA nodes for `cpuset.mems`, ascending: those of all parts. Empty unless every part names some,
    /// since memory that one part leaves alone must stay reachable.
    #[must_use]
    pub fn mems(&self) -> Vec<u32> {
        if self.parts.iter().any(|part| part.mems.is_empty()) {
            return Vec::new();
        }
        let mut mems: Vec<u32> = self.parts.iter().flat_map(|part| part.mems.iter().copied()).collect();
        mems.sort_unstable();
        mems.dedup();
        mems
    }
}

pub(crate) fn union<'a>(sets: impl IntoIterator<Item = &'a CpuSet>) -> CpuSet {
    let mut all = CpuSet::new();
    for set in sets {
        all.extend_from(set);
    }
    all
}
