//! Which free CPUs a request gets: as few last-level caches as the free CPUs allow, the tightest of them,
//! whole cores first, one NUMA node if that costs no cache.
//!
//! Per request that is the optimum: the fewest caches are as many as the largest free counts that add up to
//! the request. Over time, filling the tightest cache keeps others whole for large claims.

use crate::layout::{Cell, Cores, Layout, Place, Places};
use dracpu_strategy_sdk::{CpuSet, ascending};

/// What may be chosen from.
#[derive(Debug, Clone)]
pub struct Free<'a> {
    /// The CPUs.
    pub cpus: CpuSet,
    /// Those of them on cores that are free with all their threads.
    pub whole: CpuSet,
    cores: Cores<'a>,
    /// Threads of the widest core.
    threads: usize,
}

impl<'a> Free<'a> {
    /// Those of the CPUs that make up whole cores among themselves.
    #[must_use]
    pub fn on_whole_cores(&self, cpus: &CpuSet) -> CpuSet {
        self.cores.on_whole(cpus)
    }

    /// Of these CPUs. A core with a thread that is reserved, held or outside is not whole.
    #[must_use]
    pub fn of(places: &'a Places, cpus: CpuSet) -> Self {
        Self::on(places.all_threads(), cpus)
    }

    /// The same where a claim has cores to itself: what makes a core whole is then those of its threads that claims are
    /// given at all. The others are kept idle, and are not free for anybody.
    #[must_use]
    pub fn among(places: &'a Places, given: &CpuSet, cpus: CpuSet) -> Self {
        Self::on(places.threads_among(given), cpus)
    }

    fn on(cores: Cores<'a>, cpus: CpuSet) -> Self {
        let whole = cores.on_whole(&cpus);
        Self { whole, threads: cores.widest(&cpus), cpus, cores }
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
    pub fn add(&mut self, places: &Places, cpus: &CpuSet) {
        self.cpus.extend_from(cpus);
        for cpu in cpus {
            add_node(&mut self.nodes, places.of_cpu(cpu));
        }
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
    let mut rooms = vec![0; layout.domains.len()];
    for domain in cpus.iter().filter_map(|cpu| layout.domain_of(cpu)) {
        if let Some(room) = rooms.get_mut(domain) {
            *room += 1;
        }
    }
    rooms
}

/// How many domains it takes at least to hold `count` CPUs, when each has room for so many; none when all
/// together have too little room.
#[must_use]
pub fn fewest(rooms: &[usize], count: usize) -> Option<usize> {
    let mut rest = count;
    let mut largest =
        descending(rooms.len(), &|at| (rooms.get(at).copied().unwrap_or(0), false, 0)).into_iter();
    let mut taken = 0;
    while rest > 0 {
        rest = rest.saturating_sub(*rooms.get(largest.next()?)?);
        taken += 1;
    }
    Some(taken)
}

/// Chooses `count` CPUs, at least one; none when fewer are free.
#[must_use]
pub fn choose(
    places: &Places,
    layout: &Layout,
    free: &Free<'_>,
    count: usize,
    held: &Held,
) -> Option<Choice> {
    let chooser = Chooser::new(places, layout, free, held);
    let all = chooser.parts(Scope::Group);
    let least = fewest(&frees(&all), count)?;
    let (scope, parts) = match least {
        0 | 1 => (Scope::Group, all),
        _ => chooser.narrow(count, least).unwrap_or((Scope::Group, all)),
    };
    let mut choice = Choice { cpus: CpuSet::new(), amounts: Vec::new() };
    let mut nodes = held.nodes.clone();
    let chosen = cover(&parts, count, free.threads, &nodes);
    for ((part, amount), cpus) in chosen.iter().zip(chooser.cpus(scope, &chosen)) {
        let taken = chooser.inside(cpus, *amount, Level::NumaNodes, &nodes);
        for cpu in taken {
            choice.cpus.insert(cpu);
        }
        nodes.extend_from(&part.nodes);
        choice.amounts.push(*amount);
    }
    Some(choice)
}

/// CPUs of the list (ascending): whole cores as far as they fit, the widest first, then CPUs that are alone on their
/// cores, then threads of a further core, the narrowest. What is left over shall be whole cores.
fn by_cores(cores: &Cores<'_>, cpus: &[u32], count: usize) -> Vec<u32> {
    let whole = cores.whole_in(cpus.iter().copied());
    // The whole cores by lowest CPU, and by core whether it is taken.
    let mut found: Vec<(usize, usize)> = Vec::new();
    let mut taken: Vec<Option<bool>> = vec![None; cores.len()];
    for (core, size) in cpus.iter().filter_map(|cpu| whole.core_of(*cpu)) {
        if let Some(known @ None) = taken.get_mut(core) {
            *known = Some(false);
            found.push((core, size));
        }
    }
    let mut rest = count;
    for at in descending(found.len(), &|at| (found.get(at).map_or(0, |(_, size)| *size), false, 0)) {
        let Some((core, size)) = found.get(at).filter(|(_, size)| *size <= rest) else { continue };
        taken.get_mut(*core).map(|taken| taken.replace(true));
        rest -= size;
    }
    let is_taken = |core: usize| taken.get(core).copied().flatten();
    let narrowest =
        found.iter().filter(|(core, _)| is_taken(*core) == Some(false)).min_by_key(|(_, size)| *size);
    let opened = narrowest.map(|(core, _)| *core);
    let core_of = |cpu: &&u32| whole.core_of(**cpu).map(|(core, _)| core);
    let on_whole = cpus.iter().filter(|cpu| core_of(cpu).and_then(is_taken) == Some(true));
    let split = cpus.iter().filter(|cpu| core_of(cpu).is_none());
    let further = cpus.iter().filter(|cpu| opened.is_some() && core_of(cpu) == opened);
    on_whole.chain(split.chain(further).take(rest)).copied().collect()
}

/// Positions from the greatest key to the least; equal ones in their order.
pub(crate) fn descending(count: usize, key: &dyn Fn(usize) -> (usize, bool, usize)) -> Vec<usize> {
    // One number that compares as the three do: counts of CPUs are far below 31 bits.
    let number = |at: usize| {
        let (first, second, third) = key(at);
        (wide(first) << 32) + (u64::from(second) << 31) + wide(third)
    };
    ascending((0..count).map(|at| (!number(at), at)).collect())
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Free CPUs that are taken from together: a domain's, or those of a NUMA node or a cluster in it.
#[derive(Debug, Default)]
struct Part {
    /// Position of the domain, node or cluster.
    position: usize,
    free: usize,
    whole: usize,
    nodes: CpuSet,
    is_held: bool,
}

fn frees(parts: &[Part]) -> Vec<usize> {
    parts.iter().map(|part| part.free).collect()
}

/// Parts in the making, by position; in the order in which they were first asked for.
struct Parts {
    parts: Vec<Part>,
    known: Vec<Option<usize>>,
}

impl Parts {
    fn new(positions: usize) -> Self {
        Self { parts: Vec::new(), known: vec![None; positions] }
    }

    /// The part at this position, and its place in the list.
    fn at(&mut self, position: usize) -> Option<(usize, &mut Part)> {
        let place = *self.known.get_mut(position)?.get_or_insert_with(|| {
            self.parts.push(Part { position, ..Part::default() });
            self.parts.len() - 1
        });
        Some((place, self.parts.get_mut(place)?))
    }
}

/// Where a claim is kept.
#[derive(Debug, Clone, Copy)]
enum Scope {
    Group,
    Node(usize),
    Socket(usize),
}

impl Scope {
    fn holds(self, cell: &Cell) -> bool {
        match self {
            Self::Group => true,
            Self::Node(node) => cell.node == node,
            Self::Socket(socket) => cell.socket == socket,
        }
    }
}

/// What a domain is divided into, from the outside to the inside.
#[derive(Debug, Clone, Copy)]
enum Level {
    NumaNodes,
    Clusters,
    Cores,
}

/// One choice in the making.
struct Chooser<'a> {
    places: &'a Places,
    layout: &'a Layout,
    free: &'a Free<'a>,
    held: &'a Held,
    /// By cell: how many CPUs are free, and how many of them on whole cores.
    counts: Vec<(usize, usize)>,
    /// By domain: what earlier requests hold.
    held_in: Vec<usize>,
}

impl<'a> Chooser<'a> {
    fn new(places: &'a Places, layout: &'a Layout, free: &'a Free<'a>, held: &'a Held) -> Self {
        let mut counts = vec![(0, 0); layout.cells.len()];
        for cpu in &free.cpus {
            if let Some((free_count, whole)) = layout.cell_of(cpu).and_then(|cell| counts.get_mut(cell)) {
                *free_count += 1;
                *whole += usize::from(free.whole.contains(cpu));
            }
        }
        Self { places, layout, free, held, counts, held_in: rooms(layout, &held.cpus) }
    }

    /// The domains, as far as they lie in the scope.
    fn parts(&self, scope: Scope) -> Vec<Part> {
        let mut parts = Parts::new(self.layout.domains.len());
        for (cell, (free, whole)) in self.layout.cells.iter().zip(&self.counts) {
            if *free == 0 || !scope.holds(cell) {
                continue;
            }
            let Some((_, part)) = parts.at(cell.domain) else { continue };
            part.free += free;
            part.whole += whole;
            part.nodes.extend(u32::try_from(cell.node));
            part.is_held = self.held_in.get(cell.domain).is_some_and(|held| *held > 0);
        }
        parts.parts
    }

    /// The NUMA node, else the socket, in which the request takes no more domains than anywhere: of several
    /// the one where the domains that it would take have the least left over.
    fn narrow(&self, count: usize, least: usize) -> Option<(Scope, Vec<Part>)> {
        let nodes = (0..self.places.nodes).map(Scope::Node);
        let sockets = (0..self.places.sockets).map(Scope::Socket);
        self.tightest(count, least, nodes).or_else(|| self.tightest(count, least, sockets))
    }

    fn tightest(
        &self,
        count: usize,
        least: usize,
        scopes: impl Iterator<Item = Scope>,
    ) -> Option<(Scope, Vec<Part>)> {
        let tightness = |scope: Scope| {
            let parts = self.parts(scope);
            if fewest(&frees(&parts), count) != Some(least) {
                return None;
            }
            let chosen = cover(&parts, count, self.free.threads, &self.held.nodes);
            let left: usize = chosen.iter().map(|(part, amount)| part.free - amount).sum();
            Some((left, (scope, parts)))
        };
        scopes.filter_map(tightness).min_by_key(|(left, _)| *left).map(|(_, found)| found)
    }

    /// The free CPUs of each chosen domain, ascending.
    fn cpus(&self, scope: Scope, chosen: &[(&Part, usize)]) -> Vec<Vec<u32>> {
        let mut place_of: Vec<Option<usize>> = vec![None; self.layout.domains.len()];
        for (place, (part, _)) in chosen.iter().enumerate() {
            if let Some(of) = place_of.get_mut(part.position) {
                *of = Some(place);
            }
        }
        let mut cpus: Vec<Vec<u32>> = chosen.iter().map(|(part, _)| Vec::with_capacity(part.free)).collect();
        for cpu in &self.free.cpus {
            let cell = self.layout.cell_of(cpu).and_then(|cell| self.layout.cells.get(cell));
            let place = cell.filter(|cell| scope.holds(cell)).and_then(|cell| *place_of.get(cell.domain)?);
            if let Some(cpus) = place.and_then(|place| cpus.get_mut(place)) {
                cpus.push(cpu);
            }
        }
        cpus
    }

    /// Takes CPUs of one domain by the rule that chose the domain. `nodes` are those that the claim is on.
    fn inside(&self, cpus: Vec<u32>, amount: usize, level: Level, nodes: &CpuSet) -> Vec<u32> {
        if cpus.len() == amount {
            return cpus;
        }
        let (position, positions, next): (fn(Place) -> usize, _, _) = match level {
            Level::NumaNodes => (|place| place.node, self.places.nodes, Level::Clusters),
            // The last position is that of CPUs without cluster.
            Level::Clusters if self.places.has_clusters => {
                (|place| place.cluster, self.places.clusters + 1, Level::Cores)
            }
            Level::Clusters | Level::Cores => return by_cores(&self.free.cores, &cpus, amount),
        };
        let mut parts = Parts::new(positions);
        let mut lists: Vec<Vec<u32>> = Vec::new();
        for cpu in &cpus {
            let Some(place) = self.places.of_cpu(*cpu) else { continue };
            let Some((at, part)) = parts.at(position(place)) else { continue };
            part.free += 1;
            part.whole += usize::from(self.free.whole.contains(*cpu));
            part.is_held |= self.held.cpus.contains(*cpu);
            add_node(&mut part.nodes, Some(place));
            match lists.get_mut(at) {
                Some(list) => list.push(*cpu),
                None => lists.push(vec![*cpu]),
            }
        }
        if lists.len() < 2 {
            return self.inside(cpus, amount, next, nodes);
        }
        let mut taken = Vec::with_capacity(amount);
        for (part, amount) in cover(&parts.parts, amount, self.free.threads, nodes) {
            let list = parts.known.get(part.position).copied().flatten().and_then(|at| lists.get_mut(at));
            taken.extend(self.inside(list.map(std::mem::take).unwrap_or_default(), amount, next, nodes));
        }
        taken
    }
}

/// Takes `count` CPUs from as few parts as possible: which ones, and how many of each.
fn cover<'a>(parts: &'a [Part], count: usize, threads: usize, nodes: &CpuSet) -> Vec<(&'a Part, usize)> {
    let Some(least) = fewest(&frees(parts), count) else { return Vec::new() };
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
        let mut largest = order.iter().take_while(|part| usable(part) == most);
        let part = order.remove(largest.position(|part| !part.nodes.is_disjoint(&nodes)).unwrap_or(0));
        nodes.extend_from(&part.nodes);
        taken.push((part, most));
        rest -= most;
    }
    let fits = order.into_iter().filter(|part| usable(part) >= rest);
    let last = fits.min_by_key(|part| (usable(part), part.nodes.is_disjoint(&nodes), !part.is_held));
    taken.extend(last.map(|part| (part, rest)));
    taken
}

fn add_node(nodes: &mut CpuSet, place: Option<Place>) {
    nodes.extend(place.and_then(|place| u32::try_from(place.node).ok()));
}
