//! Attributes by name, as DeviceClasses, claims and dashboards use them. A fact on which the CPUs of a
//! device disagree is left out, never guessed.

use super::{Attribute, Device, smt_layout};
use dracpu_cpuset::{CpuSet, StridedList};
use dracpu_topology::{Cpu, Topology};
use std::collections::BTreeMap;

const NUMA_NODE: &str = "resource.kubernetes.io/numaNode";
/// The PCIe roots that a device is local to, in the slices of any driver.
pub const PCIE_ROOT: &str = "resource.kubernetes.io/pcieRoot";
/// Older names of [`NUMA_NODE`], which claims still select by.
const LEGACY_NUMA_NODE: [&str; 2] = ["dra.cpu/numaNodeID", "dra.net/numaNode"];
const SOCKET_ID: &str = "dra.cpu/socketID";
const NUM_CPUS: &str = "dra.cpu/numCPUs";
const SMT_ENABLED: &str = "dra.cpu/smtEnabled";
const CORE_ID: &str = "dra.cpu/coreID";
const CPU_ID: &str = "dra.cpu/cpuID";
const CACHE_L3_ID: &str = "dra.cpu/cacheL3ID";
const CORE_TYPE: &str = "dra.cpu/coreType";
const CPU_IDS: &str = "dra.cpu/cpuIDs";
const CPU_IDS_V2: &str = "dra.cpu/cpuIDsV2";
const SMT_LAYOUT: &str = "dra.cpu/smtLayout";
const SMT_LAYOUT_V2: &str = "dra.cpu/smtLayoutV2";

/// Attributes of one device, filled in by what they say.
pub(super) struct Attributes<'a> {
    topology: &'a Topology,
    cpus: &'a CpuSet,
    attributes: BTreeMap<String, Attribute>,
}

impl<'a> Attributes<'a> {
    /// For a device of these CPUs; `smtEnabled`, which every device has, is there.
    pub(super) fn new(topology: &'a Topology, cpus: &'a CpuSet) -> Self {
        let mut new = Self { topology, cpus, attributes: BTreeMap::new() };
        new.set(SMT_ENABLED, Attribute::Bool(topology.threads_per_core() > 1));
        new
    }

    pub(super) fn into_map(self) -> BTreeMap<String, Attribute> {
        self.attributes
    }

    pub(super) fn num_cpus(&mut self) {
        self.set(NUM_CPUS, int(self.cpus.len()));
    }

    pub(super) fn socket(&mut self) {
        let id = self.agreed(|topology, cpu| topology.sockets.get(cpu.socket).map(|s| socket_number(s.id)));
        self.set_some(SOCKET_ID, id.map(Attribute::Int));
    }

    pub(super) fn numa_node(&mut self) {
        let id = self.agreed(|topology, cpu| topology.numa_nodes.get(cpu.numa_node?).map(|node| node.id));
        for name in LEGACY_NUMA_NODE.into_iter().chain([NUMA_NODE]) {
            self.set_some(name, id.map(|id| Attribute::Int(id.into())));
        }
    }

    /// What only a single CPU has.
    pub(super) fn cpu(&mut self) {
        let id = self.agreed(|_, cpu| Some(cpu.id));
        self.set_some(CPU_ID, id.map(|id| Attribute::Int(id.into())));
        let id = self.agreed(|_, cpu| cpu.core_id);
        self.set_some(CORE_ID, id.map(|id| Attribute::Int(id.into())));
        let kind = self.agreed(|topology, cpu| topology.kinds.get(cpu.kind).map(|kind| kind.name.clone()));
        self.set_some(CORE_TYPE, kind.map(Attribute::Text));
        self.l3_cache();
    }

    /// The L3 that all CPUs share.
    pub(super) fn l3_cache(&mut self) {
        // Some ARM machines have no `id` file: the lowest sharing CPU serves.
        let id = self.agreed(|topology, cpu| {
            let cache = topology.caches.get(cpu.llc?).filter(|cache| cache.level == 3)?;
            cache.id.or_else(|| cache.cpus.first())
        });
        self.set_some(CACHE_L3_ID, id.map(|id| Attribute::Int(id.into())));
    }

    /// One of those that a strategy may ask the host for, with its V2 form. An unknown name is nothing:
    /// a strategy that asks for one does not load.
    pub(super) fn computed(&mut self, name: &str) {
        match name {
            CPU_IDS => {
                self.set(CPU_IDS, Attribute::Text(self.cpus.to_string()));
                self.set(CPU_IDS_V2, Attribute::Text(StridedList(self.cpus).to_string()));
            }
            SMT_LAYOUT => {
                let cores = &self.topology.cores;
                self.set_some(SMT_LAYOUT, smt_layout::v1(cores).map(Attribute::Text));
                self.set(SMT_LAYOUT_V2, Attribute::Text(smt_layout::v2(cores)));
            }
            _ => {}
        }
    }

    pub(super) fn set(&mut self, name: &str, value: Attribute) {
        self.attributes.insert(name.to_owned(), value);
    }

    fn set_some(&mut self, name: &str, value: Option<Attribute>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }

    /// The fact on which all CPUs of the device agree.
    fn agreed<T: PartialEq>(&self, fact: impl Fn(&Topology, &Cpu) -> Option<T>) -> Option<T> {
        let mut facts = self.cpus.iter().map(|cpu| fact(self.topology, self.topology.cpu(cpu)?));
        let first = facts.next()??;
        facts.all(|fact| fact.as_ref() == Some(&first)).then_some(first)
    }
}

/// The socket's number in names and `socketID`: a package id of -1, the kernel's "none", counts as 0.
pub(super) fn socket_number(package: i64) -> i64 {
    package.max(0)
}

/// The PCIe roots that are local to CPUs of the device, as a list even where it is one: an attribute's type
/// is what claims match on.
pub(super) fn add_pcie_roots(device: &mut Device, topology: &Topology) {
    let local = topology.pcie_roots.iter().filter(|root| !root.cpus.is_disjoint(&device.cpus));
    let names: Vec<String> = local.map(|root| root.name.clone()).collect();
    if !names.is_empty() {
        device.attributes.insert(PCIE_ROOT.to_owned(), Attribute::Texts(names));
    }
}

fn int(number: usize) -> Attribute {
    Attribute::Int(i64::try_from(number).expect("a CPU set has at most 8192 CPUs"))
}
