//! Strategies as they are: components of a catalogue.

use super::decide::{Decide, Strategies, StrategyInfo, Undecided};
use super::locks::lock;
use crate::device::{Group, Offer};
use crate::strategy::{
    Catalogue, Decision, Fault, LoadError, Loaded, Opened, Reason, Request, State, StrategyError,
};
use dracpu_cpuset::CpuSet;
use dracpu_topology::Topology;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The strategies of a catalogue, each read and compiled once, however often it is opened.
#[derive(Debug)]
pub struct LoadedOnce {
    catalogue: Catalogue,
    loaded: Mutex<BTreeMap<String, Result<Loaded, LoadError>>>,
}

impl LoadedOnce {
    /// Loads from this catalogue: each strategy when it is opened first.
    #[must_use]
    pub fn new(catalogue: Catalogue) -> Self {
        Self { catalogue, loaded: Mutex::default() }
    }

    /// Loads these strategies of the catalogue. Blocking, for minutes where a component is large.
    #[must_use]
    pub fn all<'a>(catalogue: Catalogue, names: impl IntoIterator<Item = &'a str>) -> Self {
        Self::by(Catalogue::load, catalogue, names)
    }

    /// As [`all`](Self::all), but what would take long is left out: it cannot be opened.
    #[must_use]
    pub fn at_once<'a>(catalogue: Catalogue, names: impl IntoIterator<Item = &'a str>) -> Self {
        Self::by(Catalogue::load_at_once, catalogue, names)
    }

    fn by<'a>(
        load: fn(&Catalogue, &str) -> Result<Loaded, LoadError>,
        catalogue: Catalogue,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let loaded = names.into_iter().map(|name| (name.to_owned(), load(&catalogue, name))).collect();
        Self { catalogue, loaded: Mutex::new(loaded) }
    }

    /// Whether something was left out for the time that it takes.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        lock(&self.loaded).values().any(|loaded| loaded.as_ref().is_err_and(LoadError::is_compiling))
    }

    fn load(&self, name: &str) -> Result<Loaded, String> {
        let mut loaded = lock(&self.loaded);
        match loaded.entry(name.to_owned()).or_insert_with(|| self.catalogue.load(name)) {
            Ok(strategy) => Ok(strategy.clone()),
            Err(error) => Err(error.to_string()),
        }
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
