//! A device per logical CPU: the scheduler chooses, no strategy takes part.

use super::Device;
use super::attributes::Attributes;
use dracpu_cpuset::CpuSet;
use dracpu_topology::Topology;

/// The devices `cpudev000` and so on: SMT siblings next to each other, cores by their lowest CPU that is not
/// reserved. The number belongs to the CPU, so isolated CPUs are counted though they are not published:
/// allocated claims name devices, and they must mean the same CPU whatever is isolated.
pub(super) fn devices(topology: &Topology, reserved: &CpuSet) -> Vec<Device> {
    let mut cores: Vec<CpuSet> = topology.cores.iter().map(|core| core.difference(reserved)).collect();
    cores.retain(|core| !core.is_empty());
    cores.sort_by_key(CpuSet::first);
    let numbered = cores.iter().flatten().enumerate();
    let published = numbered.filter(|(_, cpu)| !topology.isolated.contains(*cpu));
    published.map(|(number, cpu)| device(topology, number, cpu)).collect()
}

fn device(topology: &Topology, number: usize, cpu: u32) -> Device {
    let cpus = CpuSet::from([cpu]);
    let mut attributes = Attributes::new(topology, &cpus);
    attributes.numa_node();
    attributes.socket();
    attributes.cpu();
    let attributes = attributes.into_map();
    Device { name: format!("cpudev{number:03}"), cpus, attributes, capacity: None }
}
