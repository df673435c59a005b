use super::decide::Decide;
use crate::config::Config;
use crate::device::{self, Device, Group, Published};
use dracpu_cpuset::CpuSet;
use dracpu_topology::{Topology, Warning};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The machine as the node publishes it: what a device's name stands for.
pub(super) struct View {
    pub(super) groups: Vec<Group>,
    pub(super) devices: Arc<Vec<Device>>,
    pub(super) warnings: Vec<Warning>,
    /// Of individual mode: the name of every CPU that ever had one. Names never change while running.
    names: BTreeMap<u32, String>,
}

/// What a device's name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// Position of a group.
    Group(usize),
    /// CPUs that the scheduler has chosen.
    Cpus(CpuSet),
}

impl View {
    /// `strategy` is none in individual mode, and where there is none to be used: then no group is
    /// published.
    pub(super) fn new(
        topology: &Topology,
        config: &Config,
        groups: Vec<Group>,
        strategy: Option<&dyn Decide>,
        before: Option<&Self>,
    ) -> Self {
        let mut published = publish(topology, config, &groups, strategy);
        let names = keep_names(&mut published.devices, before);
        let (devices, warnings) = (Arc::new(published.devices), published.warnings);
        Self { groups, devices, warnings, names }
    }

    /// What a device's name stands for; groups also when they are not published at the moment.
    pub(super) fn place(&self, device: &str) -> Option<Place> {
        if let Some(group) = self.groups.iter().position(|group| group.device == device) {
            return Some(Place::Group(group));
        }
        let individual = self.devices.iter().find(|found| found.capacity.is_none() && found.name == device);
        individual.map(|device| Place::Cpus(device.cpus.clone()))
    }

    /// The CPUs of a place.
    pub(super) fn cpus(&self, place: &Place) -> CpuSet {
        match place {
            Place::Group(index) => {
                self.groups.get(*index).map(|group| group.cpus.clone()).unwrap_or_default()
            }
            Place::Cpus(cpus) => cpus.clone(),
        }
    }

    /// Names for a message.
    pub(super) fn device_names(&self) -> String {
        let names: Vec<&str> = self.devices.iter().map(|device| device.name.as_str()).collect();
        match names.as_slice() {
            [] => "none".to_owned(),
            [first, .., last] if names.len() > 8 => format!("{first} to {last}"),
            names => names.join(", "),
        }
    }
}

/// The devices to publish; `strategy` as for [`View::new`].
pub(super) fn publish(
    topology: &Topology,
    config: &Config,
    groups: &[Group],
    strategy: Option<&dyn Decide>,
) -> Published {
    let publishes = strategy.map(|strategy| strategy.info().publishes).unwrap_or_default();
    let offers = strategy.map(Decide::offers).unwrap_or_default();
    device::publish(topology, &config.reserved_cpus, config.into(), groups, &publishes, offers)
}

/// Gives the CPUs of individual mode the names that they had before; new ones go behind.
fn keep_names(devices: &mut [Device], before: Option<&View>) -> BTreeMap<u32, String> {
    let mut names = before.map(|view| view.names.clone()).unwrap_or_default();
    for device in devices.iter_mut().filter(|device| device.capacity.is_none()) {
        let Some(cpu) = device.cpus.first() else { continue };
        if before.is_some() {
            let next =
                names.values().filter_map(|name| name.trim_start_matches(char::is_alphabetic).parse().ok());
            let next = next.max().map_or(0, |last: u32| last + 1);
            let name = names.entry(cpu).or_insert_with(|| format!("cpudev{next:03}"));
            device.name.clone_from(name);
        } else {
            names.insert(cpu, device.name.clone());
        }
    }
    names
}
