//! What the allocation lock is for: the machine, the strategies opened for it, and the devices that come of both.

use super::decide::{Decide, Strategies, StrategyInfo};
use super::error::PrepareError;
use super::floor::floor_of;
use super::view::{self, View};
use crate::config::{Config, DeviceMode, Selection};
use crate::device::{Group, Published};
use crate::logging;
use dracpu_cpuset::CpuSet;
use dracpu_topology::Topology;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Strategies by name, or why they cannot be used.
type Opened = BTreeMap<String, Result<Box<dyn Decide>, String>>;

pub(super) struct Allocation {
    topology: Topology,
    strategies: Arc<dyn Strategies>,
    selection: Selection,
    /// None in individual mode, where the scheduler chooses.
    opened: Option<Opened>,
    pub(super) view: View,
    pub(super) fingerprint: String,
    /// Names, in the topology's order.
    pub(super) pcie_roots: Vec<String>,
}

/// A strategy that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable {
    /// Its name.
    pub strategy: String,
    /// One sentence that names it, the fault and the remedy.
    pub why: String,
}

impl Allocation {
    /// Opens the strategies of a selection for a machine. One that cannot be used is no fault here. Blocking.
    pub(super) fn new(
        config: &Config,
        strategies: Arc<dyn Strategies>,
        selection: Selection,
        topology: Topology,
        before: Option<&View>,
    ) -> Self {
        let reserved = config.reserved_cpus.on(&topology);
        let (groups, names) = view::groups(&topology, &reserved, config, before);
        let opened = open(&*strategies, &selection, config.mode, &topology, &reserved, &groups);
        let published = publish(config, &selection, opened.as_ref(), &topology, &reserved, &groups);
        logging::warn_all(&published.warnings);
        Self {
            fingerprint: topology.fingerprint(),
            pcie_roots: topology.pcie_roots.iter().map(|root| root.name.clone()).collect(),
            view: View::new(groups, names, published.devices),
            topology,
            strategies,
            selection,
            opened,
        }
    }

    /// The same selection, opened for another machine. Blocking.
    pub(super) fn moved_to(&self, topology: Topology, config: &Config) -> Self {
        let (strategies, selection) = (self.strategies.clone(), self.selection.clone());
        Self::new(config, strategies, selection, topology, Some(&self.view))
    }

    /// Another selection on the same machine takes this one's place, unless its active strategy cannot be used while
    /// this one's can. Where another of its strategies cannot be used, the one of that name stays. Blocking.
    ///
    /// # Errors
    /// The strategies that cannot be used.
    pub(super) fn select(
        &mut self,
        config: &Config,
        strategies: Arc<dyn Strategies>,
        selection: Selection,
    ) -> Result<(), Vec<Unusable>> {
        let mut new = Self::new(config, strategies, selection, self.topology.clone(), Some(&self.view));
        if let (Err(why), Ok(_)) = (new.active(), self.active()) {
            return Err(vec![Unusable { strategy: new.selection.allocator, why }]);
        }
        let mut faults = Vec::new();
        for (name, opened) in new.opened.iter_mut().flatten() {
            let Err(why) = opened else { continue };
            faults.push(Unusable { strategy: name.clone(), why: why.clone() });
            let old = self.opened.as_mut().and_then(|old| old.remove(name));
            if let Some(Ok(old)) = old {
                *opened = Ok(old);
            }
        }
        *self = new;
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    /// The strategies that claims may name; none in individual mode.
    pub(super) fn selection(&self) -> Option<&Selection> {
        self.opened.as_ref().map(|_| &self.selection)
    }

    /// The active strategy; none in individual mode.
    pub(super) fn active(&self) -> Result<Option<StrategyInfo>, String> {
        let active = self.opened.as_ref().and_then(|opened| opened.get(&self.selection.allocator));
        active
            .map(|strategy| strategy.as_ref().map(|strategy| strategy.info()).map_err(Clone::clone))
            .transpose()
    }

    /// A strategy of the selection, with what it is to be asked about.
    pub(super) fn strategy(
        &mut self,
        name: &str,
    ) -> Result<(&mut dyn Decide, &View, &[String]), PrepareError> {
        let none = || format!("strategy {name} is not among those of this node");
        let opened = self.opened.as_mut().and_then(|opened| opened.get_mut(name)).ok_or_else(none);
        match opened {
            Ok(Ok(strategy)) => Ok((&mut **strategy, &self.view, &self.pcie_roots)),
            Ok(Err(why)) => Err(PrepareError::NoStrategy(why.clone())),
            Err(why) => Err(PrepareError::NoStrategy(why)),
        }
    }
}

/// The devices that a driver with this configuration publishes on this machine; nothing is started. Blocking.
///
/// # Errors
/// Why the driver would not start, or the active strategy cannot be used.
pub fn published(
    strategies: &dyn Strategies,
    config: &Config,
    topology: &Topology,
) -> Result<Published, String> {
    floor_of(topology, config).map_err(|error| error.to_string())?;
    let reserved = config.reserved_cpus.on(topology);
    let (groups, _) = view::groups(topology, &reserved, config, None);
    let opened = open(strategies, &config.selection, config.mode, topology, &reserved, &groups);
    let active = opened.as_ref().and_then(|opened| opened.get(&config.selection.allocator));
    if let Some(Err(why)) = active {
        return Err(why.clone());
    }
    Ok(publish(config, &config.selection, opened.as_ref(), topology, &reserved, &groups))
}

/// Opens every strategy of the selection. `strategyOptions` are the active one's.
fn open(
    strategies: &dyn Strategies,
    selection: &Selection,
    mode: DeviceMode,
    topology: &Topology,
    reserved: &CpuSet,
    groups: &[Group],
) -> Option<Opened> {
    let none = serde_json::Map::new();
    let open = |name: &str| {
        let options = if name == selection.allocator { &selection.strategy_options } else { &none };
        strategies.open(name, topology, reserved, groups, options)
    };
    match mode {
        DeviceMode::Individual => None,
        DeviceMode::Grouped(_) => Some(selection.names().map(|name| (name.to_owned(), open(name))).collect()),
    }
}

/// The devices: with what the active strategy offers, and the attributes that any of them wants. Without an active
/// one no group is published.
fn publish(
    config: &Config,
    selection: &Selection,
    opened: Option<&Opened>,
    topology: &Topology,
    reserved: &CpuSet,
    groups: &[Group],
) -> Published {
    let usable = |name: &str| opened.and_then(|opened| opened.get(name)?.as_ref().ok());
    let publishes: BTreeSet<String> =
        selection.names().filter_map(usable).flat_map(|strategy| strategy.info().publishes).collect();
    let publishes: Vec<String> = publishes.into_iter().collect();
    let offers = usable(&selection.allocator).map(|strategy| strategy.offers()).unwrap_or_default();
    crate::device::publish(topology, reserved, config.into(), groups, &publishes, offers)
}
