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
use std::time::Instant;
use tokio_util::sync::CancellationToken;

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

    /// Loads these strategies of the catalogue, but of those that must be compiled only what is done by then. The
    /// others cannot be opened until they are [completed](Self::complete). What was loaded before stays. Blocking.
    #[must_use]
    pub fn until<'a>(
        end: Instant,
        catalogue: Catalogue,
        names: impl IntoIterator<Item = &'a str>,
        before: Option<&Self>,
    ) -> Self {
        let load = |name: &str| {
            let known = before.and_then(|before| before.same(name, &catalogue));
            (name.to_owned(), known.map_or_else(|| catalogue.load_until(name, end), Ok))
        };
        let loaded = names.into_iter().map(load).collect();
        Self { catalogue, loaded: Mutex::new(loaded) }
    }

    /// The strategy of this name, where the catalogue would load the same.
    fn same(&self, name: &str, catalogue: &Catalogue) -> Option<Loaded> {
        let loaded = lock(&self.loaded).get(name)?.as_ref().ok()?.clone();
        let is_same = self.catalogue.has_same(name, catalogue)
            && catalogue.digest(name).as_deref() == Some(loaded.digest());
        is_same.then_some(loaded)
    }

    /// Those that are still to be compiled.
    #[must_use]
    pub fn compiling(&self) -> Vec<String> {
        let loaded = lock(&self.loaded);
        let compiling =
            loaded.iter().filter(|(_, loaded)| loaded.as_ref().is_err_and(LoadError::is_compiling));
        compiling.map(|(name, _)| name.clone()).collect()
    }

    /// Compiles those, as long as nobody calls it off. Blocking, for minutes where a component is large. What was
    /// opened before is to be opened anew.
    pub fn complete(&self, called_off: &CancellationToken) {
        for name in self.compiling() {
            let loaded = self.catalogue.load_unless(&name, called_off);
            lock(&self.loaded).insert(name, loaded);
        }
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
