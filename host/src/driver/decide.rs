use crate::device::{Group, Offer};
use crate::strategy::{Decision, Request, State};
use dracpu_cpuset::CpuSet;
use dracpu_topology::Topology;
use serde_json::{Map, Value};

/// The strategies of a node, by name.
pub trait Strategies: Send + Sync {
    /// Opens the strategy of this name for a machine. Blocking.
    ///
    /// # Errors
    /// Why it cannot be used: one sentence that names it, the fault and the remedy.
    fn open(
        &self,
        name: &str,
        topology: &Topology,
        reserved: &CpuSet,
        groups: &[Group],
        options: &Map<String, Value>,
    ) -> Result<Box<dyn Decide>, String>;
}

/// A strategy opened for one machine.
pub trait Decide: Send {
    /// Who decides.
    fn info(&self) -> StrategyInfo;

    /// What each group offers the scheduler, in the order of the groups.
    fn offers(&self) -> &[Offer];

    /// Asks for CPUs for all requests of one claim; the answer has been verified. Blocking.
    ///
    /// # Errors
    /// [`Undecided`]; the next call is not affected.
    fn decide(&mut self, requests: &[Request], state: &State) -> Result<Decision, Undecided>;
}

/// Which strategy it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StrategyInfo {
    /// As in the configuration's `allocator`.
    pub name: String,
    /// Its semantic version.
    pub version: String,
    /// `sha256:…` of the component.
    pub digest: String,
    /// Attributes that the host computes for each group.
    pub publishes: Vec<String>,
}

/// A strategy gave no decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Undecided {
    /// Which strategy.
    pub strategy: String,
    /// What happened, from a closed set, for metrics: `denied`, `options`, `out-of-fuel` and so on.
    pub kind: &'static str,
    /// Other claims may be in the way: it would have served the claim on an empty node, perhaps.
    pub for_lack_of_cpus: bool,
    /// The strategy, the fault and the remedy.
    pub message: String,
}
