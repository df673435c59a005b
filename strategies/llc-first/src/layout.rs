use dracpu_strategy_sdk::{Cpu, CpuSet, Group, Machine};

/// What the algorithm needs to know of one group, worked out once: its domains and where they lie.
#[derive(Debug)]
pub struct Layout {
    /// CPUs that may be given out: those of the group that are not isolated.
    pub usable: CpuSet,
    /// The sets of CPUs of which a claim shall touch as few as possible, by lowest CPU.
    pub domains: Vec<Domain>,
    /// NUMA nodes with CPUs of the group, then sockets: where to keep a claim that needs several domains.
    pub scopes: [Vec<Scope>; 2],
    /// Threads of the widest core.
    pub threads: usize,
}

/// A last-level cache, or what stands for one where the kernel shows none.
#[derive(Debug)]
pub struct Domain {
    /// Its usable CPUs.
    pub cpus: CpuSet,
    /// Positions of the NUMA nodes of those CPUs.
    pub nodes: CpuSet,
    /// Position in [`Machine::caches`].
    pub cache: Option<usize>,
}

/// A NUMA node or a socket.
#[derive(Debug)]
pub struct Scope {
    /// Its CPUs.
    pub cpus: CpuSet,
    /// Positions of the domains that have usable CPUs in it.
    pub domains: Vec<usize>,
}

/// What can be a domain, from the best to the last resort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Cache(usize),
    Cluster(usize),
    Die(usize),
    Node(usize),
}

impl Unit {
    const LAST_LEVEL: u8 = 3;
}

impl Layout {
    /// The layout of a group.
    #[must_use]
    pub fn of(machine: &Machine, group: &Group) -> Self {
        let usable = group.cpus.difference(&machine.isolated);
        let threads = group.cpus.iter().filter_map(|cpu| machine.core_of(cpu)).map(CpuSet::len);
        let threads = threads.max().unwrap_or(1);
        // A cache of its own for each core (as on POWER) tells nothing apart: look one level up.
        let mut level = 0;
        let domains = loop {
            let (domains, are_cores) = domains(machine, &group.cpus, &usable, level);
            if !are_cores || level == Unit::LAST_LEVEL {
                break domains;
            }
            level += 1;
        };
        let scope = |cpus: &CpuSet| Scope {
            cpus: cpus.clone(),
            domains: domains
                .iter()
                .enumerate()
                .filter(|(_, domain)| !domain.cpus.is_disjoint(cpus))
                .map(|(position, _)| position)
                .collect(),
        };
        let nodes = machine.numa_nodes.iter().map(|node| scope(&node.cpus));
        let sockets = machine.sockets.iter().map(|socket| scope(&socket.cpus));
        let scopes = [
            nodes.filter(|scope| !scope.domains.is_empty()).collect(),
            sockets.filter(|scope| !scope.domains.is_empty()).collect(),
        ];
        Self { usable, domains, scopes, threads }
    }
}

/// The domains of usable CPUs, of units from `level` on, and whether each of those units is a single core.
fn domains(machine: &Machine, group: &CpuSet, usable: &CpuSet, level: u8) -> (Vec<Domain>, bool) {
    let mut units: Vec<Unit> = Vec::new();
    let mut domains: Vec<Domain> = Vec::new();
    let mut single_cores = true;
    for cpu in group.iter().filter_map(|id| machine.cpu(id)) {
        let unit = unit(machine, cpu, level);
        let position = units.iter().rposition(|known| *known == unit).unwrap_or_else(|| {
            units.push(unit);
            let cache = if let Unit::Cache(cache) = unit { Some(cache) } else { None };
            domains.push(Domain { cpus: CpuSet::new(), nodes: CpuSet::new(), cache });
            let core = machine.cores.get(cpu.core);
            single_cores &= core.is_none_or(|core| unit_cpus(machine, unit).is_subset(core));
            units.len() - 1
        });
        if let Some(domain) = domains.get_mut(position)
            && usable.contains(cpu.id)
        {
            domain.cpus.insert(cpu.id);
            domain.nodes.insert(u32::try_from(cpu.numa_node).unwrap_or(u32::MAX));
        }
    }
    domains.retain(|domain| !domain.cpus.is_empty());
    (domains, single_cores)
}

fn unit(machine: &Machine, cpu: &Cpu, level: u8) -> Unit {
    let cache = cpu.llc.filter(|_| level == 0).map(Unit::Cache);
    let cluster = || cpu.cluster.filter(|_| level <= 1).map(Unit::Cluster);
    let die = || {
        let (die, socket) = (machine.dies.get(cpu.die)?, machine.sockets.get(cpu.socket)?);
        (level <= 2 && die.len() < socket.cpus.len()).then_some(Unit::Die(cpu.die))
    };
    cache.or_else(cluster).or_else(die).unwrap_or(Unit::Node(cpu.numa_node))
}

fn unit_cpus(machine: &Machine, unit: Unit) -> &CpuSet {
    static NONE: CpuSet = CpuSet::new();
    let cpus = match unit {
        Unit::Cache(position) => machine.caches.get(position).map(|cache| &cache.cpus),
        Unit::Cluster(position) => machine.clusters.get(position),
        Unit::Die(position) => machine.dies.get(position),
        Unit::Node(position) => machine.numa_nodes.get(position).map(|node| &node.cpus),
    };
    cpus.unwrap_or(&NONE)
}
