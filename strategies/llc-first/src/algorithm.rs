//! Which free CPUs a request gets: as few last-level caches as the free CPUs allow, the tightest of them,
//! whole cores first, one NUMA node if that costs no cache.
//!
//! Per request that is the optimum: the fewest caches are as many as the largest free counts that add up to
//! the request. Over time, filling the tightest cache keeps others whole for large claims.

use crate::layout::Layout;
use dracpu_strategy_sdk::{Cpu, CpuSet, Machine};

/// What may be chosen from.
#[derive(Debug, Clone)]
pub struct Free {
    /// The CPUs.
    pub cpus: CpuSet,
    /// Those of them on cores that are free with all their threads. A core with a thread that is reserved,
    /// held or outside is not.
    pub whole: CpuSet,
}

impl Free {
    /// Of these CPUs.
    #[must_use]
    pub fn of(machine: &Machine, cpus: CpuSet) -> Self {
        let mut whole = CpuSet::new();
        for core in cores_within(machine, &cpus) {
            whole.extend_from(core);
        }
        Self { cpus, whole }
    }
}

/// What earlier requests of the claim hold: it costs nothing to leave it, but it decides ties.
#[derive(Debug, Clone, Default)]
pub struct Held {
    /// CPUs.
    pub cpus: CpuSet,
    /// Positions of their NUMA nodes.
    pub nodes: CpuSet,
}

impl Held {
    /// Adds CPUs.
    pub fn add(&mut self, machine: &Machine, cpus: &CpuSet) {
        self.cpus.extend_from(cpus);
        self.nodes.extend(cpus.iter().filter_map(|cpu| machine.cpu(cpu)).map(node));
    }
}

/// What was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The CPUs, as many as asked.
    pub cpus: CpuSet,
    /// How many of them lie in each domain that was touched.
    pub amounts: Vec<usize>,
}

/// How many of the CPUs lie in each domain.
#[must_use]
pub fn rooms(layout: &Layout, cpus: &CpuSet) -> Vec<usize> {
    layout.domains.iter().map(|domain| domain.cpus.intersection_len(cpus)).collect()
}

/// How many domains it takes at least to hold `count` CPUs, when each has room for so many; none when all
/// together have too little room.
#[must_use]
pub fn fewest(rooms: &[usize], count: usize) -> Option<usize> {
    let room = |at: usize| rooms.get(at).copied().unwrap_or(0);
    let (mut rest, mut taken) = (count, 0);
    for at in descending(rooms.len(), &|at| (room(at), false, 0)) {
        if rest == 0 {
            break;
        }
        rest = rest.saturating_sub(room(at));
        taken += 1;
    }
    (rest == 0).then_some(taken)
}

/// Chooses `count` CPUs, at least one; none when fewer are free.
#[must_use]
pub fn choose(machine: &Machine, layout: &Layout, free: &Free, count: usize, held: &Held) -> Option<Choice> {
    let least = fewest(&rooms(layout, &free.cpus), count)?;
    let narrowed = if least > 1 { narrow(layout, free, count, least, held) } else { None };
    let parts = narrowed.unwrap_or_else(|| domains(layout, free, 0..layout.domains.len(), None, held));
    let mut choice = Choice { cpus: CpuSet::new(), amounts: Vec::new() };
    let mut held = held.clone();
    for (part, amount) in cover(&parts, count, layout.threads, &held.nodes) {
        let cpus = inside(machine, layout, part, amount, Level::NumaNodes, &held);
        held.add(machine, &cpus);
        choice.cpus.extend_from(&cpus);
        choice.amounts.push(amount);
    }
    Some(choice)
}

/// The first CPUs on whole cores, as far as they fit, then those that are alone on their cores, then threads
/// of a further core: what is left over shall be whole cores.
#[must_use]
pub fn by_cores(machine: &Machine, cpus: &CpuSet, count: usize) -> CpuSet {
    let mut taken = CpuSet::new();
    let mut rest = count;
    let mut split = cpus.clone();
    let mut opened = None;
    for core in cores_within(machine, cpus) {
        split.subtract(core);
        if core.len() <= rest {
            taken.extend_from(core);
            rest -= core.len();
        } else {
            opened = opened.or(Some(core));
        }
    }
    taken.extend(split.iter().chain(opened.into_iter().flatten()).take(rest));
    taken
}

/// Positions from the greatest key to the least; equal ones in their order.
pub(crate) fn descending(count: usize, key: &dyn Fn(usize) -> (usize, bool, usize)) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..count).collect();
    positions.sort_by_key(|at| std::cmp::Reverse(key(*at)));
    positions
}

/// Free CPUs that are taken from together: a domain's, or those of a NUMA node or a cluster in it.
#[derive(Debug)]
struct Part {
    cpus: CpuSet,
    free: usize,
    whole: usize,
    nodes: CpuSet,
    is_held: bool,
}

/// The free CPUs of domains, within a scope.
fn domains(
    layout: &Layout,
    free: &Free,
    positions: impl Iterator<Item = usize>,
    scope: Option<&CpuSet>,
    held: &Held,
) -> Vec<Part> {
    let part = |domain: &crate::layout::Domain| {
        let mut cpus = domain.cpus.intersection(&free.cpus);
        if let Some(scope) = scope {
            cpus = cpus.intersection(scope);
        }
        let (free, whole) = (cpus.len(), free.whole.intersection_len(&cpus));
        Part { cpus, free, whole, nodes: domain.nodes.clone(), is_held: !domain.cpus.is_disjoint(&held.cpus) }
    };
    positions.filter_map(|position| layout.domains.get(position)).map(part).collect()
}

/// The domains of one NUMA node, else of one socket, in which the request takes no more of them than
/// anywhere: of several the one that is left with the least in the domains it would take.
fn narrow(layout: &Layout, free: &Free, count: usize, least: usize, held: &Held) -> Option<Vec<Part>> {
    for scopes in &layout.scopes {
        let mut best: Option<(usize, Vec<Part>)> = None;
        for scope in scopes {
            if scope.cpus.intersection_len(&free.cpus) < count {
                continue;
            }
            let parts = domains(layout, free, scope.domains.iter().copied(), Some(&scope.cpus), held);
            let counts: Vec<usize> = parts.iter().map(|part| part.free).collect();
            if fewest(&counts, count) != Some(least) {
                continue;
            }
            let chosen = cover(&parts, count, layout.threads, &held.nodes);
            let left = chosen.iter().map(|(part, amount)| part.free - amount).sum();
            if best.as_ref().is_none_or(|(least_left, _)| left < *least_left) {
                best = Some((left, parts));
            }
        }
        if let Some((_, parts)) = best {
            return Some(parts);
        }
    }
    None
}

/// Takes `count` CPUs from as few parts as possible: which ones, and how many of each.
fn cover<'a>(parts: &'a [Part], count: usize, threads: usize, nodes: &CpuSet) -> Vec<(&'a Part, usize)> {
    let frees: Vec<usize> = parts.iter().map(|part| part.free).collect();
    let Some(least) = fewest(&frees, count) else { return Vec::new() };
    let odd = count % threads;
    if least <= 1 {
        // The tightest; but rather one where the claim splits no core that is whole.
        let tightness = |part: &&Part| {
            let on_split_cores = (count - odd).saturating_sub(part.whole);
            let opens_core = odd > 0 && part.free - part.whole < odd;
            (on_split_cores, part.free - count, opens_core, !part.is_held)
        };
        let best = parts.iter().filter(|part| part.free >= count).min_by_key(tightness);
        return best.map(|part| (part, count)).into_iter().collect();
    }
    let wholes: Vec<usize> = parts.iter().map(|part| part.whole).collect();
    let whole_cores = odd == 0 && fewest(&wholes, count).is_some_and(|needed| needed <= least);
    let usable = |part: &Part| if whole_cores { part.whole } else { part.free };
    let order = descending(parts.len(), &|at| {
        parts.get(at).map_or((0, false, 0), |part| (usable(part), part.is_held, part.whole))
    });
    let mut order: Vec<&Part> = order.into_iter().filter_map(|at| parts.get(at)).collect();
    let mut nodes = nodes.clone();
    let mut taken = Vec::new();
    let mut rest = count;
    // All but the last are taken whole, the largest first: only so are they the fewest.
    for _ in 1..least {
        let most = order.first().map_or(0, |part| usable(part));
        let largest = order.iter().take_while(|part| usable(part) == most);
        let position = largest.map(|part| &part.nodes).position(|of| !of.is_disjoint(&nodes));
        let part = order.remove(position.unwrap_or(0));
        nodes.extend_from(&part.nodes);
        taken.push((part, most));
        rest -= most;
    }
    let fits = order.into_iter().filter(|part| usable(part) >= rest);
    let last = fits.min_by_key(|part| (usable(part), part.nodes.is_disjoint(&nodes), !part.is_held));
    taken.extend(last.map(|part| (part, rest)));
    taken
}

/// What a domain is divided into, from the outside to the inside.
#[derive(Debug, Clone, Copy)]
enum Level {
    NumaNodes,
    Clusters,
    Cores,
}

/// Takes CPUs of one domain by the rule that chose the domain.
fn inside(
    machine: &Machine,
    layout: &Layout,
    part: &Part,
    amount: usize,
    level: Level,
    held: &Held,
) -> CpuSet {
    if part.free == amount {
        return part.cpus.clone();
    }
    let (parts, next) = match level {
        Level::NumaNodes => (divide(machine, part, held, node), Level::Clusters),
        Level::Clusters => {
            let parts = divide(machine, part, held, cluster);
            // A cluster that is a core divides nothing.
            let is_coarse = part.cpus.iter().filter_map(|cpu| machine.cpu(cpu)).any(|cpu| {
                let cluster = cpu.cluster.and_then(|at| machine.clusters.get(at)).map_or(0, CpuSet::len);
                cluster > machine.cores.get(cpu.core).map_or(0, CpuSet::len)
            });
            (if is_coarse { parts } else { Vec::new() }, Level::Cores)
        }
        Level::Cores => return by_cores(machine, &part.cpus, amount),
    };
    if parts.len() < 2 {
        return inside(machine, layout, part, amount, next, held);
    }
    let mut taken = CpuSet::new();
    for (part, amount) in cover(&parts, amount, layout.threads, &held.nodes) {
        taken.extend_from(&inside(machine, layout, part, amount, next, held));
    }
    taken
}

/// The part by what its CPUs have in common, in the order of their lowest CPUs.
fn divide(machine: &Machine, part: &Part, held: &Held, common: fn(&Cpu) -> u32) -> Vec<Part> {
    let mut divided: Vec<(u32, CpuSet)> = Vec::new();
    for cpu in part.cpus.iter().filter_map(|cpu| machine.cpu(cpu)) {
        let key = common(cpu);
        match divided.iter_mut().rev().find(|(known, _)| *known == key) {
            Some((_, cpus)) => drop(cpus.insert(cpu.id)),
            None => divided.push((key, CpuSet::from([cpu.id]))),
        }
    }
    let part = |(_, cpus): (u32, CpuSet)| Part {
        free: cpus.len(),
        whole: cores_within(machine, &cpus).map(CpuSet::len).sum(),
        nodes: cpus.first().and_then(|cpu| machine.cpu(cpu)).map(node).into_iter().collect(),
        is_held: !held.cpus.is_disjoint(&cpus),
        cpus,
    };
    divided.into_iter().map(part).collect()
}

fn node(cpu: &Cpu) -> u32 {
    u32::try_from(cpu.numa_node).unwrap_or(u32::MAX)
}

fn cluster(cpu: &Cpu) -> u32 {
    cpu.cluster.and_then(|cluster| u32::try_from(cluster).ok()).unwrap_or(u32::MAX)
}

/// The cores that lie in the set with all their threads, by lowest CPU.
fn cores_within<'a>(machine: &'a Machine, cpus: &'a CpuSet) -> impl Iterator<Item = &'a CpuSet> {
    let lowest = cpus.iter().filter_map(|cpu| Some((cpu, machine.core_of(cpu)?)));
    lowest.filter(|(cpu, core)| core.first() == Some(*cpu) && core.is_subset(cpus)).map(|(_, core)| core)
}
