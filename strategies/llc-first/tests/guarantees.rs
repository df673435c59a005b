//! What holds for each decision, whatever is free: on every machine that ships with the program, on those that the
//! benchmark measures, and on captures of real ones in the directory that `DRACPU_CAPTURES` names, if it does.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

use dracpu_strategy_llc_first::LlcFirst;
use dracpu_strategy_sdk::testkit::{Claim, Draw, check_decision, open};
use dracpu_strategy_sdk::{
    Cache, Cpu, CpuKind, CpuSet, Domain, Group, Machine, NumaNode, Socket, State, Strategy,
};
use dracpu_topology::{Topology, examples, machine};
use std::collections::{BTreeMap, BTreeSet};

#[allow(dead_code, reason = "the benchmark needs more of a machine")]
#[path = "../benches/acceptance/machines.rs"]
mod servers;

/// CPUs that the drawn states of one group have in all, so that large machines take no longer.
const CPUS_OF_STATES: usize = 8000;

/// The facts as a strategy gets them, with a group for the machine, its sockets and its NUMA nodes.
fn as_given(topology: &Topology) -> Machine {
    let cpu = |cpu: &dracpu_topology::Cpu| Cpu {
        id: cpu.id,
        core: cpu.core,
        core_id: cpu.core_id.unwrap_or(cpu.id),
        thread: cpu.thread,
        cluster: cpu.cluster,
        die: cpu.die,
        socket: cpu.socket,
        numa_node: cpu.numa_node.unwrap_or(0),
        llc: cpu.llc,
        kind: cpu.kind,
    };
    let node = |node: &dracpu_topology::NumaNode| NumaNode {
        id: node.id,
        memory_bytes: node.memory_bytes,
        distances: node.distances.clone(),
        cpus: node.cpus.clone(),
    };
    let cache = |cache: &dracpu_topology::Cache| Cache {
        level: cache.level,
        id: cache.id.unwrap_or(0),
        size_bytes: cache.size_bytes,
        cpus: cache.cpus.clone(),
    };
    let kind = |(at, kind): (usize, &dracpu_topology::CpuKind)| CpuKind {
        name: kind.name.clone(),
        capacity: kind.capacity,
        cpus: topology.cpus.iter().filter(|cpu| cpu.kind == at).map(|cpu| cpu.id).collect(),
    };
    let mut machine = Machine {
        cpus: topology.cpus.iter().map(cpu).collect(),
        cores: topology.cores.clone(),
        clusters: topology.clusters.clone(),
        dies: topology.dies.clone(),
        sockets: topology.sockets.iter().map(|of| Socket { id: of.id, cpus: of.cpus.clone() }).collect(),
        numa_nodes: topology.numa_nodes.iter().map(node).collect(),
        caches: topology.caches.iter().map(cache).collect(),
        kinds: topology.kinds.iter().enumerate().map(kind).collect(),
        isolated: topology.isolated.clone(),
        ..Machine::default()
    };
    if machine.numa_nodes.is_empty() {
        let cpus = topology.online();
        machine.numa_nodes.push(NumaNode { id: 0, memory_bytes: 0, distances: Vec::new(), cpus });
    }
    let sockets = machine.sockets.iter().map(|socket| &socket.cpus);
    let nodes = machine.numa_nodes.iter().map(|node| &node.cpus).filter(|cpus| !cpus.is_empty());
    let sets =
        std::iter::once(topology.online()).chain(sockets.take(2).cloned()).chain(nodes.take(3).cloned());
    let group = |cpus| Group { device: "cpudev".to_owned(), kind: "machine".to_owned(), cpus };
    machine.groups = sets.map(group).collect();
    machine
}

/// Every machine, by name.
fn machines() -> Vec<(String, Machine)> {
    let examples = examples().iter().map(|example| {
        let topology = machine::example(example.name).unwrap().topology;
        (example.name.to_owned(), as_given(&topology))
    });
    let servers = servers::suite().into_iter().map(|server| (server.name.to_owned(), server.machine));
    let captures = captures().into_iter().map(|path| {
        let topology = machine::load(&path).unwrap().topology;
        (path, as_given(&topology))
    });
    examples.chain(servers).chain(captures).collect()
}

/// Archives of captured machines.
fn captures() -> Vec<String> {
    let Some(dir) = std::env::var_os("DRACPU_CAPTURES") else { return Vec::new() };
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path().display().to_string());
    let mut paths: Vec<String> = paths.filter(|path| path.ends_with(".tar.gz")).collect();
    paths.sort();
    println!("{} captures", paths.len());
    paths
}

/// A claim on a group, and what is free then.
struct Case<'a> {
    machine: &'a Machine,
    group: usize,
    count: usize,
    now: State,
    /// By CPU: what it shares its last-level cache in.
    domain_of: &'a BTreeMap<u32, Domain>,
}

impl Case<'_> {
    fn group(&self) -> &CpuSet {
        &self.machine.groups[self.group].cpus
    }

    fn usable(&self, cpus: &CpuSet) -> CpuSet {
        cpus.intersection(self.group()).difference(&self.machine.isolated)
    }

    /// The fewest domains that hold the claim: sort, and add up. None where the CPUs are too few.
    fn fewest(&self, cpus: &CpuSet) -> Option<usize> {
        let mut rooms: BTreeMap<usize, usize> = BTreeMap::new();
        for cpu in &self.usable(cpus) {
            *rooms.entry(self.machine.number_of(self.domain_of[&cpu])).or_default() += 1;
        }
        let mut rooms: Vec<usize> = rooms.into_values().collect();
        rooms.sort_unstable();
        let (mut room, mut domains) = (0, 0);
        while room < self.count {
            room += rooms.pop()?;
            domains += 1;
        }
        Some(domains)
    }

    /// The free CPUs that a claim without wishes is given of: the fastest kind of core that holds it, else all.
    fn offered(&self) -> CpuSet {
        let usable = self.usable(&self.now.free);
        let mut kinds: Vec<&CpuKind> = self.machine.kinds.iter().collect();
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.capacity));
        let mut of_kinds = kinds.iter().map(|kind| usable.intersection(&kind.cpus));
        of_kinds.find(|cpus| cpus.len() >= self.count).unwrap_or(usable)
    }

    /// What the strategy answers, with these options of the claim.
    fn ask(&self, strategy: &LlcFirst, options: &str) -> Option<CpuSet> {
        let count = self.count.try_into().unwrap();
        let requests = Claim::with(options).request(count).of_group(self.group).requests().unwrap();
        let decision = strategy.allocate(&requests, &self.now).ok()?;
        assert_eq!(check_decision(self.machine, &requests, &self.now, &decision), Ok(()));
        Some(decision.grants[0].cpus.clone())
    }
}

/// What the CPUs of a group share their last-level cache in. A level at which each core has one of its own tells
/// nothing apart.
fn domains(machine: &Machine, group: &CpuSet) -> BTreeMap<u32, Domain> {
    let at = |level| -> BTreeMap<u32, Domain> {
        let cpus = machine.cpus.iter().filter(|cpu| group.contains(cpu.id));
        cpus.map(|cpu| (cpu.id, machine.domain_of(cpu, level))).collect()
    };
    let tells = |of: &BTreeMap<u32, Domain>| {
        of.iter().any(|(cpu, domain)| {
            machine.cpus_of(*domain).unwrap().len() > machine.core_of(*cpu).unwrap().len()
        })
    };
    (Domain::CACHES..Domain::NUMA_NODES).map(at).find(tells).unwrap_or_else(|| at(Domain::NUMA_NODES))
}

/// Tries drawn states and claims on every group of every machine; says how many.
fn try_all(check: &mut dyn FnMut(&str, &LlcFirst, &Case<'_>)) -> usize {
    let mut tried = 0;
    for (seed, (name, machine)) in (0..).zip(machines()) {
        let (strategy, _) = open::<LlcFirst>(machine.clone(), "{}").unwrap();
        let mut draw = Draw::of(seed);
        for (group, of) in machine.groups.iter().enumerate() {
            let domain_of = domains(&machine, &of.cpus);
            let usable = machine.online().difference(&machine.reserved);
            let room = of.cpus.difference(&machine.isolated).len();
            for _ in 0..(CPUS_OF_STATES / machine.cpus.len()).clamp(2, 40) {
                let mut free = usable.clone();
                // Claims hold whole cores, mostly.
                let gone = 2 + draw.below(6);
                for cpu in &draw.some(&usable, gone) {
                    match draw.one_in(4) {
                        true => drop(free.remove(cpu)),
                        false => free.subtract(machine.core_of(cpu).unwrap()),
                    }
                }
                let now = State { free, others: Vec::new() };
                let mut case = Case { machine: &machine, group, count: 0, now, domain_of: &domain_of };
                let most = case.usable(&case.now.free).len();
                if most > 0 {
                    let most = if draw.one_in(3) { most } else { most.min(2 + room / 4) };
                    case.count = 1 + usize::try_from(draw.below(most.try_into().unwrap())).unwrap();
                    check(&name, &strategy, &case);
                    tried += 1;
                }
            }
        }
    }
    tried
}

#[test]
fn every_machine_gives_as_few_caches_as_its_free_cpus_allow_and_refuses_nothing() {
    let tried = try_all(&mut |name, strategy, case| {
        let cpus = case.ask(strategy, "{}").expect("so many are free");
        let touched: BTreeSet<usize> =
            cpus.iter().map(|cpu| case.machine.number_of(case.domain_of[&cpu])).collect();
        let least = case.fewest(&case.offered());
        assert_eq!(Some(touched.len()), least, "{name}: {} of {}", case.count, case.now.free);
    });
    assert!(tried > 1000, "{tried}");
}

#[test]
fn no_machine_splits_a_core_where_whole_ones_cost_no_cache() {
    let mut applied = 0;
    try_all(&mut |name, strategy, case| {
        let group = case.usable(case.group());
        let nodes = case.machine.numa_nodes.iter().filter(|node| !node.cpus.is_disjoint(&group)).count();
        // Where cores differ, whole ones need not add up.
        let Some(threads) = case.machine.threads_per_core(&group).filter(|_| nodes == 1) else { return };
        let threads = usize::try_from(threads).unwrap();
        let offered = case.offered();
        let whole = case.machine.whole_cores(&offered);
        if !case.count.is_multiple_of(threads) || whole.len() < case.count {
            return;
        }
        if case.fewest(&whole) <= case.fewest(&offered) {
            let cpus = case.ask(strategy, "{}").unwrap();
            assert_eq!(case.machine.whole_cores(&cpus), cpus, "{name}: {} of {}", case.count, case.now.free);
            applied += usize::from(threads > 1);
        }
    });
    assert!(applied > 200, "{applied}");
}

#[test]
fn required_alignment_refuses_on_every_machine_what_takes_more_caches_than_when_idle() {
    let (mut served, mut refused) = (0, 0);
    try_all(&mut |name, strategy, case| {
        let answer = case.ask(strategy, r#"{"align":"required"}"#);
        let is_aligned = case.fewest(&case.now.free) <= case.fewest(case.group());
        assert_eq!(answer.is_some(), is_aligned, "{name}: {} of {}", case.count, case.now.free);
        *(if is_aligned { &mut served } else { &mut refused }) += 1;
    });
    assert!(served > 500 && refused > 100, "{served} {refused}");
}
