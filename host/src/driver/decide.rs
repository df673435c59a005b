use super::core::lock;
use crate::device::{Group, Offer};
use crate::strategy::{Catalogue, Decision, Fault, Loaded, Opened, Reason, Request, State, StrategyError};
use dracpu_cpuset::CpuSet;
use dracpu_topology::Topology;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Mutex;

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

/// The strategies of a catalogue, each read and compiled once, however often it is opened.
#[derive(Debug)]
pub struct LoadedOnce {
    catalogue: Catalogue,
    loaded: Mutex<BTreeMap<String, Loaded>>,
}

impl LoadedOnce {
    /// Loads from this catalogue.
    #[must_use]
    pub fn new(catalogue: Catalogue) -> Self {
        Self { catalogue, loaded: Mutex::default() }
    }

    fn load(&self, name: &str) -> Result<Loaded, String> {
        let mut loaded = lock(&self.loaded);
        if let Some(loaded) = loaded.get(name) {
            return Ok(loaded.clone());
        }
        let strategy =
            self.catalogue.load(name).map_err(|error| format!("{:#}", anyhow::Error::new(error)))?;
        loaded.insert(name.to_owned(), strategy.clone());
        Ok(strategy)
    }
}

impl Strategies for LoadedOnce {
    fn open(
        &self,
        name: &str,
        topology: &Topology,
        reserved: &CpuSet,
        groups: &[Group],
        options: &Map<String, Value>,
    ) -> Result<Box<dyn Decide>, String> {
        let opened = self.load(name)?.open(topology, reserved, groups, options);
        opened.map(|opened| Box::new(opened) as Box<dyn Decide>).map_err(|error| error.to_string())
    }
}

impl Decide for Opened {
    fn info(&self) -> StrategyInfo {
        let description = self.strategy().description();
        StrategyInfo {
            name: description.name.clone(),
            version: description.version.clone(),
            digest: self.strategy().digest().to_owned(),
            publishes: description.publishes.clone(),
        }
    }

    fn offers(&self) -> &[Offer] {
        Self::offers(self)
    }

    fn decide(&mut self, requests: &[Request], state: &State) -> Result<Decision, Undecided> {
        Self::decide(self, requests, state).map_err(Undecided::from)
    }
}

impl From<StrategyError> for Undecided {
    fn from(error: StrategyError) -> Self {
        let lack = |reason| matches!(reason, Reason::NotEnough | Reason::NoFit);
        let for_lack_of_cpus = matches!(&*error.fault, Fault::Denied(denial) if lack(denial.reason));
        Self {
            strategy: error.strategy.name.to_string(),
            kind: error.kind(),
            for_lack_of_cpus,
            message: error.to_string(),
        }
    }
}
