//! A device per group of CPUs, with a capacity that many claims share.

use super::attributes::{Attributes, socket_number};
use super::{Capacity, Device, Group, Offer};
use crate::config::{DeviceMode, GroupBy};
use dracpu_cpuset::CpuSet;
use dracpu_topology::{Topology, Warning};
use std::collections::BTreeMap;

/// The groups of CPUs that the node gives out, by ascending kernel id; none in individual mode.
///
/// A group holds its online CPUs that are not reserved, isolated ones too; one without such CPUs is left out.
/// Where the kernel shows no NUMA nodes, all CPUs are one group under the name of node 0. A package id of -1
/// (the kernel's "none") counts as socket 0. Caches have no ids that could be relied on: their groups carry a
/// running number in the order of the caches' lowest CPUs; where the kernel shows no cache, all CPUs are one group.
#[must_use]
pub fn groups(topology: &Topology, mode: DeviceMode, reserved: &CpuSet) -> Vec<Group> {
    let (kind, sets) = match mode {
        DeviceMode::Individual => return Vec::new(),
        DeviceMode::Grouped(GroupBy::NumaNode) if has_numa(topology) => {
            let nodes = topology.numa_nodes.iter();
            ("numanode", nodes.map(|node| (format!("cpudevnuma{:03}", node.id), node.cpus.clone())).collect())
        }
        DeviceMode::Grouped(GroupBy::NumaNode) => {
            ("numanode", vec![("cpudevnuma000".to_owned(), topology.online())])
        }
        DeviceMode::Grouped(GroupBy::Socket) => {
            let mut sockets: BTreeMap<i64, CpuSet> = BTreeMap::new();
            for socket in &topology.sockets {
                sockets.entry(socket_number(socket.id)).or_default().extend_from(&socket.cpus);
            }
            let sockets = sockets.into_iter();
            ("socket", sockets.map(|(id, cpus)| (format!("cpudevsocket{id:03}"), cpus)).collect::<Vec<_>>())
        }
        DeviceMode::Grouped(GroupBy::Llc) if topology.caches.is_empty() => {
            ("llc", vec![("cpudevllc000".to_owned(), topology.online())])
        }
        DeviceMode::Grouped(GroupBy::Llc) => {
            let caches = topology.caches.iter().enumerate();
            ("llc", caches.map(|(number, cache)| (llc_name(number), cache.cpus.clone())).collect())
        }
        DeviceMode::Grouped(GroupBy::Machine) => {
            ("machine", vec![("cpudevmachine".to_owned(), topology.online())])
        }
    };
    let groups =
        sets.into_iter().map(|(device, cpus)| Group { device, kind, cpus: cpus.difference(reserved) });
    groups.filter(|group| !group.cpus.is_empty()).collect()
}

/// The devices of the groups.
pub(super) fn devices(
    topology: &Topology,
    by: GroupBy,
    groups: &[Group],
    publishes: &[String],
    offers: &[Offer],
) -> Vec<Device> {
    let device = |(group, offer): (&Group, &Offer)| {
        let mut attributes = Attributes::new(topology, &group.cpus);
        attributes.num_cpus();
        match by {
            GroupBy::NumaNode => {
                attributes.numa_node();
                attributes.socket();
            }
            GroupBy::Socket => attributes.socket(),
            GroupBy::Llc => {
                attributes.numa_node();
                attributes.socket();
                attributes.l3_cache();
            }
            GroupBy::Machine => {}
        }
        for name in publishes {
            attributes.computed(name);
        }
        for (name, value) in &offer.attributes {
            attributes.set(name, value.clone());
        }
        Device {
            name: group.device.clone(),
            cpus: group.cpus.clone(),
            attributes: attributes.into_map(),
            capacity: Some(Capacity { cpus: offer.capacity, step: offer.step, kept: 0 }),
        }
    };
    groups.iter().zip(offers).map(device).collect()
}

/// Reserved CPUs that the machine does not have: a mistake, or another kind of node.
pub(super) fn reserved_unknown(topology: &Topology, reserved: &CpuSet) -> Option<Warning> {
    let unknown = reserved.difference(&topology.online()).difference(&topology.offline);
    (!unknown.is_empty()).then(|| Warning {
        code: "reserved-cpus-unknown",
        message: format!(
            "reserved CPUs {unknown} do not exist on this machine, whose CPUs are {}",
            topology.online()
        ),
    })
}

/// What the grouping cannot place as it should.
pub(super) fn unplaced(topology: &Topology, by: GroupBy) -> Option<Warning> {
    match by {
        GroupBy::NumaNode => without_numa_node(topology),
        GroupBy::Llc => without_llc(topology),
        GroupBy::Socket | GroupBy::Machine => None,
    }
}

fn without_llc(topology: &Topology) -> Option<Warning> {
    if topology.caches.is_empty() {
        return Some(Warning {
            code: "no-caches",
            message: "the kernel shows no caches: all CPUs are published as cpudevllc000, without the attribute of a \
                      cache"
                .to_owned(),
        });
    }
    let left: CpuSet = topology.cpus.iter().filter(|cpu| cpu.llc.is_none()).map(|cpu| cpu.id).collect();
    (!left.is_empty()).then(|| Warning {
        code: "cpus-without-cache",
        message: format!("CPUs {left} share no cache that the kernel shows and are not published; groupBy: numanode has them"),
    })
}

fn without_numa_node(topology: &Topology) -> Option<Warning> {
    if !has_numa(topology) {
        return Some(Warning {
            code: "no-numa-nodes",
            message: "the kernel shows no NUMA nodes: all CPUs are published as cpudevnuma000, \
                      without the attributes of a node"
                .to_owned(),
        });
    }
    let left: CpuSet = topology.cpus.iter().filter(|cpu| cpu.numa_node.is_none()).map(|cpu| cpu.id).collect();
    (!left.is_empty()).then(|| Warning {
        code: "cpus-without-numa-node",
        message: format!(
            "CPUs {left} belong to no NUMA node and are not published; groupBy: machine has them"
        ),
    })
}

/// Takes the floor of the shared pool off what is offered, largest device first, so that the scheduler never
/// gives the last CPUs to claims that the node would have to refuse. The pool has no isolated CPUs.
pub(super) fn take_off(devices: &mut [Device], isolated: &CpuSet, floor: u32) {
    let of_pool = |device: &mut Device| device.cpus.difference(isolated).len();
    let capacities = devices.iter_mut().map(|device| (of_pool(device), device.capacity.as_mut()));
    let mut capacities: Vec<(usize, &mut Capacity)> =
        capacities.filter_map(|(pool, capacity)| Some((pool, capacity?))).collect();
    capacities.sort_by_key(|(_, capacity)| std::cmp::Reverse(capacity.cpus)); // stable: the first of equals
    let mut rest = floor;
    for (pool, capacity) in capacities {
        let taken = rest.min(capacity.cpus).min(u32::try_from(pool).unwrap_or(u32::MAX));
        capacity.cpus -= taken;
        capacity.kept = taken;
        rest -= taken;
    }
}

/// Takes out the devices whose capacity serves no claim.
pub(super) fn drop_unusable(devices: &mut Vec<Device>) -> Vec<Warning> {
    let unusable =
        |device: &mut Device| device.capacity.is_some_and(|capacity| capacity.cpus < capacity.step);
    let dropped = devices.extract_if(.., unusable);
    let warn = |device: Device| Warning {
        code: "no-capacity",
        message: match device.capacity {
            Some(Capacity { cpus, step, .. }) if step > 1 => {
                format!("{} is not published: it offers {cpus} CPUs in steps of {step}", device.name)
            }
            _ => format!("{} is not published: none of its CPUs {} are on offer", device.name, device.cpus),
        },
    };
    dropped.map(warn).collect()
}

/// The name of the group of a last-level cache.
pub fn llc_name(number: usize) -> String {
    format!("cpudevllc{number:03}")
}

fn has_numa(topology: &Topology) -> bool {
    topology.cpus.iter().any(|cpu| cpu.numa_node.is_some())
}
