//! What a strategy says of itself and answers, and the rules that it is held against. Plain types: nothing here
//! knows how a strategy is called.
//!
//! Reading order: this file (the types), `answer` (what a strategy says, before it is believed), `description`,
//! `verify` and `offer` (the rules), `denial`, `options` and `subschemas` (what their schema says).

pub mod answer;
mod denial;
pub mod description;
mod offer;
pub mod options;
pub mod subschemas;
pub mod verify;

pub use denial::{Denial, Reason, denial, refusal};
pub use description::DescriptionFault;
pub use options::OptionsError;
pub use verify::Lie;

use dracpu_cpuset::CpuSet;
use serde_json::{Map, Value};

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

/// What one group offers the scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Most CPUs that claims can hold in it together.
    pub capacity: u32,
    /// Requests become multiples of it; 1 = no policy.
    pub step: u32,
    /// The strategy's own attributes, by qualified name.
    pub attributes: Vec<(String, Attribute)>,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribute {
    /// `int`
    Int(i64),
    /// `bool`
    Bool(bool),
    /// `string`
    Text(String),
    /// `version`
    Version(String),
    /// `strings`
    Texts(Vec<String>),
}
