use crate::config::{Config, GroupBy};
use crate::device::{self, Device, Group};
use dracpu_cpuset::CpuSet;
use dracpu_topology::Topology;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The kind of groups whose names are running numbers.
const LLC: &str = GroupBy::Llc.name();

/// By CPU, where names are running numbers (single CPUs, caches): what the device of every CPU that ever had one is
/// called. Names never change while running.
pub(super) type Names = BTreeMap<u32, String>;

/// The machine as the node publishes it: what a device's name stands for.
pub(super) struct View {
    pub(super) groups: Arc<Vec<Group>>,
    pub(super) devices: Arc<Vec<Device>>,
    names: Names,
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
    /// What [`groups`] found, and what is published of it.
    pub(super) fn new(groups: Vec<Group>, mut names: Names, mut devices: Vec<Device>) -> Self {
        let single = devices.iter_mut().filter(|device| device.capacity.is_none());
        keep_names(single.map(|device| (&device.cpus, &mut device.name)), &mut names, |n| {
            format!("cpudev{n:03}")
        });
        Self { groups: Arc::new(groups), devices: Arc::new(devices), names }
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

/// The groups of a machine, under the names that their CPUs have had before; and all names.
pub(super) fn groups(
    topology: &Topology,
    reserved: &CpuSet,
    config: &Config,
    before: Option<&View>,
) -> (Vec<Group>, Names) {
    let mut groups = device::groups(topology, config.mode, reserved);
    let mut names = before.map(|view| view.names.clone()).unwrap_or_default();
    let numbered = groups.iter_mut().filter(|group| group.kind == LLC);
    keep_names(numbered.map(|group| (&group.cpus, &mut group.device)), &mut names, device::llc_name);
    (groups, names)
}

/// Gives devices the names that their CPUs had before; new ones are numbered behind them.
fn keep_names<'a>(
    devices: impl Iterator<Item = (&'a CpuSet, &'a mut String)>,
    names: &mut Names,
    numbered: impl Fn(usize) -> String,
) {
    let number = |name: &String| name.trim_start_matches(char::is_alphabetic).parse::<usize>().ok();
    let mut next = names.values().filter_map(number).max().map(|last| last + 1);
    let mut used = BTreeSet::new();
    for (cpus, name) in devices {
        // A cache may come back as two.
        if let Some(known) = cpus.iter().find_map(|cpu| names.get(&cpu)).filter(|name| !used.contains(*name))
        {
            name.clone_from(known);
        } else if let Some(next) = &mut next {
            *name = numbered(*next);
            *next += 1;
        }
        used.insert(name.clone());
        names.extend(cpus.iter().map(|cpu| (cpu, name.clone())));
    }
}
