//! The machine as far as ownership is concerned, and what its devices are called.

use dracpu_cpuset::CpuSet;
use dracpu_topology::Topology;
use std::collections::BTreeMap;

/// The machine with all of its CPUs online.
#[derive(Debug, Clone)]
pub struct Machine {
    /// As `--machine` takes it.
    pub name: String,
    /// CPUs that run at first.
    pub cpus: CpuSet,
    /// CPUs that the kernel keeps its scheduler off.
    pub isolated: CpuSet,
    numa: BTreeMap<String, CpuSet>,
    sockets: BTreeMap<String, CpuSet>,
}

impl Machine {
    /// The machine of this name.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let machine = dracpu_topology::machine::load(name).unwrap_or_else(|error| panic!("{error}"));
        Self::of(name, &machine.topology)
    }

    /// A machine from its facts.
    #[must_use]
    pub fn of(name: &str, topology: &Topology) -> Self {
        let mut numa: BTreeMap<String, CpuSet> = topology
            .numa_nodes
            .iter()
            .filter(|node| !node.cpus.is_empty())
            .map(|node| (format!("cpudevnuma{:03}", node.id), node.cpus.clone()))
            .collect();
        if topology.numa_nodes.is_empty() {
            numa.insert("cpudevnuma000".to_owned(), topology.online());
        }
        let sockets = topology
            .sockets
            .iter()
            .map(|socket| (format!("cpudevsocket{:03}", socket.id.max(0)), socket.cpus.clone()))
            .collect();
        Self {
            name: name.to_owned(),
            cpus: topology.online(),
            isolated: topology.isolated.clone(),
            numa,
            sockets,
        }
    }

    /// Devices by name, with their CPUs; `group_by` as in the configuration.
    #[must_use]
    pub fn devices(&self, group_by: &str) -> BTreeMap<String, CpuSet> {
        match group_by {
            "socket" => self.sockets.clone(),
            "machine" => BTreeMap::from([("cpudevmachine".to_owned(), self.cpus.clone())]),
            _ => self.numa.clone(),
        }
    }
}
