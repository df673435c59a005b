//! Topology → what the node publishes: groups of CPUs (or single CPUs) as devices with attributes and
//! capacity. Never talks to the API server, never decides which CPUs a claim gets.
//!
//! The way there is the same for the daemon and for `dracpu slices`: [`groups`], then the strategy is opened
//! with them and answers an [`Offer`] for each, then [`publish`].
//!
//! Reading order: this file (the types), `grouped`, `individual`, `attributes`, `smt_layout`, `limits`; `allocated`
//! (what a claim's containers are told beside).

mod allocated;
mod attributes;
#[cfg(test)]
pub(crate) mod fixtures;
mod grouped;
mod individual;
mod limits;
mod smt_layout;
#[cfg(test)]
mod tests;

use crate::config::{Config, DeviceMode, MinSharedCpus};
use dracpu_cpuset::CpuSet;
use dracpu_topology::{Topology, Warning};
use std::collections::BTreeMap;

pub use allocated::{ALLOCATED_NUM_CPUS, allocated};
pub use attributes::PCIE_ROOT;
pub use dracpu_codec::strategy::{Attribute, Offer};
pub use grouped::{groups, llc_name};

/// The capacity of a grouped device that claims consume: whole CPUs.
pub const CPU_CAPACITY: &str = "dra.cpu/cpu";

/// A group of CPUs that is, or may be, published as one device; what the strategy calls a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The device's name, e.g. `cpudevnuma000`.
    pub device: String,
    /// `numanode`, `socket`, `llc`, `machine`.
    pub kind: &'static str,
    /// Online and not reserved; isolated CPUs are in.
    pub cpus: CpuSet,
}

/// A device as the node publishes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Unique in the pool, a DNS label.
    pub name: String,
    /// Its CPUs: online and not reserved.
    pub cpus: CpuSet,
    /// Attributes by qualified name.
    pub attributes: BTreeMap<String, Attribute>,
    /// Of grouped devices: what the strategy offers of `dra.cpu/cpu`.
    pub capacity: Option<Capacity>,
}

/// The capacity `dra.cpu/cpu` of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Whole CPUs.
    pub cpus: u32,
    /// Requests become multiples of it; 1 = no request policy.
    pub step: u32,
    /// CPUs of the device that are not offered for the sake of the shared pool's floor.
    pub kept: u32,
}

/// The parts of the configuration that decide what is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// What a device stands for.
    pub mode: DeviceMode,
    /// The floor of the shared pool: taken off the capacity when it is explicit.
    pub min_shared_cpus: MinSharedCpus,
    /// Whether devices carry their PCIe roots.
    pub expose_pcie_roots: bool,
}

impl From<&Config> for Settings {
    fn from(config: &Config) -> Self {
        Self {
            mode: config.mode,
            min_shared_cpus: config.min_shared_cpus,
            expose_pcie_roots: config.expose_pcie_roots,
        }
    }
}

/// The devices of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// In the order in which the scheduler shall look at them.
    pub devices: Vec<Device>,
    /// What was left out of them, and why.
    pub warnings: Vec<Warning>,
}

/// The devices that the node publishes.
///
/// `groups` are those of [`groups`], `offers` what the strategy answered for each, in order; `publishes` are
/// the attributes that the strategy wants the host to compute (`dra.cpu/cpuIDs` and `dra.cpu/smtLayout`, each
/// with its V2 form). All three are empty in individual mode, where no strategy takes part.
///
/// A group that offers less than its own step is not published, since no claim could be served from it; its
/// [`Group`] stays what earlier claims refer to.
#[must_use]
pub fn publish(
    topology: &Topology,
    reserved: &CpuSet,
    settings: Settings,
    groups: &[Group],
    publishes: &[String],
    offers: &[Offer],
) -> Published {
    let (mut devices, mut warnings) = match settings.mode {
        DeviceMode::Individual => (individual::devices(topology, reserved), Vec::new()),
        DeviceMode::Grouped(by) => {
            let warnings = grouped::unplaced(topology, by).into_iter().collect();
            (grouped::devices(topology, by, groups, publishes, offers), warnings)
        }
    };
    if let MinSharedCpus::Explicit(floor) = settings.min_shared_cpus {
        grouped::take_off(&mut devices, &topology.isolated, floor);
    }
    if settings.expose_pcie_roots {
        for device in &mut devices {
            attributes::add_pcie_roots(device, topology);
        }
    }
    warnings.extend(grouped::reserved_unknown(topology, reserved));
    warnings.extend(grouped::drop_unusable(&mut devices));
    warnings.extend(limits::enforce(&mut devices));
    Published { devices, warnings }
}
