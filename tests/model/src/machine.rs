//! The machine as far as ownership is concerned, and what its devices are called.

use dracpu_cpuset::CpuSet;
use dracpu_topology::Topology;
use std::collections::{BTreeMap, BTreeSet};

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
    caches: Vec<CpuSet>,
    cores: Vec<CpuSet>,
}

/// What a device stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A NUMA node.
    Numa,
    /// A socket.
    Socket,
    /// A cache of the last level. Its name is a running number.
    Cache,
    /// All of it.
    Machine,
    /// A CPU, of which the scheduler has chosen which one. Its name is a running number.
    Cpu,
}

/// The running numbers of devices, by CPU. They stay what they are while a driver runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Numbers(BTreeMap<u32, usize>);

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
        let mut sockets: BTreeMap<String, CpuSet> = BTreeMap::new();
        for socket in &topology.sockets {
            let name = format!("cpudevsocket{:03}", socket.id.max(0));
            sockets.entry(name).or_default().extend_from(&socket.cpus);
        }
        let mut caches: Vec<CpuSet> = topology.caches.iter().map(|cache| cache.cpus.clone()).collect();
        if caches.is_empty() {
            caches.push(topology.online());
        }
        Self {
            name: name.to_owned(),
            cpus: topology.online(),
            isolated: topology.isolated.clone(),
            numa,
            sockets,
            caches,
            cores: topology.cores.clone(),
        }
    }

    /// Devices by name, with all CPUs that they may have.
    #[must_use]
    pub fn devices(&self, kind: Kind, numbers: &Numbers) -> BTreeMap<String, CpuSet> {
        match kind {
            Kind::Numa => self.numa.clone(),
            Kind::Socket => self.sockets.clone(),
            Kind::Machine => BTreeMap::from([("cpudevmachine".to_owned(), self.cpus.clone())]),
            Kind::Cache => {
                let number = |cache: &&CpuSet| cache.iter().find_map(|cpu| numbers.0.get(&cpu));
                let named = self.caches.iter().filter_map(|cache| Some((number(&cache)?, cache.clone())));
                named.map(|(number, cache)| (format!("cpudevllc{number:03}"), cache)).collect()
            }
            Kind::Cpu => {
                let named = numbers.0.iter().filter(|(cpu, _)| !self.isolated.contains(**cpu));
                named.map(|(cpu, number)| (format!("cpudev{number:03}"), CpuSet::from([*cpu]))).collect()
            }
        }
    }

    /// The numbers of devices that a driver gives when it starts: caches in the order of their lowest CPUs; the CPUs
    /// of a core next to each other, cores in the order of their lowest CPUs.
    #[must_use]
    pub fn numbers(&self, kind: Kind, online: &CpuSet, reserved: &CpuSet) -> Numbers {
        let units = self.numbered(kind, online, reserved).into_iter().enumerate();
        let each = units.flat_map(|(number, cpus)| cpus.into_iter().map(move |cpu| (cpu, number)));
        Numbers(each.filter(|(cpu, _)| !reserved.contains(*cpu)).collect())
    }

    /// What has come since has numbers behind all that there were.
    pub fn number_new(&self, kind: Kind, online: &CpuSet, reserved: &CpuSet, numbers: &mut Numbers) {
        let published =
            numbers.0.iter().filter(|(cpu, _)| kind == Kind::Cache || !self.isolated.contains(**cpu));
        let mut next = published.map(|(_, number)| number + 1).max().unwrap_or(0);
        for cpus in self.numbered(kind, online, reserved) {
            let cpus: BTreeSet<u32> = cpus.into_iter().filter(|cpu| !reserved.contains(*cpu)).collect();
            let isolated = kind == Kind::Cpu && cpus.iter().all(|cpu| self.isolated.contains(*cpu));
            if cpus.is_empty() || isolated {
                continue;
            }
            let number = cpus.iter().find_map(|cpu| numbers.0.get(cpu)).copied().unwrap_or_else(|| {
                next += 1;
                next - 1
            });
            numbers.0.extend(cpus.into_iter().map(|cpu| (cpu, number)));
        }
    }

    /// What has a running number, in the order of the numbers.
    fn numbered(&self, kind: Kind, online: &CpuSet, reserved: &CpuSet) -> Vec<Vec<u32>> {
        let in_order = |sets: &[CpuSet], away: &CpuSet| {
            let sets = sets.iter().map(|set| set.intersection(online).difference(away));
            let mut sets: Vec<Vec<u32>> = sets.map(|set| set.iter().collect()).collect();
            sets.retain(|set| !set.is_empty());
            sets.sort();
            sets
        };
        match kind {
            Kind::Cache => in_order(&self.caches, &CpuSet::new()),
            Kind::Cpu => in_order(&self.cores, reserved).into_iter().flatten().map(|cpu| vec![cpu]).collect(),
            Kind::Numa | Kind::Socket | Kind::Machine => Vec::new(),
        }
    }
}
