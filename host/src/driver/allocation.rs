//! What the allocation lock is for: the machine, the strategies opened for it, and the devices that come of both.

use super::decide::{Decide, Strategies, StrategyInfo};
use super::error::PrepareError;
use super::floor::floor_of;
use super::view::{self, Names, View};
use crate::cdi::Record;
use crate::config::{Config, DeviceMode, Selection};
use crate::device::{Group, Published};
use crate::logging;
use crate::metadata::Attributes;
use dracpu_cpuset::CpuSet;
use dracpu_ledger::Booking;
use dracpu_topology::{Topology, Warning};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A strategy of the selection.
struct Strategy {
    source: Arc<dyn Strategies>,
    /// The node's, that it was opened with. One that stays when another cannot be used keeps its own.
    options: Map<String, Value>,
    /// Or why it cannot be used.
    opened: Result<Box<dyn Decide>, String>,
}

/// By name; none in individual mode, where the scheduler chooses.
type Opened = Option<BTreeMap<String, Strategy>>;

pub(super) struct Allocation {
    topology: Arc<Topology>,
    reserved: CpuSet,
    selection: Selection,
    opened: Opened,
    pub(super) view: View,
    pub(super) fingerprint: String,
    /// Names, in the topology's order.
    pub(super) pcie_roots: Vec<String>,
    /// What is odd about the machine, and what could not be published of it.
    warnings: Vec<Warning>,
}

/// What others are told of the allocation without waiting for its lock.
#[derive(Debug, Clone)]
pub(super) struct Told {
    /// The active strategy, as in [`Driver::strategy`](super::core::Driver::strategy).
    pub(super) active: Result<Option<StrategyInfo>, String>,
    /// Every strategy that claims may name, by name.
    pub(super) strategies: BTreeMap<String, Result<StrategyInfo, String>>,
    pub(super) warnings: Vec<Warning>,
    /// CPUs that the machine has and that are offline.
    pub(super) offline: CpuSet,
    pub(super) selection: Selection,
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
        strategies: &Arc<dyn Strategies>,
        selection: Selection,
        topology: Topology,
    ) -> Self {
        let place = Place::new(config, Arc::new(topology), None);
        let opened = place.open_all(config, &selection, strategies);
        Self::of(config, place, selection, opened)
    }

    /// What stands in a claim's spec, in this boot and on this machine.
    pub(super) fn record(&self, boot_id: &str, booking: &Booking) -> Record {
        Record {
            boot_id: boot_id.to_owned(),
            topology_hash: self.fingerprint.clone(),
            booking: booking.clone(),
        }
    }

    /// The same selection, opened for another machine. Blocking.
    pub(super) fn moved_to(&self, topology: Topology, config: &Config) -> Self {
        let selection = self.selection.clone();
        let place = Place::new(config, Arc::new(topology), Some(&self.view));
        let again = |(name, known): (&String, &Strategy)| {
            let (source, options) = (known.source.clone(), known.options.clone());
            (name.clone(), place.open(name, options, source))
        };
        let opened = self.opened.as_ref().map(|opened| opened.iter().map(again).collect());
        Self::of(config, place, selection, opened)
    }

    /// Another selection on the same machine takes this one's place, unless its active strategy cannot be used while
    /// this one's can. Where another of its strategies cannot be used, the one of that name stays. Blocking.
    ///
    /// # Errors
    /// The strategies that cannot be used.
    pub(super) fn select(
        &mut self,
        config: &Config,
        strategies: &Arc<dyn Strategies>,
        selection: Selection,
    ) -> Result<(), Vec<Unusable>> {
        let place = Place::new(config, self.topology.clone(), Some(&self.view));
        let mut opened = place.open_all(config, &selection, strategies);
        let new = |name: &String| opened.as_ref().and_then(|opened| opened.get(name)?.opened.as_ref().err());
        if let (Some(why), Ok(_)) = (new(&selection.allocator), self.active()) {
            return Err(vec![Unusable { strategy: selection.allocator.clone(), why: why.clone() }]);
        }
        let mut faults = Vec::new();
        for (name, new) in opened.iter_mut().flatten() {
            let Err(why) = &new.opened else { continue };
            faults.push(Unusable { strategy: name.clone(), why: why.clone() });
            let old = self.opened.as_mut().and_then(|old| old.remove(name));
            if let Some(old) = old.filter(|old| old.opened.is_ok()) {
                *new = old;
            }
        }
        *self = Self::of(config, place, selection, opened);
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    fn of(config: &Config, place: Place, selection: Selection, opened: Opened) -> Self {
        let published = place.publish(config, &selection, &opened);
        logging::warn_all(&published.warnings);
        let Place { topology, reserved, groups, names } = place;
        let warnings = topology.warnings.iter().cloned().chain(published.warnings).collect();
        Self {
            warnings,
            reserved,
            fingerprint: topology.fingerprint(),
            pcie_roots: topology.pcie_roots.iter().map(|root| root.name.clone()).collect(),
            view: View::new(groups, names, published.devices),
            topology,
            selection,
            opened,
        }
    }

    /// The strategies that claims may name; none in individual mode.
    pub(super) fn selection(&self) -> Option<&Selection> {
        self.opened.as_ref().map(|_| &self.selection)
    }

    /// What is known of the devices, for who is told of them.
    pub(super) fn attributes(&self) -> Attributes<'_> {
        Attributes { topology: &self.topology, published: &self.view.devices }
    }

    /// The active strategy; none in individual mode.
    pub(super) fn active(&self) -> Result<Option<StrategyInfo>, String> {
        let active = self.opened.as_ref().and_then(|opened| opened.get(&self.selection.allocator));
        active
            .map(|active| active.opened.as_ref().map(|strategy| strategy.info()).map_err(Clone::clone))
            .transpose()
    }

    /// What others are told of it.
    pub(super) fn told(&self) -> Told {
        let info =
            |known: &Strategy| known.opened.as_ref().map(|strategy| strategy.info()).map_err(Clone::clone);
        let strategies = self.opened.iter().flatten().map(|(name, known)| (name.clone(), info(known)));
        Told {
            active: self.active(),
            strategies: strategies.collect(),
            warnings: self.warnings.clone(),
            offline: self.topology.offline.clone(),
            selection: self.selection.clone(),
        }
    }

    /// A strategy of the selection, with what it is to be asked about.
    pub(super) fn strategy(&mut self, name: &str) -> Result<Asking<'_>, PrepareError> {
        let strategy = self.opened.as_mut().and_then(|opened| opened.get_mut(name));
        match strategy {
            Some(Strategy { opened: Ok(strategy), options, .. }) => Ok(Asking {
                strategy: &mut **strategy,
                view: &self.view,
                pcie_roots: &self.pcie_roots,
                topology: &self.topology,
                reserved: &self.reserved,
                options: options.clone(),
            }),
            Some(Strategy { opened: Err(why), .. }) => Err(PrepareError::NoStrategy(why.clone())),
            None => Err(PrepareError::NoStrategy(format!("strategy {name} is not among those of this node"))),
        }
    }

    /// Where a strategy of the selection comes from, to be opened once more.
    pub(super) fn source(&self, name: &str) -> Option<Arc<dyn Strategies>> {
        self.opened.as_ref()?.get(name).map(|known| known.source.clone())
    }
}

/// A strategy that can be asked, and what it was opened with.
pub(super) struct Asking<'a> {
    pub(super) strategy: &'a mut dyn Decide,
    pub(super) view: &'a View,
    /// Names, in the topology's order.
    pub(super) pcie_roots: &'a [String],
    pub(super) topology: &'a Arc<Topology>,
    pub(super) reserved: &'a CpuSet,
    pub(super) options: Map<String, Value>,
}

/// Where strategies are opened: a machine and its groups.
struct Place {
    topology: Arc<Topology>,
    reserved: CpuSet,
    groups: Vec<Group>,
    names: Names,
}

impl Place {
    fn new(config: &Config, topology: Arc<Topology>, before: Option<&View>) -> Self {
        let reserved = config.reserved_cpus.on(&topology);
        let (groups, names) = view::groups(&topology, &reserved, config, before);
        Self { topology, reserved, groups, names }
    }

    /// Opens one strategy.
    fn open(&self, name: &str, options: Map<String, Value>, source: Arc<dyn Strategies>) -> Strategy {
        let opened = source.open(name, &self.topology, &self.reserved, &self.groups, &options);
        Strategy { source, options, opened }
    }

    fn open_all(&self, config: &Config, selection: &Selection, source: &Arc<dyn Strategies>) -> Opened {
        let open =
            |name: &str| (name.to_owned(), self.open(name, selection.options_of(name), source.clone()));
        (config.mode != DeviceMode::Individual).then(|| selection.names().map(open).collect())
    }

    /// The devices: with what the active strategy offers, and the attributes that any of them wants. Without an active
    /// one no group is published.
    fn publish(&self, config: &Config, selection: &Selection, opened: &Opened) -> Published {
        let strategy = |name: &str| opened.as_ref()?.get(name)?.opened.as_ref().ok();
        let publishes: BTreeSet<String> =
            selection.names().filter_map(strategy).flat_map(|strategy| strategy.info().publishes).collect();
        let publishes: Vec<String> = publishes.into_iter().collect();
        let offers = strategy(&selection.allocator).map(|strategy| strategy.offers()).unwrap_or_default();
        crate::device::publish(
            &self.topology,
            &self.reserved,
            config.into(),
            &self.groups,
            &publishes,
            offers,
        )
    }
}

/// The devices that a driver with this configuration publishes on this machine; nothing is started. An allowed strategy
/// that cannot be used is told in the log. Blocking.
///
/// # Errors
/// Why the driver would not start, or the active strategy cannot be used.
pub fn published(
    strategies: &Arc<dyn Strategies>,
    config: &Config,
    topology: &Topology,
) -> Result<Published, String> {
    floor_of(topology, config).map_err(|error| error.to_string())?;
    let place = Place::new(config, Arc::new(topology.clone()), None);
    let opened = place.open_all(config, &config.selection, strategies);
    let active = opened.as_ref().and_then(|opened| opened.get(&config.selection.allocator));
    if let Some(Strategy { opened: Err(why), .. }) = active {
        return Err(why.clone());
    }
    for (name, strategy) in opened.iter().flatten() {
        if let Err(why) = &strategy.opened {
            tracing::warn!("claims that name the strategy {name} would be refused: {why}");
        }
    }
    Ok(place.publish(config, &config.selection, &opened))
}
