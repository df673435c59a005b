//! Loads, limits, calls and verifies a strategy: a WebAssembly component that decides which CPUs a claim
//! gets. Links no algorithm; built-in components load as a user's file does.
//!
//! Never books, never writes; what it returns has been verified against the facts it was given.
//!
//! Reading order: this file (the types), `catalogue`, `compiler` and `component` (loading), `description`, `engine` and
//! `limits`, `opened` (the use) and `call`, then `verify` and `offer` (the rules), `options`, `convert`,
//! `log`, `error`.

mod bindings;
mod call;
mod catalogue;
pub(crate) mod compiler;
mod component;
mod convert;
mod description;
mod engine;
mod error;
mod limits;
mod log;
mod offer;
mod opened;
mod options;
mod verify;

pub use catalogue::{Catalogue, ComponentBytes, EngineError, Inspection, LoadError, LoadFault, Source};
pub use compiler::{Cache, CacheError};
pub use component::{ComponentFault, digest};
pub use description::DescriptionFault;
pub(crate) use description::is_dns_label;
pub use error::{CpusetRule, Denial, Fault, Identity, Reason, StrategyError};
pub use limits::Limits;
pub use opened::{Loaded, Opened};
pub use options::OptionsError;
pub use verify::Lie;

use dracpu_cpuset::CpuSet;
use serde_json::{Map, Value};

pub use crate::device::Offer;

/// What a strategy says of itself. Constant.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// DNS label; what `allocator` and claims say.
    pub name: String,
    /// Semantic version of the strategy.
    pub version: String,
    /// One sentence.
    pub summary: String,
    /// JSON Schema (2020-12) of the options object.
    pub options_schema: Value,
    /// What becomes of a claim's own cpuset.
    pub explicit_cpuset: ExplicitCpuset,
    /// Attributes that the host computes for each group: `dra.cpu/cpuIDs`, `dra.cpu/smtLayout`.
    pub publishes: Vec<String>,
    /// Costly inputs: `other-claims`.
    pub needs: Vec<String>,
}

/// What becomes of a claim's `cpuConfig.cpuset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExplicitCpuset {
    /// The host refuses it.
    Refused,
    /// Passed on if there.
    Accepted,
    /// The host demands it.
    Required,
}

/// One allocation result of a claim on this node, as asked of a strategy.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// With subrequest; several may share it.
    pub name: String,
    /// Position in the groups that the strategy was opened with.
    pub group: usize,
    /// Consumed capacity in whole CPUs.
    pub count: u32,
    /// The claim's own cpuset.
    pub cpuset: Option<CpuSet>,
    /// Options of class and claim, later over earlier; the node's lie under them.
    pub options: Map<String, Value>,
    /// Positions of the PCIe roots that other devices of the claim were matched on; empty = unknown.
    pub pcie_roots: Vec<usize>,
}

/// What is given out already.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    /// Whole machine: online, not reserved, held or blocked by no claim.
    pub free: CpuSet,
    /// What other claims hold; sent only to a strategy that needs it.
    pub others: Vec<Holding>,
}

/// What another claim holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// Its CPUs.
    pub cpus: CpuSet,
    /// CPUs blocked for it.
    pub blocked: CpuSet,
}

/// A verified answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// One per request, in order.
    pub grants: Vec<Grant>,
    /// The container also runs on the shared pool.
    pub join_shared_pool: bool,
    /// One sentence for logs and `dracpu explain`.
    pub why: String,
}

/// What one request got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Exactly as many as asked: free, in the group, disjoint from all other grants.
    pub cpus: CpuSet,
    /// Free CPUs that nobody may use while the claim lives.
    pub blocked: CpuSet,
    /// Kernel ids of NUMA nodes for `cpuset.mems`; empty = leave memory alone.
    pub mems: Vec<u32>,
}
